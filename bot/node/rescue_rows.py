"""The index of what was rescued from worktrees. The work itself is on its node."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from bot.model import Rescue
from bot.store.database import Connection, statement


@statement("""
-- The cause of the removal is what the row says now, and so are the threads where $8 is null. Twice is one row.
insert into rescues (worktree_id, ref, kept, files, commits, bytes, created_at, branch, removal, conversations)
select w.id, $3, $4, $5, $6, $7, $2, w.branch, case w.state when 'removing' then w.removal end,
       coalesce($8, array(select number from conversations where worktree_id = w.id order by number))
from worktrees w where w.id = $1 and not exists (select from rescues where kept = $4)
on conflict (worktree_id, ref) where ref is not null do update set kept = coalesce(rescues.kept, excluded.kept)
""")
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
    """Record a rescue of the worktree, a `ref`, a `kept` directory, or both; `size` in bytes. Twice is one row.

    `conversations`: the numbers of the threads that used the worktree, by default those that use it now.
    """


@statement("""
select r.* from rescue_rows r join conversations c using (platform, repository_id)
where c.id = $1 and r.conversations @> array[c.number]
order by r.created_at desc, r.id desc limit $2
""")
async def of_conversation(connection: Connection, conversation_id: int, limit: int | None = None) -> list[Rescue]:
    """Return the rescues of worktrees that this thread used, newest first."""


@statement("""
-- The thread's newest rescue, if no one asked for the removal and no turn ran since.
select r.* from rescue_rows r
where r.id = (select newest.id from rescue_rows newest join conversations c using (platform, repository_id)
              where c.id = $1 and newest.conversations @> array[c.number]
              order by newest.created_at desc, newest.id desc limit 1)
  and r.restored_at is null and r.removal in ('closed', 'retention')
  and not exists (select from turns t where t.conversation_id = $1 and t.created_at > r.created_at
                                             and t.started_at is not null and t.id <> $2)
  and not exists (select from turns t where t.id = $2 and t.head_before is not null)
""")
async def pending_restore(connection: Connection, conversation_id: int, turn_id: int = 0) -> Rescue | None:
    """Return the rescue that must be restored before the thread's next turn, of this id if there is one already: no one
    asked for its removal.
    """


@statement("select * from rescue_rows where worktree_id = $1 order by created_at desc, id desc")
async def of_worktree(connection: Connection, worktree_id: int) -> list[Rescue]:
    """Return the rescues of one worktree, newest first."""


async def newer(connection: Connection, rescue: Rescue) -> Rescue | None:
    """Return the latest rescue of the same worktree where it is a later one: only the latest can be restored."""
    latest_one = (await of_worktree(connection, rescue.worktree_id))[0]
    return latest_one if latest_one.id != rescue.id else None


@statement("select * from rescue_rows where id = $1")
async def with_id(connection: Connection, rescue_id: int) -> Rescue | None:
    """Return one rescue."""


@statement("""
-- The live worktree of its node in which one of its threads works now; else its own.
select w.id from rescue_rows r
join worktrees w on w.platform = r.platform and w.repository_id = r.repository_id and w.node = r.node
where r.id = $1
  and (w.id = r.worktree_id
       or (r.kept is null and w.is_live
           and exists (select from conversations c where c.worktree_id = w.id and c.number = any (r.conversations))))
order by w.is_live desc, w.id = r.worktree_id desc, w.id limit 1
""")
async def home(connection: Connection, rescue_id: int) -> int:
    """Return the worktree of its node in which the rescue is to be restored."""


@statement("select * from rescue_rows order by created_at desc, id desc")
async def latest(connection: Connection) -> list[Rescue]:
    """Return all rescues, newest first."""


@statement("select least($1::timestamptz, now()) - $2::interval")
async def expired_before(connection: Connection, now: datetime, kept_for: timedelta) -> datetime:
    """Return the time before which rescues expire, by the slower of the caller's clock and the database's.

    Rescues before a removal are dated by the database's clock: a caller whose clock is far ahead would find them old.
    """


@statement("select * from rescue_rows where node = $1 and created_at < $2 order by created_at, id")
async def expired(connection: Connection, node: str, before: datetime) -> list[Rescue]:
    """Return the rescues of this node that are older than that time, oldest first."""


@statement("update rescues set restored_at = $2 where id = $1")
async def mark_restored(connection: Connection, rescue_id: int, at: datetime) -> None:
    """Record that it was restored; its commit is kept until it expires."""


@statement("""
with gone as (delete from rescues where id = $1 and ref is null)
update rescues set kept = null where id = $1 and ref is not null
""")
async def forget_directory(connection: Connection, rescue_id: int) -> None:
    """Record that its directory is no longer kept: it was put back, or is gone."""


@statement("delete from rescues where id = $1")
async def delete(connection: Connection, rescue_id: int) -> None:
    """Delete the row of a rescue whose work was deleted."""
