"""Rows of the inbox."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bot.store.database import Connection
from bot.store.jobs import NewJob, defer, take_turns

STORE = """
-- A GUID that is known changes nothing, unless its handling failed: then it is to run again. What could not be
-- parsed stays dead until other bytes come for it. Sorted, so that two groups cannot wait for each other's rows.
insert into deliveries (guid, event, action, conversation, lock_key, state, body, error, finished_at)
select guid, event, action, conversation, lock_key, state, body, error, case when state <> 'received' then now() end
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[])
     as new (guid, event, action, conversation, lock_key, state, body, error)
order by guid
on conflict (guid) do update
   set event = excluded.event, action = excluded.action, conversation = excluded.conversation,
       lock_key = excluded.lock_key, state = 'received', body = excluded.body, error = null, finished_at = null
 where excluded.state = 'received'
   and (deliveries.state = 'failed'
        or deliveries.state = 'dead' and deliveries.body is distinct from excluded.body)
returning guid
"""


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A delivery as it arrived: `received` is to be decided on, `ignored` means nothing, `dead` is not JSON.

    `body` is the raw JSON (for a dead one whatever came, for an ignored one None); a received one has a `lock_key`.
    """

    guid: str
    event: str
    state: Literal["received", "ignored", "dead"]
    action: str | None = None
    conversation: str | None = None
    lock_key: str | None = None
    body: bytes | None = None
    error: str | None = None


async def store(connection: Connection, deliveries: Sequence[NewDelivery]) -> set[str]:
    """Stores deliveries with their decide jobs, in a transaction of its own. Their GUIDs have to be distinct.

    Gives the GUIDs that are new, or known as failed and now to run again; all is committed when it returns.
    """
    async with connection.transaction():
        # A row that makes no job takes no turn.
        locks = [delivery.lock_key for delivery in deliveries if delivery.state == "received" and delivery.lock_key]
        if locks:
            await take_turns(connection, locks)
        rows = await connection.fetch(
            STORE,
            [delivery.guid for delivery in deliveries],
            [delivery.event for delivery in deliveries],
            [delivery.action for delivery in deliveries],
            [delivery.conversation for delivery in deliveries],
            [delivery.lock_key for delivery in deliveries],
            [delivery.state for delivery in deliveries],
            [delivery.body for delivery in deliveries],
            [delivery.error for delivery in deliveries],
        )
        stored = {row["guid"] for row in rows}
        await defer(
            connection,
            *(
                NewJob(queue="decide", task="decide", lock=delivery.lock_key, args={"guid": delivery.guid})
                for delivery in deliveries
                if delivery.state == "received" and delivery.guid in stored
            ),
        )
    return stored
