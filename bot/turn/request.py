"""A request as verbs see it: the thread, its text, the caller's transaction; and the table of verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, assert_never

from bot.ask import Ask
from bot.github.answers import Permission
from bot.github.client import GitHub
from bot.model import BRANCH_PREFIX, Actor, Repository, Target, Thread, ThreadRef
from bot.rules import Rules
from bot.store import conversations
from bot.store.database import Connection, Pool, statement
from bot.thread import outbox_rows as outbox
from bot.thread import replies, thread_comments
from bot.thread.authority import Policy
from bot.turn.choose_worktree import PullRequestHead
from bot.turn.kind import Kind
from bot.turn.parsing import Command, CommandSyntax, Request, UnknownCommand


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
        return Ask(text, own.by, own.at, own.target, verb, gesture=own.gesture if self.request.ticks else None, **more)

    async def reply(self, text: str) -> int:
        """Answer with a comment that belongs to no turn, or below the boxes that were ticked; return its row in the
        outbox.
        """
        target, asked_by = self.request.target, self.author.id
        if self.request.ticks:
            return await thread_comments.answer_ticks(self.connection, self.thread_ref, target, text) or 0
        return await thread_comments.reply(self.connection, self.thread_ref, target, text, asked_by=asked_by)

    async def turn_of_target(self) -> int | None:
        """Return the turn whose comment it is that asks, by its ticks."""
        found = await outbox.comment_there(self.connection, self.conversation_id, self.request.target.id or 0)
        return None if found is None else found[1]

    async def take_ticks(self) -> bool:
        """Show what was chosen, if boxes were ticked; return False where the comment showed that already."""
        if not self.request.ticks or self.silent_until is not None:
            return True
        own = self.request.ask
        at = (self.connection, self.thread_ref, own.target)
        return await thread_comments.take_ticks(*at, self.request.chosen, own.by.login, own.at)

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
    """Write the row of a thread of a known repository; return the thread and the folder."""
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
    notifies: bool = False
    """There is a NOTIFY_URL."""


Write = Callable[[Connection], Awaitable[None]]
"""Writes in the transaction that ends a delivery."""


def _named(ask: Ask, kinds: Mapping[str, Kind[Any]]) -> None:
    return None


async def _stays(asked: Any, rules: Rules) -> None:
    return None


async def _nothing(connection: Connection, conversation_id: int) -> None:
    return None


async def _nothing_more(connection: Connection, conversation_id: int, rules: Rules) -> None:
    return None


async def _not_opened(parts: Parts, repository: Repository, number: int, asked: Ask | None) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What people can ask for: its chat commands, the kinds of its turns, and its part in what others ask.

    `recorded` are words of its commands that the audit keeps.
    """

    commands: tuple[Handler, ...] = ()
    kinds: tuple[Kind[Any], ...] = ()
    recorded: tuple[str, ...] = ()
    kind_of: Callable[[Ask, Mapping[str, Kind[Any]]], Kind[Any] | None] = _named
    """Return the kind of what was asked where that is none of `kinds`, which the rows name."""
    boxes: Mapping[str, str] = field(default_factory=dict)
    """Commands, by the words of the boxes that people tick in their place."""
    settle: Callable[[Any, Rules], Awaitable[tuple[Ask, str | None] | None]] = _stays
    """Return what becomes of a request (`bot.turn.words.Asked`) where its words or the rules want another kind, and
    what is said of that. It writes nothing: it is asked of messages, too, which wait for their own turn then."""
    at_stop: Callable[[Connection, int], Awaitable[None]] = _nothing
    """Called when somebody stops the turns of a conversation, or closes it."""
    at_end: Callable[[Connection, int, Rules], Awaitable[None]] = _nothing_more
    """Called last in the transaction that ends any turn of a conversation."""
    at_opening: Callable[[Parts, Repository, int, Ask | None], Awaitable[Write | None]] = _not_opened
    """Return what is to be written where a pull request was opened, or is no draft any more, as a payload says; the
    ask is what its text asks, as GitHub has confirmed it. Raises GitHubError."""


class Verbs:
    """All verbs, in the order in which `/help` lists their commands."""

    def __init__(self, verbs: Sequence[Verb]) -> None:
        self._verbs = verbs
        self.commands = {command.name: command for verb in verbs for command in verb.commands}
        self.boxes = {words: name for verb in verbs for words, name in verb.boxes.items()}
        self.kinds = {kind.name: kind for verb in verbs for kind in verb.kinds}
        self._recorded = frozenset(words for verb in verbs for words in verb.recorded)

    def kind_of(self, ask: Ask) -> Kind[Any]:
        """Return the kind of turn that was asked for; a run may settle on another one."""
        found = (verb.kind_of(ask, self.kinds) for verb in self._verbs)
        return next(filter(None, found), None) or self.kinds[ask.verb]

    async def settle(self, asked: Any, rules: Rules) -> tuple[Ask, str | None] | None:
        """Return what becomes of what was asked, as the first verb says that wants another kind; None as it is."""
        for verb in self._verbs:
            if (settled := await verb.settle(asked, rules)) is not None:
                return settled
        return None

    async def at_stop(self, connection: Connection, conversation_id: int) -> None:
        """Do what verbs do when the turns of a conversation are stopped, or it is closed."""
        for verb in self._verbs:
            await verb.at_stop(connection, conversation_id)

    async def at_end(self, connection: Connection, conversation_id: int, rules: Rules) -> None:
        """Do what verbs do after any turn of a conversation, last in the transaction that ends it."""
        for verb in self._verbs:
            await verb.at_end(connection, conversation_id, rules)

    async def at_opening(
        self, parts: Parts, repository: Repository, number: int, asked: Ask | None
    ) -> tuple[Write, ...]:
        """Return what verbs write where a pull request was opened. Raises GitHubError."""
        found = [await verb.at_opening(parts, repository, number, asked) for verb in self._verbs]
        return tuple(filter(None, found))

    async def run(self, ctx: RequestContext, command: Command | UnknownCommand) -> None:
        """Run one command of a comment, in the caller's transaction."""
        handler = self.commands.get(command.name) if isinstance(command, Command) else None
        if ctx.silent_until is not None and not (handler and handler.runs_in_silence):
            await ctx.be_silent()
            return
        await ctx.acknowledge()
        match command:
            case Command(name=name, argument=argument):
                await self.commands[name].run(ctx, argument)
                words = f"{name} {argument}" if argument else name
                if words in self._recorded and not ctx.request.is_operators:
                    of = (ctx.repository.full_name, ctx.number, ctx.conversation_id)
                    await _record_command(ctx.connection, ctx.author.login, words, *of)
            case UnknownCommand(words=words):
                await ctx.reply(replies.unknown_command(words, self.commands))
            case _:
                assert_never(command)


@statement("""
-- What it queued has the time of this transaction.
insert into audit (person, channel, action, target, codebase, turn, outcome)
select $1, 'thread', $2, $3 || '#' || $4::integer, $3, queued.id,
       case when queued.id is null then 'answered on the thread' end
from (select (select max(t.id) from turns t join requests r on r.turn_id = t.id
              where t.state = 'queued' and t.conversation_id = $5 and t.created_at = now()
                and r.verb = split_part($2, ' ', -1))) as queued (id)
""")
async def _record_command(
    connection: Connection, login: str, command: str, codebase: str, number: int, conversation_id: int
) -> None:
    """Record a command on a thread, in the transaction that carried it out."""
