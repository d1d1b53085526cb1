"""Recovery of what was missed while nothing listened (DESIGN.md §3.1).

GitHub keeps a log of its deliveries for three days: it is compared with the inbox, and what that lacks is fetched.
Nothing else tells what was missed: where the bot may not read the log, it stays missed. What was acted on before is
recognised when it is decided, by its effect. GitHub's times tell how far a log was compared: this machine's clock may
be wrong.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import orjson
import structlog

from bot import counters
from bot.github.client import GitHub, Hook
from bot.github.errors import GitHubError, NotFound, Refused, Transient
from bot.github.payloads import CHECKS, is_used_event
from bot.inbox import recovery_rows as recoveries
from bot.inbox.delivery import delivery_of
from bot.inbox.recovery_rows import Missed, Place
from bot.model import Repository
from bot.store import deliveries
from bot.store.database import Pool

MOST_REPOSITORIES = 50
MOST_PAGES = 100
MOST_FETCHED = 300
"""Budgets of one round and source; the next round goes on."""
OVERLAP = timedelta(minutes=10)
"""A delivery can appear in the log a little after its time."""
OF_APP = 0
"""Stands for the App's webhook, which has no id."""
MOST_TRIES = 3
"""So often an item that GitHub does not show holds up what came after it."""
STAYS = "missed deliveries stay missed"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the log of one source gave. `problem` says what is not compared yet, or stays missed."""

    source: str
    way: Literal["deliveries", "none"]
    guids: tuple[str, ...] = ()
    problem: str | None = None


async def recover(pool: Pool, github: GitHub, platform: str, now: datetime) -> list[Recovered] | None:
    """Store what the inbox lacks, source by source; None where another process is doing it.

    Raises only what a database raises that is away.
    """
    async with recoveries.only_one(pool) as is_ours:
        if not is_ours:
            return None
        found = await _Recovery(pool, github, platform, now).run()
    for one in found:
        counters.RECOVERIES.labels("missed-delivery").inc(len(one.guids))
        log = _log.warning if one.guids or one.way == "none" else _log.info
        log("deliveries-recovered", source=one.source, way=one.way, recovered=len(one.guids), problem=one.problem)
    return found


def _is_used(event: str) -> bool:
    """Return whether a missed delivery is worth a request. Of the events of one set of checks, one is enough."""
    return is_used_event(event) and event not in CHECKS[1:]


@dataclass(frozen=True, slots=True)
class _Recovery:
    pool: Pool
    github: GitHub
    platform: str
    now: datetime

    async def run(self) -> list[Recovered]:
        if self.github.is_app:
            return [await self._source("app", None)]
        active = await recoveries.active_repositories(self.pool, self.platform, self.now, MOST_REPOSITORIES)
        return [await self._source(f"{self.platform}/{one.id}", one) for one in active]

    async def _source(self, source: str, repository: Repository | None) -> Recovered:
        """Compare one source, the App or a repository. What GitHub refuses is tried again after the other sources."""
        stored: list[str] = []
        is_read, is_compared = False, False
        place = await recoveries.place(self.pool, source, self.now)
        try:
            hooks, problem = await self._hooks(repository)
            if hooks:
                unread = await self._read_log(source, repository, hooks, place)
                is_read, is_compared = True, unread is None
                problem = unread or await self._fetch_missed(source, repository, stored)
                if problem is None and place.log_is_short:
                    problem = f"nothing listened for longer than GitHub keeps its log: older {STAYS}"
        except GitHubError as refusal:
            problem = str(refusal)
            if isinstance(refusal, NotFound | Refused):
                place.begin_again()
        async with self.pool.acquire() as connection:
            await recoveries.save(connection, source, place, problem, self.now, is_compared=is_compared)
        name = repository.full_name if repository else source
        return Recovered(name, "deliveries" if is_read else "none", tuple(stored), problem)

    async def _hooks(self, repository: Repository | None) -> tuple[list[int], str | None]:
        """Return the webhooks whose log can be read, and why there are none."""
        if repository is None:
            return [OF_APP], None
        try:
            hooks = [hook.id for hook in await self.github.webhooks(repository)]
        except (NotFound, Refused) as missing:
            return [], f"the bot may not read the repository's webhooks ({missing}): {STAYS}"
        return hooks, None if hooks else f"the repository has no webhook that leads to /webhooks/github: {STAYS}"

    async def _read_log(self, source: str, repository: Repository | None, hooks: list[int], place: Place) -> str | None:
        """Note what the inbox lacks of GitHub's log, from `place` on; return what is not compared yet."""
        if place.log_hook not in hooks:
            place.begin_again()
        pages = 0
        for hook in hooks[hooks.index(place.log_hook) if place.log_hook is not None else 0 :]:
            if hook != place.log_hook:
                place.log_hook, place.log_cursor = hook, None
            is_read = False
            while not is_read:
                if pages >= MOST_PAGES:
                    return "GitHub's log is long: what is older than its last thousands of deliveries follows"
                page, following = await self.github.logged_deliveries(_hook(repository, hook), place.log_cursor)
                recent = [one for one in page if one.at >= place.seen_until - OVERLAP]
                async with self.pool.acquire() as connection:
                    used = [Missed(one.guid, hook, one.id, one.event, one.at) for one in recent if _is_used(one.event)]
                    await recoveries.note_missed(connection, source, used)
                is_read = following is None or len(recent) < len(page)
                place.log_cursor = following
                place.log_newest = place.log_newest or (page[0].at if page else None)
                pages += 1
        place.seen_until = place.log_newest or place.seen_until
        place.begin_again()
        return None

    async def _fetch_missed(self, source: str, repository: Repository | None, stored: list[str]) -> str | None:
        """Store what was noted, the oldest first; return what is left."""
        missed = await recoveries.missed(self.pool, source, MOST_FETCHED, MOST_TRIES)
        for one in missed:
            try:
                payload = await self.github.logged_payload(_hook(repository, one.hook), one.log_id)
            except (NotFound, Refused) as refusal:
                _log.warning("not-recovered", delivery=one.guid, why=str(refusal))
            except Transient as problem:
                is_of_all = problem.scope == "installation"
                if is_of_all or await recoveries.count_try(self.pool, source, one.guid) < MOST_TRIES:
                    raise
                continue  # it is asked for again, after all others
            else:
                stored += await self._store(one, payload)
            await recoveries.forget(self.pool, source, one.guid)
        left = len(await recoveries.missed(self.pool, source, MOST_FETCHED, MOST_TRIES))
        return f"{left} missed deliveries are not fetched yet" if left else None

    async def _store(self, missed: Missed, payload: object) -> list[str]:
        delivery = delivery_of(missed.guid, missed.event, orjson.dumps(payload), self.platform)
        async with self.pool.acquire() as connection:
            return sorted((await deliveries.store(connection, [delivery])).guids)


def _hook(repository: Repository | None, hook: int) -> Hook | None:
    return None if repository is None else (repository, hook)
