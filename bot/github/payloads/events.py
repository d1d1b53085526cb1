"""What GitHub tells the bot, as values: a closed union of a dozen events. Nothing further in sees a raw payload."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from bot.model import Actor, Repository, ThreadKind


@dataclass(frozen=True, slots=True)
class PullHead:
    """What a pull request wants merged; `repository_id` is None once the fork it came from is deleted."""

    ref: str
    sha: str
    repository_id: int | None
    base_ref: str
    draft: bool


@dataclass(frozen=True, slots=True)
class Thread:
    """An issue or pull request as the payload showed it; times are UTC.

    `head` is None for issues, and for a pull request that only a comment on it was sent for.
    """

    number: int
    kind: ThreadKind
    node_id: str
    title: str
    body: str
    state: Literal["open", "closed"]
    author: Actor
    url: str
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None
    head: PullHead | None


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment, an inline review comment or a review. `updated_at` is its creation where GitHub sends no other."""

    id: int
    node_id: str
    body: str
    created_at: datetime
    updated_at: datetime
    author: Actor
    url: str
    via_app_id: int | None


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Where an inline review comment stands: `line` is None when outdated or on a whole file."""

    review_id: int | None
    path: str
    line: int | None
    diff_hunk: str
    in_reply_to: int | None


@dataclass(frozen=True, slots=True)
class ThreadEvent:
    """What all events have: where it happened and who did it (for an edit not always the author)."""

    repository: Repository
    sender: Actor
    thread: Thread


@dataclass(frozen=True, slots=True)
class CommentCreated(ThreadEvent):
    """https://docs.github.com/en/webhooks/webhook-events-and-payloads#issue_comment"""

    remark: Remark


@dataclass(frozen=True, slots=True)
class CommentEdited(ThreadEvent):
    """The comment's text changed from `body_before`."""

    remark: Remark
    body_before: str


@dataclass(frozen=True, slots=True)
class ReviewCommentCreated(ThreadEvent):
    """https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request_review_comment"""

    remark: Remark
    place: CodePlace


@dataclass(frozen=True, slots=True)
class ReviewCommentEdited(ThreadEvent):
    """The inline comment's text changed from `body_before`."""

    remark: Remark
    place: CodePlace
    body_before: str


@dataclass(frozen=True, slots=True)
class ReviewSubmitted(ThreadEvent):
    """A review with a text of its own; its inline comments are events of their own.

    https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request_review
    """

    remark: Remark


@dataclass(frozen=True, slots=True)
class ReviewEdited(ThreadEvent):
    """The review's text changed from `body_before`."""

    remark: Remark
    body_before: str


@dataclass(frozen=True, slots=True)
class ThreadOpened(ThreadEvent):
    """An issue or pull request was opened; what is asked stands in `thread.body`."""


@dataclass(frozen=True, slots=True)
class ThreadEdited(ThreadEvent):
    """The thread's own text changed from `body_before`."""

    body_before: str


@dataclass(frozen=True, slots=True)
class ThreadLabeled(ThreadEvent):
    """The label named `label` was put on the thread."""

    label: str


@dataclass(frozen=True, slots=True)
class ThreadAssigned(ThreadEvent):
    """The thread was assigned to `assignee`."""

    assignee: Actor


@dataclass(frozen=True, slots=True)
class ThreadClosed(ThreadEvent):
    """Closed, merged, transferred away or deleted; `closed_at` is None for the last two, which GitHub does not date."""

    closed_at: datetime | None
    merged: bool


@dataclass(frozen=True, slots=True)
class ThreadReopened(ThreadEvent):
    """The thread is open again."""


Event = (
    CommentCreated
    | CommentEdited
    | ReviewCommentCreated
    | ReviewCommentEdited
    | ReviewSubmitted
    | ReviewEdited
    | ThreadOpened
    | ThreadEdited
    | ThreadLabeled
    | ThreadAssigned
    | ThreadClosed
    | ThreadReopened
)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is JSON but not of the form GitHub documents; `why` names the field."""

    why: str
