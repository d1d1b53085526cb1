"""Recovery of what was missed while nothing listened (DESIGN.md §3.1).

GitHub keeps a log of its deliveries for three days: it is compared with the inbox, and what that lacks is fetched.
Without the permission to read the log, and where it does not reach back far enough, the threads of active repositories
are read (`bot.inbox.acts`). What was acted on before is recognised when it is decided, by its effect. GitHub's times
tell how far a source was compared: this machine's clock may be wrong.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import orjson
import structlog

from bot import counters
from bot.github.client import GitHub, Hook
from bot.github.errors import GitHubError, NotFound, Refused, Transient
from bot.github.payloads import CHECKS, is_used_event
from bot.inbox.acts import OVERLAP, Acts, closing
from bot.inbox.delivery import delivery_of
from bot.model import Repository
from bot.store import deliveries, recoveries
from bot.store.database import Pool
from bot.store.recoveries import Missed, Place
from bot.thread.authority import Policy

MOST_REPOSITORIES = 50
MOST_SILENT = 20
MOST_PAGES = 100
MOST_FETCHED = 300
"""Budgets of one round and source; the next round goes on."""
OF_APP = 0
"""Stands for the App's webhook, which has no id."""
MOST_TRIES = 3
"""So often an item that GitHub does not show holds up what came after it."""
_log = structlog.get_logger()

Way = Literal["deliveries", "threads", "none"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one source of deliveries gave. `problem` says why its threads were read, or what is not compared yet."""

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
        found = await _Recovery(pool, github, platform, policy, now).run()
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
    policy: Policy
    now: datetime

    async def run(self) -> list[Recovered]:
        active = await recoveries.active_repositories(self.pool, self.platform, self.now, MOST_REPOSITORIES)
        if self.github.is_app:
            found = [await self._source("app", None, active)]
        else:
            found = [await self._source(f"{self.platform}/{one.id}", one, [one]) for one in active]
        if closed := await self._closed_long_ago():
            found.append(Recovered("threads that seemed open", "threads", tuple(closed)))
        return found

    async def _source(self, source: str, repository: Repository | None, active: list[Repository]) -> Recovered:
        """Compare one source, the App or a repository. What GitHub refuses is tried again after the other sources.

        `active` are the repositories whose threads tell what the log does not.
        """
        way: Way = "none"
        stored: list[str] = []
        is_compared = False
        place = await recoveries.place(self.pool, source, self.now)
        try:
            hooks, problem = await self._hooks(repository, place)
            if problem is not None:
                reached = [await self._from_threads(source, one, place.seen_until, stored) for one in active]
                if not hooks:
                    place.seen_until = min(reached, default=place.seen_until)
            way = "threads" if problem else "deliveries"
            unread = await self._read_log(source, repository, hooks, place) if hooks else None
            is_compared = unread is None
            problem = unread or await self._fetch_missed(source, repository, stored) or problem
        except GitHubError as refusal:
            problem = str(refusal)
            if isinstance(refusal, NotFound | Refused):
                place.begin_again()
        async with self.pool.acquire() as connection:
            await recoveries.save(connection, source, place, problem, self.now, is_compared=is_compared)
        return Recovered(repository.full_name if repository else source, way, tuple(stored), problem)

    async def _hooks(self, repository: Repository | None, place: Place) -> tuple[list[int], str | None]:
        """Return the webhooks whose log can be read, and why the threads have to be read as well or instead."""
        hooks = [OF_APP]
        if repository is not None:
            try:
                made = await self.github.webhooks(repository)
            except (NotFound, Refused) as missing:
                return [], f"the bot may not read the repository's webhooks ({missing})"
            if not made:
                return [], "the repository has no webhook that leads to /webhooks/github"
            # A webhook that nobody uses any more does not tell how far the log was read.
            hooks = [hook.id for hook in made]
            if place.compared_at is not None and made[-1].at > place.compared_at:
                return hooks, "the webhook was made anew, and the log of the one before went with it"
        return hooks, "nothing listened for longer than GitHub keeps its log" if place.log_is_short else None

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
                if await self._holds_up(source, one.guid, problem):
                    raise
                continue  # it is asked for again, after all others
            else:
                stored += await self._store(one.guid, one.event, payload)
            await recoveries.forget(self.pool, source, one.guid)
        left = len(await recoveries.missed(self.pool, source, MOST_FETCHED, MOST_TRIES))
        return f"{left} missed deliveries are not fetched yet" if left else None

    async def _holds_up(self, source: str, guid: str, problem: Transient) -> bool:
        """Count that an item could not be read; return whether those after it still wait for it."""
        if problem.scope == "installation":
            return True
        return await recoveries.count_try(self.pool, source, guid) < MOST_TRIES

    async def _from_threads(self, source: str, repository: Repository, since: datetime, stored: list[str]) -> datetime:
        """Make deliveries of what people did since; return until when nothing is missed now."""
        repository = await self.github.as_named_now(repository)
        acts = Acts(self.pool, self.github, self.policy, repository, since)
        found, reached = await acts.read()
        for act in found:
            try:
                payload = await acts.payload(act)
            except (NotFound, Refused) as refusal:
                _log.warning("not-recovered", number=act.number, why=str(refusal))
            except Transient as problem:
                if await self._holds_up(source, act.guid, problem):
                    raise
                _log.warning("not-recovered", number=act.number, why=str(problem))
            else:
                stored += await self._store(act.guid, act.event, payload)
        return reached

    async def _closed_long_ago(self) -> list[str]:
        """Find closes that no log tells any more: ask for the threads of which nothing was heard for long."""
        async with self.pool.acquire() as connection:
            silent = await recoveries.silent_threads(connection, self.platform, self.now, MOST_SILENT)
        stored: list[str] = []
        for number, known in silent:
            try:
                repository = await self.github.as_named_now(known)
                thread = await self.github.get(repository, "/issues/{number}", number=number)
                # One that was transferred has another number in another repository.
                if thread["closed_at"] and thread["number"] == number:
                    act = closing(thread)
                    payload = await Acts(self.pool, self.github, self.policy, repository, act.at).payload(act)
                    stored += await self._store(act.guid, act.event, payload)
            except GitHubError as problem:
                if not isinstance(problem, NotFound | Refused):
                    continue  # another round asks for it
            await recoveries.save_checked(self.pool, known, number, self.now)
        return stored

    async def _store(self, guid: str, event: str, payload: object) -> list[str]:
        delivery = delivery_of(guid, event, orjson.dumps(payload), self.platform)
        async with self.pool.acquire() as connection:
            return sorted((await deliveries.store(connection, [delivery])).guids)


def _hook(repository: Repository | None, hook: int) -> Hook | None:
    return None if repository is None else (repository, hook)
