"""Worktrees that are being removed: claimed like turns, one at a time, and queued again when the process died."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID, uuid4

from asyncpg import Record

from bot.model import Target, ThreadRef, WorktreeRow
from bot.store.database import Connection, repository_of, worktree_of
from bot.store.doorbell import ring_for_work
from bot.store.worktrees import IS_IN_THE_WAY, end_sessions, lock_worktree

Removal = Literal["closed", "command", "retention", "purged", "lost"]

CLAIM = """
update worktrees set claim = $2, worker = $3
where id = (select id from worktrees
            where node = $1 and state = 'removing' and claim is null and id <> all ($4::bigint[])
            order by id limit 1 for update skip locked)
returning id, removal
"""

CLAIM_FOR = """
-- Nothing runs there and, unless an operation removes it, nothing waits. What waits behind that operation goes on
-- afterwards.
update worktrees w set state = 'removing', removal = $5, claim = $3, worker = $4, updated_at = now()
where w.id = $1 and w.node = $2 and w.state in ('reserved', 'ready') and w.updated_at = coalesce($7, w.updated_at)
  and not exists (select from turns t where t.worktree_id = w.id
                  and (t.state = 'running' or (t.state = 'queued' and $6::bigint is null)))
  and not exists (select from operations o where o.worktree_id = w.id and o.id is distinct from $6
                  and (o.state = 'running' or (o.state = 'queued' and $6::bigint is null)))
returning id, removal
"""

CLAIMED = """
select * from worktree_rows where worktree_id = $1
"""

USERS_OF_LOST = """
-- With the threads that moved to another node.
select array(select unnest(lost_threads) union select number from conversations where worktree_id = $1 order by 1)
from worktrees where id = $1
"""

LOCK_CLAIMED = """
select state from worktrees where id = $1 and claim = $2 and state = 'removing' for no key update
"""

TAKE_OVER = """
-- A request that came during the removal reserved a new worktree at the same path: its turns and conversations go on
-- in this one, which is kept or made again.
with successor as (
    update worktrees n set state = 'removed', updated_at = now()
    from worktrees o
    where o.id = $1 and o.claim = $2 and n.node = o.node and n.path = o.path and n.id <> o.id and n.state = 'reserved'
    returning n.id
), talks as (
    update conversations set worktree_id = $1 where worktree_id in (select id from successor)
), operated as (
    update operations set worktree_id = $1 where worktree_id in (select id from successor)
)
update turns set worktree_id = $1 where worktree_id in (select id from successor)
"""

HAS_QUEUED_WORK = """
select exists (select from turns where worktree_id = $1 and state = 'queued')
       or exists (select from operations where worktree_id = $1 and state = 'queued')
"""

FINISH = """
update worktrees set state = case when $3 then 'reserved' else 'removed' end,
                     removal = case when not $3 then removal end, removal_error = null,
                     setup_done = false, claim = null, worker = null, updated_at = now()
where id = $1 and claim = $2
"""

KEEP = """
-- It stays, and the next request uses it again. One that was to have a branch and has none was never made. The cause
-- "closed" is remembered, for another attempt.
update worktrees
set state = case when removal = 'lost' then 'lost'
                 when branch is null and start_kind <> 'detached' then 'reserved' else 'ready' end,
    removal = case when removal = 'closed' then removal end, removal_error = $3, claim = null, worker = null,
    updated_at = now()
where id = $1 and claim = $2 returning id
"""

PUT_BACK = """
update worktrees set removal_error = $3, claim = null, worker = null where id = $1 and claim = $2
"""

BLOCKED = f"""
-- Turns that wait until the node has removed a directory, or let go of one that it lost.
select t.id, t.conversation_id, t.source_kind, t.source_id, b.platform, b.repository_id, b.owner, b.name,
       b.default_branch, b.installation_id
from worktrees l
join worktrees w on w.node = l.node and w.id <> l.id and w.state in ('reserved', 'ready') and {IS_IN_THE_WAY}
join turns t on t.worktree_id = w.id and t.state = 'queued'
join codebases b on (b.platform, b.repository_id) = (w.platform, w.repository_id)
where l.id = $1 and l.state in ('removing', 'lost') order by t.id
"""  # noqa: S608 - of constants

DETACH_CONVERSATIONS = """
update conversations set worktree_id = null, updated_at = now() where worktree_id = $1
"""

CLAIMED_ON_NODE = """
select id, worker from worktrees where node = $1 and state = 'removing' and claim is not null
"""

REQUEUE = """
update worktrees set claim = null, worker = null where id = $1 and worker = $2 and state = 'removing'
"""

DUE_FOR_RETRY = """
-- Worktrees whose removal failed when their threads were closed, and that were not used since.
select id from worktrees
where node = $1 and state in ('reserved', 'ready') and removal = 'closed' and updated_at < now() - $2::interval
order by id
"""


@dataclass(frozen=True, slots=True)
class ClaimedRemoval:
    """The right to remove one worktree. Its row was last updated when the removal was decided."""

    worktree: WorktreeRow
    token: UUID
    removal: Removal


async def claim_next(
    connection: Connection, node: str, worker: str, except_for: Sequence[int] = ()
) -> ClaimedRemoval | None:
    """Claim the oldest removal of the node that is not claimed, and none of these worktrees."""
    token = uuid4()
    async with connection.transaction():
        row = await connection.fetchrow(CLAIM, node, token, worker, list(except_for))
        return await _claimed(connection, token, row)


async def claim_for(
    connection: Connection,
    node: str,
    worktree_id: int,
    worker: str,
    removal: Removal,
    operation_id: int | None = None,
    last_activity: datetime | None = None,
) -> ClaimedRemoval | None:
    """Decide and claim the removal of a live worktree; None while a turn or an operation needs it.

    `operation_id`: the running operation that removes it; turns and operations behind it do not count.
    `last_activity`: None too if the row was used since.
    """
    token = uuid4()
    async with connection.transaction():
        await lock_worktree(connection, worktree_id)
        row = await connection.fetchrow(
            CLAIM_FOR, worktree_id, node, token, worker, removal, operation_id, last_activity
        )
        return await _claimed(connection, token, row)


async def _claimed(connection: Connection, token: UUID, row: Record | None) -> ClaimedRemoval | None:
    if row is None:
        return None
    worktree = worktree_of(await connection.fetchrow(CLAIMED, row["id"]))
    if row["removal"] == "lost":
        worktree = replace(worktree, conversations=tuple(await connection.fetchval(USERS_OF_LOST, row["id"])))
    return ClaimedRemoval(worktree, token, row["removal"] or "closed")


async def lock_claimed(connection: Connection, removal: ClaimedRemoval) -> bool:
    """Lock the row of a claimed removal until the caller's transaction ends; False if the claim was lost."""
    return await connection.fetchval(LOCK_CLAIMED, removal.worktree.id, removal.token) is not None


async def finish(connection: Connection, removal: ClaimedRemoval, node: str) -> None:
    """Record that the worktree is gone on disk and in git, and ring its node.

    Where turns or operations wait for it, it is reserved again at the same path; else its conversations have none any
    more. After a purge they keep it, and their sessions stay.
    """
    purged, worktree_id = removal.removal == "purged", removal.worktree.id
    async with connection.transaction():
        if not await lock_claimed(connection, removal):
            return
        waits: bool = await connection.fetchval(HAS_QUEUED_WORK, worktree_id)
        if purged or waits:
            await connection.execute(TAKE_OVER, worktree_id, removal.token)
            waits = await connection.fetchval(HAS_QUEUED_WORK, worktree_id)
        await connection.execute(FINISH, worktree_id, removal.token, waits)
        if not purged:
            await end_sessions(connection, worktree_id, "worktree-removed")
        if not purged and not waits:
            await connection.execute(DETACH_CONVERSATIONS, worktree_id)
        await ring_for_work(connection, node)


async def keep(connection: Connection, removal: ClaimedRemoval, node: str, error: str | None = None) -> None:
    """Record that the worktree stays: it is used again, also by requests that came during the removal.

    `error` is why it could not be removed.
    """
    async with connection.transaction():
        if removal.removal != "lost":  # which nothing uses again
            await connection.execute(TAKE_OVER, removal.worktree.id, removal.token)
        await connection.execute(KEEP, removal.worktree.id, removal.token, error)
        await ring_for_work(connection, node)


async def put_back(connection: Connection, removal: ClaimedRemoval, error: str) -> None:
    """Record why the removal could not go on, and leave it to the next round, which finds the rescue of this one."""
    await connection.execute(PUT_BACK, removal.worktree.id, removal.token, error)


async def blocked(connection: Connection, worktree_id: int) -> list[tuple[int, ThreadRef, Target]]:
    """Return the turns, with the places of their answers, that wait for the removal of the worktree."""
    return [
        (row["id"], ThreadRef(repository_of(row), row["conversation_id"]), Target(row["source_kind"], row["source_id"]))
        for row in await connection.fetch(BLOCKED, worktree_id)
    ]


async def due_for_retry(connection: Connection, node: str, after: timedelta) -> list[int]:
    """Return worktrees that could not be removed when their threads were closed, due for another attempt."""
    return [row["id"] for row in await connection.fetch(DUE_FOR_RETRY, node, after)]


async def claimed_on(connection: Connection, node: str) -> list[tuple[int, str]]:
    """Return (worktree, worker) of the claimed removals."""
    return [(row["id"], row["worker"]) for row in await connection.fetch(CLAIMED_ON_NODE, node)]


async def requeue(connection: Connection, worktree_id: int, worker: str) -> None:
    """Free the claim of a worker that died: every step of a removal can be repeated."""
    await connection.execute(REQUEUE, worktree_id, worker)
