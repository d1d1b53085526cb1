"""Worktrees that are being removed: each under a claim, which the worktree's job takes over when its process died."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID, uuid4

from asyncpg import Record

from bot.model import Target, ThreadRef, WorktreeRow
from bot.store.database import Connection, fetch_column, read
from bot.store.doorbell import ring_for_work, take_over_later
from bot.store.worktrees import end_sessions, lock_worktree

Removal = Literal["closed", "command", "retention", "purged", "lost"]

CLAIM = """
-- Whoever held the claim before: the worktree's job runs, so that process is gone, suspended or slow.
update worktrees set claim = $3 where id = $1 and node = $2 and state = 'removing' returning id, removal
"""

CLAIM_FOR = """
-- Nothing runs there and, unless an operation removes it, nothing waits. What waits behind that operation goes on
-- afterwards.
update worktrees w set state = 'removing', removal = $4, claim = $3, updated_at = now()
where w.id = $1 and w.node = $2 and w.is_live and w.updated_at = coalesce($6, w.updated_at)
  and not exists (select from turns t where t.worktree_id = w.id
                  and (t.state = 'running' or (t.state = 'queued' and $5::bigint is null)))
  and not exists (select from operations o where o.worktree_id = w.id and o.id is distinct from $5
                  and (o.state = 'running' or (o.state = 'queued' and $5::bigint is null)))
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
                     setup_done = false, claim = null, updated_at = now()
where id = $1 and claim = $2
"""

KEEP = """
-- It stays, and the next request uses it again. One that was to have a branch and has none was never made. The cause
-- "closed" is remembered, for another attempt.
update worktrees
set state = case when removal = 'lost' then 'lost'
                 when branch is null and start_kind <> 'detached' then 'reserved' else 'ready' end,
    removal = case when removal = 'closed' then removal end, removal_error = $3, claim = null,
    updated_at = now()
where id = $1 and claim = $2 returning id
"""

PUT_BACK = """
update worktrees set removal_error = $3, claim = null where id = $1 and claim = $2
"""

BLOCKED = """
-- Turns that wait until the node has removed a directory, or let go of one that it lost.
select t.id, t.conversation_id, t.source_kind, t.source_id, b.*
from directories_in_the_way d
join turns t on t.worktree_id = d.worktree_id and t.state = 'queued'
join codebases b on (b.platform, b.repository_id) = (t.queue_platform, t.queue_repository_id)
where d.directory_of = $1 order by t.id
"""

DETACH_CONVERSATIONS = """
update conversations set worktree_id = null, updated_at = now() where worktree_id = $1
"""

DUE_FOR_RETRY = """
-- Worktrees whose removal failed when their threads were closed, and that were not used since.
select id from worktrees
where node = $1 and is_live and removal = 'closed' and updated_at < now() - $2::interval
order by id
"""


@dataclass(frozen=True, slots=True)
class ClaimedRemoval:
    """The right to remove one worktree. Its row was last updated when the removal was decided."""

    worktree: WorktreeRow
    token: UUID
    removal: Removal


async def claim(connection: Connection, node: str, worktree_id: int) -> ClaimedRemoval | None:
    """Claim a removal that is decided, from the worktree's job; None where the worktree is not to be removed."""
    token = uuid4()
    async with connection.transaction():
        row = await connection.fetchrow(CLAIM, worktree_id, node, token)
        return await _claimed(connection, token, row)


async def claim_for(
    connection: Connection,
    node: str,
    worktree_id: int,
    removal: Removal,
    operation_id: int | None = None,
    last_activity: datetime | None = None,
) -> ClaimedRemoval | None:
    """Decide and claim the removal of a live worktree; None while a turn or an operation needs it.

    `operation_id`: the running operation that removes it; turns and operations behind it do not count. Without one,
    the worktree's job goes on with the removal later.
    `last_activity`: None too if the row was used since.
    """
    token = uuid4()
    async with connection.transaction():
        await lock_worktree(connection, worktree_id)
        row = await connection.fetchrow(CLAIM_FOR, worktree_id, node, token, removal, operation_id, last_activity)
        if row is not None and operation_id is None:
            await take_over_later(connection, node, worktree_id)
        return await _claimed(connection, token, row)


async def _claimed(connection: Connection, token: UUID, row: Record | None) -> ClaimedRemoval | None:
    if row is None:
        return None
    worktree = read(WorktreeRow, await connection.fetchrow(CLAIMED, row["id"]))
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
        (row["id"], read(ThreadRef, row), read(Target, row)) for row in await connection.fetch(BLOCKED, worktree_id)
    ]


async def due_for_retry(connection: Connection, node: str, after: timedelta) -> list[int]:
    """Return worktrees that could not be removed when their threads were closed, due for another attempt."""
    return await fetch_column(connection, DUE_FOR_RETRY, node, after)
