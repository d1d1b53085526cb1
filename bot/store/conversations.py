"""Rows of codebases, conversations, worktrees and sessions, as decide changes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from asyncpg import Record

from bot.model import (
    ISSUE_BRANCH_PREFIX,
    EndReason,
    LiveWorktree,
    Repository,
    Start,
    ThreadKind,
)
from bot.store.database import Connection, fetch_one, read, start_columns
from bot.store.doorbell import ring_for_work
from bot.store.nodes import SILENT_AFTER_SECONDS
from bot.store.worktrees import lock_worktree

_log = structlog.get_logger()

_CODEBASE = """
-- A rename on GitHub updates the names; the folder of the clone stays (agents key their sessions by path).
-- A reused name is another repository: its folder has the id in its name.
-- What is known already is not written: an update locks the row until the transaction ends, and the repository's
-- threads would be decided one after the other. `updated_at` tells who had a name last.
with known as (
    select folder from codebases b
    where (platform, repository_id) = ($1, $2) and owner = $3 and name = $4
      and ($5::text is null or default_branch = $5) and ($6::bigint is null or installation_id = $6)
      and not exists (select from codebases o where o.platform = $1 and lower(o.owner) = lower($3)
                                                and lower(o.name) = lower($4) and o.updated_at > b.updated_at)
), written as (
    insert into codebases (platform, repository_id, owner, name, folder, default_branch, installation_id)
    select $1, $2, $3, $4,
           case when exists (select from codebases
                             where folder = $3 || '/' || $4 and (platform, repository_id) <> ($1, $2))
                then $3 || '/' || $4 || '-' || $2::text else $3 || '/' || $4 end,
           $5, $6
    where not exists (select from known)
    on conflict (platform, repository_id) do update
       set owner = excluded.owner, name = excluded.name, updated_at = now(),
           default_branch = coalesce(excluded.default_branch, codebases.default_branch),
           installation_id = coalesce(excluded.installation_id, codebases.installation_id)
    returning folder
), codebase as (
    select folder from known union all select folder from written
)
"""

SAVE_CODEBASE = f"""
{_CODEBASE}
select folder from codebase
"""  # noqa: S608 - of constants

SAVE_THREAD = f"""
{_CODEBASE}
-- The state in a comment's payload may be older than a close that was handled before it ("close with comment" fires
-- both in any order): only the title and the kind of a known thread are updated.
insert into conversations (platform, repository_id, number, kind, title, state, closed_at)
select $1, $2, $7, $8, $9, case when $10::timestamptz is null then 'open' else 'closed' end, $10 from codebase
on conflict (platform, repository_id, number) do update
   set title = excluded.title, kind = excluded.kind, updated_at = now()
returning id, (select folder from codebase)
"""  # noqa: S608 - of constants

FIND_CONVERSATION = """
select id, worktree_id from conversations where platform = $1 and repository_id = $2 and number = $3
"""

SET_THREAD_STATE = """
-- Closed at $2, or open if $2 is null. A close or reopen of GitHub (at $3) changes nothing after a later one.
update conversations set state = case when $2::timestamptz is null then 'open' else 'closed' end, closed_at = $2,
                         state_at = coalesce($3, state_at), updated_at = now()
where id = $1 and ($3::timestamptz is null or state_at <= $3)
returning id
"""

END_SESSION = """
-- Ends the conversation's active session, if it has one; the code stays as it is.
update sessions set active = false, ended_at = now(), end_reason = $2
where conversation_id = $1 and active returning id
"""

LIVE_WORKTREE = """
-- A removal that has not started is cancelled. A worktree that was to have a branch and has none was never made. One
-- that was purged is made again at the same path, unless another worktree is there now.
update worktrees w set state = case when is_live then state
                                    when state = 'removed' or (branch is null and start_kind <> 'detached')
                                    then 'reserved' else 'ready' end,
                       setup_done = setup_done and state <> 'removed', removal = null, removal_error = null,
                       updated_at = now()
where id = $1 and (is_live
                   or (state = 'removing' and claim is null and removal is distinct from 'lost')
                   or (state = 'removed' and removal = 'purged'
                       and not exists (select from worktrees o where o.node = w.node and o.path = w.path
                                                                 and o.state in ('reserved', 'ready', 'removing'))))
returning id, node, branch, start_kind, start_number, start_ref
"""

OWN_READY_WORKTREE = """
-- As LIVE_WORKTREE where nothing has to be decided. The row is locked: a thread that wants to share the worktree sees
-- what this one asks for.
update worktrees w set removal = null, removal_error = null, updated_at = now()
from conversations c where c.id = $1 and w.id = c.worktree_id and w.is_live
returning w.id, w.node, w.branch, w.start_kind, w.start_number, w.start_ref,
          (select p.switch_to from pending_switches p where p.conversation_id = c.id) as switch_to
"""

STANDING_OF_THREAD = """
-- GitHub was asked for its state when its first turn was queued; each close that came since was recorded.
select c.state = 'open' and exists (select from turns where conversation_id = c.id) as is_surely_open,
       exists (select from worktrees w
               where w.id = c.worktree_id
                 and (w.is_live
                      or (w.state = 'removing' and w.claim is null and w.removal is distinct from 'lost')
                      or (w.state = 'removed' and w.removal = 'purged'))) as has_worktree
from conversations c where c.platform = $1 and c.repository_id = $2 and c.number = $3
"""

WORKTREES_OF_ISSUES = """
-- Live or purged worktrees of the issues that a pull request closes. Locked, always in the same order, until the turn
-- that will use one is written: a release that began before must not miss it.
select w.id, w.node, w.branch, w.start_kind, w.start_number, w.start_ref, c.number
from conversations c
join worktrees w on w.id = c.worktree_id
                 and (w.is_live or (w.state = 'removed' and w.removal = 'purged'))
where c.platform = $1 and c.repository_id = $2 and c.number = any ($3::integer[])
order by w.id for no key update of w
"""

WORKTREE_ON_BRANCH = """
-- The worktree that has the branch, live or purged, or with $5 another live one; locked. The start of a reserved one
-- tells the branch it will have.
select id, node, branch, start_kind, start_number, start_ref from worktrees
where platform = $1 and repository_id = $2 and id is distinct from $5
  and (is_live or ($5::bigint is null and state = 'removed' and removal = 'purged'))
  and coalesce(branch, case start_kind when 'issue' then $4::text || start_number
                                       when 'head' then start_ref end) = $3
order by state = 'removed', state = 'reserved', id limit 1 for no key update
"""

RESERVE_WORKTREE = """
-- A pull request may still work in the directory that the thread once made.
insert into worktrees (platform, repository_id, node, path, start_number, start_kind, start_ref, start_sha)
values ($1, $2, $3,
        case when exists (select from worktrees o
                          where o.node = $3 and o.path = $4 and o.is_live)
             then $4 || '-' || (select max(id) + 1 from worktrees) else $4 end,
        $5, $6, $7, $8)
returning id
"""

RELEASE_WORKTREE = """
-- The worktree is removed when all its conversations are closed and nothing waits or runs in it.
update worktrees w set state = 'removing', removal = 'closed', updated_at = now()
where w.id = $1 and w.is_live
  and not exists (select from conversations c where c.worktree_id = w.id and c.state = 'open')
  and not exists (select from worktree_busy busy where busy.worktree_id = w.id)
returning w.node
"""

STATUS_OF_THREAD = """
-- What waits is counted with what runs, by the index of both: an index of all that waits seems small before a flood.
select w.branch,
       exists (select from sessions s where s.conversation_id = c.id and s.active) as session_active,
       (select min(started_at) from turns t where t.conversation_id = c.id and t.state = 'running') as running_since,
       (select count(*) filter (where state = 'queued') from turns t
        where t.conversation_id = c.id and t.state in ('queued', 'running')) as waiting,
       (select t.reason from turns t join turn_obstacles($2) o on o.turn_id = t.id
        where t.conversation_id = c.id and t.state = 'queued' and o.obstacle = 'time' order by t.id limit 1) as wait,
       (select max(t.id) from turns t join unposted_answers on turn_id = t.id
        where t.conversation_id = c.id) as not_posted,
       n.name as silent_node, n.heartbeat_at as silent_since,
       coalesce(w.removal_error, (select removal_error from directories_in_the_way d
                                  where d.worktree_id = w.id and d.removal_error is not null limit 1)) as removal_error
from conversations c
left join worktrees w on w.id = c.worktree_id and w.is_live
left join nodes n on n.id = w.node and n.heartbeat_at < now() - make_interval(secs => $3)
where c.id = $1
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
    `own_live_worktree` would find one.
    """

    is_surely_open: bool
    has_worktree: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a conversation; `branch` and `running_since` are None without a worktree or a running turn.

    `wait` is what the first queued turn waits for, in plain text; None if it waits for its place only. `not_posted` is
    the last turn whose answer GitHub refused. `silent_node`: the name of its machine, which gives no sign of life since
    `silent_since`. `removal_error`: why the files of a worktree that is in its way, or its own, cannot be removed.
    """

    branch: str | None
    session_active: bool
    running_since: datetime | None
    waiting: int
    not_posted: int | None
    wait: str | None = None
    silent_node: str | None = None
    silent_since: datetime | None = None
    removal_error: str | None = None


def live_worktree_of(row: Record) -> LiveWorktree:
    """Return the worktree in a row of one of the statements above."""
    reserved = {"issue": f"{ISSUE_BRANCH_PREFIX}{row['start_number']}", "head": row["start_ref"]}
    return LiveWorktree(row["id"], row["node"], row["start_number"], row["branch"] or reserved.get(row["start_kind"]))


async def save_codebase(connection: Connection, repository: Repository) -> str:
    """Write what is known of the repository; return the folder of its clone, `owner/name` at first contact."""
    folder: str = await connection.fetchval(SAVE_CODEBASE, *_columns(repository))
    return folder


async def save_thread(
    connection: Connection,
    repository: Repository,
    number: int,
    kind: ThreadKind,
    title: str,
    closed_at: datetime | None,
) -> tuple[int, str]:
    """Write what is known of the repository and the thread; return the conversation and the clone's folder.

    The state (`closed_at` None: open) counts only for a new thread.
    """
    row = await connection.fetchrow(SAVE_THREAD, *_columns(repository), number, kind, title, closed_at)
    return row["id"], row["folder"]


def _columns(repository: Repository) -> tuple[object, ...]:
    return (
        repository.platform,
        repository.id,
        repository.owner,
        repository.name,
        repository.default_branch,
        repository.installation_id,
    )


async def find_conversation(connection: Connection, repository: Repository, number: int) -> ConversationRow | None:
    """Return the row of a thread, None where the bot was never addressed."""
    return await fetch_one(connection, ConversationRow, FIND_CONVERSATION, repository.platform, repository.id, number)


async def close_conversation(connection: Connection, conversation_id: int, closed_at: datetime) -> bool:
    """Mark the thread closed; False if it was reopened later than `closed_at`."""
    return await connection.fetchval(SET_THREAD_STATE, conversation_id, closed_at, closed_at) is not None


async def reopen_conversation(connection: Connection, conversation_id: int, at: datetime) -> None:
    """Mark the thread open again, unless it was closed later; its next turn starts a new session."""
    await connection.execute(SET_THREAD_STATE, conversation_id, None, at)


async def set_state(connection: Connection, conversation_id: int, closed_at: datetime | None) -> None:
    """Write the thread's state as GitHub has it now (None: open)."""
    await connection.execute(SET_THREAD_STATE, conversation_id, closed_at, None)


async def end_session(connection: Connection, conversation_id: int, reason: EndReason) -> bool:
    """End the active session; False if there was none."""
    session = await connection.fetchval(END_SESSION, conversation_id, reason)
    if session is not None:
        _log.info("session-ended", session=session, conversation_id=conversation_id, reason=reason)
    return session is not None


async def live_worktree(connection: Connection, worktree_id: int) -> LiveWorktree | None:
    """Return the worktree if it can still be used; call off a removal that has not begun."""
    row = await connection.fetchrow(LIVE_WORKTREE, worktree_id)
    return live_worktree_of(row) if row else None


async def own_ready_worktree(connection: Connection, conversation_id: int) -> tuple[LiveWorktree, str | None] | None:
    """Return the worktree that the conversation uses, and the branch to which a turn is to switch it if one is pending.

    None where there is none or its removal was decided.
    """
    row = await connection.fetchrow(OWN_READY_WORKTREE, conversation_id)
    return (live_worktree_of(row), row["switch_to"]) if row else None


async def own_live_worktree(connection: Connection, conversation_id: int) -> LiveWorktree | None:
    """Return the `live_worktree` that the conversation uses, None without one."""
    worktree_id = await worktree_of(connection, conversation_id)
    return await live_worktree(connection, worktree_id) if worktree_id is not None else None


async def standing(connection: Connection, repository: Repository, number: int) -> Standing:
    """Return what is known of the thread; nothing is written."""
    known = await fetch_one(connection, Standing, STANDING_OF_THREAD, repository.platform, repository.id, number)
    return known or Standing(is_surely_open=False, has_worktree=False)


async def worktrees_of_issues(
    connection: Connection, repository: Repository, numbers: Sequence[int]
) -> list[tuple[int, LiveWorktree]]:
    """Return (issue number, worktree) for the issues that have a live one, in the given order."""
    rows = await connection.fetch(WORKTREES_OF_ISSUES, repository.platform, repository.id, numbers)
    found = {row["number"]: live_worktree_of(row) for row in rows}
    return [(number, found[number]) for number in dict.fromkeys(numbers) if number in found]


async def worktree_on_branch(
    connection: Connection, repository: Repository, branch: str, *, other_than: int | None = None
) -> LiveWorktree | None:
    """Return the live worktree of this repository, `other_than` this one, that has `branch` or will have it."""
    values = (repository.platform, repository.id, branch, ISSUE_BRANCH_PREFIX, other_than)
    row = await connection.fetchrow(WORKTREE_ON_BRANCH, *values)
    return live_worktree_of(row) if row else None


async def reserve_worktree(
    connection: Connection,
    repository: Repository,
    *,
    node: str,
    path: str,
    owner: int,
    start: Start,
) -> int:
    """Write the row of a worktree that `node` will make at `path` for the thread `owner`; return its id."""
    return int(
        await connection.fetchval(
            RESERVE_WORKTREE, repository.platform, repository.id, node, path, owner, *start_columns(start)
        )
    )


async def use_worktree(connection: Connection, conversation_id: int, worktree_id: int | None) -> None:
    """Let the conversation's turns run in this worktree, which is live, from now on."""
    await connection.execute(
        "update conversations set worktree_id = $2, updated_at = now() where id = $1", conversation_id, worktree_id
    )


async def release_worktree(connection: Connection, worktree_id: int) -> bool:
    """Mark a worktree for removal if nothing needs it any more, and ring its node; in the caller's transaction.

    False if it stays.
    """
    await lock_worktree(connection, worktree_id)
    node: str | None = await connection.fetchval(RELEASE_WORKTREE, worktree_id)
    if node is not None:
        await ring_for_work(connection, node)
    return node is not None


async def end_use(connection: Connection, conversation_id: int, worktree_id: int) -> None:
    """After a turn on a closed thread, end its session and release its worktree."""
    if await is_closed(connection, conversation_id):
        await end_session(connection, conversation_id, "conversation-closed")
    await release_worktree(connection, worktree_id)


async def worktree_of(connection: Connection, conversation_id: int) -> int | None:
    """Return the worktree of a conversation, live or not."""
    worktree_id: int | None = await connection.fetchval(
        "select worktree_id from conversations where id = $1", conversation_id
    )
    return worktree_id


async def is_closed(connection: Connection, conversation_id: int) -> bool:
    """Return whether the thread is closed, as far as the bot knows."""
    return bool(await connection.fetchval("select state = 'closed' from conversations where id = $1", conversation_id))


async def overview(connection: Connection, conversation_id: int, now: datetime) -> Overview:
    """Return what `/status` tells about a conversation."""
    return read(Overview, await connection.fetchrow(STATUS_OF_THREAD, conversation_id, now, SILENT_AFTER_SECONDS))


async def first_seen(connection: Connection, effect: bytes) -> bool:
    """Record an effect key; False if it was recorded before (one comment under two GUIDs)."""
    return (
        await connection.fetchval("insert into effects (key) values ($1) on conflict do nothing returning key", effect)
        is not None
    )
