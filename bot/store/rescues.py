"""The index of what was rescued from worktrees: whose it is, how much, until when. The work itself is on its node."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from asyncpg import Record

from bot.store.database import Connection

# Of what was kept in two ways at once, the commit comes first: it can be brought back.

RECORD = """
-- Why the worktree goes, and unless it is told who used it, is what the rows say now. Told twice it is one.
insert into rescues (worktree_id, ref, kept, files, commits, bytes, created_at, branch, removal, conversations)
select w.id, $2, $3, $4, $5, $6, $7, w.branch, case w.state when 'removing' then w.removal end,
       coalesce($8, array(select number from conversations where worktree_id = w.id order by number))
from worktrees w where w.id = $1
on conflict do nothing
"""

_COLUMNS = """
select r.id, r.worktree_id, r.ref, r.kept, r.removal, r.conversations, r.branch, r.files, r.commits, r.bytes,
       r.created_at, r.restored_at, w.node, b.owner || '/' || b.name as codebase, b.folder
from rescues r join worktrees w on w.id = r.worktree_id join codebases b using (platform, repository_id)
"""

GET = f"{_COLUMNS} where r.id = $1"

OF_CONVERSATION = f"""
{_COLUMNS}
join conversations c on (c.platform, c.repository_id) = (w.platform, w.repository_id)
where c.id = $1 and r.conversations @> array[c.number]
order by r.created_at desc, r.ref is null, r.id desc limit $2
"""

PENDING_RESTORE = f"""
{_COLUMNS}
where r.id = (select newest.id from rescues newest join worktrees on worktrees.id = newest.worktree_id
              join conversations c using (platform, repository_id)
              where c.id = $1 and newest.conversations @> array[c.number]
              order by newest.created_at desc, newest.ref is null, newest.id desc limit 1)
  and r.restored_at is null and r.removal in ('closed', 'retention')
  and not exists (select from turns t where t.conversation_id = $1 and t.created_at > r.created_at
                                             and t.started_at is not null)
"""  # noqa: S608 -- nothing but constants

OF_WORKTREE = f"""
{_COLUMNS}
where r.worktree_id = $1
order by r.created_at desc, r.ref is null, r.id desc limit $2
"""

LATEST = f"""
{_COLUMNS}
order by r.created_at desc, r.ref is null, r.id desc limit $1
"""

EXPIRED = f"""
{_COLUMNS}
where w.node = $1 and r.created_at < $2
order by r.created_at, r.id
"""

EXPIRED_BEFORE = """
select least($1::timestamptz, now()) - $2::interval
"""

MARK_RESTORED = """
update rescues set restored_at = $2 where id = $1
"""

DELETE = """
delete from rescues where id = $1
"""


@dataclass(frozen=True, slots=True)
class Rescue:
    """What was rescued from a worktree: a commit under `ref` in the clone, or the directory itself, named `kept`.

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


def _rescue(row: Record) -> Rescue:
    return Rescue(**{**row, "conversations": tuple(row["conversations"])})


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
    """Notes a rescue of the worktree, a `ref` or a `kept` directory; `size` in bytes. The same one twice is one.

    `conversations`: the numbers of the threads that used the worktree, by default those that use it now.
    """
    numbers = None if conversations is None else list(conversations)
    await connection.execute(RECORD, worktree_id, ref, kept, files, commits, size, at, numbers)


async def get(connection: Connection, rescue_id: int) -> Rescue | None:
    """One rescue, None once it expired."""
    row = await connection.fetchrow(GET, rescue_id)
    return _rescue(row) if row else None


async def of_conversation(connection: Connection, conversation_id: int, limit: int | None = None) -> list[Rescue]:
    """The rescues of worktrees that this thread used, newest first."""
    return [_rescue(row) for row in await connection.fetch(OF_CONVERSATION, conversation_id, limit)]


async def pending_restore(connection: Connection, conversation_id: int) -> Rescue | None:
    """What the thread's next turn must find in its worktree again: nobody asked for the removal that put it away."""
    row = await connection.fetchrow(PENDING_RESTORE, conversation_id)
    return _rescue(row) if row else None


async def of_worktree(connection: Connection, worktree_id: int, limit: int | None = None) -> list[Rescue]:
    """The rescues of one worktree, newest first."""
    return [_rescue(row) for row in await connection.fetch(OF_WORKTREE, worktree_id, limit)]


async def latest(connection: Connection, limit: int | None = None) -> list[Rescue]:
    """All rescues, newest first."""
    return [_rescue(row) for row in await connection.fetch(LATEST, limit)]


async def expired_before(connection: Connection, now: datetime, kept_for: timedelta) -> datetime:
    """What is older than that was kept for long enough, by the slower of the caller's clock and the database's.

    Removals, and so the rescues before them, are dated by the database's: a caller whose clock is far ahead would take
    what was rescued a moment ago for old.
    """
    before: datetime = await connection.fetchval(EXPIRED_BEFORE, now, kept_for)
    return before


async def expired(connection: Connection, node: str, before: datetime) -> list[Rescue]:
    """What is on this node since before that time, oldest first."""
    return [_rescue(row) for row in await connection.fetch(EXPIRED, node, before)]


async def mark_restored(connection: Connection, rescue_id: int, at: datetime) -> None:
    """It was brought back; it is kept all the same until it expires."""
    await connection.execute(MARK_RESTORED, rescue_id, at)


async def delete(connection: Connection, rescue_id: int) -> None:
    """The work is gone, and its row with it."""
    await connection.execute(DELETE, rescue_id)
