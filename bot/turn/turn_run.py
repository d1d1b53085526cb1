"""One run of a claimed turn: what its last comment will tell, how it writes, and how it stops."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Concatenate, NoReturn, ParamSpec, TypeVar

from bot.ask import Ask
from bot.model import Repository, ThreadRef
from bot.node.transactions import persist
from bot.node.variables import know_variables
from bot.redaction import Redactor
from bot.rules import Rules
from bot.store import turns
from bot.store.database import Connection
from bot.store.failures import log_failure
from bot.store.turns import ClaimedTurn, ClaimLostError
from bot.tasks import unless
from bot.thread import notices, reasons, tracking
from bot.thread.outcome import Check
from bot.thread.reasons import CapReached
from bot.thread.tracking import AskedBy
from bot.tree import StoppedError, Tree
from bot.turn.context import TurnContext
from bot.turn.kind import Kind
from bot.turn.message_rows import Message
from bot.turn.progress import Progress

STOP_POLL_SECONDS = 2.0
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class TurnRun:
    """One run of a claimed turn. Every effect is written under its claim; what is known is told however it ends."""

    ctx: TurnContext
    turn: ClaimedTurn
    progress: Progress = field(init=False)
    notices: list[str] = field(init=False)
    answer: str | None = field(init=False)
    thread_answers: tuple[str, ...] = field(init=False)
    inline: frozenset[int] = frozenset()
    """The inline comments of the pull request that the agent was told of and may answer in their threads."""
    kind: "Kind[TurnRun]" = field(init=False)
    """What kind of turn it is by now."""
    subject: object = None
    """What the kind's brief was about, for what it takes of the answer."""
    kept: str | None = field(init=False)
    """What the kind keeps of the answer beside its text, as JSON."""
    read: tuple[str, ...] = field(init=False)
    branch: str | None = field(init=False)
    head_before: str = ""
    """The commit at which the turn began."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the turn is to stop: the agent and a push end by themselves then."""
    message_waits: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something was asked meanwhile that the agent may be told."""
    messages: tuple[Message, ...] = ()
    """What was added to the request in earlier runs and stands in the prompt."""
    disk_full: str | None = None
    overflow: str | None = None
    """Why a set-up script was stopped that filled its disk."""
    cap: CapReached | None = None
    """The cap on cost at which the agent was told to finish."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The repository's variables, for its scripts."""
    operators: Rules = field(init=False)
    """The rules of a repository that chose nothing."""
    check: str = ""
    """What the last comment says of the repository's check."""
    check_output: str = ""
    proved: Check | None = None
    """How the repository's check ended."""
    pictures: str | None = None
    """The commit that has its pictures."""
    trashed: tuple[Path, ...] = ()
    """What is deleted after the end, for nobody waits for that."""

    def __post_init__(self) -> None:
        self.ctx = replace(self.ctx, redactor=Redactor(parent=self.ctx.redactor))
        self.operators, turn = self.ctx.rules, self.turn
        left = turn.so_far
        is_cut_off = left.resuming and not left.was_put_back
        self.notices = [*left.notices, *([notices.RESUMED_AFTER_CUT_OFF] if is_cut_off else [])]
        self.answer, self.read, self.branch = left.answer, left.read, turn.worktree.branch
        self.thread_answers = left.thread_answers
        self.kind, self.kept = self.ctx.verbs.kind_of(turn.ask), left.kept
        self.progress = Progress(self.ctx.redactor.redact, left.steps if left.resuming else (), left.use)

    def look_for_variables(self) -> None:
        """Know what was set meanwhile for the repository as secrets; what was set before, if that cannot be read."""
        with suppress(OSError):
            know_variables(self.ctx.data_dir, self.turn.worktree.repository, self.ctx.redactor)

    @property
    def is_of_thread(self) -> bool:
        """Whether a thread asked, which is told; else an operator did, who looks."""
        return bool(self.turn.conversation.id)

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of the other threads that use the worktree; none for an operator, who is on no thread."""
        numbers = self.turn.worktree.conversations if self.is_of_thread else ()
        return tuple(number for number in numbers if number != self.turn.conversation.number)

    @property
    def thread_ref(self) -> ThreadRef:
        """The thread that asked."""
        return ThreadRef(self.turn.worktree.repository, self.turn.conversation.id)

    @property
    def tree(self) -> Tree:
        """The worktree that the turn works in."""
        return self.ctx.tree(self.turn.worktree)

    @property
    def asked(self) -> AskedBy:
        """The request as comments name it."""
        turn = self.turn
        return asked_by(self.ctx, self.kind, turn.ask, turn.worktree.repository, turn.conversation.number, turn.id)

    def disk_overflowed(self, limit_bytes: int) -> None:
        """Stop: the agent, or a script, has filled its disk."""
        self.disk_full, self.overflow = reasons.disk_full(limit_bytes), notices.setup_disk_full(limit_bytes)
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
                if await turns.stop_requested(self.ctx.pool, self.turn.claim) is not None:
                    self.stop.set()
            except ClaimLostError:
                raise
            except Exception as problem:  # noqa: BLE001 - a look that fails costs no turn its agent
                log_failure("turn-watch", problem)
            await asyncio.sleep(STOP_POLL_SECONDS)


def asked_by(
    ctx: TurnContext, kind: "Kind[TurnRun]", ask: Ask, repository: Repository, number: int, turn_id: int
) -> AskedBy:
    """Return a request as comments name it."""
    asked = tracking.asked(ask, ctx.server_url, repository, number, turn_id)
    page = f"{ctx.public_url}/turns/{turn_id}" if ctx.public_url is not None else None
    return replace(asked, is_fix=kind.confirmed_by == "nobody" and ask.retry_of is None, page=page)
