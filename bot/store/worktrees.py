"""Rows of worktrees as turns change them."""

from bot.model import Repository, WorktreeRow
from bot.store.database import Connection, statement
from bot.store.states import EndReason, WorktreeOfThread


@statement("""
select w.id, w.state, w.branch, w.start_kind = 'detached' as detached,
       array(select o.number from conversations o
             where o.worktree_id = w.id and o.id <> c.id order by o.number) as others,
       greatest(w.updated_at, (select max(greatest(t.started_at, t.finished_at)) from turns t
                               where t.conversation_id = c.id and t.worktree_id = w.id)) as active_at
from conversations c join worktrees w on w.id = c.worktree_id and w.is_live
where c.id = $1
""")
async def worktree_of_thread(connection: Connection, conversation_id: int) -> WorktreeOfThread | None:
    """Return the thread's live worktree, None without one."""


@statement("select * from worktree_rows where worktree_id = $1")
async def row_of(connection: Connection, worktree_id: int) -> WorktreeRow | None:
    """Return the row of a worktree."""


@statement("select id from conversations where worktree_id = $1 order by number limit 1")
async def first_thread(connection: Connection, worktree_id: int) -> int | None:
    """Return the first of the conversations that use the worktree, None without any."""


@statement("select exists (select from worktrees where id = $1 and state = 'removing')")
async def is_removing(connection: Connection, worktree_id: int) -> bool:
    """Return whether the worktree is being removed: it can be made again afterwards."""


@statement("""
select distinct c.number from worktrees gone
join worktrees w on w.node = gone.node and w.path = gone.path and w.is_live
join conversations c on c.worktree_id = w.id
where gone.id = $1 order by c.number
""")
async def threads_at_path(connection: Connection, worktree_id: int) -> tuple[int, ...]:
    """Return the threads that use the live worktree at the path of this one."""


@statement("""
-- The cause of an earlier, failed removal is cleared.
update worktrees set state = 'ready', branch = $2, base_branch = coalesce($3, base_branch), updated_at = now(),
                     setup_done = setup_done and not $4, removal = null
where id = $1 and is_live
""")
async def record_checkout(
    connection: Connection, worktree_id: int, branch: str | None, base_branch: str | None, *, fresh: bool
) -> None:
    """Record that the checkout is made on this branch; `fresh`: nothing is left of an earlier one.

    `base_branch` None leaves the known one.
    """


@statement("""
-- At the same path, unless another worktree is there now. The threads that have no worktree now use it again.
with reserved as (
    update worktrees w set state = 'reserved', removal = null, setup_done = false, updated_at = now()
    where w.id = $1 and w.state = 'removed'
      and not exists (select from worktrees o where o.node = w.node and o.path = w.path
                                                and o.state in ('reserved', 'ready', 'removing'))
    returning w.id, w.platform, w.repository_id
), attached as (
    update conversations c set worktree_id = w.id
    from reserved w
    where (c.platform, c.repository_id) = (w.platform, w.repository_id) and c.number = any ($2::integer[])
      and not exists (select from worktrees own where own.id = c.worktree_id and own.state <> 'removed')
)
select id from reserved
""")
async def reserve_again(connection: Connection, worktree_id: int, threads: tuple[int, ...]) -> bool:
    """Reserve a removed worktree again at its path, for those of the threads that have none.

    False if it is not removed or another is there.
    """


@statement("""
update sessions set active = false, ended_at = now(), end_reason = $2
where active and conversation_id in (select id from conversations where worktree_id = $1)
""")
async def end_sessions(connection: Connection, worktree_id: int, reason: EndReason) -> None:
    """End the active sessions of all threads that use the worktree."""


@statement("""
-- Worktrees of the repository whose threads are all closed; locked, always in the same order.
select w.id from worktrees w
where w.platform = $1 and w.repository_id = $2 and w.is_live
  and exists (select from conversations c where c.worktree_id = w.id)
  and not exists (select from conversations c where c.worktree_id = w.id and c.state = 'open')
order by w.id for no key update of w
""")
async def with_all_threads_closed(connection: Connection, repository: Repository) -> list[int]:
    """Return the live worktrees of the repository whose threads are all closed, locked in the caller's transaction."""


@statement("select id from worktrees where id = $1 for no key update")
async def lock_worktree(connection: Connection, worktree_id: int) -> None:
    """Lock the worktree's row until the caller's transaction ends, so that nothing else releases or claims it."""


@statement("update worktrees set ask_closes = $2 where id = $1")
async def ask_what_it_closes(connection: Connection, worktree_id: int, *, is_due: bool) -> None:
    """Record whether GitHub is still to be asked which issues the worktree's pull request closes."""


@statement("select setup_done from worktrees where id = $1")
async def is_set_up(connection: Connection, worktree_id: int) -> bool:
    """Return whether the repository's set-up script succeeded in this checkout."""


@statement("update worktrees set setup_done = false where id = $1 and setup_done")
async def forget_setup(connection: Connection, worktree_id: int) -> None:
    """Let the set-up script run again: the checkout is new, or was reset."""
