"""Rows of worktrees as reconciliation compares them with disk and git, and rows that are made again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from asyncpg import Record

from bot.model import WorktreeRow
from bot.store.database import Connection, worktree_of

FOLDERS = """
-- Of the clones that the node's worktrees belong to; `$2`: only that of one worktree.
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

MAKE_AGAIN = """
-- Under its old id where that is free: its rescues are found by it.
insert into worktrees (id, platform, repository_id, node, path, branch, base_branch, start_kind, start_number,
                       start_ref, start_sha, state, created_at, updated_at)
overriding system value
select coalesce((select n from unnest(array[$1::bigint]) n where not exists (select from worktrees where id = n)),
                nextval('worktrees_id_seq')),
       $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'ready', $12, $13
where exists (select from codebases where (platform, repository_id) = ($2, $3) and folder = $14)
on conflict do nothing
returning id
"""

SKIP_ID = """
-- What was put in under an id of its own must not be met again by the sequence.
select setval('worktrees_id_seq', $1) from worktrees_id_seq where last_value < $1 or (last_value = $1 and not is_called)
"""

LINK = """
update conversations set worktree_id = $1, updated_at = now()
where (platform, repository_id) = ($2, $3) and number = any ($4::integer[]) and worktree_id is null
returning number
"""

IDS_IN = """
select w.id from worktrees w join codebases b using (platform, repository_id)
where w.id = any ($1::bigint[]) and b.folder = $2
"""

INDEXED = """
select r.ref from rescues r where r.worktree_id = any ($1::bigint[]) and r.ref is not null
"""


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """A worktree's row. `busy`: something waits or runs in it, or its removal is claimed."""

    worktree: WorktreeRow
    busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRow:
    """What a row that is made again says; `start` is (kind, number, ref, sha)."""

    id: int
    platform: str
    repository_id: int
    folder: str
    node: str
    path: str
    branch: str | None
    base_branch: str | None
    start: tuple[str, int, str | None, str | None]
    conversations: tuple[int, ...]
    created_at: datetime
    updated_at: datetime


def _row(row: Record) -> PlaceRow:
    return PlaceRow(worktree_of(row), row["busy"])


async def folders(connection: Connection, node: str, only: int | None) -> list[str]:
    """The folders of the clones with worktrees on this node, or of the one worktree `only`."""
    return [row["folder"] for row in await connection.fetch(FOLDERS, node, only)]


async def live_in(connection: Connection, folder: str, node: str) -> list[PlaceRow]:
    """The live rows of a clone's worktrees on this node."""
    return [_row(row) for row in await connection.fetch(LIVE_IN_FOLDER, folder, node)]


async def by_id(connection: Connection, worktrees: Sequence[int], node: str) -> dict[int, PlaceRow]:
    """Rows of this node, whatever their state."""
    return {row["worktree_id"]: _row(row) for row in await connection.fetch(BY_ID, list(worktrees), node)}


async def path_of(connection: Connection, worktree_id: int, node: str) -> str | None:
    """Where the worktree is or was; None where this node never had it."""
    path: str | None = await connection.fetchval(PATH_OF, worktree_id, node)
    return path


async def make_again(connection: Connection, lost: LostRow) -> int | None:
    """Writes a row that was lost, and gives it to its conversations that use no other; returns its id.

    None where its repository is unknown or has another folder, or its place is taken. In the caller's transaction.
    """
    values = (lost.platform, lost.repository_id, lost.node, lost.path, lost.branch, lost.base_branch)
    worktree_id: int | None = await connection.fetchval(
        MAKE_AGAIN, lost.id, *values, *lost.start, lost.created_at, lost.updated_at, lost.folder
    )
    if worktree_id is None:
        return None
    await connection.execute(SKIP_ID, worktree_id)
    await connection.fetch(LINK, worktree_id, lost.platform, lost.repository_id, list(lost.conversations))
    return worktree_id


async def ids_in(connection: Connection, folder: str, worktrees: Sequence[int]) -> set[int]:
    """Those of the worktrees that are or were of this clone."""
    return {row["id"] for row in await connection.fetch(IDS_IN, list(worktrees), folder)}


async def indexed(connection: Connection, worktrees: Sequence[int]) -> set[str]:
    """The refs of these worktrees' rescues that have a row."""
    return {row["ref"] for row in await connection.fetch(INDEXED, list(worktrees))}
