"""GitHub's events as values, a closed union. No other module reads a raw payload."""

from dataclasses import dataclass
from datetime import datetime

from bot.model import Actor, Repository, Target, Thread


@dataclass(frozen=True, slots=True)
class ClosedPull:
    """A pull request that was closed, from a branch of its own repository. `head` is the last commit of its branch."""

    number: int
    branch: str
    head: str
    opened_at: datetime
    merged_at: datetime | None
    """None where it was closed without a merge."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A text on GitHub. `updated_at` (UTC) is its creation where GitHub sends no other time."""

    target: Target
    node_id: str
    body: str
    author: Actor
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ThreadEvent:
    """Fields of what may ask something: the place, and the person who acted (not always the text's author).

    The repository, here and in all events, is as a payload names it: nothing is known of it but its id.
    """

    repository: Repository
    sender: Actor
    thread: Thread


@dataclass(frozen=True, slots=True)
class Written(ThreadEvent):
    """A text was written at that time, or edited: then `body_before` is its old text.

    `code` is what an inline comment is about. `review_id` is the review that a new inline comment or a new review
    belongs to, `opened` the pull request's own text. `approves`: it is the text of a review that approves. `branch` is
    that of a pull request which was opened, or got this review, if the bot may have made the branch.
    """

    remark: Remark
    written_at: datetime
    body_before: str | None = None
    code: str = ""
    review_id: int | None = None
    opened: Remark | None = None
    approves: bool = False
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Ticked(ThreadEvent):
    """The sender edited a comment of the bot's so that its text is that of `remark`. The rest is GitHub's alone: its id
    of the edit, and the texts that the bot `posted` last, that stood there `before`, and that stand there `now`.
    """

    remark: Remark
    edit_id: str = ""
    posted: str = ""
    before: str = ""
    now: str = ""


@dataclass(frozen=True, slots=True)
class Gesture(ThreadEvent):
    """A label of that name, or an assignee of that id, was added to the thread, whose own text is `remark`; or the
    reviewer of that id was asked for a review. `event_id`: GitHub's id of that, which no payload has.
    """

    remark: Remark
    label: str = ""
    assignee_id: int | None = None
    reviewer_id: int | None = None
    event_id: str = ""


@dataclass(frozen=True, slots=True)
class ThreadClosed:
    """Closed, merged, transferred away or deleted. `pull` is told of a pull request from the repository itself.

    `reverts` is the pull request that this one, which was merged, took back. `is_gone`: transferred or deleted.
    """

    repository: Repository
    thread: Thread
    at: datetime
    is_gone: bool = False
    pull: ClosedPull | None = None
    reverts: int | None = None


@dataclass(frozen=True, slots=True)
class ThreadReopened:
    """The thread is open again."""

    repository: Repository
    thread: Thread
    at: datetime


@dataclass(frozen=True, slots=True)
class BlockersChanged:
    """An issue is blocked by another one from now on, or no longer."""

    repository: Repository
    number: int


@dataclass(frozen=True, slots=True)
class RepositoryDeleted:
    """The repository is no more, if GitHub says so too."""

    repository: Repository


@dataclass(frozen=True, slots=True)
class ChecksEnded:
    """Checks of the commit `head` have ended. A doorbell: which and how, GitHub is asked."""

    repository: Repository
    head: str


@dataclass(frozen=True, slots=True)
class PullReady:
    """The pull request is no draft any more. A doorbell: of which kind it is, GitHub is asked."""

    repository: Repository
    thread: Thread


Event = (
    Written | Gesture | ThreadClosed | ThreadReopened | BlockersChanged | RepositoryDeleted | ChecksEnded | PullReady
)


@dataclass(frozen=True, slots=True)
class Addressed:
    """The readable parts of an event: the place, the person who speaks, and the text that may address the bot.

    `body` is the text that was written, of a gesture the thread's own; `label`, `assignee_id` and `reviewer_id` are as
    in `Gesture`.
    """

    repository: Repository
    thread: Thread
    author: Actor
    target: Target
    body: str
    label: str = ""
    assignee_id: int | None = None
    reviewer_id: int | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is JSON but lacks a field that the bot needs; `why` names the field.

    `addressed` is None where the payload does not name its thread or its sender.
    """

    why: str
    addressed: Addressed | None
