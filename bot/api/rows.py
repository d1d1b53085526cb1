"""The rows that an operator sees, each described once: JSON, schema, tables and pages follow from these models.

The fields stand in the order of the JSON.
"""

from datetime import UTC, date, datetime
from typing import ClassVar, Generic, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict
from rich.filesize import decimal

from bot.messages.formatting import format_count, format_duration
from bot.messages.tracking import EntryState
from bot.model import DeliveryState, EndReason, ThreadKind, TurnState, WorktreeState

ListedWorktreeState = Literal[WorktreeState, "missing"]
ConversationState = Literal["open", "closed"]
NodeState = Literal["alive", "silent"]
RescueState = Literal["kept", "restored"]
SessionState = Literal["active", "ended"]
OperationState = Literal["queued", "running", "done", "failed"]


class Row(BaseModel):
    """A row. `COLUMNS` are the attributes that its table shows; the first `WHOLE` of them are never wrapped."""

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    WHOLE: ClassVar[int] = 2
    EMPTY: ClassVar[str] = ""
    """What an empty list of them says."""


R = TypeVar("R", bound=Row)


class Page(Row, Generic[R]):
    """A page of a list."""

    items: list[R]
    next: str | None
    """The value of `?after=` for the page that follows; null on the last one."""


def to_json(content: object, option: int = 0) -> bytes:
    """Return rows as JSON, with times in UTC."""
    return orjson.dumps(content, BaseModel.model_dump, option | orjson.OPT_UTC_Z)


class Worktree(Row):
    """A checkout."""

    id: int
    codebase: str
    path: str
    branch: str | None
    """Null while it is detached."""
    node: str
    state: ListedWorktreeState
    """`missing`: it should be there, but its directory is gone."""
    conversations: list[str]
    """Those that use it."""
    created_at: datetime
    updated_at: datetime
    """When it was used last."""

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        users = ", ".join(self.conversations) or self.codebase
        return f"{users}, branch {self.branch_name}, {self.state}"

    @property
    def branch_name(self) -> str:
        return self.branch or "(detached)"

    @property
    def used_by(self) -> str:
        return " ".join(self.conversations) or f"{self.codebase}: none"


class Session(Row):
    """An agent's context."""

    COLUMNS = ("id", "last_active_at", "conversation", "agent", "state", "end_reason")
    EMPTY = "No sessions yet."

    id: int
    conversation: str
    agent: str
    assistant_session_id: str | None
    """The agent's own name for it."""
    active: bool
    created_at: datetime
    last_active_at: datetime
    ended_at: datetime | None
    end_reason: EndReason | None

    @property
    def state(self) -> SessionState:
        return "active" if self.active else "ended"


class Turn(Row):
    """A request to the agent."""

    COLUMNS = ("id", "state", "finished_at", "conversation", "requested_by", "took", "cost_usd", "agent", "why")
    WHOLE = 3
    EMPTY = "No turns yet."

    id: int
    conversation: str
    state: TurnState
    reason: str | None
    """Why it ended so."""
    waiting: str | None = None
    """Why it is still queued."""
    phase: str | None
    """What happens before its agent starts."""
    requested_by: str
    comment_url: str | None
    """The comment that shows its progress and its answer."""
    agent: str | None
    model: str | None
    cost_usd: float | None
    """As reported by the agent; null where it reports none."""
    tokens: int | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        return f"{self.conversation}, asked by {self.requested_by}"

    @property
    def why(self) -> str | None:
        return self.waiting or self.phase or self.reason

    @property
    def took(self) -> str | None:
        """How long it took, or has run until now."""
        if self.started_at is None:
            return None
        return format_duration((self.finished_at or datetime.now(UTC)) - self.started_at)


class PlanEntry(Row):
    """A line of an agent's plan."""

    state: EntryState
    text: str


class Step(Row):
    """What an agent did."""

    at: datetime
    words: str


class WholeTurn(Turn):
    """A request with its texts."""

    request: str | None
    expired: bool
    """Whether its texts were deleted (HISTORY_RETENTION_DAYS)."""
    plan: list[PlanEntry]
    latest_words: str
    steps: list[Step]


class Conversation(Row):
    """An issue or a pull request."""

    COLUMNS = ("id", "conversation", "state", "branch", "pull_requests", "turns", "cost_usd", "title")
    EMPTY = "No conversations yet."

    id: int
    conversation: str
    kind: ThreadKind
    title: str
    state: ConversationState
    worktree: int | None
    branch: str | None
    pull_requests: list[str]
    """Those that use its worktree."""
    session: int | None
    """The active one."""
    turns: int
    cost_usd: float | None
    created_at: datetime
    updated_at: datetime


class WholeConversation(Conversation):
    """A thread with its newest requests and sessions."""

    requests: list[Turn]
    sessions: list[Session]


class Delivery(Row):
    """A webhook that was received."""

    COLUMNS = ("guid", "state", "received_at", "what")
    WHOLE = 3
    EMPTY = "No deliveries yet."

    guid: str
    event: str
    action: str | None
    conversation: str | None
    state: DeliveryState
    received_at: datetime
    attempts: int
    error: str | None

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        return f"{self.event} {self.conversation or ''}"

    @property
    def name(self) -> str:
        """The event as GitHub's documentation names it."""
        return f"{self.event}.{self.action}" if self.action else self.event

    @property
    def what(self) -> str:
        return " ".join(filter(None, (self.event, self.action, self.conversation, self.error)))


class Kept(Row):
    """A directory that is kept and that no rescue names."""

    name: str
    bytes: int
    created_at: datetime
    expires_at: datetime


class Rescue(Row):
    """What was rescued from a worktree, or kept of it."""

    COLUMNS = ("id", "size", "expires_at", "used_by", "what", "state", "node", "name")
    WHOLE = 3
    EMPTY = "Nothing was rescued or kept."

    id: int
    worktree: int
    codebase: str
    conversations: list[str]
    """Those that used the worktree."""
    branch: str | None
    removal: str | None
    """Why the worktree was removed; null where it was not."""
    name: str
    """Its ref in the clone, or its directory in DATA_DIR/kept."""
    files: int
    commits: int
    bytes: int
    node: str
    created_at: datetime
    expires_at: datetime
    restored_at: datetime | None

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        users = ", ".join(self.conversations) or self.codebase
        return f"{users}, rescued {self.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S UTC}, {self.size}"

    @property
    def used_by(self) -> str:
        return " ".join(self.conversations) or self.codebase

    @property
    def state(self) -> RescueState:
        return "restored" if self.restored_at else "kept"

    @property
    def what(self) -> str:
        counts = ((self.files, "file"), (self.commits, "commit"))
        return ", ".join(format_count(count, noun) for count, noun in counts if count) or "the whole directory"

    @property
    def size(self) -> str:
        return decimal(self.bytes)


class WorktreeOnDisk(Worktree):
    """A checkout with what is on this node's disk; null on other nodes, and where it cannot be told."""

    COLUMNS = ("id", "state", "used_by", "branch_name", "on_disk", "path")
    EMPTY = "No worktrees; --all includes removed ones."

    bytes: int | None = None
    changed_files: int | None = None
    ahead: int | None = None
    """Commits that GitHub's branch does not have."""
    behind: int | None = None
    rescues: list[Rescue] = []

    @property
    def on_disk(self) -> str | None:
        """The size, and the difference to what is committed and to GitHub's branch."""
        if self.bytes is None:
            return None
        counts = ((self.changed_files, "changed"), (self.ahead, "ahead"), (self.behind, "behind"))
        return ", ".join([decimal(self.bytes), *(f"{count} {word}" for count, word in counts if count)])


class Node(Row):
    """A machine that runs agents."""

    COLUMNS = ("id", "name", "state", "running", "queued", "worktrees", "on_disk", "heartbeat_at")
    EMPTY = "No worker has started yet."

    id: str
    name: str
    state: NodeState
    started_at: datetime
    heartbeat_at: datetime | None
    worktrees: int
    running: int
    """Its turns that run."""
    queued: int
    """Its turns that wait."""
    disk: dict[str, int]
    """Bytes by what they are for, at the last sweep."""
    disk_measured_at: datetime | None
    kept: list[Kept]

    @property
    def on_disk(self) -> str | None:
        return decimal(sum(self.disk.values())) if self.disk else None


class Costs(Row):
    """What the turns of one repository cost that ended on one day (UTC)."""

    COLUMNS = ("day", "codebase", "turns", "without_cost", "tokens", "cost_usd")
    EMPTY = "No request has ended in these days."

    day: date
    codebase: str
    turns: int
    untold: int
    """Those whose agent reported no cost."""
    cost_usd: float | None
    tokens: int | None

    @property
    def without_cost(self) -> int:
        return self.untold


class Operation(Row):
    """What was asked of a worktree."""

    id: int
    kind: str
    worktree: int
    state: OperationState
    outcome: str | None
    requested_by: str
    turns_ahead: int
    waits_for: str | None
    """The name of its machine while that gives no sign of life."""
    created_at: datetime
    finished_at: datetime | None


class AskedOperation(Row):
    """The operation that carries out a change."""

    operation: int


class AskedDelivery(Row):
    """The delivery with which a worker carries out a change."""

    delivery: str


class StoppedTurn(Row):
    """The turn that is being stopped."""

    turn: int


class TouchedWorktree(Row):
    """The worktree that counts as used now."""

    worktree: int


class Error(Row):
    """What is wrong with a call."""

    error: str
