"""The values that every module shares: identities, states, what a request comes from. No I/O."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

TurnState = Literal["queued", "running", "done", "failed", "stopped", "timed-out", "interrupted", "refused"]
WorktreeState = Literal["reserved", "ready", "removing", "removed", "lost"]
DeliveryState = Literal["received", "done", "ignored", "failed", "dead"]
EndReason = Literal[
    "reset-requested",
    "conversation-closed",
    "worktree-removed",
    "worktree-reset",
    "worktree-missing",
    "agent-lost",
    "node-lost",
]
AutoPullRequest = Literal["never", "draft", "ready"]
"""Whether a turn that pushed an issue's branch opens a pull request, and how."""
ISSUE_BRANCH_PREFIX = "threadtree/issue-"
ThreadKind = Literal["issue", "pull"]
TargetKind = Literal["comment", "review-comment", "review", "issue", "pull"]
"""The text that addressed the bot: an issue comment, an inline review comment, a review, or the thread's own text."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A GitHub repository as the last payload named it; identity is `(platform, id)`, never the name."""

    platform: str
    id: int
    owner: str
    name: str
    default_branch: str | None = None
    installation_id: int | None = None

    @property
    def full_name(self) -> str:
        """`owner/name`, as GitHub shows it."""
        return f"{self.owner}/{self.name}"

    @property
    def writer(self) -> str:
        """Whose credentials write to GitHub, the App's installation or the token: its writes are serial."""
        return f"{self.platform}/{self.installation_id or 'token'}"


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a reaction or an answer: a comment or review by id, or the thread's own text (`id` is None)."""

    kind: TargetKind
    id: int | None = None


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """The thread that a comment or reaction goes to."""

    repository: Repository
    conversation_id: int


@dataclass(frozen=True, slots=True)
class Actor:
    """The person or bot who acted on GitHub; the numeric id is the identity, the login is for people."""

    login: str
    id: int
    is_bot: bool = False


@dataclass(frozen=True, slots=True)
class IssueBranch:
    """The branch of an issue: continued while it has unmerged commits, else new from the default branch."""

    number: int


@dataclass(frozen=True, slots=True)
class HeadBranch:
    """The head branch of a pull request from the same repository; `sha` is its tip at the request, where known."""

    branch: str
    sha: str | None = None


@dataclass(frozen=True, slots=True)
class DetachedHead:
    """A pull request's head that is never pushed to; `ref_to_fetch` is the remote's `refs/pull/N/head`."""

    sha: str
    ref_to_fetch: str


Start = IssueBranch | HeadBranch | DetachedHead
"""The start of a new worktree."""


def worktree_path(folder: str, name: str) -> str:
    """Return the path of a worktree in its node's DATA_DIR; `folder` is the repository's folder, `<owner>/<repo>`."""
    return f"worktrees/{folder}/{name}"


@dataclass(frozen=True, slots=True)
class WorktreeRow:
    """A worktree's row with its repository.

    `owner` is the number of the thread it was made for, `conversations` are the numbers of the threads that use it.
    `path` is relative to the node's DATA_DIR.
    """

    id: int
    repository: Repository
    folder: str
    node: str
    path: str
    state: WorktreeState
    branch: str | None
    base_branch: str | None
    owner: int
    start: Start
    conversations: tuple[int, ...]
    created_at: datetime
    updated_at: datetime

    @property
    def is_made(self) -> bool:
        """Whether its checkout was made; it may have been lost since."""
        return self.state == "ready"

    @property
    def start_sha(self) -> str | None:
        """The commit that its first request was about, None for an issue or where unknown."""
        return None if isinstance(self.start, IssueBranch) else self.start.sha


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A live node: the turns that wait or run there, and its live worktrees."""

    id: str
    name: str
    turns: int
    worktrees: int


@dataclass(frozen=True, slots=True)
class LiveWorktree:
    """A live worktree that a request may use; `owner` is the number of the thread it was made for.

    `branch` is the branch that it has, or that it gets when it is made; None for a detached one.
    """

    id: int
    node: str
    owner: int
    branch: str | None
