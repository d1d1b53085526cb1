"""The index of what was rescued from worktrees. The work itself is on its node."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from bot.store.database import Connection, fetch_all, fetch_one

# Where a commit and a directory were kept at the same time, the commit comes first.

RECORD_RESCUE = """
-- The cause of the removal is what the row says now, and so are the threads where $8 is null. Twice is one row.
insert into rescues (worktree_id, ref, kept, files, commits, bytes, created_at, branch, removal, conversations)
select w.id, $2, $3, $4, $5, $6, $7, w.branch, case w.state when 'removing' then w.removal end,
       coalesce($8, array(select number from conversations where worktree_id = w.id order by number))
from worktrees w where w.id = $1
on conflict do nothing
"""

RESCUES_OF_CONVERSATION = """
select r.* from rescue_rows r join conversations c using (platform, repository_id)
where c.id = $1 and r.conversations @> array[c.number]
order by r.created_at desc, r.ref is null, r.id desc limit $2
"""

PENDING_RESTORE = """
-- The thread's newest rescue, if no one asked for the removal and no turn ran since.
select r.* from rescue_rows r
where r.id = (select newest.id from rescue_rows newest join conversations c using (platform, repository_id)
              where c.id = $1 and newest.conversations @> array[c.number]
              order by newest.created_at desc, newest.ref is null, newest.id desc limit 1)
  and r.restored_at is null and r.removal in ('closed', 'retention')
  and not exists (select from turns t where t.conversation_id = $1 and t.created_at > r.created_at
                                             and t.started_at is not null)
"""

RESCUES_OF_WORKTREE = """
select * from rescue_rows where worktree_id = $1 order by created_at desc, ref is null, id desc
"""

WORKTREE_TO_RESTORE_IN = """
-- The live worktree of its node in which one of its threads works now; else its own.
select w.id from rescue_rows r
join worktrees w on w.platform = r.platform and w.repository_id = r.repository_id and w.node = r.node
where r.id = $1
  and (w.id = r.worktree_id
       or (r.kept is null and w.is_live
           and exists (select from conversations c where c.worktree_id = w.id and c.number = any (r.conversations))))
order by w.is_live desc, w.id = r.worktree_id desc, w.id limit 1
"""


@dataclass(frozen=True, slots=True)
class Rescue:
    """A rescue of a worktree: a commit under `ref` in the clone, or the directory itself, named `kept`.

    `conversations` are the threads that used the worktree; `removal` says why it went, None where it stayed.
    """

    id: int
    worktree_id: int
    ref: str | None
    kept: str | None
    removal: str | None
    conversations: tuple[int, ...]
    branch: str | None
    files: int
    commits: int
    bytes: int
    created_at: datetime
    restored_at: datetime | None
    node: str
    codebase: str
    folder: str
    node_name: str


async def record(
    connection: Connection,
    worktree_id: int,
    at: datetime,
    *,
    ref: str | None = None,
    kept: str | None = None,
    files: int = 0,
    commits: int = 0,
    size: int = 0,
    conversations: Sequence[int] | None = None,
) -> None:
    """Record a rescue of the worktree, a `ref` or a `kept` directory; `size` in bytes. Recording twice is one row.

    `conversations`: the numbers of the threads that used the worktree, by default those that use it now.
    """
    await connection.execute(RECORD_RESCUE, worktree_id, ref, kept, files, commits, size, at, conversations)


async def of_conversation(connection: Connection, conversation_id: int, limit: int | None = None) -> list[Rescue]:
    """Return the rescues of worktrees that this thread used, newest first."""
    return await fetch_all(connection, Rescue, RESCUES_OF_CONVERSATION, conversation_id, limit)


async def pending_restore(connection: Connection, conversation_id: int) -> Rescue | None:
    """Return the rescue that must be restored before the thread's next turn: no one asked for its removal."""
    return await fetch_one(connection, Rescue, PENDING_RESTORE, conversation_id)


async def of_worktree(connection: Connection, worktree_id: int) -> list[Rescue]:
    """Return the rescues of one worktree, newest first."""
    return await fetch_all(connection, Rescue, RESCUES_OF_WORKTREE, worktree_id)


async def newer(connection: Connection, rescue: Rescue) -> Rescue | None:
    """Return the latest rescue of the same worktree where it is a later one: only the latest can be restored."""
    latest_one = (await of_worktree(connection, rescue.worktree_id))[0]
    return latest_one if latest_one.created_at != rescue.created_at else None


async def with_id(connection: Connection, rescue_id: int) -> Rescue | None:
    """Return one rescue."""
    return await fetch_one(connection, Rescue, "select * from rescue_rows where id = $1", rescue_id)


async def home(connection: Connection, rescue: Rescue) -> int:
    """Return the worktree of its node in which the rescue is to be restored."""
    return int(await connection.fetchval(WORKTREE_TO_RESTORE_IN, rescue.id))


async def latest(connection: Connection) -> list[Rescue]:
    """Return all rescues, newest first."""
    return await fetch_all(
        connection, Rescue, "select * from rescue_rows order by created_at desc, ref is null, id desc"
    )


async def expired_before(connection: Connection, now: datetime, kept_for: timedelta) -> datetime:
    """Return the time before which rescues expire, by the slower of the caller's clock and the database's.

    Rescues before a removal are dated by the database's clock: a caller whose clock is far ahead would find them old.
    """
    before: datetime = await connection.fetchval("select least($1::timestamptz, now()) - $2::interval", now, kept_for)
    return before


async def expired(connection: Connection, node: str, before: datetime) -> list[Rescue]:
    """Return the rescues of this node that are older than that time, oldest first."""
    return await fetch_all(
        connection,
        Rescue,
        "select * from rescue_rows where node = $1 and created_at < $2 order by created_at, id",
        node,
        before,
    )


async def mark_restored(connection: Connection, rescue_id: int, at: datetime) -> None:
    """Record that it was restored; it is kept until it expires."""
    await connection.execute("update rescues set restored_at = $2 where id = $1", rescue_id, at)


async def delete(connection: Connection, rescue_id: int) -> None:
    """Delete the row of a rescue whose work was deleted."""
    await connection.execute("delete from rescues where id = $1", rescue_id)
