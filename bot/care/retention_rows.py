"""Rows that tell what is old: worktrees, agents' homes, and orphans."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bot.model import WorktreeRow
from bot.store.database import Connection, change, statement
from bot.store.worktrees import row_of


@dataclass(frozen=True, slots=True)
class Live:
    """A live worktree; `busy`: a turn waits or runs there."""

    worktree: WorktreeRow
    busy: bool


@dataclass(frozen=True, slots=True)
class Orphan:
    """What lies at `path` among the worktrees and belongs to none; its age counts from `seen_at`.

    `codebase` is `owner/name` of the folder it is in.
    """

    id: int
    path: str
    seen_at: datetime
    codebase: str


@statement("""
-- By the activity in their rows, which is indexed.
select w.*, exists (select from worktree_busy busy where busy.worktree_id = w.worktree_id) as busy
from worktree_rows w
where w.node = $1 and w.is_live and w.worktree_updated_at < coalesce($2::timestamptz, 'infinity')
  and w.folder = coalesce($3, w.folder)
order by w.worktree_updated_at, w.worktree_id
""")
async def live_worktrees(
    connection: Connection, node: str, *, idle_since: datetime | None = None, folder: str | None = None
) -> list[Live]:
    """Return the node's live worktrees, all or those without activity in their rows since that time, or those of one
    clone, the least active first.
    """


async def touch(connection: Connection, worktree_id: int, now: datetime) -> WorktreeRow | None:
    """Record that a live worktree is used now; return its row, None where there is none."""
    used = "update worktrees set updated_at = $2 where id = $1 and is_live"
    return await row_of(connection, worktree_id) if await change(connection, used, worktree_id, now) else None


@statement("""
-- Unless it was used again since.
update worktrees w set updated_at = $2
where w.id = $1 and w.is_live
  and not exists (select from worktree_busy busy where busy.worktree_id = w.id)
""")
async def set_activity(connection: Connection, worktree_id: int, at: datetime) -> None:
    """Set the last activity of an idle worktree back to `at`: an attempt to remove it is no use."""


@statement("select count(*) from worktrees where node = $1 and is_live")
async def count_live(connection: Connection, node: str) -> int:
    """Return how many live worktrees the node has."""


@statement("select count(*) from rescues r join worktrees w on w.id = r.worktree_id where w.node = $1")
async def count_rescues(connection: Connection, node: str) -> int:
    """Return how many rescues the node has."""


@statement("""
-- Those of these conversations whose agents' HOME is no longer needed. An open one that is not used loses its worktree
-- some day, and its session with it.
select c.id from conversations c
where c.id = any ($1::bigint[]) and (c.state = 'closed' or c.worktree_id is null)
  and not exists (select from sessions s where s.conversation_id = c.id)
  and not exists (select from turns t where t.conversation_id = c.id and t.state in ('queued', 'running'))
order by c.id
""")
async def unused_homes(connection: Connection, conversations: Sequence[int]) -> list[int]:
    """Return those of the conversations that have no session and no unfinished turn, and are closed or have no
    worktree.
    """


@statement("""
-- Not one that waits: it may run before what this tells is used.
select given.id from unnest($1::bigint[]) as given (id)
where not exists (select from turns t where t.id = given.id and t.state in ('queued', 'running'))
""")
async def ended(connection: Connection, turns: Sequence[int]) -> list[int]:
    """Return those of the turns that run no more, or are no turns any more."""


async def lock_unused_home(connection: Connection, conversation_id: int) -> bool:
    """Lock a conversation until the caller's transaction ends; False if its HOME is needed again."""
    # A new turn of it waits for this lock. A separate statement, as in `lock_worktree`.
    await connection.execute("select id from conversations where id = $1 for update", conversation_id)
    return bool(await unused_homes(connection, [conversation_id]))


@statement("""
-- The rescues and the lost worktrees of nodes that gave no sign of life since $1.
with silent as (
    select id from nodes where heartbeat_at < $1
), rescued as (
    delete from rescues r using worktrees w
    where w.id = r.worktree_id and w.node in (select id from silent) and r.created_at < $1
), lost as (
    update worktrees set state = 'removed', removal = 'lost', updated_at = now()
    where state = 'lost' and node in (select id from silent) returning id
)
select count(*) from lost
""")
async def give_up_silent_nodes(connection: Connection, before: datetime) -> int:
    """Count as gone what nodes had that gave no sign of life since that time; return how many worktrees they had lost.

    A node that is back finds its rescues again, in its clones.
    """


@statement("""
-- Of the node, or of a silent one, removed before $2, that nothing names but ended turns.
with gone as (
    select w.id from worktrees w
    where w.node in (select id from nodes where id = $1 or heartbeat_at < $2)
      and w.state = 'removed' and w.updated_at < $2
      and not exists (select from rescues r where r.worktree_id = w.id)
      and not exists (select from conversations c where c.worktree_id = w.id)
      and not exists (select from worktree_busy busy where busy.worktree_id = w.id)
      -- As long as a thread has the HOME in which the repository's variables may lie.
      and not (w.had_variables and exists (select from turns t join sessions s using (conversation_id)
                                           where t.worktree_id = w.id))
    order by w.id limit $3 for update skip locked
), ran as (
    update turns set worktree_id = null where worktree_id in (select id from gone)
), deleted as (
    delete from worktrees where id in (select id from gone)
)
select count(*) from gone
""")
async def forget_removed(connection: Connection, node: str, before: datetime, limit: int) -> int:
    """Delete rows of worktrees that were removed before that time and of which no rescue is left; return how many."""


@statement("""
-- Only a new one takes an id.
insert into orphans (node, path, seen_at)
select $1, $2, $3 where not exists (select from orphans where node = $1 and path = $2)
on conflict do nothing returning id
""")
async def adopt(connection: Connection, node: str, path: str, since: datetime) -> bool:
    """Record an orphan whose age counts from `since`; False if it was recorded before."""


@statement("select * from orphan_rows where node = $1 order by seen_at, path")
async def orphans(connection: Connection, node: str) -> list[Orphan]:
    """Return the node's orphans, oldest first."""


@statement("delete from orphans where node = $1 and path = any ($2::text[])")
async def forget_orphans(connection: Connection, node: str, paths: Sequence[str]) -> None:
    """Delete the rows of orphans that are gone or have a worktree's row."""


@statement("""
select path from worktrees
where path = any ($2::text[]) and node = $1 and state in ('reserved', 'ready', 'removing', 'lost')
""")
async def claimed_paths(connection: Connection, node: str, paths: Sequence[str]) -> set[str]:
    """Return those of the paths that belong to a live or lost worktree of this node."""
