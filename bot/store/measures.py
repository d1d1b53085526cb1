"""The figures of the bot: counts that processes add to, and what is counted in rows when it is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from asyncpg import Record

from bot import counters
from bot.store.database import DATABASE_AWAY, Connection, Pool

# Sorted, so that two processes cannot wait for each other's rows.
ADD = """
insert into counters (name, label, value)
select * from unnest($1::text[], $2::text[], $3::float8[]) as new (name, label, value) order by name, label
on conflict (name, label) do update set value = counters.value + excluded.value
"""

SET = """
insert into counters (name, label, value)
select * from unnest($1::text[], $2::text[], $3::float8[]) as new (name, label, value) order by name, label
on conflict (name, label) do update set value = excluded.value
"""

COUNTERS = """
select name, label, value from counters order by name, label
"""

# Each statement returns the labels of its figures as texts, and the figures as numbers. Small, or on an index.
# An infinite time can be subtracted from Postgres 17 on only.

DELIVERIES = """
-- Those that wait or went wrong; the rest is in the counters.
select state, count(*)::float8 as deliveries,
       extract(epoch from now() - min(received_at))::float8 as deliveries_oldest_seconds
from deliveries where state in ('received', 'failed', 'dead') group by state
"""

TURNS_NOW = """
select case when state = 'queued' and not_before > now() then 'waiting' else state end as state,
       count(*)::float8 as turns, extract(epoch from now() - min(created_at))::float8 as turns_oldest_seconds
from turns where state in ('queued', 'running') group by 1
"""

TURNS_ENDED = """
select state, coalesce(agent, '') as agent, count(*)::float8 as turns_ended,
       coalesce(sum(cost_usd), 0)::float8 as cost_usd, coalesce(sum(tokens), 0)::float8 as tokens
from turns where state not in ('queued', 'running') group by 1, 2
"""

TURN_SECONDS = """
select width_bucket(extract(epoch from finished_at - started_at)::float8, $1::float8[]) as place,
       count(*)::float8 as turns, sum(extract(epoch from finished_at - started_at))::float8 as seconds
from turns where state not in ('queued', 'running') and started_at is not null group by 1
"""

OPERATIONS = """
select kind, state, count(*)::float8 as operations from operations group by kind, state
"""

OUTBOX = """
-- What is to be sent at once is due since '-infinity'.
select state, count(*)::float8 as outbox,
       extract(epoch from now() - min(coalesce(nullif(due_at, '-infinity'), created_at)))::float8
           as outbox_oldest_seconds
from outbox where state in ('waiting', 'sending', 'failed') group by state
"""

WRITERS = """
select count(*)::float8 as writers_held,
       coalesce(max(extract(epoch from held_until - now())), 0)::float8 as writers_held_seconds
from writers where held_until > now()
"""

WORKTREES = """
select n.name as node, w.state, count(*)::float8 as worktrees
from worktrees w join nodes n on n.id = w.node group by 1, 2
"""

BYTES = """
select 'rescues' as kind, coalesce(sum(bytes), 0)::float8 as bytes from rescues
union all select 'database', pg_database_size(current_database())::float8
"""

DISK = """
select n.name as node, d.key as kind, sum(d.value::float8) as disk_bytes
from nodes n cross join jsonb_each_text(n.disk) d group by 1, 2
"""

NODES = """
-- Names are labels, and two nodes may have one: the figure is that of the one that was alive last.
select name as node, extract(epoch from now() - max(heartbeat_at))::float8 as node_silent_seconds
from nodes where heartbeat_at > '-infinity' group by name
"""

JOBS = """
select queue_name as queue, status::text as status, count(*)::float8 as jobs
from procrastinate_jobs where status in ('todo', 'doing', 'failed') group by 1, 2
"""

STATEMENTS: Final = (
    *(DELIVERIES, TURNS_NOW, TURNS_ENDED, OPERATIONS, OUTBOX, WRITERS, WORKTREES, BYTES, DISK, NODES),
    JOBS,
)
TURN_TOOK_AT_MOST: Final = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
"""Upper ends of the histogram's buckets, in seconds."""


@dataclass(frozen=True, slots=True)
class Measures:
    """All figures, as of one moment: what processes counted, what is in rows, and the histogram of turns."""

    counted: Sequence[Record]
    in_rows: Sequence[Record]
    turn_seconds: Sequence[Record]


async def save_counts(pool: Pool) -> None:
    """Add the counts of this process to those of all. What an outage prevents is added later."""
    taken = counters.take()
    if not taken.added and not taken.latest:
        return
    try:
        async with pool.acquire() as connection, connection.transaction():
            await _write(connection, ADD, taken.added)
            await _write(connection, SET, taken.latest)
    except DATABASE_AWAY:
        counters.give_back(taken)
    except BaseException:
        counters.give_back(taken)
        raise


async def _write(connection: Connection, statement: str, values: dict[counters.Key, float]) -> None:
    if values:
        names, labels = zip(*values, strict=True)
        await connection.execute(statement, list(names), list(labels), list(values.values()))


async def read(connection: Connection) -> Measures:
    """Return the figures."""
    return Measures(
        counted=await connection.fetch(COUNTERS),
        in_rows=[row for statement in STATEMENTS for row in await connection.fetch(statement)],
        turn_seconds=await connection.fetch(TURN_SECONDS, list(TURN_TOOK_AT_MOST)),
    )
