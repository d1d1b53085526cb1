"""The values that many rooms share: identities, and rows of worktrees and rescues. No I/O."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

WorktreeState = Literal["reserved", "ready", "removing", "removed", "lost"]
BRANCH_PREFIX = "threadtree/"
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
    def key(self) -> tuple[str, int]:
        """Its identity, as rows name it."""
        return self.platform, self.id

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
class Thread:
    """An issue or pull request; `closed_at` (UTC) is None while it is open.

    `head_sha` is a pull request's head when the event happened, None where it is not told.
    """

    number: int
    kind: ThreadKind
    title: str
    closed_at: datetime | None
    head_sha: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The thread of a turn, with the agent and the model that its people chose.

    Where an operator asks, who is on no thread, the id and the number are 0.
    """

    id: int
    number: int
    kind: ThreadKind
    title: str
    closed_at: datetime | None
    chosen_agent: str | None
    chosen_model: str | None


@dataclass(frozen=True, slots=True)
class ThreadRef:
    """The thread that a comment or reaction goes to."""

    repository: Repository
    conversation_id: int

    @property
    def key(self) -> tuple[str, int]:
        """Whose writes those to the thread are, and the thread, as the outbox names them."""
        return self.repository.writer, self.conversation_id


@dataclass(frozen=True, slots=True)
class Actor:
    """The person or bot who acted on GitHub; the numeric id is the identity, the login is for people."""

    login: str
    id: int
    is_bot: bool = False


@dataclass(frozen=True, slots=True)
class IssueBranch:
    """The branch of an issue: continued while it has unmerged commits, else new from the default branch.

    `prefix` begins its name, also where BRANCH_PREFIX is another one by now.
    """

    number: int
    prefix: str = BRANCH_PREFIX

    @property
    def first(self) -> str:
        """The name of its first branch."""
        return f"{self.prefix}issue-{self.number}"


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


@dataclass(frozen=True, slots=True)
class WorktreeRow:
    """A worktree's row with its repository.

    `owner` is the number of the thread it was made for, `conversations` are the numbers of the threads that use it.
    `path` is relative to the node's DATA_DIR. `ask_closes`: GitHub did not say which issues its pull request closes.
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
    ask_closes: bool = False

    @property
    def is_made(self) -> bool:
        """Whether its checkout was made; it may have been lost since."""
        return self.state == "ready"

    @property
    def start_sha(self) -> str | None:
        """The commit that its first request was about, None for an issue or where unknown."""
        return None if isinstance(self.start, IssueBranch) else self.start.sha


@dataclass(frozen=True, slots=True)
class Saved:
    """Rescued work: uncommitted `files` and unpushed `commits`, or the `whole` directory."""

    files: int
    commits: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Rescue:
    """A rescue of a worktree: a commit under `ref` in the clone, the directory itself, named `kept`, or both.

    `conversations` are the threads that used the worktree; `removal` says why it went, None where it stayed.
    """

    id: int
    worktree_id: int
    ref: str | None
    kept: str | None
    removal: str | None
    conversations: tuple[int, ...]
    branch: str | None
    files: int
    commits: int
    bytes: int
    created_at: datetime
    restored_at: datetime | None
    node: str
    codebase: str
    folder: str
    node_name: str

    @property
    def saved(self) -> Saved:
        """What it holds."""
        return Saved(self.files, self.commits, self.kept is not None)
