"""GitHub's logs of deliveries, read for what the inbox lacks (DESIGN.md §3.1): recovery, or often: polling.

GitHub keeps what it delivered, or could not deliver, for three days. It is compared with the inbox, and what that lacks
is fetched. Nothing else tells what was missed: where the bot may not read the log, it stays missed. What was acted on
before is recognised when it is decided, by its effect. GitHub's times tell how far a log was compared: this machine's
clock may be wrong.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

import orjson
import structlog

from bot import counters
from bot.github.answers import LoggedDelivery, LogPage
from bot.github.client import GitHub, Hook
from bot.github.errors import GitHubError, NotFound, Refused, Transient, Unauthenticated
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
OVERLAP, SHORT_OVERLAP = timedelta(minutes=10), timedelta(minutes=1)
"""A delivery can appear in the log a little after its time. Most rounds of a poll look back less far."""
OF_APP = 0
"""Stands for the App's webhook, which has no id."""
MOST_TRIES = 3
"""So often an item that GitHub does not show holds up what came after it."""
STAYS = "missed deliveries stay missed"

# Half of the requests that GitHub gives a token in an hour, and a third of what it allows in a minute:
# https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api. What it answers with 304 does not count
# to the first. Whether it does to the second is not documented.
COUNTED_AN_HOUR, ASKED_A_MINUTE = 2500, 300
LEFT_TO_TURNS = 0.25
"""With a smaller part of the hour's requests left, the log is read as seldom as without polling."""
LIMIT_SECONDS = 60.0
EARLY = 0.9
"""A round may begin so much earlier than it is due: processes look only as often."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the log of one source gave. `problem` says what is not compared yet, or stays missed."""

    source: str
    way: Literal["deliveries", "none"]
    guids: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(slots=True)
class _Source:
    """The App, or a repository, with the webhooks whose log can be read, or why there are none."""

    key: str
    name: str
    repository: Repository | None
    hooks: list[int]
    missing: str | None = None
    is_noted: bool = False
    """Whether all was noted that the first page of each log showed last."""
    told: str | None = None
    """The problem that was logged last."""


@dataclass(slots=True)
class Cost:
    """What a round asked of GitHub, and how many of these requests count to the hour's limit."""

    asked: int = 0
    counted: int = 0
    left: float = 1.0
    """The part of the hour's requests that is left."""

    def add(self, page: LogPage) -> None:
        """Count the request for a page."""
        self.asked += 1
        self.counted += not page.is_unchanged
        self.left = self.left if page.left is None else page.left
        counters.LOG_REQUESTS.labels("unchanged" if page.is_unchanged else "counted").inc()


def pause(every_seconds: float, seldom_seconds: float, asked: int, counted: int, left: float) -> float:
    """Return how long after the begin of a round the next one begins: longer than asked for where GitHub's limits do
    not carry that. `asked` and `counted` are the round's requests for logs.
    """
    if left < LEFT_TO_TURNS:
        return max(every_seconds, seldom_seconds)
    return max(every_seconds, counted * 3600 / COUNTED_AN_HOUR, asked * 60 / ASKED_A_MINUTE)


@dataclass(slots=True)
class Recovery:
    """Reads the logs round after round; remembers between them what it need not ask again.

    `named` are repositories whose logs a token reads from the start. With `poll_seconds` the deliveries are expected
    here, nothing was missed, and `seldom_seconds` is the time between two looks for webhooks; else each round looks.
    """

    pool: Pool
    github: GitHub
    platform: str
    clock: Callable[[], datetime]
    named: Sequence[str] = ()
    seldom_seconds: float = 0.0
    poll_seconds: float | None = None
    _sources: list[_Source] = field(default_factory=list)
    _looked_at: float = -math.inf
    _is_widened: bool = False

    async def round_if_due(self) -> None:
        """Read the logs, unless another process did a moment ago, or GitHub's limits ask to wait."""
        if not await recoveries.are_held(self.pool, self.clock()):
            await self.round()

    async def round(self) -> list[Recovered] | None:
        """Store what the inbox lacks, source by source; None where another process is doing it.

        Raises only what a database raises that is away.
        """
        async with recoveries.only_one(self.pool) as is_ours:
            if not is_ours:
                return None
            began, cost = self.clock(), Cost()
            found, limit = await self._read(began, cost)
            until = self.clock() + timedelta(seconds=limit)
            if self.poll_seconds is not None:
                wait = pause(self.poll_seconds, self.seldom_seconds, cost.asked, cost.counted, cost.left)
                until = max(until, began + timedelta(seconds=wait * EARLY))
                if wait > self.poll_seconds and not self._is_widened:
                    self._is_widened = True
                    _log.warning("polling-widened", seconds=round(wait), logs=cost.asked, left=round(cost.left, 2))
            await recoveries.hold(self.pool, until)
        return found

    async def _read(self, now: datetime, cost: Cost) -> tuple[list[Recovered], float]:
        """Read every source; return what they gave, and how long GitHub asks to wait. Its limit ends the round."""
        found = list[Recovered]()
        is_full = self.poll_seconds is None or time.monotonic() - self._looked_at >= self.seldom_seconds
        if is_full:
            try:
                await self._find_sources(now)
            except GitHubError as problem:
                _log.warning("log-not-read", problem=str(problem))
                return found, _wait(problem)
        for source in self._sources:
            reading = _Reading(self, source, now, is_full, cost)
            limit = await reading.read()
            way: Literal["deliveries", "none"] = "deliveries" if reading.is_read else "none"
            one = Recovered(source.name, way, tuple(reading.stored), reading.problem)
            found.append(one)
            self._tell(source, one)
            if limit:
                return found, limit
        return found, 0.0

    def _tell(self, source: _Source, one: Recovered) -> None:
        """Log and count what came, and a problem that is new."""
        if self.poll_seconds is None:
            counters.RECOVERIES.labels("missed-delivery").inc(len(one.guids))
        is_new = one.problem is not None and one.problem != source.told
        source.told = one.problem
        if one.guids or is_new:
            log = _log.info if self.poll_seconds is not None and one.problem is None else _log.warning
            log("deliveries-recovered", source=one.source, way=one.way, recovered=len(one.guids), problem=one.problem)

    async def _find_sources(self, now: datetime) -> None:
        """Find out whose logs there are, and their webhooks. Raises GitHubError where a limit forbids to ask."""
        if self.github.is_app:
            self._keep([_Source("app", "app", None, [OF_APP])])
            return
        active = await recoveries.active_repositories(self.pool, self.platform, now, MOST_REPOSITORIES)
        found, is_sure = list[_Source](), True
        for full_name in self.named:
            if not any(one.full_name.lower() == full_name.lower() for one in active):
                try:
                    repository = await self.github.repository(self.platform, *full_name.split("/"))
                except GitHubError as problem:
                    if _wait(problem):
                        raise
                    is_sure = is_sure and not isinstance(problem, Transient)
                    missing = f"GitHub shows the bot no such repository ({problem}): {STAYS}"
                    found.append(_Source(full_name, full_name, None, [], missing))
                else:
                    active = [repository, *(one for one in active if one.id != repository.id)]
        for repository in active[: max(MOST_REPOSITORIES, len(self.named))]:
            hooks, why = list[int](), f"the repository has no webhook that leads to /webhooks/github: {STAYS}"
            try:
                hooks = [hook.id for hook in await self.github.webhooks(repository)]
            except GitHubError as problem:
                if _wait(problem):
                    raise
                is_sure = is_sure and not isinstance(problem, Transient)
                why = f"the bot may not read the repository's webhooks ({problem}): {STAYS}"
            key = f"{self.platform}/{repository.id}"
            found.append(_Source(key, repository.full_name, repository, hooks, None if hooks else why))
        self._keep(found, is_sure=is_sure)

    def _keep(self, found: list[_Source], *, is_sure: bool = True) -> None:
        """Read these sources from now on; what was read and told of them is known. Look again soon unless `is_sure`."""
        known = {source.key: source for source in self._sources}
        for source in found:
            if (before := known.get(source.key)) is not None:
                source.is_noted, source.told = before.is_noted and before.hooks == source.hooks, before.told
        self._sources, self._looked_at = found, time.monotonic() if is_sure else -math.inf


@dataclass(slots=True)
class _Reading:
    """One source in one round: `stored` are the deliveries that it gave, `problem` what is not compared."""

    of: Recovery
    source: _Source
    now: datetime
    is_full: bool
    cost: Cost
    stored: list[str] = field(default_factory=list)
    problem: str | None = None
    is_read: bool = False

    async def read(self) -> float:
        """Compare the source's log, and fetch what is missing; return how long a limit of GitHub asks to wait.

        What GitHub refuses is tried again after the other sources.
        """
        source, limit, is_compared = self.source, 0.0, False
        self.problem = source.missing
        if source.repository is None and not self.of.github.is_app:
            return limit  # GitHub shows none
        at_github = self.now + (self.of.github.clock_skew or timedelta())
        place = await recoveries.place(self.of.pool, source.key, at_github)
        was_noted, source.is_noted = source.is_noted, False
        try:
            if source.hooks:
                unread = await self._read_log(place, was_noted=was_noted)
                self.is_read, is_compared = True, unread is None
                self.problem = unread or await self._fetch_missed()
                if self.problem is None and place.log_is_short:
                    self.problem = f"nothing listened for longer than GitHub keeps its log: older {STAYS}"
        except GitHubError as refusal:
            self.problem = str(refusal)
            limit = _wait(refusal)
            if isinstance(refusal, NotFound | Refused):
                place.begin_again()
                source.hooks, source.missing = [], self.problem  # until somebody looks for webhooks again
        source.is_noted = is_compared
        async with self.of.pool.acquire() as connection:
            await recoveries.save(connection, source.key, place, self.problem, self.now, is_compared=is_compared)
        return limit

    async def _read_log(self, place: Place, *, was_noted: bool) -> str | None:
        """Note what the inbox lacks of GitHub's log, from `place` on; return what is not compared yet."""
        hooks, is_new_round = self.source.hooks, place.log_hook not in self.source.hooks
        if is_new_round:
            place.begin_again()
        since = place.seen_until - (OVERLAP if self.is_full or not is_new_round else SHORT_OVERLAP)
        pages = 0
        for hook in hooks[hooks.index(place.log_hook) if place.log_hook is not None else 0 :]:
            if hook != place.log_hook:
                place.log_hook, place.log_cursor = hook, None
            is_read = False
            while not is_read:
                if pages >= MOST_PAGES:
                    return "GitHub's log is long: what is older than its last thousands of deliveries follows"
                is_first = place.log_cursor is None
                page = await self.of.github.logged_deliveries(self._hook(hook), place.log_cursor)
                self.cost.add(page)
                if is_first and page.is_unchanged and was_noted:
                    break
                recent = [one for one in page.deliveries if one.at >= since]
                await self._note([one for one in recent if _is_used(one)], hook, place)
                is_read = page.following is None or len(recent) < len(page.deliveries)
                place.log_cursor = page.following
                if is_first and page.deliveries:
                    place.log_newest = max(place.log_newest or page.deliveries[0].at, page.deliveries[0].at)
                pages += 1
        place.seen_until = place.log_newest or place.seen_until
        place.begin_again()
        return None

    async def _note(self, used: Sequence[LoggedDelivery], hook: int, place: Place) -> None:
        """Note what the inbox lacks, and what somebody has sent again since the log was compared last."""
        if used:
            logged = [Missed(one.guid, hook, one.id, one.event, one.at) for one in used]
            sent_again = [one.id for one in used if one.redelivery and one.at > place.seen_until]
            async with self.of.pool.acquire() as connection:
                await recoveries.note_missed(connection, self.source.key, logged, sent_again)

    async def _fetch_missed(self) -> str | None:
        """Store what was noted, the oldest first; return what is left. What GitHub did not show is asked for seldom."""
        key, pool = self.source.key, self.of.pool
        missed = await recoveries.missed(pool, key, MOST_FETCHED, MOST_TRIES)
        for one in missed:
            if one.tries >= MOST_TRIES and not self.is_full:
                break
            counters.LOG_REQUESTS.labels("counted").inc()
            try:
                payload = await self.of.github.logged_payload(self._hook(one.hook), one.log_id)
            except (NotFound, Refused) as refusal:
                _log.warning("not-recovered", delivery=one.guid, why=str(refusal))
            except Transient as problem:
                is_of_all = problem.scope == "installation"
                if is_of_all or await recoveries.count_try(pool, key, one.guid) < MOST_TRIES:
                    raise
                continue  # it is asked for again, after all others
            else:
                await self._store(one, payload)
            await recoveries.forget(pool, key, one.guid)
        left = len(await recoveries.missed(pool, key, MOST_FETCHED, MOST_TRIES)) if missed else 0
        return f"{left} missed deliveries are not fetched yet" if left else None

    async def _store(self, missed: Missed, payload: object) -> None:
        delivery = delivery_of(missed.guid, missed.event, orjson.dumps(payload), self.of.platform)
        async with self.of.pool.acquire() as connection:
            stored = (await deliveries.store(connection, [delivery])).guids
        self.stored += sorted(stored)
        if stored and self.of.poll_seconds is not None:
            answer = "ignored" if delivery.state == "ignored" else "accepted"
            counters.DELIVERIES_RECEIVED.labels(missed.event, answer).inc()
            counters.LAST_DELIVERY.set_to_current_time()

    def _hook(self, hook: int) -> Hook | None:
        return None if self.source.repository is None else (self.source.repository, hook)


def _is_used(one: LoggedDelivery) -> bool:
    """Return whether a missed delivery is worth a request. Of the events of one set of checks, one is enough."""
    return is_used_event(one.event, one.action) and one.event not in CHECKS[1:]


def _wait(problem: GitHubError) -> float:
    """Return how long nothing is to be asked after this problem: it is of all that these credentials ask."""
    if isinstance(problem, Transient):
        return problem.retry_after_seconds or LIMIT_SECONDS if problem.scope == "installation" else 0.0
    return LIMIT_SECONDS if isinstance(problem, Unauthenticated) else 0.0
