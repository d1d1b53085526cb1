"""The removal of worktrees in their rows: decided, begun by whoever holds the clone's lock, ended."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from bot.ask import Ask
from bot.model import ThreadRef, WorktreeRow
from bot.store.database import Connection, statement
from bot.store.jobs import NewJob, defer, queue_of, ring_for_work
from bot.store.worktrees import end_sessions, is_removing, lock_worktree

Removal = Literal["closed", "command", "retention", "purged", "lost"]
TAKE_OVER_SECONDS = 20.0
"""A process that removes a worktree by itself gets so long before the worktree's job goes on with it."""

DECIDE = """
-- Nothing runs there and, unless a turn removes it, nothing waits. What waits behind that turn goes on afterwards.
update worktrees w set state = 'removing', removal = $3, updated_at = now()
where w.id = $1 and w.node = $2 and w.is_live and w.updated_at = coalesce($5, w.updated_at)
  and not exists (select from turns t where t.worktree_id = w.id and t.id is distinct from $4
                  and (t.state = 'running' or (t.state = 'queued' and $4::bigint is null)))
returning w.id
"""

TAKE_OVER = """
-- A request that came during the removal reserved a new worktree at the same path: its turns and conversations go on
-- in this one, which is kept or made again.
with successor as (
    update worktrees n set state = 'removed', updated_at = now()
    from worktrees o
    where o.id = $1 and o.state = 'removing'
      and n.node = o.node and n.path = o.path and n.id <> o.id and n.state = 'reserved'
    returning n.id
), talks as (
    update conversations set worktree_id = $1 where worktree_id in (select id from successor)
)
update turns set worktree_id = $1 where worktree_id in (select id from successor)
"""

HAS_QUEUED_WORK = "select exists (select from turns where worktree_id = $1 and state = 'queued')"

FINISH = """
update worktrees set state = case when $2 then 'reserved' else 'removed' end,
                     removal = case when not $2 then removal end, removal_error = null, removal_began = false,
                     setup_done = false, updated_at = now()
where id = $1
"""

KEEP = """
-- It stays, and the next request uses it again. One that was to have a branch and has none was never made. The cause
-- "closed" is remembered, for another attempt.
update worktrees
set state = case when removal = 'lost' then 'lost'
                 when branch is null and start_kind <> 'detached' then 'reserved' else 'ready' end,
    removal = case when removal = 'closed' then removal end, removal_error = $2, removal_began = false,
    updated_at = now()
where id = $1 and state = 'removing'
"""


@dataclass(frozen=True, slots=True)
class DecidedRemoval:
    """A worktree that is to be removed. Its row was last updated when that was decided; `users` are its threads."""

    worktree: WorktreeRow
    removal: Removal
    users: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Blocked:
    """A turn that waits for a removal, and the place of its answer."""

    id: int
    thread_ref: ThreadRef
    ask: Ask


async def decide(
    connection: Connection,
    node: str,
    worktree_id: int,
    removal: Removal,
    turn_id: int | None = None,
    last_activity: datetime | None = None,
) -> bool:
    """Decide the removal of a live worktree; False while a turn needs it.

    `turn_id`: the running turn that removes it; turns behind it do not count. Without one, the worktree's job goes on
    with the removal later, should this process die.
    `last_activity`: False too if the row was used since.
    """
    async with connection.transaction():
        await lock_worktree(connection, worktree_id)
        decided = await connection.fetchval(DECIDE, worktree_id, node, removal, turn_id, last_activity)
        if decided is not None and turn_id is None:
            place = (queue_of(node), "worktree", f"worktree:{worktree_id}")
            await defer(connection, NewJob(*place, {"worktree": worktree_id}, TAKE_OVER_SECONDS))
        return decided is not None


@statement("""
-- One that was lost has also the threads that moved to another node.
select w.*, coalesce(r.removal, 'closed') as removal,
       array(select unnest(w.conversations) union select unnest(r.lost_threads) where r.removal = 'lost'
             order by 1) as users
from worktree_rows w join worktrees r on r.id = w.worktree_id
where w.worktree_id = $2 and w.node = $1 and w.worktree_state = 'removing'
""")
async def decided(connection: Connection, node: str, worktree_id: int) -> DecidedRemoval | None:
    """Return the removal of the node's worktree that is decided, None where it is not to be removed."""


async def begin(connection: Connection, node: str, worktree_id: int) -> DecidedRemoval | None:
    """Begin a removal that is decided, or go on with one that was cut off. Only under the clone's lock."""
    begins = "update worktrees set removal_began = true where id = $1 and node = $2 and state = 'removing'"
    await connection.execute(begins, worktree_id, node)
    return await decided(connection, node, worktree_id)


async def finish(connection: Connection, removal: DecidedRemoval, node: str) -> None:
    """Record that the worktree is gone on disk and in git, and ring its node.

    Where turns wait for it, it is reserved again at the same path; else its conversations have none any
    more. After a purge they keep it, and their sessions stay.
    """
    purged, worktree_id = removal.removal == "purged", removal.worktree.id
    async with connection.transaction():
        await lock_worktree(connection, worktree_id)
        if not await is_removing(connection, worktree_id):
            return  # the answer to an earlier attempt to write this was lost
        waits: bool = await connection.fetchval(HAS_QUEUED_WORK, worktree_id)
        if purged or waits:
            await connection.execute(TAKE_OVER, worktree_id)
            waits = await connection.fetchval(HAS_QUEUED_WORK, worktree_id)
        await connection.execute(FINISH, worktree_id, waits)
        if not purged:
            await end_sessions(connection, worktree_id, "worktree-removed")
        if not purged and not waits:
            left = "update conversations set worktree_id = null, updated_at = now() where worktree_id = $1"
            await connection.execute(left, worktree_id)
        await ring_for_work(connection, node)


async def keep(connection: Connection, removal: DecidedRemoval, node: str, error: str | None = None) -> None:
    """Record that the worktree stays: it is used again, also by requests that came during the removal.

    `error` is why it could not be removed.
    """
    async with connection.transaction():
        if removal.removal != "lost":  # which nothing uses again
            await connection.execute(TAKE_OVER, removal.worktree.id)
        await connection.execute(KEEP, removal.worktree.id, error)
        await ring_for_work(connection, node)


@statement("update worktrees set removal_error = $2, removal_began = false where id = $1 and state = 'removing'")
async def put_back(connection: Connection, worktree_id: int, error: str) -> None:
    """Record why the removal could not go on, and leave it to the next attempt, which finds the rescue of this one."""


@statement("""
-- Turns that wait until the node has removed a directory, or let go of one that it lost.
select t.id, t.conversation_id, r.ask, b.*
from directories_in_the_way d
join turns t on t.worktree_id = d.worktree_id and t.state = 'queued' join requests r on r.turn_id = t.id
join codebases b on (b.platform, b.repository_id) = (t.queue_platform, t.queue_repository_id)
where d.directory_of = $1 order by t.id
""")
async def blocked(connection: Connection, worktree_id: int) -> list[Blocked]:
    """Return the turns, with the places of their answers, that wait for the removal of the worktree."""


@statement("""
-- Worktrees whose removal failed when their threads were closed, and that were not used since.
select id from worktrees
where node = $1 and is_live and removal = 'closed' and updated_at < now() - $2::interval
order by id
""")
async def due_for_retry(connection: Connection, node: str, after: timedelta) -> list[int]:
    """Return worktrees that could not be removed when their threads were closed, due for another attempt."""
