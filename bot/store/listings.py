"""Rows for the listing commands, in the shape that scripts rely on, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import orjson
from asyncpg import Record

from bot.model import WorktreeState
from bot.store.database import Connection
from bot.store.nodes import SILENT_AFTER_SECONDS

LIST_WORKTREES = """
select worktree.id, owner || '/' || c.name as codebase, path, branch, n.name as node, worktree.state,
       array(select owner || '/' || c.name || '#' || number from conversations
             where worktree_id = worktree.id order by number) as conversations,
       worktree.created_at, worktree.updated_at, folder, n.id as node_id
from worktrees as worktree join codebases c using (platform, repository_id) join nodes n on n.id = worktree.node
where ($2::bigint is null or worktree.id < $2)
  and ($3::text is null or lower(owner || '/' || c.name) = lower($3))
  and ($4::text is null or worktree.state = $4)
  and ($5 or worktree.state <> 'removed' or worktree.state = $4)
order by worktree.id desc
limit $1
"""

FIND_WORKTREE = """
-- A path may have had several worktrees in succession: the live one counts, else the last.
select w.id, w.node, n.name as node_name, w.path, w.state from worktrees w join nodes n on n.id = w.node
where w.id = $2 or (w.node = $1 and w.path = any ($3::text[]))
order by w.is_live desc, w.id desc limit 1
"""

_SESSIONS = """
select session.id, owner || '/' || name || '#' || number as conversation, agent, assistant_session_id, active,
       session.created_at, last_active_at, ended_at, end_reason
from sessions as session
     join conversations on conversations.id = conversation_id
     join codebases using (platform, repository_id)
"""

LIST_SESSIONS = f"""{_SESSIONS}
where ($2::bigint is null or session.id < $2)
  and ($3::text is null or lower(owner || '/' || name) = lower($3))
  and ($4::text is null or case when active then 'active' else 'ended' end = $4)
order by session.id desc
limit $1
"""

SESSIONS_OF_CONVERSATION = f"""{_SESSIONS}
where session.conversation_id = $2 order by session.id desc limit $1
"""

_TURNS = """
-- The tracking comment is the first part; later parts are the rest of a long answer.
select turn.id, owner || '/' || name || '#' || number as conversation, turn.state,
       nullif(concat_ws(' ', reason, (select 'GitHub did not accept the answer: ' || error || '.' from unposted_answers
                                      where turn_id = turn.id order by part limit 1)), '') as reason,
       case when turn.state = 'running' then phase end as phase,
       requested_by, comment_url, turn.agent, turn.model, cost_usd, tokens, turn.created_at, started_at, finished_at
from turns as turn
     join conversations on conversations.id = turn.conversation_id
     join codebases using (platform, repository_id)
     left join outbox on outbox.turn_id = turn.id and outbox.kind = 'comment' and part = 1
"""

LIST_TURNS = f"""{_TURNS}
where ($2::bigint is null or turn.id < $2)
  and ($3::text is null or lower(owner || '/' || name) = lower($3))
  and ($4::text is null or turn.state = $4)
order by turn.id desc
limit $1
"""

TURNS_OF_CONVERSATION = f"""{_TURNS}
where turn.conversation_id = $2 order by turn.id desc limit $1
"""

LIST_DELIVERIES = """
select guid, event, action, conversation, state, received_at, attempts, error, seq
from deliveries
where ($2::bigint is null or seq < $2)
  and ($3::text is null or lower(split_part(conversation, '#', 1)) = lower($3))
  and ($4::text is null or state = $4)
order by seq desc
limit $1
"""

LIST_CONVERSATIONS = """
select thread.id, owner || '/' || name || '#' || number as conversation, thread.kind, title, thread.state,
       worktree_id as worktree, branch,
       array(select owner || '/' || name || '#' || other.number from conversations other
             where (other.id = thread.id or other.worktree_id = thread.worktree_id) and other.kind = 'pull'
             order by other.number) as pull_requests,
       (select id from sessions where conversation_id = thread.id and active) as session,
       (select count(*) from turns where conversation_id = thread.id) as turns,
       (select sum(cost_usd) from turns where conversation_id = thread.id) as cost_usd,
       thread.created_at, thread.updated_at
from conversations as thread
     join codebases using (platform, repository_id)
     left join worktrees as worktree on worktree.id = worktree_id
where ($2::bigint is null or thread.id < $2)
  and ($3::text is null or lower(owner || '/' || name) = lower($3))
  and ($4::text is null or thread.state = $4)
order by thread.id desc
limit $1
"""

LIST_RESCUES = """
select id, worktree_id as worktree, codebase, branch, removal, coalesce(ref, kept) as name, files, commits, bytes,
       node_name as node, created_at, restored_at,
       array(select codebase || '#' || number from unnest(conversations) as number) as conversations
from rescue_rows
where ($2::bigint is null or id < $2)
  and ($3::text is null or lower(codebase) = lower($3))
  and ($4::text is null or case when restored_at is null then 'kept' else 'restored' end = $4)
order by id desc
limit $1
"""

CONVERSATION_NAMED = """
select c.id from conversations c join codebases b using (platform, repository_id)
where lower(b.owner || '/' || b.name) = lower($1) and c.number = $2
"""

STEPS = """
select at, words from steps where turn_id = $1 order by place
"""

COSTS = """
-- `untold`: the turns that ran, and whose agents reported no cost.
select (t.finished_at at time zone 'UTC')::date as day, b.owner || '/' || b.name as codebase, count(*) as turns,
       count(*) filter (where t.cost_usd is null and t.started_at is not null) as untold,
       sum(t.cost_usd) as cost_usd, sum(t.tokens)::bigint as tokens
from turns t join conversations c on c.id = t.conversation_id join codebases b using (platform, repository_id)
where t.finished_at >= $1::date::timestamp at time zone 'UTC'
  and ($2::text is null or lower(b.owner || '/' || b.name) = lower($2))
group by 1, 2 order by 1 desc, cost_usd desc nulls last, 2
"""

REQUEST = """
select request, plan, latest_words from turns where id = $1
"""

PROGRESS = """
select plan, latest_words, phase from turns where id = $1
"""

DELIVERY = """
select guid, event, action, conversation, state, received_at, attempts, error from deliveries where guid = $1
"""

NODES = """
select n.id, n.name,
       case when n.heartbeat_at > now() - make_interval(secs => $1) then 'alive' else 'silent' end as state,
       n.started_at, nullif(n.heartbeat_at, '-infinity') as heartbeat_at,
       (select count(*) from worktrees w where w.node = n.id and w.is_live) as worktrees,
       coalesce(busy.running, 0) as running, coalesce(busy.queued, 0) as queued, n.disk, n.disk_measured_at,
       (select coalesce(jsonb_agg(k order by k->>'created_at' desc), '[]') from jsonb_array_elements(n.kept) as k
        where not exists (select from rescues r join worktrees w on w.id = r.worktree_id
                          where w.node = n.id and r.kept = k->>'name')) as kept
from nodes n left join (
    select w.node, count(*) filter (where t.state = 'running') as running,
           count(*) filter (where t.state = 'queued') as queued
    from turns t join worktrees w on w.id = t.worktree_id where t.state in ('queued', 'running') group by w.node
) as busy on busy.node = n.id
order by n.name, n.id
"""


@dataclass(frozen=True, slots=True)
class FoundWorktree:
    """A worktree that was found by its id or its path."""

    id: int
    node: str
    node_name: str
    path: str
    state: WorktreeState


async def find_worktree(
    connection: Connection, node: str, worktree_id: int | None, names: Sequence[str]
) -> FoundWorktree | None:
    """Return the worktree with this id, or the one of the node at the path with these names."""
    row = await connection.fetchrow(FIND_WORKTREE, node, worktree_id, list(names))
    return FoundWorktree(**row) if row else None


async def newest(
    connection: Connection,
    statement: str,
    limit: int | None,
    *more: object,
    before: int | None = None,
    repository: str | None = None,
    state: str | None = None,
) -> list[Record]:
    """Return the newest `limit` rows of one of the lists above, all without one; of this repository and state.

    `before`: only those with a smaller id, of deliveries with a smaller `seq`. `more`: of worktrees, whether removed
    ones are listed when `state` does not ask for them.
    """
    rows: list[Record] = await connection.fetch(statement, limit, before, repository, state, *more)
    return rows


async def turn(connection: Connection, turn_id: int) -> dict[str, object] | None:
    """Return a turn as in the list, with its request and what the agent plans, does and says; None without one.

    `request` is None and `expired` is true once its texts are deleted (HISTORY_RETENTION_DAYS).
    """
    rows = await newest(connection, LIST_TURNS, 1, before=turn_id + 1)
    if not rows or rows[0]["id"] != turn_id:
        return None
    steps = await connection.fetch(STEPS, turn_id)
    row = await connection.fetchrow(REQUEST, turn_id)
    texts = {"request": row["request"], "expired": row["request"] is None, **_progress(row)}
    return {**rows[0], **texts, "steps": [dict(step) for step in steps]}


async def progress(connection: Connection, turn_id: int) -> dict[str, object]:
    """Return what a turn does before its agent starts, and what that plans and says; nothing without such a turn."""
    row = await connection.fetchrow(PROGRESS, turn_id)
    return {**_progress(row), "phase": row["phase"]} if row else {}


def _progress(row: Record) -> dict[str, object]:
    plan = [dict(zip(("state", "text"), entry.split(" ", 1), strict=True)) for entry in row["plan"]]
    return {"plan": plan, "latest_words": row["latest_words"]}


async def conversation_named(connection: Connection, repository: str, number: int) -> int | None:
    """Return the id of a thread of the repository `owner/name`, or None."""
    found: int | None = await connection.fetchval(CONVERSATION_NAMED, repository, number)
    return found


async def conversation(connection: Connection, conversation_id: int, limit: int) -> dict[str, Any] | None:
    """Return a thread as in the list, with the newest `limit` of its turns and of its sessions; None without one."""
    rows = await newest(connection, LIST_CONVERSATIONS, 1, before=conversation_id + 1)
    if not rows or rows[0]["id"] != conversation_id:
        return None
    asked = [dict(row) for row in await connection.fetch(TURNS_OF_CONVERSATION, limit, conversation_id)]
    contexts = [dict(row) for row in await connection.fetch(SESSIONS_OF_CONVERSATION, limit, conversation_id)]
    return {**rows[0], "requests": asked, "sessions": contexts}


async def delivery(connection: Connection, guid: str) -> dict[str, object] | None:
    """Return a delivery as in the list, or None."""
    row = await connection.fetchrow(DELIVERY, guid)
    return dict(row) if row else None


async def costs(connection: Connection, since: date, repository: str | None) -> list[Record]:
    """Return what the turns cost that ended on that day (UTC) or later, by day and repository."""
    rows: list[Record] = await connection.fetch(COSTS, since, repository)
    return rows


async def nodes(connection: Connection, state: str | None) -> list[dict[str, Any]]:
    """Return the nodes, or only those that are `alive` or `silent`, with what waits, runs and takes space there.

    `kept` are the directories that no rescue's row names, the newest first.
    """
    rows = await connection.fetch(NODES, SILENT_AFTER_SECONDS)
    return [
        {**row, "disk": orjson.loads(row["disk"]), "kept": _kept(row["kept"])}
        for row in rows
        if state in (None, row["state"])
    ]


def _kept(directories: str) -> list[dict[str, Any]]:
    return [{**one, "created_at": datetime.fromisoformat(one["created_at"])} for one in orjson.loads(directories)]
