"""The context of handlers: the thread, its request, the caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from bot.ask import Ask
from bot.github.answers import Permission
from bot.github.client import GitHub
from bot.model import BRANCH_PREFIX, Actor, Repository, Target, Thread, ThreadRef
from bot.rules import Rules
from bot.store import conversations
from bot.store.database import Connection, Pool
from bot.thread import replies, thread_comments
from bot.thread.authority import Policy
from bot.turn.choose_worktree import PullRequestHead
from bot.turn.parsing import CommandSyntax, Request

if TYPE_CHECKING:
    from bot.turn.verb import Verbs


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where a new worktree may be: on any node that was alive within `timeout_seconds`, or None: on `own` alone.

    `branch_prefix` begins the names of new branches.
    """

    own: str
    timeout_seconds: float | None = None
    branch_prefix: str = BRANCH_PREFIX


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
    """A request of an author who is allowed to ask. `rules` are the repository's, `server_url` is the GitHub server.

    `permission` is the author's live one, None of a bot. `silent_until`: the bot has written too much in the thread.
    `retry_of`: the turn whose command is asked again.
    """

    request: Request
    policy: Policy
    rules: Rules
    server_url: str
    now: datetime
    verbs: Verbs
    permission: Permission | None = None
    silent_until: datetime | None = None
    retry_of: int | None = None

    @property
    def author(self) -> Actor:
        """The person who asks."""
        return self.request.author

    def asks(self, text: str, verb: str, **more: Any) -> Ask:
        """Return what a command of the request asks for."""
        own = self.request.ask
        return Ask(text, own.by, own.at, own.target, verb, **more)

    async def reply(self, text: str) -> int:
        """Answer with a comment that belongs to no turn; return its row in the outbox."""
        target, asked_by = self.request.target, self.author.id
        return await thread_comments.reply(self.connection, self.thread_ref, target, text, asked_by=asked_by)

    async def be_silent(self) -> None:
        """Do nothing for the request, after too many comments: two bots that answer each other end so."""
        words = replies.silent(self.policy.comments_per_hour, self.silent_until or self.now, self.now)
        await thread_comments.be_silent(self.connection, self.thread_ref, self.request.target, words, self.now)

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
    runs_in_silence: bool = False
    """Also where the bot has written too much."""


async def save_thread(connection: Connection, repository: Repository, thread: Thread) -> tuple[ThreadRef, str]:
    """Write the rows of the repository and the thread as GitHub describes them; return the thread and the folder."""
    about = (thread.number, thread.kind, thread.title, thread.closed_at)
    conversation_id, folder = await conversations.save_thread(connection, repository, *about)
    return ThreadRef(repository, conversation_id), folder


@dataclass(frozen=True)
class Parts:
    """The database, GitHub, and what the operator chose; `rules` are those of a repository that chose nothing."""

    pool: Pool
    github: GitHub
    platform: str
    server_url: str
    policy: Policy
    rules: Rules
    nodes: Nodes
    verbs: Verbs
    clock: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
