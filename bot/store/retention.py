"""Rows that tell what is old: worktrees, ended sessions, agents' homes, and orphans."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from bot.model import WorktreeRow
from bot.store.database import Connection, change, fetch_all, fetch_column

_log = structlog.get_logger()

IDLE_WORKTREES = """
-- By the activity in their rows, which is indexed.
select w.*, exists (select from worktree_busy busy where busy.worktree_id = w.worktree_id) as busy
from worktree_rows w
where w.node = $1 and w.is_live and w.worktree_updated_at < $2
order by w.worktree_updated_at, w.worktree_id
"""

RECORD_USE_OF_WORKTREE = """
update worktrees set updated_at = $2 where id = $1 and is_live returning path
"""

SET_ACTIVITY = """
-- Unless it was used again since.
update worktrees w set updated_at = $2
where w.id = $1 and w.is_live
  and not exists (select from worktree_busy busy where busy.worktree_id = w.id)
"""

LOCK_CONVERSATION = """
-- A new turn of it waits for this lock. A separate statement, as LOCK_WORKTREE.
select id from conversations where id = $1 for update
"""

TURNS_THAT_ENDED = """
-- Not one that waits: it may run before what this tells is used.
select given.id from unnest($1::bigint[]) as given (id)
where not exists (select from turns t where t.id = given.id and t.state in ('queued', 'running'))
"""

UNUSED_HOMES = """
-- Those of these conversations whose agents' HOME is no longer needed. An open one that is not used loses its worktree
-- some day, and its session with it.
select c.id from conversations c
where c.id = any ($1::bigint[]) and (c.state = 'closed' or c.worktree_id is null)
  and not exists (select from sessions s where s.conversation_id = c.id)
  and not exists (select from turns t where t.conversation_id = c.id and t.state in ('queued', 'running'))
order by c.id
"""

REMOVED_WORKTREES = """
-- Of the node, removed before $2, that nothing names but ended turns and operations.
select w.id from worktrees w
where w.node = $1 and w.state = 'removed' and w.updated_at < $2
  and not exists (select from rescues r where r.worktree_id = w.id)
  and not exists (select from conversations c where c.worktree_id = w.id)
  and not exists (select from worktree_busy busy where busy.worktree_id = w.id)
order by w.id limit $3 for update skip locked
"""

RECORD_ORPHAN = """
insert into orphans (node, path, seen_at) values ($1, $2, $3) on conflict do nothing returning path
"""

CLAIMED_PATHS = """
select path from worktrees
where path = any ($2::text[]) and node = $1 and state in ('reserved', 'ready', 'removing', 'lost')
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worktree that is old by its row; `busy`: a turn or an operation waits or runs there."""

    worktree: WorktreeRow
    busy: bool


async def candidates(connection: Connection, node: str, before: datetime) -> list[Candidate]:
    """Return the node's live worktrees without activity in their rows since that time, oldest first."""
    return await fetch_all(connection, Candidate, IDLE_WORKTREES, node, before)


async def touch(connection: Connection, worktree_id: int, now: datetime) -> str | None:
    """Record that a live worktree is used now; return its path, None where there is none."""
    path: str | None = await connection.fetchval(RECORD_USE_OF_WORKTREE, worktree_id, now)
    return path


async def set_activity(connection: Connection, worktree_id: int, at: datetime) -> None:
    """Set the last activity of an idle worktree back to `at`: an attempt to remove it is no use."""
    await connection.execute(SET_ACTIVITY, worktree_id, at)


async def count_live(connection: Connection, node: str) -> int:
    """Return how many live worktrees the node has."""
    return int(await connection.fetchval("select count(*) from worktrees where node = $1 and is_live", node))


async def delete_old_sessions(connection: Connection, ttl_seconds: float, now: datetime) -> int:
    """Delete sessions that ended, and were last used, longer ago than that; their turns stay. Return how many."""
    count = await change(
        connection,
        "delete from sessions where not active and ended_at < $1 and last_active_at < $1",
        now - timedelta(seconds=ttl_seconds),
    )
    if count:
        _log.info("sessions-deleted", count=count)
    return count


async def count_rescues(connection: Connection, node: str) -> int:
    """Return how many rescues the node has."""
    return int(
        await connection.fetchval(
            "select count(*) from rescues r join worktrees w on w.id = r.worktree_id where w.node = $1", node
        )
    )


async def unused_homes(connection: Connection, conversations: Sequence[int]) -> list[int]:
    """Return those of the conversations that have no session and no unfinished turn, and are closed or have no
    worktree.
    """
    return await fetch_column(connection, UNUSED_HOMES, conversations)


async def ended(connection: Connection, turns: Sequence[int]) -> list[int]:
    """Return those of the turns that run no more, or are no turns any more."""
    return await fetch_column(connection, TURNS_THAT_ENDED, turns)


async def lock_unused_home(connection: Connection, conversation_id: int) -> bool:
    """Lock a conversation until the caller's transaction ends; False if its HOME is needed again."""
    await connection.execute(LOCK_CONVERSATION, conversation_id)
    return bool(await connection.fetch(UNUSED_HOMES, [conversation_id]))


async def forget_removed(connection: Connection, node: str, before: datetime, limit: int) -> int:
    """Delete rows of worktrees that were removed before that time and of which no rescue is left; return how many."""
    async with connection.transaction():
        gone = await fetch_column(connection, REMOVED_WORKTREES, node, before, limit)
        if gone:
            await connection.execute("update turns set worktree_id = null where worktree_id = any ($1::bigint[])", gone)
            await connection.execute("delete from operations where worktree_id = any ($1::bigint[])", gone)
            await connection.execute("delete from worktrees where id = any ($1::bigint[])", gone)
    return len(gone)


async def adopt(connection: Connection, node: str, path: str, since: datetime) -> bool:
    """Record an orphan whose age counts from `since`; False if it was recorded before."""
    return await connection.fetchval(RECORD_ORPHAN, node, path, since) is not None


async def orphans(connection: Connection, node: str) -> dict[str, datetime]:
    """Return the node's orphans, and the time from which their age counts, oldest first."""
    rows = await connection.fetch("select path, seen_at from orphans where node = $1 order by seen_at, path", node)
    return {row["path"]: row["seen_at"] for row in rows}


async def forget_orphans(connection: Connection, node: str, paths: Sequence[str]) -> None:
    """Delete the rows of orphans that are gone or have a worktree's row."""
    await connection.execute("delete from orphans where node = $1 and path = any ($2::text[])", node, paths)


async def claimed_paths(connection: Connection, node: str, paths: Sequence[str]) -> set[str]:
    """Return those of the paths that belong to a live or lost worktree of this node."""
    return set(await fetch_column(connection, CLAIMED_PATHS, node, paths))
