"""One stored delivery: read it, decide what it asks, and write the consequences in one transaction."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

import orjson
import structlog

from bot.authority import Allowed, Denied, Policy, before_asking_github, by_permission
from bot.decide.actions import Action, Close, Ignore, Reopen, Request, action_of
from bot.decide.parsing import Command
from bot.decide.pull_requests import closed_issues, pull_head
from bot.github.answers import ReviewComment
from bot.github.client import GitHub
from bot.github.errors import Transient
from bot.github.payloads import Unreadable, read
from bot.handlers.close import close, reopen
from bot.handlers.context import GitHubFacts, NodePaths
from bot.handlers.request import handle_request, refuse_request, report_failure
from bot.store import decisions
from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.store.decisions import Delivery
from bot.store.engine import RETRY_FOR_SECONDS, RetryLaterError, backoff_seconds

_log = structlog.get_logger()


class Decider:
    """Handles deliveries one at a time per conversation (the job's lock sees to that)."""

    def __init__(
        self,
        pool: Pool,
        github: GitHub,
        platform: str,
        policy: Policy,
        premises: NodePaths,
        clock: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pool = pool
        self._github = github
        self._platform = platform
        self._policy = policy
        self._premises = premises
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
        except (Transient, *DATABASE_AWAY) as problem:
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
        return action_of(event, self._policy)

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
                    await handle_request(connection, self._premises, action, facts)
                    return "served"
                if isinstance(verdict, Denied) and verdict.visible:
                    await refuse_request(connection, action)
                return f"denied: {verdict.why}" if isinstance(verdict, Denied) else "denied"
            case Close():
                await close(connection, action)
                return "closed"
            case Reopen():
                await reopen(connection, action)
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
        request = hear.asks.request
        facts = GitHubFacts(
            self._clock(),
            request=request,
            turns_per_person_per_day=self._policy.turns_per_person_per_day,
            bot_name=self._policy.bot_name,
        )
        if request is not None:
            # The payload may be older than a close that was handled before it.
            facts = replace(facts, thread=await self._github.thread_state(hear.repository, hear.thread.number))
        if hear.review_id is not None and request is not None:
            facts = replace(facts, request=await self._whole_review(hear, hear.review_id, request))
        if hear.thread.kind == "issue" or not (request is not None or Command("retry") in hear.asks.commands):
            return facts  # nothing that runs: an answer at once waits for nothing
        pull = await self._github.pull(hear.repository, hear.thread.number)
        place = await pull_head(self._github, hear.repository, pull)
        if not place.same_repository:
            return replace(facts, pull=place)
        closes = await closed_issues(self._github, hear.repository, pull, self._clock, self._sleep)
        return replace(facts, pull=place, closes=closes)

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


def _with_its_place(remark: ReviewComment) -> str:
    """An inline comment of a review, after the lines it is about: GitHub often leaves their number out here."""
    line = f":{remark.line}" if remark.line else ""
    quoted = "".join(f"> {text}\n" for text in remark.diff_hunk.splitlines())
    return f"{remark.path}{line}\n{quoted}\n{remark.body}"
