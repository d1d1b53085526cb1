"""The rows that an operator sees, each described once: JSON, schema, tables and pages follow from these models.

The fields stand in the order of the JSON.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Json
from rich.filesize import decimal

from bot.care.asked import PruneLine, PruneReport, Repaired
from bot.model import ThreadKind, WorktreeState
from bot.store.states import EndReason
from bot.store.turns import TurnState
from bot.thread.commit_message import ADDRESSED, split_subject
from bot.thread.formatting import format_count, format_duration, one_line, plain
from bot.thread.outcome import Came, Check, result
from bot.thread.tracking import EndState, EntryState
from bot.thread.waits import WaitsFor

DeliveryState = Literal["received", "done", "ignored", "failed", "dead"]

ListedWorktreeState = Literal["not-removed", WorktreeState, "missing", "orphan"]
ConversationState = Literal["open", "closed"]
NodeState = Literal["alive", "silent"]
RescueState = Literal["kept", "restored"]
SessionState = Literal["active", "ended"]
OperationState = Literal["queued", "running", "done", "failed"]
ListedDeliveryState = Literal["not-ignored", "all", DeliveryState]
LONGEST_SUMMARY = 120


def first_words(text: str) -> str:
    """Return what a text begins with, in one line, without whom it addresses."""
    line = one_line(ADDRESSED.sub("", text))
    return line if len(line) <= LONGEST_SUMMARY else f"{line[: LONGEST_SUMMARY - 1].rpartition(' ')[0] or line}…"


class Row(BaseModel):
    """A row. `COLUMNS` are the attributes that its table shows; the first `WHOLE` of them are never wrapped, and those
    that are `CUT` are cut where a line of the terminal ends.
    """

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    WHOLE: ClassVar[int] = 2
    CUT: ClassVar[tuple[str, ...]] = ()
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
    """`missing`: it should be there, but its directory is gone. `orphan`: a directory that belongs to no worktree."""
    conversations: list[str]
    """Those that use it."""
    created_at: datetime
    updated_at: datetime
    """When it was used last."""

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        if self.state == "orphan":
            return f"{self.path}, an orphan on the node {self.node}"
        users = ", ".join(self.conversations) or self.codebase
        return f"{users}, branch {self.branch_name}, {self.state}"

    @property
    def branch_name(self) -> str:
        return self.branch or ("" if self.state == "orphan" else "(detached)")

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

    COLUMNS = ("id", "result", "conversation", "took", "cost_usd", "title", "why")
    WHOLE = 3
    CUT = ("why", "title")
    EMPTY = "No turns yet."

    id: int
    conversation: str | None
    """Null where an operator asked, of a worktree."""
    state: TurnState
    reason: str | None
    """Why it ended so."""
    outcome: Came | EndState | None
    """What came of it; null before its end. `withheld`: there are changes, and something kept them back."""
    check: Json[Check] | None
    """How the repository's check ended; null where nothing was changed, or there is none."""
    nothing_pushed: str | None
    """Why nothing was pushed, where something was to be."""
    asked: bool
    """Whether the agent asks a person."""
    verb: str
    """What kind of request it is."""
    title: Annotated[str, BeforeValidator(first_words)]
    """What people see of the request: its first words, or the command; empty once its texts were deleted."""
    thread_title: str
    waiting: str | None = None
    """Why it is still queued."""
    phase: str | None
    """What happens before its agent starts."""
    requested_by: str
    comment_url: str | None
    """The comment that shows its progress and its answer."""
    agent: str | None
    model: str | None
    pull_request: str | None
    """The thread itself, or the pull request of its branch."""
    cost_usd: float | None
    """As told by the agent; null where it tells none."""
    tokens: int | None
    """As its model counted them, else as told by the agent."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    waits_for: WaitsFor | None
    """What a person has to do about it."""

    @property
    def about(self) -> str:
        """What it is, in a few words."""
        return f"{': '.join(filter(None, (self.name, self.conversation)))}, asked by {self.requested_by}"

    @property
    def name(self) -> str:
        """What people know it by."""
        return self.title or self.thread_title or f"Request {self.id}"

    @property
    def result(self) -> str:
        """What a person looks for first: how it stands, or what came of it."""
        return result(self.state, self.outcome, self.check)

    @property
    def why(self) -> str | None:
        return self.waiting or self.phase or self.reason or self.nothing_pushed

    @property
    def took(self) -> str | None:
        """How long it took, or has run until now."""
        if self.started_at is None:
            return None
        return format_duration((self.finished_at or datetime.now(UTC)) - self.started_at)


class Waiting(Row):
    """A request about which a person has to do something."""

    COLUMNS = ("turn", "waits_for", "since", "conversation", "requested_by", "title", "url")
    WHOLE = 2
    CUT = ("title",)
    EMPTY = "Nothing waits for a person."

    turn: int
    conversation: str
    title: Annotated[str, BeforeValidator(first_words)]
    waits_for: WaitsFor
    """`approve`: a plan; `answer`: a question; `retry`: it failed, or its check did; `review`: a pull request."""
    since: datetime
    requested_by: str
    url: str
    """Where to do it: the comment with its answer, or the pull request."""

    @property
    def name(self) -> str:
        """What people know it by."""
        return self.title or f"Request {self.turn}"


class PlanEntry(Row):
    """A line of an agent's plan."""

    state: EntryState
    text: str


class TurnForPeople(Turn):
    """A request about which people have to do something."""

    since: datetime


class TurnAtWork(Turn):
    """A request that runs or waits in line, with what its agent does now."""

    behind: int
    """The other requests of its thread that wait."""
    plan: list[PlanEntry]
    latest_words: str
    latest_step: str | None


class Message(Row):
    """What a person added to a request while its agent worked."""

    turn: int
    """Its own, which ended without a run."""
    requested_by: str
    text: str


class Step(Row):
    """What an agent did."""

    place: int
    at: datetime
    words: str
    output_bytes: int | None
    """The size of its output, as far as it is kept."""


class WholeStep(Step):
    """A step with its output."""

    output: str | None


def _without_subject(answer: str | None) -> str | None:
    """Return the answer without the line for its commit, which is for the bot."""
    return answer if answer is None else split_subject(answer)[0]


class WholeTurn(Turn):
    """A request with its texts."""

    request: str | None
    expired: bool
    """Whether its texts were deleted (HISTORY_RETENTION_DAYS)."""
    plan: list[PlanEntry]
    latest_words: str
    latest_output: str | None
    """While it runs, the end of what its latest step has printed so far."""
    answer: Annotated[str | None, BeforeValidator(_without_subject)]
    """As Markdown."""
    notices: list[str]
    """What its comment says besides the answer, as Markdown."""
    read: list[str]
    """What the agent was given to read."""
    branch: str | None
    """The branch on GitHub that it changed."""
    changed_from: str | None
    changed_to: str | None
    """The commits between which its changes are; null where it pushed none."""
    pictures: str | None
    """The commit that has the pictures of its check; null without any."""
    folder: str
    """The folder of its repository's clone, in DATA_DIR/repos."""
    previous: int | None
    next: int | None
    """The requests of the same thread before and after it."""
    added: Annotated[list[Message], BeforeValidator(orjson.loads)]
    """What its agent was told while it worked."""
    steps: list[Step]


class Conversation(Row):
    """An issue or a pull request."""

    COLUMNS = ("id", "conversation", "state", "branch", "pull_requests", "turns", "cost_usd", "title")
    CUT = ("branch", "pull_requests", "title")
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


class OneDelivery(Delivery):
    """A delivery by itself."""

    turn: int | None
    """What makes the worktree that an operator asked for; null before a worker has looked at the thread."""


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
        if not self.name.startswith("refs/"):
            return "the whole directory"
        counts = ((self.files, "file"), (self.commits, "commit"))
        return ", ".join(format_count(count, noun) for count, noun in counts if count) or "its state"

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
    def bytes(self) -> int:
        """What it takes on its disk. Rescues are in the clones."""
        return sum(size for kind, size in self.disk.items() if kind != "rescues")

    @property
    def on_disk(self) -> str | None:
        return decimal(self.bytes) if self.disk else None


class Space(Row):
    """The disk space that something takes, of one repository or of all."""

    COLUMNS = ("size", "what", "codebase")

    what: str
    codebase: str | None
    bytes: int

    @property
    def size(self) -> str:
        return decimal(self.bytes)


class AuditEntry(Row):
    """What a person did."""

    COLUMNS = ("at", "person", "action", "target", "codebase", "outcome")
    CUT = ("outcome",)
    EMPTY = "Nothing is recorded yet."

    id: int
    at: datetime
    person: str
    """A login, `admin-token`, or `command line (USER)`."""
    channel: Literal["dashboard", "API", "command line", "thread"]
    action: str
    target: str
    codebase: str | None
    details: Json[dict[str, Any]]
    """What else was asked."""
    outcome: Annotated[str, BeforeValidator(plain)]


class Operation(Row):
    """What was asked of a node, of an orphan or of a rescue there."""

    id: int
    kind: str
    node: str
    state: OperationState
    details: Json[dict[str, Any]]
    """What exactly was asked."""
    outcome: str | None
    report: Json[PruneReport | list[Repaired]] | None
    """What a prune or a repair did."""
    requested_by: str
    turn: int | None
    """The turn that goes on with it: an orphan that is restored is a worktree's."""
    waits_for: str | None
    """The name of its machine while that gives no sign of life."""
    beside: list[int]
    """The operations of the other nodes that were asked in the same call."""
    created_at: datetime
    finished_at: datetime | None

    @property
    def lines(self) -> list[tuple[str, PruneLine]]:
        """The worktrees that a prune tells of, each with what became of it."""
        return self.report.lines if isinstance(self.report, PruneReport) else []


class AskedTurn(Row):
    """The turn that carries out a change; of an orphan, which no turn has, the operation of its node."""

    turn: int | None = None
    operation: int | None = None


class AskedOperation(Row):
    """The operation that carries out a change."""

    operation: int


class AskedOfNodes(Row):
    """The operations that carry out a change, one for each node."""

    operations: list[int]

    @property
    def nodes(self) -> str:
        return format_count(len(self.operations), "node")


class PrunedSessions(Row):
    """How many ended sessions were deleted, or with `dry_run` would be."""

    deleted: int
    dry_run: bool

    @property
    def words(self) -> str:
        count = format_count(self.deleted, "ended session")
        return f"{count} would be deleted." if self.dry_run else f"Deleted {count}."


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
