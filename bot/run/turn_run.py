"""One run of a turn: what it knows for the turn's last comment, how it writes, and how it stops."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from bot.clones.clone import StoppedError
from bot.messages import commit_message, notices, reasons
from bot.messages.tracking import TurnResult
from bot.model import ThreadRef
from bot.node.transactions import persist
from bot.run.context import TurnContext
from bot.run.progress import Progress
from bot.store import turns
from bot.store.database import Connection
from bot.store.failures import log_failure
from bot.store.turns import ClaimedTurn, ClaimLostError
from bot.tasks import unless

STOP_POLL_SECONDS = 2.0
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Known:
    """What a run knows so far for the turn's last comment, however the turn ends."""

    notices: list[str]
    answer: str | None
    read: tuple[str, ...]
    cost_usd: float | None
    tokens: int | None
    model: str
    branch: str | None
    head_before: str = ""
    """The commit at which the turn began."""

    def added_to(self, end: TurnResult) -> TurnResult:
        """Return the end with all that is known. An answer is shown, however the turn ends."""
        answer = commit_message.split_subject(self.answer)[0] if self.answer is not None else ""
        return replace(
            end,
            answer=end.answer or answer,
            notices=tuple(dict.fromkeys(self.notices)),
            read=self.read,
            cost_usd=self.cost_usd,
            tokens=self.tokens,
            model=self.model,
        )


@dataclass(slots=True)
class TurnRun:
    """One run of a claimed turn. Every effect is written under its claim."""

    ctx: TurnContext
    turn: ClaimedTurn
    known: Known = field(init=False)
    progress: Progress = field(init=False)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the turn is to stop: the agent and a push end by themselves then."""
    disk_full: str | None = None

    def __post_init__(self) -> None:
        turn = self.turn
        use, known_as, branch = turn.use, self.ctx.agent, turn.worktree.branch
        self.known = Known([*turn.notices], turn.answer, turn.read, use.cost_usd, use.tokens, known_as, branch)
        if turn.resuming and not turn.was_put_back:
            self.known.notices.append(notices.RESUMED_AFTER_CUT_OFF)
        self.progress = Progress(self.ctx.redactor.redact, turn.steps)

    @property
    def thread_ref(self) -> ThreadRef:
        """The thread that asked."""
        return ThreadRef(self.turn.worktree.repository, self.turn.conversation_id)

    def look_again(self) -> None:
        """Stop now: the turn was asked to stop, and the next look at the row is seconds away."""
        self.stop.set()

    def disk_overflowed(self, limit_bytes: int) -> None:
        """Stop: the agent has filled its disk."""
        self.disk_full = reasons.disk_full(limit_bytes)
        self.stop.set()

    async def write(
        self, write: Callable[Concatenate[Connection, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call `write` in a transaction, as `persist`."""
        return await persist(self.ctx.pool, write, *args, **kwargs)

    async def unless_stopped(self, work: Awaitable[T]) -> T:
        """Return the result of `work`; raise StoppedError, once `work` has ended, if the turn is to stop before."""

        async def stopping() -> NoReturn:
            await self.stop.wait()
            raise StoppedError

        return await unless(stopping(), work)

    async def watch(self) -> NoReturn:
        """Look at the row now and then, for a stop whose notification was lost. Raises ClaimLostError."""
        while True:
            try:
                async with self.ctx.pool.acquire() as connection:
                    if await turns.stop_requested(connection, self.turn.claim) is not None:
                        self.stop.set()
            except ClaimLostError:
                raise
            except Exception as problem:  # noqa: BLE001 - a look that fails costs no turn its agent
                log_failure("turn-watch", problem)
            await asyncio.sleep(STOP_POLL_SECONDS)

    async def stopped(self) -> TurnResult:
        """Return the end of a turn that was stopped, with the reason. Raises ClaimLostError."""
        if self.disk_full is not None:
            return TurnResult("failed", self.disk_full)
        reason = await self.write(turns.stop_requested, self.turn.claim)
        return TurnResult("stopped", reason or reasons.stopped_by(None))
