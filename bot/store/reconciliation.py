"""Rows of worktrees as reconciliation compares them with disk and git."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from asyncpg import Record

from bot.model import Start, WorktreeRow
from bot.store.database import Connection, start_columns, worktree_of

FOLDERS = """
-- The folders of the clones that the node's worktrees belong to; $2: only that of one worktree.
select distinct b.folder from worktrees w join codebases b using (platform, repository_id)
where w.node = $1 and (w.id = $2 or ($2 is null and w.state in ('reserved', 'ready', 'removing')))
"""

LIVE_IN_FOLDER = """
select r.*, w.claim is not null or exists (select from worktree_busy b where b.worktree_id = w.id) as busy
from worktree_rows r join worktrees w on w.id = r.worktree_id
where r.folder = $1 and r.node = $2 and r.worktree_state in ('reserved', 'ready', 'removing')
order by w.id
"""

BY_ID = """
select r.*, w.claim is not null or exists (select from worktree_busy b where b.worktree_id = w.id) as busy
from worktree_rows r join worktrees w on w.id = r.worktree_id
where r.worktree_id = any ($1::bigint[]) and r.node = $2
"""

PATH_OF = """
select path from worktrees where id = $1 and node = $2
"""

REMOVED_AT = """
select max(id) from worktrees where node = $1 and path = $2 and state = 'removed'
"""

RECORD_REMOVED = """
-- For an orphan whose row was lost: what is rescued of it is found by this row, and it can be restored.
insert into worktrees (platform, repository_id, node, path, branch, base_branch, start_number, start_kind, start_ref,
                       start_sha, state, removal, created_at)
select platform, repository_id, $4, $5, $6, $7, $8, $9, $10, $11, 'removed', 'retention', $12
from codebases where (platform, repository_id, folder) = ($1, $2, $3)
returning id
"""

IDS_IN = """
select w.id from worktrees w join codebases b using (platform, repository_id)
where w.id = any ($1::bigint[]) and b.folder = $2
"""

INDEXED = """
select r.ref from rescues r where r.worktree_id = any ($1::bigint[]) and r.ref is not null
"""


@dataclass(frozen=True, slots=True)
class RowInUse:
    """A worktree's row. `busy`: something waits or runs in it, or its removal is claimed."""

    worktree: WorktreeRow
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRow:
    """What the row of a removed worktree tells; `owner` is the number of the thread it was made for."""

    platform: str
    repository_id: int
    folder: str
    node: str
    path: str
    branch: str | None
    base_branch: str | None
    owner: int
    start: Start
    created_at: datetime


def _row(row: Record) -> RowInUse:
    return RowInUse(worktree_of(row), row["busy"])


async def folders(connection: Connection, node: str, only: int | None) -> list[str]:
    """Return the folders of the clones with worktrees on this node, or that of the worktree `only`."""
    return [row["folder"] for row in await connection.fetch(FOLDERS, node, only)]


async def live_in(connection: Connection, folder: str, node: str) -> list[RowInUse]:
    """Return the live rows of a clone's worktrees on this node."""
    return [_row(row) for row in await connection.fetch(LIVE_IN_FOLDER, folder, node)]


async def by_id(connection: Connection, worktrees: Sequence[int], node: str) -> dict[int, RowInUse]:
    """Return rows of this node by id, whatever their state."""
    return {row["worktree_id"]: _row(row) for row in await connection.fetch(BY_ID, list(worktrees), node)}


async def path_of(connection: Connection, worktree_id: int, node: str) -> str | None:
    """Return the path of a worktree, live or not; None where this node never had it."""
    path: str | None = await connection.fetchval(PATH_OF, worktree_id, node)
    return path


async def removed_at(connection: Connection, node: str, path: str) -> int | None:
    """Return the id of the worktree that was the last to be removed at this path."""
    worktree_id: int | None = await connection.fetchval(REMOVED_AT, node, path)
    return worktree_id


async def record_removed(connection: Connection, row: RemovedRow) -> int | None:
    """Write the row of a removed worktree; return its id, None if its repository is unknown or has another folder."""
    worktree_id: int | None = await connection.fetchval(
        RECORD_REMOVED,
        row.platform,
        row.repository_id,
        row.folder,
        row.node,
        row.path,
        row.branch,
        row.base_branch,
        row.owner,
        *start_columns(row.start),
        row.created_at,
    )
    return worktree_id


async def ids_in(connection: Connection, folder: str, worktrees: Sequence[int]) -> set[int]:
    """Return those of the worktrees that belong to this clone."""
    return {row["id"] for row in await connection.fetch(IDS_IN, list(worktrees), folder)}


async def indexed(connection: Connection, worktrees: Sequence[int]) -> set[str]:
    """Return the refs of these worktrees' rescues that have a row."""
    return {row["ref"] for row in await connection.fetch(INDEXED, list(worktrees))}
