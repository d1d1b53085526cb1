"""The context of handlers: the thread, its request, the caller's transaction."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from bot.authority import Policy
from bot.handlers.choose_worktree import PullRequestHead
from bot.handlers.parsing import CommandSyntax, Request
from bot.model import Actor, Repository, Target, Thread, ThreadRef
from bot.reply import thread_comments
from bot.rules import Rules
from bot.store import conversations
from bot.store.database import Connection


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where a new worktree may be: on any node that was alive within `timeout_seconds`, or None: on `own` alone."""

    own: str
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ThreadContext:
    """A thread, and the transaction in which something is decided for it.

    `folder` is the repository's folder, `<owner>/<repo>`; `pull` is known for a pull request where a turn may run.
    """

    connection: Connection
    nodes: Nodes
    thread_ref: ThreadRef
    number: int
    folder: str
    pull: PullRequestHead | None

    @property
    def conversation_id(self) -> int:
        """The conversation's row."""
        return self.thread_ref.conversation_id

    @property
    def repository(self) -> Repository:
        """The repository of the thread."""
        return self.thread_ref.repository


@dataclass(frozen=True, slots=True)
class RequestContext(ThreadContext):
    """A request of an author who is allowed to ask. `server_url` is the GitHub server."""

    request: Request
    policy: Policy
    rules: Rules
    server_url: str
    now: datetime

    @property
    def author(self) -> Actor:
        """The person who asks."""
        return self.request.author

    async def reply(self, text: str) -> int:
        """Answer with a comment that belongs to no turn; return its row in the outbox."""
        target, asked_by = self.request.target, self.author.id
        return await thread_comments.reply(self.connection, self.thread_ref, target, text, asked_by=asked_by)

    async def acknowledge(self, *targets: Target) -> None:
        """React with 👀 to what asks, or to these texts."""
        for target in targets or (self.request.target,):
            await thread_comments.acknowledge(self.connection, self.thread_ref, target, self.author.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler(CommandSyntax):
    """One chat command. `run` gets its argument and works in the caller's transaction; `summary` is shown by `/help`.

    `queues_turn`: it may start a turn, so GitHub is asked about the pull request before the transaction begins.
    """

    summary: str
    run: Callable[[RequestContext, str | None], Awaitable[None]]
    queues_turn: bool = False


async def save_thread(connection: Connection, repository: Repository, thread: Thread) -> tuple[ThreadRef, str]:
    """Write the rows of the repository and the thread as GitHub describes them; return the thread and the folder."""
    about = (thread.number, thread.kind, thread.title, thread.closed_at)
    conversation_id, folder = await conversations.save_thread(connection, repository, *about)
    return ThreadRef(repository, conversation_id), folder
