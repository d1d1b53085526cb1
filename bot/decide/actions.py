"""From an event to what it asks of the bot, before its author's permission is looked up. Pure."""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from bot.authority import Policy
from bot.decide.parsing import CommentParser, ParsedComment
from bot.github.events import (
    CodePlace,
    CommentWritten,
    Event,
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
class Request:
    """A person asks for something. `identity` is the text's: node id, content, time (DESIGN.md §3.2).

    `is_gesture`: a label or an assignment asks, on the thread's own text.
    """

    repository: Repository
    thread: Thread
    author: Actor
    target: Target
    parsed: ParsedComment
    asked_at: datetime
    identity: bytes
    context: str = ""
    review_id: int | None = None
    is_gesture: bool = False

    def effect(self, index: int) -> bytes:
        """Return the key under which the text's command or request number `index` is acted on only once."""
        return hashlib.sha256(self.identity + index.to_bytes(4, "big")).digest()


Action = Ignore | Unreadable | ThreadClosed | ThreadReopened | Request


def action_of(event: Event, policy: Policy, parser: CommentParser) -> Action:
    """Return what one event asks for."""
    match event:
        case ThreadClosed() | ThreadReopened():
            return event
        case CommentWritten(remark=remark):
            return _from_comment(event, policy, parser, Target("comment", remark.id))
        case ReviewCommentWritten(remark=remark, place=place, body_before=before):
            target, review_id = Target("review-comment", remark.id), place.review_id if before is None else None
            return _from_comment(event, policy, parser, target, context=_code_context(place), review_id=review_id)
        case ReviewWritten(remark=remark, body_before=before):
            review_id = remark.id if before is None else None
            return _from_comment(event, policy, parser, Target("review", remark.id), review_id=review_id)
        case ThreadWritten(remark=remark, body_before=before):
            if policy.is_own(_speaker(event), remark.body):
                return Ignore("the bot's own text")
            parsed, node_id = parser.parse(remark.body, before or ""), f"{remark.node_id}/text"
            return _request(event, _speaker(event), parsed, Target(event.thread.kind), node_id, event.written_at)
        case ThreadLabeled(remark=remark) | ThreadAssigned(remark=remark):
            if isinstance(event, ThreadLabeled) and event.label.casefold() != policy.label.casefold():
                return Ignore("another label")
            if isinstance(event, ThreadAssigned) and event.assignee.id != policy.bot_id:
                return Ignore("another assignee")
            if policy.is_own(event.sender, ""):
                return Ignore("the bot's own label or assignment")
            parsed, node_id = parser.parse_labeled(remark.body), f"{remark.node_id}/{type(event).__name__}"
            return _request(event, event.sender, parsed, Target(event.thread.kind), node_id, remark.updated_at)
        case _:
            assert_never(event)


def failure_of(unreadable: Unreadable, policy: Policy, parser: CommentParser) -> Unreadable:
    """Return the failure, which is told on the thread only if the text, label or assignment addresses the bot."""
    found = unreadable.addressed
    if found is None or policy.is_own(found.sender, found.body):
        return replace(unreadable, addressed=None)
    is_addressed = (
        bool(parser.parse(found.body))
        or found.label.casefold() == policy.label.casefold()
        or found.assignee_id == policy.bot_id
    )
    return unreadable if is_addressed else replace(unreadable, addressed=None)


def _from_comment(
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
    return _request(event, _speaker(event), parsed, target, remark.node_id, remark.updated_at, context, review_id)


def _speaker(event: CommentWritten | ReviewCommentWritten | ReviewWritten | ThreadWritten) -> Actor:
    """Return who wrote the text; of an edit, its editor.

    Opening is sent by another person for an issue that was transferred or made from a discussion.
    """
    return event.remark.author if event.body_before is None else event.sender


def _request(
    event: CommentWritten | ReviewCommentWritten | ReviewWritten | ThreadWritten | ThreadLabeled | ThreadAssigned,
    author: Actor,
    parsed: ParsedComment,
    target: Target,
    node_id: str,
    asked_at: datetime,
    context: str = "",
    review_id: int | None = None,
) -> Ignore | Request:
    """Return what the text asks for; `node_id` also tells opening, labelling and assigning apart."""
    if not parsed:
        return Ignore("nothing asked")
    text = f"{node_id}\0{event.remark.updated_at.isoformat()}\0{event.remark.body}"
    return Request(
        repository=event.repository,
        thread=event.thread,
        author=author,
        target=target,
        parsed=parsed,
        asked_at=asked_at,
        identity=hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(),
        context=context,
        review_id=review_id,
        is_gesture=isinstance(event, ThreadLabeled | ThreadAssigned),
    )


def _code_context(place: CodePlace) -> str:
    line = f", line {place.line}" if place.line else ""
    return f"The request is a review comment on `{place.path}`{line}:\n\n{place.diff_hunk}"
