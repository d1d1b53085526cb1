"""Fakes around a history: an agent that the test controls, a GitHub that only says yes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bot.agents.driver import AgentEvent, Block, Cancelled, Launch, Outcome, PromptLimits, SessionOpened
from bot.agents.prompt_loop import AgentDriver
from bot.github.answers import Blocker, Pull
from bot.github.errors import NotFound
from bot.github.graphql import Answer, Path
from bot.model import Actor, Repository
from bot.store.turns import ClaimedTurn
from bot.turn.context import TurnContext
from bot.turn.kind import Confirmed


class QuietGitHub:
    """The GitHub that runs need, without HTTP."""

    async def permission(self, repository: Repository, person: Actor) -> tuple[str, str]:
        return "write", person.login

    async def as_named_now(self, repository: Repository) -> Repository:
        return repository

    async def is_protected(self, repository: Repository, branch: str) -> bool:
        return False

    async def branch_rules(self, repository: Repository, branch: str, *, is_there: bool = True) -> frozenset[str]:
        return frozenset()

    async def ask(self, repository: Repository, document: str, need: Path | None, **variables: object) -> Answer:
        raise NotFound("no thread is told here")

    async def pulls_of(self, repository: Repository, branch: str) -> tuple[Pull, ...]:
        return ()

    async def merged_head(self, repository: Repository, branch: str) -> str | None:
        return None

    async def blockers(self, repository: Repository, number: int) -> tuple[list[Blocker], int]:
        return [], 0


async def as_asked(ctx: TurnContext, turn: ClaimedTurn) -> Confirmed:
    """Confirm every request: there is no thread that could show another one."""
    return Confirmed(turn.ask, frozenset())


class ManualAgent(AgentDriver):
    """The agent of one turn: it waits while the test does its work in the worktree."""

    def __init__(self, arrival: "asyncio.Future[ManualAgent]") -> None:
        super().__init__()
        self._arrival = arrival
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def _open(self, resume: str | None) -> SessionOpened:
        return SessionOpened(resume or "a session", resumed=resume is not None, lost=None)

    async def prompt(
        self, blocks: Sequence[Block], limits: PromptLimits, stop: asyncio.Event, on_event: Callable[[AgentEvent], None]
    ) -> Outcome:
        self._arrival.set_result(self)
        stopped = asyncio.ensure_future(stop.wait())
        both: set[asyncio.Future[Any]] = {stopped, self.outcome}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return self.outcome.result() if self.outcome.done() else Cancelled()
        finally:
            stopped.cancel()

    async def aclose(self) -> None:
        return


ARRIVALS: dict[str, asyncio.Future[ManualAgent]] = {}
"""The waiters for an agent at work, by worktree: one turn in each."""


@asynccontextmanager
async def manual_agent(_: str, launch: Launch) -> AsyncIterator[ManualAgent]:
    """Yield the agent of the turn that expects one in this worktree."""
    yield ManualAgent(ARRIVALS[str(launch.cwd)])
