"""One stored delivery: read it, decide what it asks, and write the consequences in one transaction."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import assert_never

import orjson
import structlog
from structlog.contextvars import bound_contextvars

from bot.authority import Denied, Policy, before_asking_github, by_permission
from bot.decide.actions import Action, Ignore, Request, action_of, failure_of
from bot.decide.operator import CreateWorktree, read_operator
from bot.decide.parsing import CommentParser, ParsedComment
from bot.decide.review import whole_review
from bot.github.answers import ThreadFacts
from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Refused, Transient, Unauthenticated
from bot.github.events import (
    Addressed,
    Event,
    ThreadAssigned,
    ThreadClosed,
    ThreadLabeled,
    ThreadReopened,
    Unreadable,
)
from bot.github.payloads import read
from bot.handlers.agent_request import AgentRequest, request_agent
from bot.handlers.assign_worktree import assign_worktree_for_operator, look_up_pull_request
from bot.handlers.choose_worktree import PullRequestHead
from bot.handlers.close import close, reopen
from bot.handlers.command import Command
from bot.handlers.context import Nodes, RequestContext, save_thread
from bot.handlers.registry import HANDLERS, run_command
from bot.messages import replies
from bot.model import Actor, Repository, ThreadRef
from bot.prompt.hidden import strip_hidden
from bot.reply import thread_comments
from bot.store import conversations, deliveries, operations, recoveries
from bot.store.database import DATABASE_AWAY, Connection, Pool, retry_on_unique_violation
from bot.store.deliveries import Delivery
from bot.store.engine import MAX_STALLS, RETRY_FOR_SECONDS, RetryLaterError, backoff_seconds

SHORT_BODY_BYTES = 64 << 10
SHORT_TEXT = 1000
"""Characters whose Markdown takes a few milliseconds at worst, and most often less than to hand it to a thread."""
_RETRIED: tuple[type[BaseException], ...] = (Transient, Unauthenticated, *DATABASE_AWAY)
_PATIENCE = timedelta(seconds=RETRY_FOR_SECONDS)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GitHubFacts:
    """Answers from GitHub that are needed before the transaction. `asked` is the request to the agent, if there is one.

    `pull` is None for an issue and where no turn may start, `thread` where the agent is asked nothing, and where the
    thread is surely open.
    """

    asked: AgentRequest | None = None
    pull: PullRequestHead | None = None
    thread: ThreadFacts | None = None


@dataclass(frozen=True)
class Decider:
    """A handler of deliveries; the lock of the job serializes those of one conversation."""

    pool: Pool
    github: GitHub
    platform: str
    server_url: str
    policy: Policy
    nodes: Nodes
    clock: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @cached_property
    def _parser(self) -> CommentParser:
        return CommentParser(self.policy.bot_name, HANDLERS.values())

    async def decide(self, guid: str, attempts: int) -> None:
        """Handle the delivery, unless it was handled. Raises RetryLaterError for a problem that passes."""
        try:
            async with self.pool.acquire() as connection:
                delivery = await deliveries.load(connection, guid)
        except DATABASE_AWAY as problem:
            raise RetryLaterError(backoff_seconds(attempts), _named(problem)) from problem
        if delivery is None:
            return
        about = {"conversation": delivery.conversation} if delivery.conversation else {}
        with bound_contextvars(delivery=guid, github_event=delivery.event, **about):
            await self._handle(delivery, attempts)

    async def stalled(self, guid: str, job_id: int) -> None:
        """Count that a worker died while it handled the delivery; after MAX_STALLS times end the delivery, with a word
        on its thread if that is known.

        Its body is not read: it may be what kills them.
        """
        error = f"The worker that handled it died {MAX_STALLS} times."
        async with self.pool.acquire() as connection, connection.transaction():
            if await deliveries.count_stall(connection, guid, job_id) < MAX_STALLS:
                return
            await deliveries.end(connection, guid, error)
            if (thread := await deliveries.thread_of(connection, guid)) is not None:
                await thread_comments.decline(connection, *thread)
                await thread_comments.reply(connection, *thread, replies.delivery_failed(guid))
        _log.error("delivery-given-up", delivery=guid)

    async def _handle(self, delivery: Delivery, attempts: int) -> None:
        request: Request | None = None
        arrived_at = asyncio.get_running_loop().time() - delivery.waited_seconds
        try:
            action = await self._action(delivery)
            request = action if isinstance(action, Request) else None
            outcome = await retry_on_unique_violation(self._carry_out, delivery, action, arrived_at)
            _log.info("decided", outcome=outcome or "handled already")
        except Exception as problem:
            if isinstance(problem, _RETRIED) and self.clock() - delivery.received_at < _PATIENCE:
                await self._record_attempt(delivery.guid, problem)
                wait = getattr(problem, "retry_after_seconds", None) or backoff_seconds(attempts)
                _log.warning("delivery-waits", seconds=round(wait), problem=_named(problem))
                raise RetryLaterError(wait, _named(problem)) from problem
            try:
                await self._fail(delivery, request, problem)
            except DATABASE_AWAY as outage:
                # Its row does not say that it failed, so it has not: an outage can look like a bug.
                raise RetryLaterError(backoff_seconds(attempts), _named(problem)) from outage
            if isinstance(problem, GitHubError) and not isinstance(problem, _RETRIED):
                # A refusal is no bug: the repository was deleted, or the bot lacks a right.
                _log.warning("delivery-failed", problem=_named(problem))
            else:
                _log.exception("delivery-failed")

    async def _action(self, delivery: Delivery) -> Action | CreateWorktree:
        if delivery.event == deliveries.OPERATOR_EVENT:
            async with self.pool.acquire() as connection:
                return await read_operator(connection, delivery.guid, delivery)
        # What is long in a thread: the worst Markdown of a full comment takes a second, and any account can write it.
        if len(delivery.body) > SHORT_BODY_BYTES:
            return await asyncio.to_thread(lambda: self._asked(self._read(delivery)))
        event = self._read(delivery)
        return self._asked(event) if _is_short(event) else await asyncio.to_thread(self._asked, event)

    async def _carry_out(self, delivery: Delivery, action: Action | CreateWorktree, arrived_at: float) -> str | None:
        """Return a word for the log, None if the delivery was handled meanwhile."""
        if isinstance(action, CreateWorktree):
            return await self._create(delivery, action)
        return await self._act(delivery, action, arrived_at)

    async def _create(self, delivery: Delivery, wanted: CreateWorktree) -> str | None:
        """Assign the worktree and queue its creation, or end the delivery as failed where there is no such thread."""
        worktree_id, problem = None, None
        try:
            repository = await self.github.repository(self.platform, wanted.owner, wanted.name)
            assigned = await assign_worktree_for_operator(
                self.pool, self.github, self.nodes.own, self.clock, repository, wanted.number
            )
            worktree_id = assigned.worktree_id
        except (NotFound, Refused):
            problem = f"GitHub shows the bot no {wanted.owner}/{wanted.name}#{wanted.number}."
        async with self.pool.acquire() as connection, connection.transaction():
            if not await deliveries.end(connection, delivery.guid, problem):
                return None
            if worktree_id is not None:
                asked = operations.by_operator(wanted.channel, self.clock())
                await operations.enqueue(connection, worktree_id, "create", asked)
        return problem or "accepted"

    def _read(self, delivery: Delivery) -> Event | Unreadable | None:
        return read(delivery.event, orjson.loads(delivery.body), self.platform)

    def _asked(self, event: Event | Unreadable | None) -> Action:
        if event is None:
            return Ignore("unused")
        if isinstance(event, Unreadable):
            return failure_of(event, self.policy, self._parser)
        return action_of(event, self.policy, self._parser)

    async def _act(self, delivery: Delivery, action: Action, arrived_at: float) -> str | None:
        """Look up what the action needs, then write everything in one transaction; return a word for the log."""
        denied, facts = None, GitHubFacts()
        match action:
            case Request():
                denied = await self._denied(action.author, action.repository, arrived_at)
                facts = GitHubFacts() if denied else await self._look_up(action)
            case Unreadable(addressed=Addressed() as addressed):
                denied = await self._denied(addressed.sender, addressed.repository, arrived_at)
            case _:
                pass  # anybody's closing counts
        # What recovery could not prove has not failed: a repeat would be told on the thread again.
        error = action.why if isinstance(action, Unreadable) and not action.is_unproven else None
        async with self.pool.acquire() as connection, connection.transaction():
            if not await deliveries.end(connection, delivery.guid, error):
                return None
            return await self._write(connection, delivery.guid, action, denied, facts)

    async def _write(
        self, connection: Connection, guid: str, action: Action, denied: Denied | None, facts: GitHubFacts
    ) -> str:
        match action:
            case Request():
                if denied is not None:
                    # Once denied, always denied: what recovery finds again later asks for nothing.
                    for index in range(len(action.parsed.commands) + 1):
                        await conversations.first_seen(connection, action.effect(index))
                    await self._decline_outsider(connection, action, action.author, denied)
                    return f"denied: {denied.why}"
                await handle_request(connection, self.nodes, self.policy, self.server_url, self.clock(), action, facts)
                return "accepted"
            case Unreadable(why=why, addressed=addressed, is_unproven=is_unproven):
                if addressed is not None and denied is not None:
                    await self._decline_outsider(connection, addressed, addressed.sender, denied)
                elif addressed is not None:
                    words = replies.ASK_AGAIN if is_unproven else replies.delivery_unreadable(guid)
                    await _decline(connection, addressed, words)
                return f"unreadable: {why}"
            case ThreadClosed(repository=repository, thread=thread, at=at):
                await close(connection, self.server_url, repository, thread.number, at, self.clock())
                return "closed"
            case ThreadReopened(repository=repository, thread=thread, at=at):
                await reopen(connection, repository, thread.number, at)
                return "reopened"
            case Ignore(why=why):
                return why
            case _:
                assert_never(action)

    async def _denied(self, author: Actor, repository: Repository, arrived_at: float) -> Denied | None:
        """Return why the author may not ask; an answer that GitHub does not give is no permission: it raises."""
        verdict = before_asking_github(self.policy, author, repository)
        if verdict is None:
            permission = await self.github.permission(repository, author.login, arrived_at=arrived_at)
            verdict = by_permission(permission)
        return verdict if isinstance(verdict, Denied) else None

    async def _decline_outsider(
        self, connection: Connection, asked: Request | Addressed, person: Actor, denied: Denied
    ) -> None:
        """Tell a person who may not ask, unless that person hears nothing at all."""
        if denied.visible:
            thread_ref, _ = await _save_thread(connection, asked)
            await thread_comments.decline_outsider(connection, thread_ref, asked.target, person.id, self.clock())

    async def _look_up(self, request: Request) -> GitHubFacts:
        """Ask GitHub what the request's turn needs. A request to the agent gets its 👀 before."""
        text, number = request.parsed.request, request.thread.number
        starts_turn = text is not None or _queues_turn(request.parsed)
        if not starts_turn:
            return GitHubFacts()  # other commands are answered at once and wait for nothing
        asked, thread, pull = None, None, None
        async with self.pool.acquire() as connection:
            standing = await conversations.standing(connection, request.repository, number)
        is_pull, is_open = request.thread.kind == "pull", request.thread.closed_at is None and standing.is_surely_open
        if text is not None and (is_pull or not is_open):
            async with self.pool.acquire() as connection, connection.transaction():
                thread_ref, _ = await _save_thread(connection, request)
                await thread_comments.acknowledge(connection, thread_ref, request.target, request.author.id)
        if text is not None:
            if not is_open:
                # The payload may be older than a close that was handled before it.
                with contextlib.suppress(NotFound):
                    thread = await self.github.thread(request.repository, number)
            seen = text if request.is_gesture else None
            if seen is None and request.target.id is None:
                seen = await asyncio.to_thread(strip_hidden, text)
            asked = AgentRequest(text, request.context, seen=seen)
            if (review_id := request.review_id) is not None:
                asked = await whole_review(self.github, self.sleep, self._parser, request, review_id, text)
        if is_pull:
            pull = await look_up_pull_request(
                self.github,
                request.repository,
                number,
                self.clock,
                self.sleep,
                choosing=not standing.has_worktree,
            )
        return GitHubFacts(asked, pull, thread)

    async def _record_attempt(self, guid: str, problem: BaseException) -> None:
        with contextlib.suppress(*DATABASE_AWAY):
            async with self.pool.acquire() as connection:
                await deliveries.record_attempt(connection, guid, _named(problem))

    async def _fail(self, delivery: Delivery, request: Request | None, problem: BaseException) -> None:
        """End the delivery as failed, with the problem in its row and one sentence on the thread."""
        error = _named(problem)
        async with self.pool.acquire() as connection, connection.transaction():
            if await deliveries.end(connection, delivery.guid, error) and request is not None:
                await _decline(connection, request, replies.delivery_failed(delivery.guid))


def _named(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


def _is_short(event: Event | Unreadable | None) -> bool:
    match event:
        case None | ThreadClosed() | ThreadReopened():
            return True
        case Unreadable():
            return False
        case ThreadLabeled(remark=remark) | ThreadAssigned(remark=remark):
            return len(remark.body) <= SHORT_TEXT
        case _:
            return len(event.remark.body) + len(event.body_before or "") <= SHORT_TEXT


async def handle_request(
    connection: Connection,
    nodes: Nodes,
    policy: Policy,
    server_url: str,
    now: datetime,
    request: Request,
    facts: GitHubFacts,
) -> None:
    """Run the commands in order, then queue one turn for the rest; each only if it was not done before."""
    thread_ref, folder = await _save_thread(connection, request)
    if facts.thread is not None:
        await conversations.set_state(connection, thread_ref.conversation_id, facts.thread.closed_at)
    ctx = RequestContext(
        connection=connection,
        nodes=nodes,
        thread_ref=thread_ref,
        number=request.thread.number,
        folder=folder,
        pull=facts.pull,
        server_url=server_url,
        policy=policy,
        author=request.author,
        asked_at=request.asked_at,
        asked_head=request.thread.head_sha,
        target=request.target,
        now=now,
    )
    commands = request.parsed.commands
    for index, command in enumerate(commands):
        if await conversations.first_seen(connection, request.effect(index)):
            await run_command(ctx, command)
    if facts.asked is not None and await conversations.first_seen(connection, request.effect(len(commands))):
        await request_agent(ctx, facts.asked)


async def _decline(connection: Connection, request: Request | Addressed, sentence: str) -> None:
    """Tell the thread that the request cannot be done: 😕 and one sentence."""
    thread_ref, _ = await _save_thread(connection, request)
    await thread_comments.decline(connection, thread_ref, request.target)
    await thread_comments.reply(connection, thread_ref, request.target, sentence)


async def _save_thread(connection: Connection, request: Request | Addressed) -> tuple[ThreadRef, str]:
    thread = request.thread
    saved = await save_thread(
        connection, request.repository, thread.number, thread.kind, thread.title, thread.closed_at
    )
    if request.target.id is None:
        # Before it has a reaction, which the thread's text, a label and an assignment share.
        place = (request.repository, thread.number, request.target)
        await recoveries.save_asked(connection, *place, by_gesture=request.is_gesture)
    return saved


def _queues_turn(parsed: ParsedComment) -> bool:
    return any(isinstance(command, Command) and HANDLERS[command.name].queues_turn for command in parsed.commands)
