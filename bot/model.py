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
    "agent-changed",
    "node-lost",
]
AutoPullRequest = Literal["never", "draft", "ready"]
"""Whether a turn that pushed an issue's branch opens a pull request, and how."""
BRANCH_PREFIX = "threadtree/"
Side = Literal["LEFT", "RIGHT"]
"""A side of a diff: the old file, or the new one."""
ThreadKind = Literal["issue", "pull"]
TargetKind = Literal["comment", "review-comment", "review", "issue", "pull"]
"""The text that addressed the bot: an issue comment, an inline review comment, a review, or the thread's own text."""


@dataclass(frozen=True, slots=True)
class CapReached:
    """A cap on cost that is reached, in dollars: of one request, of its repository's day, or of the day of all."""

    cap: Literal["turn", "repository", "day"]
    spent_usd: float
    limit_usd: float


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
class ClosedPull:
    """A pull request that was closed, from a branch of its own repository. `head` is the last commit of its branch."""

    number: int
    branch: str
    head: str
    opened_at: datetime
    merged_at: datetime | None
    """None where it was closed without a merge."""


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
class LineRemark:
    """A remark on lines of a diff, with GitHub's names; a single line has no `start_line`.

    https://docs.github.com/rest/pulls/reviews#create-a-review-for-a-pull-request
    """

    path: str
    line: int
    side: Side
    body: str
    start_line: int | None = None


@dataclass(frozen=True, slots=True)
class OwnReview:
    """The remarks of a review of the commit `head`; None is the head that there is by now.

    `whole` is its text with all remarks in it, for a GitHub that does not find their lines.
    """

    head: str | None
    remarks: tuple[LineRemark, ...] = ()
    whole: str = ""


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


def worktree_path(folder: str, name: str) -> str:
    """Return the path of a worktree in its node's DATA_DIR; `folder` is the repository's folder, `<owner>/<repo>`."""
    return f"worktrees/{folder}/{name}"


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
class WorktreeOfThread:
    """The live worktree of a thread; `others` are the numbers of the other threads that use it."""

    id: int
    state: WorktreeState
    branch: str | None
    detached: bool
    others: tuple[int, ...]
    active_at: datetime


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


Obstacle = Literal["time", "turn", "github-limit", "worktree", "directory"]
"""What keeps a turn from being claimed; see `turn_obstacles` in the migrations."""


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """A queued turn, and why it waits. Without an obstacle, its node claims it as soon as it has room.

    `reason` belongs to the obstacle `time`, `held_until` to `github-limit`. `removal_error`: why a directory that is in
    its way cannot be removed. `ahead` and `wait` as in `requests.Enqueued`; `behind`: the thread of the first, if it is
    another one. `running` turns are on its `node`, `running_here` of its repository.
    """

    id: int
    obstacle: Obstacle | None
    reason: str | None
    ahead: int
    wait: str | None
    behind: str | None
    held_until: datetime | None
    removal_error: str | None
    node: str
    node_is_silent: bool
    running: int
    running_here: int


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a conversation. `branch` is None without a worktree; `others` are the threads that share it.

    `pushed_to` is the branch where work was pushed last, and `net` what it then was against `base_branch`: changed
    files, commits ahead and behind. `agent` and what follows are of the session, None without one. `rescues` were not
    restored. `cost_usd` is what is known of the `turns`; of the `untold` that is nothing. `not_posted` is
    the last turn whose answer GitHub refused. `silent_node`: the name of its machine, which gives no sign of life since
    `silent_since`. `removal_error`: why the files of a worktree that is in its way, or its own, cannot be removed.
    """

    branch: str | None = None
    pushed_to: str | None = None
    base_branch: str | None = None
    net: tuple[int, ...] = ()
    pull_request: int | None = None
    others: tuple[int, ...] = ()
    agent: str | None = None
    session_since: datetime | None = None
    session_turns: int | None = None
    model: str | None = None
    rescues: int = 0
    turns: int = 0
    cost_usd: float | None = None
    untold: int = 0
    not_posted: int | None = None
    silent_node: str | None = None
    silent_since: datetime | None = None
    removal_error: str | None = None


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
    path: str


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn that ended: its conversation as `owner/repo#number`, and the bot's comment once it is on GitHub."""

    conversation: str
    state: TurnState
    reason: str | None
    requested_by: str
    comment_url: str | None
    finished_at: datetime | None
