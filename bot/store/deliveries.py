"""Rows of deliveries: stored, ended, replayed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import lz4.block

from bot.store.database import Connection, statement
from bot.store.jobs import NewJob, defer, lock_queues

STORE = """
-- One statement, since each round trip costs as much as the rest of the acknowledgement. In this order:
-- 1. taken: each lock, as `lock_queues` does, before there is any job id.
-- 2. stored: a known GUID changes nothing, unless its handling failed: then it runs again. A dead delivery stays dead
--    until other bytes arrive for it. Sorted, so that two groups cannot wait for each other. A text that was searched
--    for other names than the bot has now is not stored.
-- 3. a decide job for each row that is to be decided, in the order of arrival. With a higher priority than an earlier
--    job of its conversation has, it would overtake that one.
with new as materialized (
    select *
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::integer[], $10::bytea[])
         with ordinality as new (guid, event, action, conversation, lock_key, state, error, searched_for, priority,
                                 body, place)
), known as materialized (
    select coalesce(string_agg(name, ',' order by name), '') as names from bot_names
), taken as materialized (
    select count(pg_advisory_xact_lock(hash)) as locks
    from (select distinct hashtextextended(lock_key, 0) as hash
          from new where state = 'received' order by hash) as hashes
), stored as (
    insert into deliveries (guid, event, action, conversation, lock_key, state, body, error, finished_at)
    select guid, event, action, conversation, lock_key, state, body, error,
           case when state <> 'received' then now() end
    from new, taken, known where taken.locks >= 0 and (searched_for is null or searched_for = names)
    order by guid
    on conflict (guid) do update
       set event = excluded.event, action = excluded.action, conversation = excluded.conversation,
           lock_key = excluded.lock_key, state = 'received', body = excluded.body, error = null,
           stalls = 0, finished_at = null
     where excluded.state = 'received'
       and (deliveries.state = 'failed'
            or deliveries.state = 'dead' and deliveries.body is distinct from excluded.body)
    returning guid
)
select array(select guid from stored) as guids, (select names from known) as names,
       (select procrastinate_defer_jobs_v1(array_agg(
                   ('decide', 'decide', priority, lock_key, null, jsonb_build_object('guid', guid), null
                   )::procrastinate_job_to_defer_v1 order by place))
        from (select guid, lock_key, place,
                     least(min(priority) over (partition by lock_key order by place),
                           (select min(j.priority) from procrastinate_jobs j
                            where j.lock = lock_key and j.status in ('todo', 'doing'))) as priority
              from stored join new using (guid) where state = 'received') as job
        having count(*) > 0) as jobs
"""

_STORED = ("guid", "event", "action", "conversation", "lock_key", "state", "error", "searched_for", "priority")

RECEIVE_AGAIN = """
-- The state is checked again: another replay may be faster.
update deliveries set state = 'received', error = null, stalls = 0, finished_at = null
where guid = $1 and state <> 'received' and body is not null
returning guid
"""

FORGOTTEN_DELIVERIES = """
-- Accepted deliveries without a job: it ended while the database was away and its end was not recorded.
select guid, lock_key from deliveries d
where state = 'received' and lock_key is not null and received_at < now() - interval '15 seconds'
  and not exists (select from procrastinate_jobs j where j.lock = d.lock_key and j.status in ('todo', 'doing'))
order by seq limit 100
"""

Replay = Literal["replayed", "unknown", "waiting", "nothing-to-run"]
"""`waiting`: it has not been handled yet; `nothing-to-run`: its body is gone, or it never meant anything."""


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A delivery as it arrived: `received` is to be decided on, `ignored` means nothing, `dead` is not JSON.

    `body` is the raw JSON (of a dead one the received bytes, of an ignored one None); a received one has a `lock_key`.
    `searched_for` are the bot's names without which its text means nothing, None where that does not matter.
    `sender` is the account that caused it. `priority` is 0, or less in a flood.
    """

    guid: str
    event: str
    state: Literal["received", "ignored", "dead"]
    action: str | None = None
    conversation: str | None = None
    lock_key: str | None = None
    body: bytes | None = None
    error: str | None = None
    searched_for: str | None = None
    sender: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """The GUIDs that are new, or failed before and now run again; and the bot's names now, joined by commas.

    A delivery that was searched for other names is not stored. The names are empty until a worker has told its own.
    """

    guids: frozenset[str]
    names: str


async def store(connection: Connection, deliveries: Sequence[NewDelivery]) -> Stored:
    """Store deliveries of distinct GUIDs with their decide jobs; on return, or with the caller's transaction, they are
    committed. Until then their conversations' locks are held.
    """
    columns = [[getattr(delivery, column) for delivery in deliveries] for column in _STORED]
    # A quarter of the bytes for less than Postgres needs to write them.
    bodies = [None if delivery.body is None else lz4.block.compress(delivery.body) for delivery in deliveries]
    row = await connection.fetchrow(STORE, *columns, bodies)
    return Stored(frozenset(row["guids"]), row["names"])


@statement("insert into bot_names (name) values ($1) on conflict do nothing")
async def add_name(connection: Connection, name: str) -> None:
    """Record a name by which people mention the bot, before any worker answers to it.

    A former name stays: its mentions cost a decision, and another worker may still have it.
    """


@statement("insert into bot_names (name) select $1 where exists (select from bot_names) on conflict do nothing")
async def change_name(connection: Connection, name: str) -> None:
    """Record BOT_NAME as the web process has it, unless the names of the workers are unknown as yet."""


async def replay(connection: Connection, guid: str) -> Replay:
    """Put the delivery back to `received`, with a new decide job, in a transaction of its own.

    What it did before is remembered by effect and not done twice.
    """
    async with connection.transaction():
        row = await connection.fetchrow(
            "select state, lock_key, body is not null as has_body from deliveries where guid = $1", guid
        )
        if row is None:
            return "unknown"
        if row["state"] == "received":
            return "waiting"
        if row["lock_key"] is None or not row["has_body"]:
            return "nothing-to-run"
        await lock_queues(connection, [row["lock_key"]])
        if not await connection.fetchval(RECEIVE_AGAIN, guid):
            return "waiting"
        await defer(connection, NewJob(queue="decide", task="decide", lock=row["lock_key"], args={"guid": guid}))
    return "replayed"


@statement("""
-- Locked until the transaction ends: the second of two workers that decide one delivery finds it ended.
update deliveries set state = case when $2::text is null then 'done' else 'failed' end, error = $2,
                      attempts = attempts + 1, finished_at = now()
where guid = $1 and state = 'received' returning guid
""")
async def end(connection: Connection, guid: str, error: str | None = None) -> bool:
    """Record that it is done, first in the transaction that writes its effects; with `error` it failed for good.

    False if it was handled meanwhile.
    """


async def decide_forgotten(connection: Connection) -> list[str]:
    """Enqueue the decide jobs of forgotten deliveries again, in their order; return the GUIDs."""
    async with connection.transaction():
        rows = await connection.fetch(FORGOTTEN_DELIVERIES)
        if not rows:
            return []
        await lock_queues(connection, [row["lock_key"] for row in rows])
        # Deciding twice does nothing the second time: the delivery's row is locked and checked first.
        for row in rows:
            await defer(connection, NewJob("decide", "decide", row["lock_key"], {"guid": row["guid"]}))
    return [row["guid"] for row in rows]
