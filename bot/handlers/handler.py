"""The description of a chat command: how it is written, what it needs, what it does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bot.handlers.command import CommandSyntax
from bot.handlers.context import RequestContext


@dataclass(frozen=True, slots=True)
class Handler:
    """One chat command. `run` gets its argument and works in the caller's transaction; `summary` is shown by `/help`.

    `queues_turn`: it may start a turn, so GitHub is asked about the pull request before the transaction begins.
    """

    syntax: CommandSyntax
    summary: str
    run: Callable[[RequestContext, str | None], Awaitable[None]]
    queues_turn: bool = False

    @property
    def name(self) -> str:
        """The command's name without the slash."""
        return self.syntax.name
