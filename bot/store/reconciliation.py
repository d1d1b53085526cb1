"""Rows of worktrees as reconciliation compares them with disk and git."""

from collections.abc import Sequence
from datetime import datetime

from bot.model import Start, WorktreeRow
from bot.store.database import Connection, fetch_column, read, start_columns

PATHS_OF_WORKTREES = """
-- The folders of the clones, and the paths, of the node's live worktrees; with $2 of that worktree, live or not.
select b.folder, w.path from worktrees w join codebases b using (platform, repository_id)
where w.node = $1 and (w.id = $2 or ($2 is null and w.is_live))
"""

LIVE_IN_FOLDER = """
select w.*, exists (select from worktree_busy b where b.worktree_id = w.worktree_id) as busy
from worktree_rows w
where w.folder = $1 and w.node = $2 and w.is_live
"""

RECORD_REMOVED = """
-- For an orphan whose row was lost: its rescue is found by this row, and can be restored.
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


async def locate(connection: Connection, node: str, only: int | None) -> list[tuple[str, str]]:
    """Return (folder of the clone, path) of the node's live worktrees, or of the worktree `only`."""
    return [(row["folder"], row["path"]) for row in await connection.fetch(PATHS_OF_WORKTREES, node, only)]


async def live_in(connection: Connection, folder: str, node: str) -> dict[str, tuple[WorktreeRow, bool]]:
    """Return the live worktrees of a clone on this node by path, and whether something waits or runs there."""
    rows = await connection.fetch(LIVE_IN_FOLDER, folder, node)
    return {row["path"]: (read(WorktreeRow, row), row["busy"]) for row in rows}


async def removed_at(connection: Connection, node: str, names: Sequence[str]) -> int | None:
    """Return the id of the worktree that was the last to be removed at the path with these names."""
    worktree_id: int | None = await connection.fetchval(
        "select max(id) from worktrees where node = $1 and path = any ($2::text[]) and state = 'removed'",
        node,
        names,
    )
    return worktree_id


async def record_removed(
    connection: Connection,
    *,
    platform: str,
    repository_id: int,
    folder: str,
    node: str,
    path: str,
    branch: str | None,
    base_branch: str | None,
    owner: int,
    start: Start,
    created_at: datetime,
) -> int | None:
    """Write the row of a removed worktree, made for the thread `owner`; return its id.

    None if its repository is unknown or has another folder.
    """
    place, branches = (platform, repository_id, folder, node, path), (branch, base_branch)
    worktree_id: int | None = await connection.fetchval(
        RECORD_REMOVED, *place, *branches, owner, *start_columns(start), created_at
    )
    return worktree_id


async def ids_in(connection: Connection, folder: str, worktrees: Sequence[int]) -> set[int]:
    """Return those of the worktrees that belong to this clone."""
    return set(await fetch_column(connection, IDS_IN, worktrees, folder))


async def indexed(connection: Connection, worktrees: Sequence[int]) -> set[str]:
    """Return the refs of these worktrees' rescues that have a row."""
    statement = "select ref from rescues where worktree_id = any ($1::bigint[]) and ref is not null"
    return set(await fetch_column(connection, statement, worktrees))
