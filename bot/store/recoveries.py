"""Rows of what was compared with GitHub, and what the inbox lacks."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from bot.model import Repository, Target
from bot.store.database import Connection, Pool, fetch_all, fetch_column, read

SEEN_UNTIL = """
-- At first from the first delivery ever received, within GitHub's memory; without one nothing was missed yet.
select coalesce(r.seen_until,
                greatest((select received_at from deliveries order by seq limit 1), $2::timestamptz - $3::interval), $2)
           as at,
       r.source is not null as compared_before
from (values ($1)) asked (source) left join recoveries r using (source)
"""

SAVE = """
insert into recoveries (source, seen_until, problem, tried_at) values ($1, $2, $3, $4)
on conflict (source) do update
   set seen_until = excluded.seen_until, problem = excluded.problem, tried_at = excluded.tried_at
"""

ACTIVE = """
-- Repositories where the bot was asked something lately, those first that were tried longest ago.
select b.*
from codebases b left join recoveries r on r.source = b.platform || '/' || b.repository_id
where b.platform = $1
  and exists (select from conversations c where (c.platform, c.repository_id) = (b.platform, b.repository_id)
              and (c.updated_at > $2::timestamptz - $3::interval))
order by r.tried_at nulls first, b.repository_id limit $4
"""

WAS_ANSWERED = """
-- It got a reaction or an answer, or it is a turn's. What a thread's own text got may be a label's or an assignment's.
select ($5::bigint is not null or not exists (select from effects where key = (
            select sha256(convert_to(format('only gestures %s', c.id), 'UTF8')) from conversations c
            where (c.platform, c.repository_id, c.number) = ($1, $2, $3))))
   and (exists (select from outbox o join conversations c on c.id = o.conversation_id
                where (c.platform, c.repository_id, c.number) = ($1, $2, $3)
                  and o.kind = 'reaction' and o.target_kind = $4
                  and coalesce(o.target_id, 0) = coalesce($5::bigint, 0))
     or exists (select from outbox o join conversations c on c.id = o.conversation_id
                where (c.platform, c.repository_id, c.number) = ($1, $2, $3)
                  and o.kind = 'comment' and o.turn_id is null and o.target_kind = $4
                  and o.target_id is not distinct from $5)
     or exists (select from turns t join conversations c on c.id = t.conversation_id
                where (c.platform, c.repository_id, c.number) = ($1, $2, $3)
                  and t.source_kind = $4 and t.source_id is not distinct from $5))
"""

WAS_ASKED_BY = """
-- A label or an assignment has no text of its own: it is known by its person and its time.
select exists (select from turns t join conversations c on c.id = t.conversation_id
               where (c.platform, c.repository_id, c.number) = ($1, $2, $3) and t.requested_by_id = $4
                 and t.source_id is null and abs(extract(epoch from t.asked_at - $5)) <= 60)
"""

ONLY_GESTURES = """
insert into effects (key)
select sha256(convert_to(format('only gestures %s', id), 'UTF8')) from conversations
where (platform, repository_id, number) = ($1, $2, $3)
on conflict do nothing
"""

TEXT_ASKED = """
delete from effects where key = (select sha256(convert_to(format('only gestures %s', id), 'UTF8')) from conversations
                                 where (platform, repository_id, number) = ($1, $2, $3))
"""

IS_OPEN = """
select exists (select from conversations
               where (platform, repository_id, number) = ($1, $2, $3) and state = 'open')
"""

UNHEARD = """
-- Open threads with a worktree of which nothing was heard for that long, those first that were asked for longest ago.
select b.*, c.number
from conversations c join codebases b using (platform, repository_id)
where b.platform = $1 and c.state = 'open' and c.worktree_id is not null
  and greatest(c.updated_at, c.checked_at) < $2::timestamptz - $3::interval
order by c.checked_at nulls first, c.id limit $4
"""


@asynccontextmanager
async def only_one(pool: Pool) -> AsyncIterator[bool]:
    """Yield whether no other process compares now; then no other one begins until the block ends."""
    async with pool.acquire() as connection:
        is_ours: bool = await connection.fetchval(
            "select pg_try_advisory_lock(hashtextextended('threadtree recovery', 0))"
        )
        try:
            yield is_ours
        finally:
            if is_ours:
                await connection.execute("select pg_advisory_unlock(hashtextextended('threadtree recovery', 0))")


async def seen_until(connection: Connection, source: str, now: datetime, memory: timedelta) -> tuple[datetime, bool]:
    """Return the time until which the source was compared, and whether it ever was."""
    row = await connection.fetchrow(SEEN_UNTIL, source, now, memory)
    return max(row["at"], now - memory), row["compared_before"]


async def save(connection: Connection, source: str, seen: datetime, problem: str | None, now: datetime) -> None:
    """Record until when the source was compared, and what was in the way of its log of deliveries, or of all of it."""
    await connection.execute(SAVE, source, seen, problem, now)


async def known(connection: Connection, guids: Sequence[str]) -> set[str]:
    """Return those of the deliveries that are in the inbox."""
    return set(await fetch_column(connection, "select guid from deliveries where guid = any ($1::text[])", list(guids)))


async def active_repositories(
    connection: Connection, platform: str, now: datetime, within: timedelta, most: int
) -> list[Repository]:
    """Return at most `most` repositories where the bot was asked something within that time."""
    return await fetch_all(connection, Repository, ACTIVE, platform, now, within, most)


async def was_answered(connection: Connection, repository: Repository, number: int, target: Target) -> bool:
    """Return whether the text was acted on before."""
    place = (repository.platform, repository.id, number)
    return bool(await connection.fetchval(WAS_ANSWERED, *place, target.kind, target.id))


async def was_asked_by(
    connection: Connection, repository: Repository, number: int, person_id: int, at: datetime
) -> bool:
    """Return whether the person asked at that time, by a label, an assignment or the thread's own text."""
    place = (repository.platform, repository.id, number)
    return bool(await connection.fetchval(WAS_ASKED_BY, *place, person_id, at))


async def save_asked(
    connection: Connection, repository: Repository, number: int, target: Target, *, by_gesture: bool
) -> None:
    """Record whether a thread's own text asks, or only a label or an assignment so far: later edits may ask, too."""
    place = (repository.platform, repository.id, number)
    if not by_gesture:
        await connection.execute(TEXT_ASKED, *place)
    elif not await was_answered(connection, repository, number, target):
        await connection.execute(ONLY_GESTURES, *place)


async def is_open(connection: Connection, repository: Repository, number: int) -> bool:
    """Return whether the bot knows the thread, as an open one."""
    return bool(await connection.fetchval(IS_OPEN, repository.platform, repository.id, number))


async def unheard(
    connection: Connection, platform: str, now: datetime, silent: timedelta, most: int
) -> list[tuple[Repository, int]]:
    """Return at most `most` open threads that hold a worktree and of which nothing was heard for so long."""
    rows = await connection.fetch(UNHEARD, platform, now, silent, most)
    return [(read(Repository, row), row["number"]) for row in rows]


async def save_checked(connection: Connection, repository: Repository, number: int, now: datetime) -> None:
    """Record that GitHub was asked whether the thread is open."""
    await connection.execute(
        "update conversations set checked_at = $4 where (platform, repository_id, number) = ($1, $2, $3)",
        repository.platform,
        repository.id,
        number,
        now,
    )
