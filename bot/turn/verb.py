"""The table of verbs, as the machine and what decides on requests see it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from bot.ask import Ask
from bot.rules import Rules
from bot.store.audit import record_command
from bot.store.database import Connection
from bot.thread import replies
from bot.turn.kind import Kind
from bot.turn.parsing import Command, UnknownCommand
from bot.turn.request import Handler, RequestContext


async def _nothing(connection: Connection, conversation_id: int) -> None:
    return None


async def _nothing_waits(connection: Connection, conversation_id: int) -> list[str]:
    return []


async def _nothing_more(connection: Connection, conversation_id: int, rules: Rules) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What people can ask for: its chat commands, the kinds of its turns, and its part in what others ask.

    `recorded` are words of its commands that the audit keeps. `variants` are kinds that the row does not name: each
    with the verb of the row, and the key in `Ask.of` by which it is known.
    """

    commands: tuple[Handler, ...] = ()
    kinds: tuple[Kind, ...] = ()
    variants: tuple[tuple[str, str, Kind], ...] = ()
    recorded: tuple[str, ...] = ()
    waits: Callable[[Connection, int], Awaitable[list[str]]] = _nothing_waits
    """Return what waits for a person in a conversation, a line of `/status` each."""
    at_stop: Callable[[Connection, int], Awaitable[None]] = _nothing
    """Called when somebody stops the turns of a conversation, or closes it."""
    at_end: Callable[[Connection, int, Rules], Awaitable[None]] = _nothing_more
    """Called last in the transaction that ends any turn of a conversation."""


class Verbs:
    """All verbs, in the order in which `/help` lists their commands."""

    def __init__(self, verbs: Sequence[Verb]) -> None:
        self._verbs = verbs
        self.commands = {command.name: command for verb in verbs for command in verb.commands}
        self.kinds = {kind.name: kind for verb in verbs for kind in verb.kinds}
        self._variants = [variant for verb in verbs for variant in verb.variants]
        self._recorded = frozenset(words for verb in verbs for words in verb.recorded)

    def kind_of(self, ask: Ask) -> Kind:
        """Return the kind of turn that was asked for; a run may settle on another one."""
        found = (kind for verb, key, kind in self._variants if ask.verb == verb and key in ask.of)
        return next(found, None) or self.kinds[ask.verb]

    async def waits(self, connection: Connection, conversation_id: int) -> list[str]:
        """Return what waits for a person, a line each."""
        return [line for verb in self._verbs for line in await verb.waits(connection, conversation_id)]

    async def at_stop(self, connection: Connection, conversation_id: int) -> None:
        """Do what verbs do when the turns of a conversation are stopped, or it is closed."""
        for verb in self._verbs:
            await verb.at_stop(connection, conversation_id)

    async def at_end(self, connection: Connection, conversation_id: int, rules: Rules) -> None:
        """Do what verbs do after any turn of a conversation, last in the transaction that ends it."""
        for verb in self._verbs:
            await verb.at_end(connection, conversation_id, rules)

    async def run(self, ctx: RequestContext, command: Command | UnknownCommand) -> None:
        """Run one command of a comment, in the caller's transaction."""
        handler = self.commands.get(command.name) if isinstance(command, Command) else None
        if ctx.silent_until is not None and not (handler and handler.runs_in_silence):
            await ctx.be_silent()
            return
        await ctx.acknowledge()
        match command:
            case Command(name=name, argument=argument):
                await self.commands[name].run(ctx, argument)
                words = f"{name} {argument}" if argument else name
                if words in self._recorded and not ctx.request.is_operators:
                    of = (ctx.repository.full_name, ctx.number, ctx.conversation_id)
                    await record_command(ctx.connection, ctx.author.login, words, *of)
            case UnknownCommand(words=words):
                await ctx.reply(replies.unknown_command(words, self.commands))
            case _:
                assert_never(command)
