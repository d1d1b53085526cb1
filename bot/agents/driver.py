"""The interface of a turn to every agent and protocol: types only."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bot.messages.tracking import PlanEntry


@dataclass(frozen=True, slots=True)
class Launch:
    """The process to start: the argv (see `bot.sandbox`), the whole environment, and the worktree."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path


# What an agent reports while it works on a prompt.


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """The whole plan as it is now; it replaces the one before."""

    entries: tuple[PlanEntry, ...]


@dataclass(frozen=True, slots=True)
class ToolStarted:
    title: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """The end of a tool call; one for each `ToolStarted` whose end the agent reports."""

    title: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Said:
    """More of the answer; it follows on what was said before, and need not end with a word."""

    text: str


AgentEvent = PlanChanged | ToolStarted | ToolEnded | Said


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


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """No session could be opened. `next_step` is what the operator can do."""

    reason: str
    next_step: str
    stderr_tail: str


# How a prompt ends.


@dataclass(frozen=True, slots=True)
class Usage:
    """The agent's report: tokens as it counts them, the cost of the *session* so far, the model it worked with."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    session_cost: float | None = None
    currency: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class AgentDone:
    """The agent finished. `text` is its answer to this prompt and never blank."""

    text: str
    usage: Usage | None


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


class AgentDriver(Protocol):
    """One agent working for one conversation: open a session once, then prompt it, one prompt at a time."""

    async def open(self, resume: str | None) -> SessionOpened | OpenFailed:
        """Start the agent and continue the session `resume`, or begin one. Bounded in time."""
        ...

    async def prompt(
        self,
        blocks: Sequence[Block],
        limits: PromptLimits,
        stop: asyncio.Event,
        on_event: Callable[[AgentEvent], None],
    ) -> Outcome:
        """Send one prompt and wait for its end. `on_event` is called in this task; its exceptions are raised here.

        After an agent had to be killed, call `open` before the next prompt.
        """
        ...

    async def aclose(self) -> None:
        """End the agent and its process group. May be called twice."""
        ...
