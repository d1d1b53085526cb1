"""One stored delivery: read it, decide what it asks, and write the consequences in one transaction."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

import orjson
import structlog

from bot.authority import Allowed, Denied, Policy, before_asking_github, by_permission
from bot.decide.actions import Action, Close, Ignore, Reopen, Request, action_of
from bot.decide.parsing import CommentParser, ParsedComment
from bot.github.answers import ReviewComment, ThreadState
from bot.github.client import GitHub
from bot.github.errors import Transient
from bot.github.payloads import Unreadable, read
from bot.handlers.agent_request import request_agent
from bot.handlers.choose_worktree import PullRequestHead
from bot.handlers.close import close, reopen
from bot.handlers.command import Command
from bot.handlers.context import NodePaths, RequestContext, save_thread
from bot.handlers.pull_requests import look_up_pull_request
from bot.handlers.registry import HANDLERS, run_command
from bot.messages import replies
from bot.reply import thread_comments
from bot.reply.thread_comments import ThreadRef
from bot.store import conversations, decisions
from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.store.decisions import Delivery
from bot.store.engine import RETRY_FOR_SECONDS, RetryLaterError, backoff_seconds

_RETRIED: tuple[type[BaseException], ...] = (Transient, *DATABASE_AWAY)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GitHubFacts:
    """What was looked up on GitHub before the transaction began. `text` is what the agent is asked, if anything is.

    `pull` is None for an issue and where no turn may start, `thread` where the agent is asked nothing.
    """

    text: str | None = None
    pull: PullRequestHead | None = None
    thread: ThreadState | None = None


class Decider:
    """Handles deliveries one at a time per conversation (the job's lock sees to that)."""

    def __init__(
        self,
        pool: Pool,
        github: GitHub,
        platform: str,
        policy: Policy,
        paths: NodePaths,
        clock: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pool = pool
        self._github = github
        self._platform = platform
        self._policy = policy
        self._parser = CommentParser(policy.bot_name, [handler.syntax for handler in HANDLERS.values()])
        self._paths = paths
        self._clock = clock
        self._sleep = sleep

    async def decide(self, guid: str, attempts: int) -> None:
        """Handles the delivery; does nothing if it was handled. Raises RetryLaterError for what passes."""
        try:
            async with self._pool.acquire() as connection:
                delivery = await decisions.load(connection, guid)
        except DATABASE_AWAY as problem:
            raise RetryLaterError(backoff_seconds(attempts), f"{type(problem).__name__}: {problem}") from problem
        if delivery is None:
            return
        log = _log.bind(delivery=guid, github_event=delivery.event, conversation=delivery.conversation)
        hear: Request | None = None
        try:
            # In a thread: the worst Markdown of a full comment takes seconds, and anybody can write it.
            action = await asyncio.to_thread(self._read, delivery)
            hear = action if isinstance(action, Request) else None
            outcome = await self._act(guid, action)
            log.info("decided", action=type(action).__name__.lower(), outcome=outcome)
        except _RETRIED as problem:
            if self._clock() - delivery.received_at < timedelta(seconds=RETRY_FOR_SECONDS):
                await self._note(guid, problem)
                wait = getattr(problem, "retry_after_seconds", None) or backoff_seconds(attempts)
                raise RetryLaterError(wait, f"{type(problem).__name__}: {problem}") from problem
            await self._give_up(guid, hear, problem)
            raise
        except Exception as bug:
            try:
                await self._give_up(guid, hear, bug)
            except DATABASE_AWAY as problem:
                # Its row does not say that it failed, so it has not: an outage can look like a bug.
                raise RetryLaterError(backoff_seconds(attempts), f"{type(bug).__name__}: {bug}") from problem
            raise

    def _read(self, delivery: Delivery) -> Action:
        event = read(delivery.event, orjson.loads(delivery.body), self._platform)
        if event is None or isinstance(event, Unreadable):
            return Ignore(event.why if event else "unused")
        return action_of(event, self._policy, self._parser)

    async def _act(self, guid: str, action: Action) -> str:
        """Looks up what the action needs, then writes everything in one transaction. Returns a word for the log."""
        verdict = await self._verdict(action) if isinstance(action, Request) else None
        facts = await self._facts(action) if isinstance(action, Request) and isinstance(verdict, Allowed) else None
        async with self._pool.acquire() as connection, connection.transaction():
            if not await decisions.begin(connection, guid):
                return "handled already"
            outcome = await self._write(connection, action, verdict, facts)
            await decisions.finish(connection, guid)
        return outcome

    async def _write(
        self, connection: Connection, action: Action, verdict: Allowed | Denied | None, facts: GitHubFacts | None
    ) -> str:
        match action:
            case Request():
                if facts is not None:
                    await handle_request(connection, self._paths, self._policy, self._clock(), action, facts)
                    return "served"
                if isinstance(verdict, Denied) and verdict.visible:
                    await refuse_request(connection, action)
                return f"denied: {verdict.why}" if isinstance(verdict, Denied) else "denied"
            case Close():
                await close(connection, action.repository, action.number, action.closed_at)
                return "closed"
            case Reopen():
                await reopen(connection, action.repository, action.number, action.at)
                return "reopened"
            case Ignore(why=why):
                return why
            case _:
                assert_never(action)

    async def _verdict(self, hear: Request) -> Allowed | Denied:
        """Whether the sender may; an answer GitHub does not give is no permission: it raises."""
        verdict = before_asking_github(self._policy, hear.speaker, hear.repository)
        if verdict is not None:
            return verdict
        return by_permission(await self._github.permission(hear.repository, hear.speaker.login))

    async def _facts(self, hear: Request) -> GitHubFacts:
        number = hear.thread.number
        text, thread, pull = hear.asks.request, None, None
        if text is not None:
            # The payload may be older than a close that was handled before it.
            thread = await self._github.thread_state(hear.repository, number)
            if hear.review_id is not None:
                text = await self._whole_review(hear, hear.review_id, text)
        # Other commands are answered at once and wait for nothing.
        if hear.thread.kind == "pull" and (text is not None or _queues_turn(hear.asks)):
            pull = await look_up_pull_request(self._github, hear.repository, number, self._clock, self._sleep)
        return GitHubFacts(text, pull, thread)

    async def _whole_review(self, hear: Request, review_id: int, request: str) -> str:
        """The review's text and its inline comments by the same person as one request (DESIGN.md §3.2)."""
        remarks = await self._github.review_comments(hear.repository, hear.thread.number, review_id)
        mine = [remark for remark in remarks if remark.author is not None and remark.author.id == hear.speaker.id]
        if hear.target.kind == "review-comment" and len(mine) <= 1:
            return request
        parts = [request] if hear.target.kind == "review" else []
        parts += [_with_its_place(remark) for remark in mine]
        return "\n\n".join(parts)

    async def _note(self, guid: str, problem: BaseException) -> None:
        with contextlib.suppress(*DATABASE_AWAY):
            async with self._pool.acquire() as connection:
                await decisions.tried(connection, guid, f"{type(problem).__name__}: {problem}")

    async def _give_up(self, guid: str, hear: Request | None, problem: BaseException) -> None:
        """The delivery failed for good: its row says why, and who asked something hears one sentence."""
        async with self._pool.acquire() as connection, connection.transaction():
            if not await decisions.begin(connection, guid):
                return
            if hear is not None:
                await report_failure(connection, hear, guid)
            await decisions.finish(connection, guid, error=f"{type(problem).__name__}: {problem}")


async def handle_request(
    connection: Connection, paths: NodePaths, policy: Policy, now: datetime, hear: Request, facts: GitHubFacts
) -> None:
    """Run the commands in order, then queue one turn for the rest; each only if it was not done before."""
    thread_ref, folder = await _save_thread(connection, hear)
    if facts.thread is not None:
        await conversations.set_state(connection, thread_ref.conversation_id, facts.thread.closed_at)
    ctx = RequestContext(
        connection=connection,
        paths=paths,
        thread_ref=thread_ref,
        number=hear.thread.number,
        folder=folder,
        pull=facts.pull,
        policy=policy,
        author=hear.speaker,
        asked_at=hear.asked_at,
        target=hear.target,
        now=now,
    )
    for index, command in enumerate(hear.asks.commands):
        if await conversations.first_seen(connection, hear.effect(index)):
            await run_command(ctx, command)
    if facts.text is not None and await conversations.first_seen(connection, hear.effect(len(hear.asks.commands))):
        await request_agent(ctx, facts.text, context=hear.context, review_id=hear.review_id)


async def refuse_request(connection: Connection, hear: Request) -> None:
    """React with 😕 to what addressed the bot: its author may not ask."""
    thread_ref, _ = await _save_thread(connection, hear)
    await thread_comments.confused(connection, thread_ref, hear.target)


async def report_failure(connection: Connection, hear: Request, guid: str) -> None:
    """Tell the thread that the request could not be handled: 😕 and one sentence."""
    thread_ref, _ = await _save_thread(connection, hear)
    await thread_comments.confused(connection, thread_ref, hear.target)
    await thread_comments.reply(connection, thread_ref, hear.target, replies.gave_up(guid))


async def _save_thread(connection: Connection, hear: Request) -> tuple[ThreadRef, str]:
    thread = hear.thread
    return await save_thread(connection, hear.repository, thread.number, thread.kind, thread.title, thread.closed_at)


def _queues_turn(asks: ParsedComment) -> bool:
    return any(isinstance(command, Command) and HANDLERS[command.name].queues_turn for command in asks.commands)


def _with_its_place(remark: ReviewComment) -> str:
    """An inline comment of a review, after the lines it is about: GitHub often leaves their number out here."""
    line = f":{remark.line}" if remark.line else ""
    quoted = "".join(f"> {text}\n" for text in remark.diff_hunk.splitlines())
    return f"{remark.path}{line}\n{quoted}\n{remark.body}"
