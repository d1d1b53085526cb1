"""Rows of what was compared with GitHub, and what the inbox lacks."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

from bot.model import Repository
from bot.store.database import Connection, Pool, statement
from bot.tasks import concurrently

KEEP_ALIVE_SECONDS = 20.0
"""Less than IDLE_WITH_A_LOCK: after that the session of a suspended process ends, and its lock with it."""

SAVE = """
insert into recoveries as r (source, seen_until, log_hook, log_cursor, log_newest, problem, tried_at, compared_at)
values ($1, $2, $3, $4, $5, $6, $7, case when $8 then $7::timestamptz end)
on conflict (source) do update
   set seen_until = excluded.seen_until, log_hook = excluded.log_hook, log_cursor = excluded.log_cursor,
       log_newest = excluded.log_newest, problem = excluded.problem, tried_at = excluded.tried_at,
       compared_at = coalesce(excluded.compared_at, r.compared_at)
"""

NOTE_MISSED = """
insert into missed_deliveries (source, guid, hook, log_id, event, at)
-- What failed here and was sent again since runs again, as it does at the webhook.
select $1, guid, hook, log_id, event, at
from unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::timestamptz[])
     as logged (guid, hook, log_id, event, at)
where not exists (select from deliveries d
                  where d.guid = logged.guid and not (d.state = 'failed' and logged.log_id = any ($7::bigint[])))
on conflict do nothing
"""


@dataclass(slots=True)
class Place:
    """How far a source was compared: `seen_until` by GitHub's clock, `compared_at` when it was done last.

    A long log is read on with the page `log_cursor` of the webhook `log_hook`; its newest delivery is of `log_newest`.
    `log_is_short`: GitHub may have forgotten what came after `compared_at`.
    """

    seen_until: datetime
    compared_at: datetime | None
    log_is_short: bool
    log_hook: int | None
    log_cursor: str | None
    log_newest: datetime | None

    def begin_again(self) -> None:
        """Read the log from its newest delivery on."""
        self.log_hook = self.log_cursor = self.log_newest = None


@dataclass(frozen=True, slots=True)
class Missed:
    """A delivery in the log of a webhook, which the inbox lacks; `tries` is how often GitHub could not show it."""

    guid: str
    hook: int
    log_id: int
    event: str
    at: datetime
    tries: int = 0


@statement("select coalesce(max(held_until) > $1, false) from recoveries")
async def are_held(connection: Connection, now: datetime) -> bool:
    """Return whether no log is to be read now: one was read a moment ago, or GitHub's limits ask to wait."""


@statement("select extract(epoch from now() - max(tried_at))::float8 from recoveries")
async def read_seconds_ago(connection: Connection) -> float | None:
    """Return how long ago a log was read last, None where none was."""


@statement("update recoveries set held_until = $1")
async def hold(connection: Connection, until: datetime) -> None:
    """Let no process read the logs until then."""


@asynccontextmanager
async def only_one(pool: Pool) -> AsyncIterator[bool]:
    """Yield whether no other process compares now; then no other one begins until the block ends, or this one dies."""
    async with pool.acquire() as connection:
        # Held by the database session, as the lock of a writer.
        is_ours = await connection.fetchval("select pg_try_advisory_lock(hashtextextended('recovery', 0))")
        async with concurrently(_keep_alive(connection)):
            yield bool(is_ours)


async def _keep_alive(connection: Connection) -> NoReturn:
    while True:
        await asyncio.sleep(KEEP_ALIVE_SECONDS)
        await connection.execute("select")


@statement("""
-- At first from the first delivery ever received, within GitHub's memory; without one nothing was missed yet.
select coalesce(r.seen_until,
                greatest((select received_at from deliveries order by seq limit 1),
                         $2::timestamptz - interval '3 days'),
                $2) as seen_until,
       r.compared_at, coalesce(r.compared_at < $2 - interval '3 days', false) as log_is_short,
       r.log_hook, r.log_cursor, r.log_newest
from (values ($1)) asked (source) left join recoveries r using (source)
""")
async def place(connection: Connection, source: str, now: datetime) -> Place:
    """Return how far the source was compared."""


async def save(
    connection: Connection, source: str, at: Place, problem: str | None, now: datetime, *, is_compared: bool
) -> None:
    """Record how far the source was compared, `is_compared` to its end, and what was in the way."""
    log = (at.log_hook, at.log_cursor, at.log_newest)
    await connection.execute(SAVE, source, at.seen_until, *log, problem, now, is_compared)
    # GitHub has forgotten them.
    await connection.execute("delete from missed_deliveries where at < $1::timestamptz - interval '4 days'", now)


async def note_missed(
    connection: Connection, source: str, logged: Sequence[Missed], sent_again: Collection[int] = ()
) -> None:
    """Note those of the logged deliveries that the inbox lacks, or that failed there and were `sent_again` since.

    `sent_again` are ids in the log.
    """
    columns = [[getattr(one, name) for one in logged] for name in ("guid", "hook", "log_id", "event", "at")]
    await connection.execute(NOTE_MISSED, source, *columns, list(sent_again))


@statement("""
-- The oldest first, what people did before what checks did; those last that GitHub did not show for $3 times.
select guid, hook, log_id, event, at, tries from missed_deliveries
where source = $1 order by tries >= $3, event = 'check_suite', at, log_id limit $2
""")
async def missed(connection: Connection, source: str, most: int, tries: int) -> list[Missed]:
    """Return at most so many of the source's deliveries that were noted, those last that were tried so often."""


@statement("delete from missed_deliveries where (source, guid) = ($1, $2)")
async def forget(connection: Connection, source: str, guid: str) -> None:
    """Forget a delivery that was fetched, or that GitHub does not show."""


@statement("update missed_deliveries set tries = tries + 1 where (source, guid) = ($1, $2) returning tries")
async def count_try(connection: Connection, source: str, guid: str) -> int:
    """Count that GitHub could not show a delivery; return how often that has happened."""


@statement("""
-- Repositories where the bot was asked something lately, those first that were tried longest ago.
select b.*
from codebases b left join recoveries r on r.source = b.platform || '/' || b.repository_id
where b.platform = $1
  and exists (select from conversations c where (c.platform, c.repository_id) = (b.platform, b.repository_id)
              and c.updated_at > $2::timestamptz - interval '30 days')
order by r.tried_at nulls first, b.repository_id limit $3
""")
async def active_repositories(connection: Connection, platform: str, now: datetime, most: int) -> list[Repository]:
    """Return at most `most` repositories where the bot was asked something within 30 days."""
