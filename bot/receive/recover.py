"""Recovery of what was missed while nothing listened (DESIGN.md §3.1).

GitHub keeps a log of its deliveries for three days: it is compared with the inbox, and what that lacks is fetched.
Without the permission to read the log, the threads of active repositories are read (`bot.receive.acts`). What was acted
on before is recognised when it is decided, by its effect.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import orjson
import structlog

from bot import counters
from bot.authority import Policy
from bot.github.answers import LoggedDelivery
from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Refused
from bot.github.payloads import is_used_event
from bot.model import Repository
from bot.receive.acts import Acts, closing
from bot.receive.delivery import delivery_of
from bot.store import deliveries, recoveries
from bot.store.database import Pool
from bot.store.deliveries import NewDelivery

# https://docs.github.com/webhooks/testing-and-troubleshooting-webhooks/viewing-webhook-deliveries
MEMORY = timedelta(days=3)
OVERLAP = timedelta(minutes=10)
"""A delivery can appear in the log a little after its time."""
ACTIVE = timedelta(days=30)
MOST_REPOSITORIES = 50
SILENT = timedelta(days=1)
MOST_SILENT = 20
MOST_LOGGED = 10_000
MOST_FETCHED = 300
"""Budgets of one round and source; the next round goes on."""
_log = structlog.get_logger()


Way = Literal["deliveries", "threads", "none"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one source of deliveries gave. `problem` says why its threads were read, or why nothing was compared."""

    source: str
    way: Way
    guids: tuple[str, ...] = ()
    problem: str | None = None


async def recover(pool: Pool, github: GitHub, platform: str, policy: Policy, now: datetime) -> list[Recovered] | None:
    """Store what the inbox lacks, source by source; None where another process is doing it.

    Raises only what a database raises that is away.
    """
    async with recoveries.only_one(pool) as is_ours:
        if not is_ours:
            return None
        recovery = _Recovery(pool, github, platform, policy, now)
        found = [one async for one in recovery.run()]
    for one in found:
        counters.RECOVERIES.labels("missed-delivery").inc(len(one.guids))
        log = _log.warning if one.guids or one.way == "none" else _log.info
        log("deliveries-recovered", source=one.source, way=one.way, recovered=len(one.guids), problem=one.problem)
    return found


class _LogIsGoneError(Exception):
    """GitHub's log does not tell all that was missed."""


class _Recovery:
    def __init__(self, pool: Pool, github: GitHub, platform: str, policy: Policy, now: datetime) -> None:
        self._pool = pool
        self._github = github
        self._platform = platform
        self._policy = policy
        self._now = now

    async def run(self) -> AsyncIterator[Recovered]:
        if self._github.is_app:
            yield await self._source("app", None)
        else:
            async with self._pool.acquire() as connection:
                active = await recoveries.active_repositories(
                    connection, self._platform, self._now, ACTIVE, MOST_REPOSITORIES
                )
            for repository in active:
                yield await self._source(f"{self._platform}/{repository.id}", repository)
        if closed := await self._closed_long_ago():
            yield Recovered("threads that seemed open", "threads", tuple(closed))

    async def _source(self, source: str, repository: Repository | None) -> Recovered:
        """Compare one source; a problem of GitHub's leaves it to the next round."""
        shown = repository.full_name if repository else source
        guids: tuple[str, ...] = ()
        way: Way = "none"
        async with self._pool.acquire() as connection:
            since, compared_before = await recoveries.seen_until(connection, source, self._now, MEMORY)
        try:
            try:
                guids, until = await self._from_log(repository, since, compared_before)
                way, problem = "deliveries", None
            except (NotFound, Refused, _LogIsGoneError) as missing:
                if repository is None:
                    raise
                guids, until = await self._from_threads(repository, since)
                way, problem = "threads", str(missing)
                if not isinstance(missing, _LogIsGoneError):
                    problem = f"the bot may not read the repository's webhooks ({missing})"
        except GitHubError as problem_of_github:
            # It is tried again after the others: those that cannot be read must not hold them up.
            until, problem = since, str(problem_of_github)
        async with self._pool.acquire() as connection:
            await recoveries.save(connection, source, until, problem, self._now)
        return Recovered(shown, way, guids, problem)

    async def _from_log(
        self, repository: Repository | None, since: datetime, compared_before: bool
    ) -> tuple[tuple[str, ...], datetime]:
        """Fetch what the inbox lacks of GitHub's log; return it, and until when nothing is missed now."""
        hooks: list[tuple[Repository, int] | None] = [None]
        if repository is not None:
            made = await self._github.webhooks(repository)
            if not made:
                raise NotFound("there is no webhook that leads to /webhooks/github")
            if compared_before and min(made.values()) > since:
                raise _LogIsGoneError("the webhook was made anew, and the log of the one before went with it")
            hooks = [(repository, hook) for hook in made]
        stored: list[str] = []
        until = self._now
        for hook in hooks:
            logged, complete = await self._github.logged_deliveries(hook, since - OVERLAP, MOST_LOGGED)
            missing = await self._missing(logged)
            for delivery in missing[:MOST_FETCHED]:
                payload = await self._github.logged_payload(hook, delivery.id)
                stored += await self._store(delivery.guid, delivery.event, payload)
            if not complete or len(missing) > MOST_FETCHED:
                until = since
        return tuple(stored), until

    async def _missing(self, logged: list[LoggedDelivery]) -> list[LoggedDelivery]:
        """Return the deliveries that the inbox lacks, each once, the oldest first."""
        used = {delivery.guid: delivery for delivery in logged if is_used_event(delivery.event)}
        async with self._pool.acquire() as connection:
            known = await recoveries.known(connection, list(used))
        return sorted((one for guid, one in used.items() if guid not in known), key=lambda one: (one.at, one.id))

    async def _from_threads(self, repository: Repository, since: datetime) -> tuple[tuple[str, ...], datetime]:
        """Make deliveries of what people did since; return them, and until when nothing is missed now."""
        repository = await self._github.as_named_now(repository)
        acts = Acts(self._pool, self._github, self._policy, repository, since - OVERLAP)
        found, reached = await acts.read(self._now - OVERLAP)
        stored: list[str] = []
        for act in found:
            stored += await self._store(act.guid, act.event, await acts.payload(act))
        return tuple(stored), reached + OVERLAP

    async def _closed_long_ago(self) -> list[str]:
        """Find closes that no log tells any more: ask for the threads of which nothing was heard for long."""
        async with self._pool.acquire() as connection:
            silent = await recoveries.unheard(connection, self._platform, self._now, SILENT, MOST_SILENT)
        stored: list[str] = []
        for known, number in silent:
            try:
                repository = await self._github.as_named_now(known)
                thread = await self._github.get(repository, "/issues/{number}", number=str(number))
                # One that was transferred has another number in another repository.
                if thread["closed_at"] and thread["number"] == number:
                    act = closing(thread)
                    payload = await Acts(self._pool, self._github, self._policy, repository, act.at).payload(act)
                    stored += await self._store(act.guid, act.event, payload)
            except GitHubError as problem:
                if not isinstance(problem, NotFound | Refused):
                    break  # another round asks for the rest
            async with self._pool.acquire() as connection:
                await recoveries.save_checked(connection, known, number, self._now)
        return stored

    async def _store(self, guid: str, event: str, payload: object) -> list[str]:
        delivery: NewDelivery = delivery_of(guid, event, orjson.dumps(payload), self._platform)
        async with self._pool.acquire() as connection:
            return sorted((await deliveries.store(connection, [delivery])).guids)
