"""Rows of codebases, conversations, worktrees and sessions, as decide changes them."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import Literal

import structlog

from bot.model import BRANCH_PREFIX, Repository, Start, ThreadKind
from bot.sharing_rules import LiveWorktree
from bot.store.database import Connection, statement
from bot.store.jobs import ring_for_work
from bot.store.states import EndReason
from bot.store.worktrees import lock_worktree

_log = structlog.get_logger()

BRANCH = f"""
coalesce(w.branch, case w.start_kind when 'issue' then coalesce(w.start_ref, '{BRANCH_PREFIX}issue-' || w.start_number)
                                     when 'head' then w.start_ref end)
"""
"""The branch that a worktree has, or that it gets when it is made; none of a detached one."""
LIVE = f"w.id, w.node, w.path, w.start_number as owner, {BRANCH} as branch"
"""What is read of a `LiveWorktree`."""

SAVE_THREAD = """
-- The state in a comment's payload may be older than a close that was handled before it ("close with comment" fires
-- both in any order): only the title and the kind of a known thread are updated.
insert into conversations (platform, repository_id, number, kind, title, state, closed_at)
select platform, repository_id, $3, $4, $5, case when $6::timestamptz is null then 'open' else 'closed' end, $6
from codebases where (platform, repository_id) = ($1, $2)
on conflict (platform, repository_id, number) do update
   set title = excluded.title, kind = excluded.kind, updated_at = now()
returning id, (select folder from codebases where (platform, repository_id) = ($1, $2))
"""

OLD_SESSIONS = """
with old as (
    select s.id from sessions s where not s.active and s.ended_at < $1 and s.last_active_at < $1
       and ($2::text is null or exists (select from conversation_names n where n.id = s.conversation_id
                                        and lower(split_part(n.conversation, '#', 1)) = lower($2)))
), gone as (
    delete from sessions using old where sessions.id = old.id and not $3
)
select count(*) from old
"""


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation's identity in the database, and the worktree it uses."""

    id: int
    worktree_id: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a thread before a request is decided.

    `is_surely_open`: no close of it was handled, also none from before the bot knew it. `has_worktree`:
    `own_live_worktree` would find one. `kind` and `title` are None of a thread that the bot does not know.
    """

    is_surely_open: bool
    has_worktree: bool
    kind: ThreadKind | None
    title: str | None


async def save_codebase(connection: Connection, repository: Repository) -> str:
    """Write what GitHub tells of the repository; return the folder of its clone, `owner/name` at first contact."""
    save = "select threadtree_save_codebase($1, $2, $3, $4, $5, $6)"
    folder: str = await connection.fetchval(save, *astuple(repository))
    return folder


async def save_thread(
    connection: Connection,
    repository: Repository,
    number: int,
    kind: ThreadKind,
    title: str,
    closed_at: datetime | None,
) -> tuple[int, str]:
    """Write what is known of a thread of a known repository; return the conversation and the clone's folder.

    The state (`closed_at` None: open) counts only for a new thread.
    """
    row = await connection.fetchrow(SAVE_THREAD, *repository.key, number, kind, title, closed_at)
    return row["id"], row["folder"]


@statement("select id, worktree_id from conversations where platform = $1 and repository_id = $2 and number = $3")
async def find_conversation(connection: Connection, repository: Repository, number: int) -> ConversationRow | None:
    """Return the row of a thread, None where the bot was never addressed."""


@statement("""
-- Closed at $2, or open if $2 is null. What GitHub tells of $3 changes nothing after a later close or reopen. After a
-- close nothing of the thread waits for a person any more, also where it is opened again.
with settled as (
    update turns t set settled = true from conversations c
    where c.id = $1 and t.conversation_id = c.id and t.needs is not null and $2::timestamptz is not null
      and ($3::timestamptz is null or c.state_at <= $3)
)
update conversations set state = case when $2::timestamptz is null then 'open' else 'closed' end, closed_at = $2,
                         state_at = coalesce($3, state_at), updated_at = now()
where id = $1 and ($3::timestamptz is null or state_at <= $3)
returning id
""")
async def set_state(
    connection: Connection, conversation_id: int, closed_at: datetime | None, at: datetime | None = None
) -> bool:
    """Write the thread's state (None: open) as GitHub has it now, or became `at` a time; False if it changed later.

    The next turn of a thread that is open again starts a new session.
    """


@statement("""
update sessions set active = false, ended_at = now(), end_reason = $2 where conversation_id = $1 and active returning id
""")
async def _end_session(connection: Connection, conversation_id: int, reason: EndReason) -> int | None:
    """End the active session; return its id, None where there was none."""


async def end_session(connection: Connection, conversation_id: int, reason: EndReason) -> bool:
    """End the conversation's active session; the code stays as it is. False if there was none."""
    session = await _end_session(connection, conversation_id, reason)
    if session is not None:
        _log.info("session-ended", session=session, conversation_id=conversation_id, reason=reason)
    return session is not None


async def delete_old_sessions(
    connection: Connection, ttl_seconds: float, now: datetime, repository: str | None = None, *, dry_run: bool = False
) -> int:
    """Delete sessions that ended, and were last used, longer ago than that, of all repositories or one; their turns
    stay. Return how many; a dry run deletes none.
    """
    count: int = await connection.fetchval(OLD_SESSIONS, now - timedelta(seconds=ttl_seconds), repository, dry_run)
    if count and not dry_run:
        _log.info("sessions-deleted", count=count)
    return count


@statement(f"""
-- A removal that has not started is cancelled. A worktree that was to have a branch and has none was never made. One
-- that was purged is made again at the same path, unless another worktree is there now.
update worktrees w set state = case when is_live then state
                                    when state = 'removed' or (branch is null and start_kind <> 'detached')
                                    then 'reserved' else 'ready' end,
                       setup_done = setup_done and state <> 'removed', removal = null, removal_error = null,
                       updated_at = now()
where id = $1 and (is_live
                   or (state = 'removing' and not removal_began and removal is distinct from 'lost')
                   or (state = 'removed' and removal = 'purged'
                       and not exists (select from worktrees o where o.node = w.node and o.path = w.path
                                                                 and o.state in ('reserved', 'ready', 'removing'))))
returning {LIVE}
""")  # noqa: S608 - of constants
async def live_worktree(connection: Connection, worktree_id: int) -> LiveWorktree | None:
    """Return the worktree if it can still be used; call off a removal that has not begun."""


async def own_live_worktree(connection: Connection, conversation_id: int) -> LiveWorktree | None:
    """Return the `live_worktree` that the conversation uses, None without one."""
    worktree_id = await worktree_of(connection, conversation_id)
    return await live_worktree(connection, worktree_id) if worktree_id is not None else None


@statement("""
-- GitHub was asked for its state when its first turn was queued; each close that came since was recorded.
select coalesce(c.state = 'open', false) and exists (select from turns where conversation_id = c.id
                                                        and needs_agent) as is_surely_open,
       exists (select from worktrees w
               where w.id = c.worktree_id
                 and (w.is_live
                      or (w.state = 'removing' and not w.removal_began and w.removal is distinct from 'lost')
                      or (w.state = 'removed' and w.removal = 'purged'))) as has_worktree,
       c.kind, c.title
from (values (null)) as asked left join conversations c on (c.platform, c.repository_id, c.number) = ($1, $2, $3)
""")
async def standing(connection: Connection, repository: Repository, number: int) -> Standing:
    """Return what is known of the thread; nothing is written."""


@statement(f"""
-- Live or purged worktrees of the issues that a pull request closes. Locked, always in the same order, until the turn
-- that will use one is written: a release that began before must not miss it.
with locked as (
    select c.number, {LIVE}
    from conversations c
    join worktrees w on w.id = c.worktree_id
                     and (w.is_live or (w.state = 'removed' and w.removal = 'purged'))
    where c.platform = $1 and c.repository_id = $2 and c.number = any ($3::integer[])
    order by w.id for no key update of w
)
select * from locked order by array_position($3, number)
""")  # noqa: S608 - of constants
async def worktrees_of_issues(
    connection: Connection, repository: Repository, numbers: Sequence[int]
) -> list[tuple[int, LiveWorktree]]:
    """Return (issue number, worktree) for the issues that have a live one, in the given order."""


@statement(f"""
-- The worktree that has the branch, live or purged, or else the one that a waiting turn will switch to it; with $4
-- another live one that has it. Locked.
select {LIVE} from worktrees w
where w.platform = $1 and w.repository_id = $2 and w.id is distinct from $4
  and (w.is_live or ($4::bigint is null and w.state = 'removed' and w.removal = 'purged'))
  and ({BRANCH} = $3
       or ($4::bigint is null and w.is_live
           and exists (select from turns t where t.worktree_id = w.id and t.state in ('queued', 'running')
                                             and t.switch_to = $3)))
order by ({BRANCH} = $3) is not true, w.state = 'removed', w.state = 'reserved', w.id limit 1 for no key update
""")  # noqa: S608 - of constants
async def worktree_on_branch(
    connection: Connection, repository: Repository, branch: str, *, other_than: int | None = None
) -> LiveWorktree | None:
    """Return the worktree of this repository that has `branch` or will have it, or another one `other_than` this."""


@statement("""
-- A pull request may still work in the directory that the thread once made.
insert into worktrees (platform, repository_id, node, path, start_number, start_kind, start_ref, start_sha)
values ($1, $2, $3,
        case when exists (select from worktrees o
                          where o.node = $3 and o.path = $4 and o.is_live)
             then $4 || '-' || (select max(id) + 1 from worktrees) else $4 end,
        $5, $6, $7, $8)
returning id
""")
async def reserve_worktree(
    connection: Connection, repository: Repository, *, node: str, path: str, owner: int, start: Start
) -> int:
    """Write the row of a worktree that `node` will make at `path` for the thread `owner`; return its id."""


@statement("update conversations set worktree_id = $2, updated_at = now() where id = $1")
async def use_worktree(connection: Connection, conversation_id: int, worktree_id: int | None) -> None:
    """Let the conversation's turns run in this worktree, which is live, from now on."""


@statement("""
update worktrees w set state = 'removing', removal = $2, updated_at = now()
where w.id = $1 and case $2
        when 'purged' then w.state = 'ready'
        else w.is_live and not exists (select from conversations c where c.worktree_id = w.id and c.state = 'open') end
  and not exists (select from worktree_busy busy where busy.worktree_id = w.id)
returning w.node
""")
async def _release(connection: Connection, worktree_id: int, why: Literal["closed", "purged"]) -> str | None:
    """Return the node of the worktree that is to be removed now, None where it stays."""


async def release_worktree(
    connection: Connection, worktree_id: int, why: Literal["closed", "purged"] = "closed"
) -> bool:
    """Mark a worktree for removal if nothing waits or runs there, and ring its node; in the caller's transaction.

    `closed`: if all its threads are closed. `purged`: its threads keep it, and their next turn makes it again; the
    removal checks first that it is clean and pushed. False if it stays.
    """
    await lock_worktree(connection, worktree_id)
    node = await _release(connection, worktree_id, why)
    if node is not None:
        await ring_for_work(connection, node)
    return node is not None


async def end_use(connection: Connection, conversation_id: int, worktree_id: int) -> None:
    """After a turn on a closed thread, end its session and release its worktree."""
    if await is_closed(connection, conversation_id):
        await end_session(connection, conversation_id, "conversation-closed")
    await release_worktree(connection, worktree_id)


@statement("select worktree_id from conversations where id = $1")
async def worktree_of(connection: Connection, conversation_id: int) -> int | None:
    """Return the worktree of a conversation, live or not."""


@statement("update conversations set agent = $2, model = $3, updated_at = now() where id = $1")
async def choose(connection: Connection, conversation_id: int, agent: str | None, model: str | None) -> None:
    """Let the conversation's turns that start from now on have this agent and model; None for the usual ones."""


@statement("update conversations set agent = null, model = null where id = $1 and agent = $2")
async def forget_agent(connection: Connection, conversation_id: int, agent: str) -> None:
    """Let the conversation have the usual agent, if this one is still its choice."""


@statement("select agent, model from conversations where id = $1")
async def chosen(connection: Connection, conversation_id: int) -> tuple[str | None, str | None]:
    """Return the agent and the model that the conversation's people chose."""


@statement("select state = 'closed' from conversations where id = $1")
async def is_closed(connection: Connection, conversation_id: int) -> bool:
    """Return whether the thread is closed, as far as the bot knows."""


@statement("insert into effects (key) values ($1) on conflict do nothing returning key")
async def first_seen(connection: Connection, effect: bytes) -> bool:
    """Record an effect key; False if it was recorded before (one comment under two GUIDs)."""
