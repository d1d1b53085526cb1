"""From an event to what it asks of the bot, before anybody's permission is looked up. Pure."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from bot.authority import Policy
from bot.decide.parsing import CommentParser, ParsedComment
from bot.github.payloads import (
    CodePlace,
    CommentCreated,
    CommentEdited,
    Event,
    Remark,
    ReviewCommentCreated,
    ReviewCommentEdited,
    ReviewEdited,
    ReviewSubmitted,
    Thread,
    ThreadAssigned,
    ThreadClosed,
    ThreadEdited,
    ThreadLabeled,
    ThreadOpened,
    ThreadReopened,
)
from bot.model import Actor, Repository, Target


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing for the bot; `why` goes to the log."""

    why: str


@dataclass(frozen=True, slots=True)
class Close:
    """The thread was closed, by whoever."""

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
    """Somebody asked something. `identity` is the text's: node id, content, time (DESIGN.md §3.2)."""

    repository: Repository
    thread: Thread
    speaker: Actor
    target: Target
    asks: ParsedComment
    asked_at: datetime
    identity: bytes
    context: str = ""
    review_id: int | None = None
    by_gesture: bool = False

    def effect(self, index: int) -> bytes:
        """The key under which the text's command or request number `index` is acted on only once."""
        return hashlib.sha256(self.identity + index.to_bytes(4, "big")).digest()


Action = Ignore | Close | Reopen | Request


def action_of(event: Event, policy: Policy, parser: CommentParser) -> Action:
    """Return what one event asks for."""
    match event:
        case CommentCreated(remark=remark):
            return _hear(event, policy, parser, remark, Target("comment", remark.id))
        case CommentEdited(remark=remark, body_before=before):
            return _hear(event, policy, parser, remark, Target("comment", remark.id), before=before)
        case ReviewCommentCreated(remark=remark, place=place):
            return _hear(event, policy, parser, remark, Target("review-comment", remark.id), place=place)
        case ReviewCommentEdited(remark=remark, place=place, body_before=before):
            return _hear(event, policy, parser, remark, Target("review-comment", remark.id), place=place, before=before)
        case ReviewSubmitted(remark=remark):
            return _hear(event, policy, parser, remark, Target("review", remark.id), review_id=remark.id)
        case ReviewEdited(remark=remark, body_before=before):
            return _hear(event, policy, parser, remark, Target("review", remark.id), before=before)
        case ThreadOpened():
            return _hear_thread(event, policy, parser.parse(event.thread.body), event.thread.created_at)
        case ThreadEdited(body_before=before):
            return _hear_thread(event, policy, parser.parse(event.thread.body, before), event.thread.updated_at)
        case ThreadLabeled(label=label):
            if label.casefold() != policy.label.casefold():
                return Ignore("another label")
            return _hear_thread(event, policy, parser.parse_labeled(event.thread.body), by_gesture=True)
        case ThreadAssigned(assignee=assignee):
            if assignee.id != policy.bot_id:
                return Ignore("somebody else was assigned")
            return _hear_thread(event, policy, parser.parse_labeled(event.thread.body), by_gesture=True)
        case ThreadClosed(closed_at=closed_at):
            # GitHub does not date a transfer or a deletion: the thread's last change is when it happened.
            return Close(event.repository, event.thread.number, closed_at or event.thread.updated_at)
        case ThreadReopened():
            return Reopen(event.repository, event.thread.number, event.thread.updated_at)
        case _:
            assert_never(event)


_SpokenEvent = (
    CommentCreated | CommentEdited | ReviewCommentCreated | ReviewCommentEdited | ReviewSubmitted | ReviewEdited
)
_ThreadEvent = ThreadOpened | ThreadEdited | ThreadLabeled | ThreadAssigned


def _hear(
    event: _SpokenEvent,
    policy: Policy,
    parser: CommentParser,
    remark: Remark,
    target: Target,
    *,
    before: str = "",
    place: CodePlace | None = None,
    review_id: int | None = None,
) -> Ignore | Request:
    if policy.is_own(event.sender, remark.body) or policy.is_own(remark.author, remark.body):
        return Ignore("the bot's own words")
    asks = parser.parse(remark.body, before)
    if not asks:
        return Ignore("nothing asked")
    context = ""
    if place is not None:
        line = f", line {place.line}" if place.line else ""
        context = f"The request is a review comment on `{place.path}`{line}:\n\n{place.diff_hunk}"
        review_id = place.review_id if not before else None
    return Request(
        repository=event.repository,
        thread=event.thread,
        speaker=event.sender,
        target=target,
        asks=asks,
        asked_at=remark.updated_at,
        identity=_identity(remark.node_id, remark.body, remark.updated_at),
        context=context,
        review_id=review_id,
    )


def _hear_thread(
    event: _ThreadEvent,
    policy: Policy,
    asks: ParsedComment,
    asked_at: datetime | None = None,
    *,
    by_gesture: bool = False,
) -> Ignore | Request:
    thread = event.thread
    if policy.is_own(event.sender, thread.body) and not by_gesture:
        return Ignore("the bot's own words")
    if by_gesture and policy.is_own(event.sender, ""):
        return Ignore("the bot's own gesture")
    if not asks:
        return Ignore("nothing asked")
    gesture = type(event).__name__ if by_gesture else "text"
    return Request(
        repository=event.repository,
        thread=thread,
        speaker=event.sender,
        target=Target(thread.kind),
        asks=asks,
        asked_at=asked_at or thread.updated_at,
        identity=_identity(f"{thread.node_id}/{gesture}", thread.body, thread.updated_at),
        by_gesture=by_gesture,
    )


def _identity(node_id: str, text: str, updated_at: datetime) -> bytes:
    return hashlib.sha256(f"{node_id}\0{updated_at.isoformat()}\0{text}".encode("utf-8", "surrogatepass")).digest()
