"""What differs between the kinds of turns. The machine asks the kind of a turn, and names none."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from bot.ask import Ask
from bot.model import Actor
from bot.prompt.builder import Brief
from bot.prompt.collect import Collected
from bot.prompt.foreign import Told
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn
from bot.thread.commit_message import split_subject
from bot.thread.outcome import ComesTo, Nothing
from bot.thread.tracking import Changes, TurnResult

R = TypeVar("R")
"""The run of a turn (`bot.turn.turn_run.TurnRun`)."""
Seen = tuple[object, ...]
"""The commit of a worktree, and what differs from it: each file with its time and size."""
Post = Callable[[Connection, Sequence[str]], Awaitable[None]]
"""Writes the parts of an answer where they are to be posted, in the transaction that ends the turn."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worktree is ready. `made_again`: the reason for that. `remarks` go to the agent, `notices` to the thread.

    Without a `branch` nothing is pushed: the edits since a commit, `edits_since` if that is known, are a patch.
    """

    branch: str | None
    base_branch: str | None
    head: str
    made_again: str | None = None
    edits_since: str | None = None
    remarks: tuple[Told, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The request as it stands, and who wrote its words. `verbs` are those that they ask for."""

    ask: Ask
    authors: frozenset[Actor]
    verbs: frozenset[str] = frozenset()


async def _no(ctx: Any, turn: ClaimedTurn) -> bool:
    return False


async def _nothing_first(run: Any, ready: Ready) -> None:
    return None


async def _no_brief(run: Any, ready: Ready, thread: Collected | None) -> Brief:
    return Brief()


async def _as_said(run: Any, answer: str, answered: Collection[int]) -> str:
    return answer


async def _told(run: Any, answer: str, seen: Seen | None) -> TurnResult:
    return TurnResult("done", answer=split_subject(answer)[0])


async def _nothing_to_say(run: Any, ready: Ready, changes: Changes | str | None, nothing: Nothing | None) -> None:
    return None


def _whole(run: Any, answer: str) -> str:
    return answer


def _as_comments(run: Any, result: TurnResult) -> Post | None:
    return None


def _no_checks(ask: Ask) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Kind(Generic[R]):
    """One kind of turn: what the machine asks where turns differ. All else is the machine's.

    The attributes stand in the order in which a turn meets them.
    """

    name: str
    confirmed_by: Literal["words", "command", "nobody", "rule"] = "words"
    """What GitHub must show: the words of the request, the command that asks, or nothing, for no person asks. With
    `rule` the default branch asks: whoever wrote the thread need not be one who may."""
    command: str = ""
    """The command that asks; empty where that is the request, word by word."""
    only_on_pulls: str = ""
    """What is said where it is asked on what is no pull request; empty where it may be."""
    waits_for_blockers: bool = False
    """It does not begin on an issue that another open one blocks."""
    gesture_says: str | None = None
    """The request that a label, an assignment or a request for review makes; None where it asks in the text's words."""
    of_outsider: Callable[[Any, ClaimedTurn], Awaitable[bool]] = _no
    """Return whether somebody without write access has a say in what a turn asks, beside the authors of its words."""
    may_begin: Callable[[R, Ready], Awaitable[str | None]] = _nothing_first
    """Return why the turn is refused by now."""
    carry_out: Callable[[R], Awaitable[str | TurnResult]] | None = None
    """What works on the worktree itself, in place of all that follows: it returns what was done, saved, or the end. No
    checkout is made ready for it, and nothing is committed. Raises ImpossibleError."""
    sets_up: bool = False
    """The set-up script runs in what it made."""
    makes: bool = False
    """It makes a worktree, which stays although its threads are closed where an operator asked for it."""
    tells_unfinished: bool = True
    """What an earlier turn left uncommitted, or unfinished, is told to people."""
    tells_dirty: bool = True
    agent: Literal["always", "perhaps", "never"] = "always"
    """Whether an agent is asked."""
    writes: bool = True
    """What was changed is committed, checked and pushed. Else the worktree is read-only for the agent."""
    plans: bool = False
    """The agent works in its own mode for plans."""
    joins: bool = False
    """A request may be told to the agent of a turn that runs, if both are of such kinds."""
    begin: Callable[[R, Ready], Awaitable[str | TurnResult | None]] = _nothing_first
    """Return an answer for which no agent is needed, or the end."""
    failed_checks: Callable[[Ask], tuple[str, frozenset[str]] | None] = _no_checks
    """The commit and the names of the failed checks that the agent is told of; None for those of the head."""
    brief: Callable[[R, Ready, Collected | None], Awaitable[Brief]] = _no_brief
    """What the agent is told in place of, or beside, what all are told. Raises NotConfirmedError."""
    take: Callable[[R, str, Collection[int]], Awaitable[str]] = _as_said
    """Return the answer to be saved; the ids are of inline comments in whose threads the agent answers."""
    subject: str | None = None
    """The subject of the commit, where the agent names none."""
    answered: Callable[[R, str, Seen | None], Awaitable[TurnResult]] = _told
    """End a turn that does not write."""
    published: Callable[[R, Ready, Changes | str | None, Nothing | None], Awaitable[None]] = _nothing_to_say
    """Say what there is to say after the push, or where nothing was pushed."""
    whole: Callable[[R, str], str] = _whole
    """Return the answer with all that would be posted beside it, for an end at which that is not posted."""
    post: Callable[[R, TurnResult], Post | None] = _as_comments
    """Return what posts the answer otherwise than as comments. Takes seconds for a long answer."""
    comes_to: ComesTo = "changes"

    @property
    def is_checked(self) -> bool:
        """Whether the repository's check runs on the result: what an agent wrote is proved."""
        return self.writes and self.agent != "never"
