"""From an event to what it asks of the bot, before its author's permission is looked up. Pure."""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from bot.authority import Policy
from bot.decide.parsing import CommentParser, ParsedComment
from bot.github.events import (
    Addressed,
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
from bot.markdown import MarkdownError
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


_Written = CommentWritten | ReviewCommentWritten | ReviewWritten | ThreadWritten
Action = Ignore | Unreadable | ThreadClosed | ThreadReopened | Request


def action_of(event: Event, policy: Policy, parser: CommentParser) -> Action:
    """Return what one event asks for; a text that no parser reads is told on the thread if it names the bot."""
    try:
        return _asked_by(event, policy, parser)
    except MarkdownError as problem:
        return failure_of(Unreadable(f"its Markdown: {problem}", _addressed(event)), policy, parser)


def _asked_by(event: Event, policy: Policy, parser: CommentParser) -> Action:
    match event:
        case ThreadClosed() | ThreadReopened():
            return event
        case CommentWritten():
            return _from_comment(event, policy, parser)
        case ReviewCommentWritten(place=place, body_before=before):
            review_id = place.review_id if before is None else None
            return _from_comment(event, policy, parser, context=_code_context(place), review_id=review_id)
        case ReviewWritten(remark=remark, body_before=before):
            return _from_comment(event, policy, parser, review_id=remark.id if before is None else None)
        case ThreadWritten(remark=remark, body_before=before):
            if policy.is_own(_speaker(event), remark.body):
                return Ignore("the bot's own text")
            parsed, node_id = parser.parse(remark.body, before or ""), f"{remark.node_id}/text"
            return _request(event, _speaker(event), parsed, node_id, event.written_at)
        case ThreadLabeled(remark=remark) | ThreadAssigned(remark=remark):
            if isinstance(event, ThreadLabeled) and event.label.casefold() != policy.label.casefold():
                return Ignore("another label")
            if isinstance(event, ThreadAssigned) and event.assignee.id != policy.bot_id:
                return Ignore("another assignee")
            if policy.is_own(event.sender, ""):
                return Ignore("the bot's own label or assignment")
            parsed, node_id = parser.parse_labeled(remark.body), f"{remark.node_id}/{type(event).__name__}"
            return _request(event, event.sender, parsed, node_id, remark.updated_at)
        case _:
            assert_never(event)


def failure_of(unreadable: Unreadable, policy: Policy, parser: CommentParser) -> Unreadable:
    """Return the failure, which is told on the thread only if the text, label or assignment addresses the bot."""
    found = unreadable.addressed
    if found is None or policy.is_own(found.sender, found.body):
        return replace(unreadable, addressed=None)
    is_addressed = (
        parser.addresses(found.body)
        or found.label.casefold() == policy.label.casefold()
        or found.assignee_id == policy.bot_id
    )
    return unreadable if is_addressed else replace(unreadable, addressed=None)


def _addressed(event: Event) -> Addressed | None:
    """Return what is known of an event whose text is not read; None for one that has no text."""
    if isinstance(event, ThreadClosed | ThreadReopened):
        return None
    label = event.label if isinstance(event, ThreadLabeled) else ""
    assignee = event.assignee.id if isinstance(event, ThreadAssigned) else None
    speaker = event.sender if isinstance(event, ThreadLabeled | ThreadAssigned) else _speaker(event)
    return Addressed(event.repository, event.thread, speaker, _target(event), event.remark.body, label, assignee)


def _target(event: _Written | ThreadLabeled | ThreadAssigned) -> Target:
    match event:
        case CommentWritten(remark=remark):
            return Target("comment", remark.id)
        case ReviewCommentWritten(remark=remark):
            return Target("review-comment", remark.id)
        case ReviewWritten(remark=remark):
            return Target("review", remark.id)
        case _:
            return Target(event.thread.kind)


def _from_comment(
    event: CommentWritten | ReviewCommentWritten | ReviewWritten,
    policy: Policy,
    parser: CommentParser,
    *,
    context: str = "",
    review_id: int | None = None,
) -> Ignore | Request:
    remark = event.remark
    if policy.is_own(event.sender, remark.body) or policy.is_own(remark.author, remark.body):
        return Ignore("the bot's own text")
    parsed = parser.parse(remark.body, event.body_before or "")
    return _request(event, _speaker(event), parsed, remark.node_id, remark.updated_at, context, review_id)


def _speaker(event: _Written) -> Actor:
    """Return who wrote the text; of an edit, its editor.

    Opening is sent by another person for an issue that was transferred or made from a discussion.
    """
    return event.remark.author if event.body_before is None else event.sender


def _request(
    event: _Written | ThreadLabeled | ThreadAssigned,
    author: Actor,
    parsed: ParsedComment,
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
        target=_target(event),
        parsed=parsed,
        asked_at=asked_at,
        identity=hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(),
        context=context,
        review_id=review_id,
        is_gesture=isinstance(event, ThreadLabeled | ThreadAssigned),
    )


def _code_context(place: CodePlace) -> str:
    line = f":{place.line}" if place.line else ""
    return f"{place.path}{line}\n\n{place.diff_hunk}"
