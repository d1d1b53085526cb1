"""GitHub's events as values, a closed union. No other module reads a raw payload."""

from dataclasses import dataclass
from datetime import datetime

from bot.model import Actor, Repository, Target, ThreadKind


@dataclass(frozen=True, slots=True)
class Thread:
    """An issue or pull request; `closed_at` (UTC) is None while it is open.

    `head_sha` is a pull request's head when the event happened, None where the payload does not have it.
    """

    number: int
    kind: ThreadKind
    title: str
    closed_at: datetime | None
    head_sha: str | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """A text on GitHub: a comment, an inline review comment, a review (by id), or the thread's own (None).

    `updated_at` (UTC) is its creation where GitHub sends no other time.
    """

    id: int | None
    node_id: str
    body: str
    author: Actor
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class CodePlace:
    """The code that an inline review comment is about: `line` is None when outdated or on a whole file."""

    review_id: int | None
    path: str
    line: int | None
    diff_hunk: str


@dataclass(frozen=True, slots=True)
class ThreadEvent:
    """Fields of all events: the place and the person who acted (not always the text's author)."""

    repository: Repository
    sender: Actor
    thread: Thread


@dataclass(frozen=True, slots=True)
class CommentWritten(ThreadEvent):
    """A comment was written, or edited: then `body_before` is its old text.

    https://docs.github.com/en/webhooks/webhook-events-and-payloads#issue_comment
    """

    remark: Remark
    body_before: str | None


@dataclass(frozen=True, slots=True)
class ReviewCommentWritten(ThreadEvent):
    """An inline review comment was written or edited.

    https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request_review_comment
    """

    remark: Remark
    place: CodePlace
    body_before: str | None


@dataclass(frozen=True, slots=True)
class ReviewWritten(ThreadEvent):
    """A review with a text of its own was submitted or edited; its inline comments are events of their own.

    https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request_review
    """

    remark: Remark
    body_before: str | None


@dataclass(frozen=True, slots=True)
class ThreadWritten(ThreadEvent):
    """An issue or pull request was opened, or its own text was edited, at `written_at`."""

    remark: Remark
    written_at: datetime
    body_before: str | None


@dataclass(frozen=True, slots=True)
class ThreadLabeled(ThreadEvent):
    """The label named `label` was added to the thread, whose own text is `remark`."""

    remark: Remark
    label: str


@dataclass(frozen=True, slots=True)
class ThreadAssigned(ThreadEvent):
    """The thread, whose own text is `remark`, was assigned to `assignee`."""

    remark: Remark
    assignee: Actor


@dataclass(frozen=True, slots=True)
class ThreadClosed(ThreadEvent):
    """Closed, merged, transferred away or deleted."""

    at: datetime


@dataclass(frozen=True, slots=True)
class ThreadReopened(ThreadEvent):
    """The thread is open again."""

    at: datetime


Event = (
    CommentWritten
    | ReviewCommentWritten
    | ReviewWritten
    | ThreadWritten
    | ThreadLabeled
    | ThreadAssigned
    | ThreadClosed
    | ThreadReopened
)


@dataclass(frozen=True, slots=True)
class Addressed:
    """The readable parts of a malformed payload: the place, the person, and the text that may address the bot.

    `body` is the text that was written, of a label or an assignment the thread's own; `label` and `assignee_id` are
    what was added.
    """

    repository: Repository
    thread: Thread
    sender: Actor
    target: Target
    body: str
    label: str
    assignee_id: int | None

    @property
    def is_gesture(self) -> bool:
        """Whether a label or an assignment asks, on the thread's own text."""
        return bool(self.label) or self.assignee_id is not None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is JSON but lacks a field that the bot needs; `why` names the field.

    `addressed` is None where the payload does not name its thread or its sender. `is_unproven`: it could be read, but
    recovery rebuilt it from a text that was edited since.
    """

    why: str
    addressed: Addressed | None
    is_unproven: bool = False
