"""The interface of a turn to every agent and protocol: types only."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bot.agents.mcp import McpServer
from bot.thread.tracking import PlanEntry


@dataclass(frozen=True, slots=True)
class Launch:
    """The process to start: the argv (see `bot.sandbox`), the whole environment, and the worktree.

    `mcp_servers` are the operator's; `mcp_file` has them in Claude's form, where there are any.
    `plans`: the agent works in its mode for plans, and its answer is one. `sandboxed`: nothing else than its sandbox is
    needed to keep it from what it may not do.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path
    mcp_servers: tuple[McpServer, ...] = ()
    mcp_file: Path | None = None
    plans: bool = False
    sandboxed: bool = False
    model: str = ""
    """The one to choose in the session, of an agent that takes it nowhere else; empty for its own."""
    skills: Path | None = None
    """The folder that holds `skills/`, and is a plugin of Claude Code; None without skills."""


# What an agent reports while it works on a prompt.


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """The whole plan as it is now; it replaces the one before."""

    entries: tuple[PlanEntry, ...]


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call that begins. `call` is the agent's name for it."""

    title: str
    call: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ToolPrinted:
    """What an open tool call has printed so far, where the agent tells it: the end, where it is long."""

    call: str
    output: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """The end of a tool call; one for each `ToolStarted` whose end the agent reports. Its title may be another one.

    `output` is what it printed or answered: its beginning and its end, where it is long.
    """

    title: str
    ok: bool
    call: str = field(default="", compare=False)
    output: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """More of the answer; it follows on what was said before, and need not end with a word."""

    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used so far: tokens as the agent counts them, the cost of the whole *session*, the model that worked."""

    tokens: int | None = None
    session_cost_usd: float | None = None
    model: str | None = None


AgentEvent = PlanChanged | ToolStarted | ToolPrinted | ToolEnded | Said | Usage


# What an agent is prompted with.


@dataclass(frozen=True, slots=True)
class Image:
    """A picture on the disk. Agents that take no pictures find it by its path, which the text names."""

    path: Path
    media_type: str

    def base64(self) -> str:
        """Return the file's content for JSON. Raises OSError."""
        return b64encode(self.path.read_bytes()).decode()


Block = str | Image


# How opening a session ends.


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session is open. `lost` is the reason why it is a new one, where a stored one should have been continued."""

    assistant_session_id: str
    resumed: bool
    lost: str | None
    models: tuple[str, ...] = field(default=(), compare=False)
    """Those that the agent offers, where it tells them."""


class CannotOpenError(Exception):
    """No session could be opened. `next_step` is what the operator can do."""

    def __init__(self, reason: str, next_step: str, stderr_tail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.next_step, self.stderr_tail = reason, next_step, stderr_tail


# How a prompt ends.


@dataclass(frozen=True, slots=True)
class AgentDone:
    """The agent finished. `text` is its answer to this prompt and never blank."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The prompt failed. `reason` is a sentence of Markdown; `status` is the HTTP status of the model, if known."""

    reason: str
    stderr_tail: str = ""
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    pass


@dataclass(frozen=True, slots=True)
class TimedOut:
    """`seconds` is the limit that was reached."""

    kind: Literal["total", "idle"]
    seconds: float


Outcome = AgentDone | Failed | Cancelled | TimedOut


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Seconds that a prompt may take, may be silent without an open tool call, and may take to stop when cancelled."""

    total_seconds: float
    idle_seconds: float
    cancel_grace_seconds: float = 5
