"""From an event to what it asks of the bot, before its author's permission is looked up. Pure."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from bot.authority import Policy
from bot.decide.parsing import CommentParser, ParsedComment
from bot.github.events import (
    Addressed,
    CodePlace,
    CommentWritten,
    Event,
    Remark,
    ReviewCommentWritten,
    ReviewWritten,
    Thread,
    ThreadAssigned,
    ThreadClosed,
    ThreadLabeled,
    ThreadReopened,
    ThreadWritten,
    Unreadable,
)
from bot.model import Actor, Repository, Target


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing for the bot; `why` goes to the log."""

    why: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The delivery cannot be read; `why` goes to its row, and whoever addressed the bot is told (None: not known)."""

    why: str
    addressed: Addressed | None


@dataclass(frozen=True, slots=True)
class Close:
    """The thread was closed at `closed_at`, by anybody."""

    repository: Repository
    number: int
    closed_at: datetime


@dataclass(frozen=True, slots=True)
class Reopen:
    """The thread is open again, since `at`."""

    repository: Repository
    number: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Request:
    """A person asks for something. `identity` is the text's: node id, content, time (DESIGN.md §3.2)."""

    repository: Repository
    thread: Thread
    author: Actor
    target: Target
    parsed: ParsedComment
    asked_at: datetime
    identity: bytes
    context: str = ""
    review_id: int | None = None

    def effect(self, index: int) -> bytes:
        """Return the key under which the text's command or request number `index` is acted on only once."""
        return hashlib.sha256(self.identity + index.to_bytes(4, "big")).digest()


Action = Ignore | Fail | Close | Reopen | Request


def action_of(event: Event, policy: Policy, parser: CommentParser) -> Action:
    """Return what one event asks for."""
    match event:
        case CommentWritten(remark=remark):
            return _from_remark(event, policy, parser, Target("comment", remark.id))
        case ReviewCommentWritten(remark=remark, place=place, body_before=before):
            target, review_id = Target("review-comment", remark.id), place.review_id if before is None else None
            return _from_remark(event, policy, parser, target, context=_code_context(place), review_id=review_id)
        case ReviewWritten(remark=remark, body_before=before):
            review_id = remark.id if before is None else None
            return _from_remark(event, policy, parser, Target("review", remark.id), review_id=review_id)
        case ThreadWritten(remark=remark, written_at=written_at, body_before=before):
            if policy.is_own(event.sender, remark.body):
                return Ignore("the bot's own text")
            return _from_thread(event, parser.parse(remark.body, before or ""), written_at, "text")
        case ThreadLabeled(remark=remark, label=label):
            if label.casefold() != policy.label.casefold():
                return Ignore("another label")
            if policy.is_own(event.sender, ""):
                return Ignore("the bot's own label")
            return _from_thread(event, parser.parse_labeled(remark.body), remark.updated_at, "ThreadLabeled")
        case ThreadAssigned(remark=remark, assignee=assignee):
            if assignee.id != policy.bot_id:
                return Ignore("another assignee")
            if policy.is_own(event.sender, ""):
                return Ignore("the bot's own assignment")
            return _from_thread(event, parser.parse_labeled(remark.body), remark.updated_at, "ThreadAssigned")
        case ThreadClosed(at=at):
            return Close(event.repository, event.thread.number, at)
        case ThreadReopened(at=at):
            return Reopen(event.repository, event.thread.number, at)
        case _:
            assert_never(event)


def failure_of(unreadable: Unreadable, policy: Policy, parser: CommentParser) -> Fail:
    """Return the failure, which is told on the thread only if the text, label or assignment addresses the bot."""
    found = unreadable.addressed
    if found is None or policy.is_own(found.sender, found.body):
        return Fail(unreadable.why, None)
    is_addressed = (
        bool(parser.parse(found.body))
        or found.label.casefold() == policy.label.casefold()
        or found.assignee_id == policy.bot_id
    )
    return Fail(unreadable.why, found if is_addressed else None)


def _from_remark(
    event: CommentWritten | ReviewCommentWritten | ReviewWritten,
    policy: Policy,
    parser: CommentParser,
    target: Target,
    *,
    context: str = "",
    review_id: int | None = None,
) -> Ignore | Request:
    remark = event.remark
    if policy.is_own(event.sender, remark.body) or policy.is_own(remark.author, remark.body):
        return Ignore("the bot's own text")
    parsed = parser.parse(remark.body, event.body_before or "")
    if not parsed:
        return Ignore("nothing asked")
    return Request(
        repository=event.repository,
        thread=event.thread,
        author=event.sender,
        target=target,
        parsed=parsed,
        asked_at=remark.updated_at,
        identity=_identity(remark.node_id, remark),
        context=context,
        review_id=review_id,
    )


def _from_thread(
    event: ThreadWritten | ThreadLabeled | ThreadAssigned, parsed: ParsedComment, asked_at: datetime, way: str
) -> Ignore | Request:
    """Return what the thread's own text asks for; `way` tells opening, labelling and assigning apart."""
    if not parsed:
        return Ignore("nothing asked")
    return Request(
        repository=event.repository,
        thread=event.thread,
        author=event.sender,
        target=Target(event.thread.kind),
        parsed=parsed,
        asked_at=asked_at,
        identity=_identity(f"{event.remark.node_id}/{way}", event.remark),
    )


def _code_context(place: CodePlace) -> str:
    line = f", line {place.line}" if place.line else ""
    return f"The request is a review comment on `{place.path}`{line}:\n\n{place.diff_hunk}"


def _identity(node_id: str, remark: Remark) -> bytes:
    text = f"{node_id}\0{remark.updated_at.isoformat()}\0{remark.body}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
