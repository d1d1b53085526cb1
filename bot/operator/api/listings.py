"""Rows for the listing commands, in the shape that scripts rely on, newest first."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

import orjson
from asyncpg import Record

from bot.model import WorktreeState
from bot.node.node_rows import SILENT_AFTER_SECONDS
from bot.operator.api import thread_rows
from bot.store.database import Connection, statement
from bot.store.scope import Scope

List = Literal["worktrees", "orphans", "sessions", "turns", "deliveries", "conversations", "rescues", "outcomes"]
"""The lists; each is a view `listed_…` in the migrations."""

NEWEST = """
select * from listed_{} where ($2::bigint is null or place < $2) and ($3::text is null or state = $3){}
order by place desc limit $1
"""

OF_REPOSITORY = " and lower(codebase) = lower($4)"
OF_THREAD = " and conversation_id = $4 and threadtree_sees($5, $6, platform, repository_id)"
OF_SCOPE = " and platform = $5 and repository_id = any ($6) and ($4::text is null or lower(codebase) = lower($4))"
"""What the rows of one repository, thread or scope fulfil besides `NEWEST`."""

NEWEST_BY_KEY = """
-- Of each repository that has the name or had it last, the newest are found by an index.
select newest.* from codebases named cross join lateral (
    select * from listed_{} where (platform, repository_id) = (named.platform, named.repository_id)
                              and ($2::bigint is null or place < $2) and ($3::text is null or state = $3){}
    order by place desc limit $1) newest
where {} order by place desc limit $1
"""
"""The newest of the lists in `KEYED`, of the repository `NAMED` or of those that are `SEEN`."""
NAMED = "lower(named.owner || '/' || named.name) = lower($4)"
SEEN = f"named.platform = $5 and named.repository_id = any ($6) and ($4::text is null or {NAMED})"
KEYED = ("turns", "conversations")
BY_NAME = " and lower(codebase) = lower(named.owner || '/' || named.name)"
"""What finds the deliveries of a repository by an index."""

FOUND = """
-- The newest that match are found first, by the index of words or by age, whichever is shorter, and then filtered.
with found as materialized (
    select turn_id as id from requests where words @@ to_tsquery('simple', $5) and ($2::bigint is null or turn_id < $2)
    order by turn_id desc
    limit case when $3::text is null and $4::text is null and $7::bigint[] is null then $1 else 1000 end
)
select listed.* from found join listed_turns listed using (id)
where ($3::text is null or lower(codebase) = lower($3)) and ($4::text is null or state = $4)
  and threadtree_sees($6, $7, platform, repository_id)
order by place desc limit $1
"""

TURN = """
select listed.*, case when t.state = 'running'
                      then (select right(output, 4000) from steps where turn_id = t.id order by place desc limit 1) end
           as latest_output,
       case when not t.expired then r.ask->>'text' end as request, t.expired, t.plan, t.latest_words,
       t.notices, t.read, t.answer, t.pushed_to as branch, t.head_before as changed_from,
       t.pushed_head as changed_to, t.outcome->>'pictures' as pictures, b.folder,
       (select max(id) from turns before where before.conversation_id = t.conversation_id and before.id < t.id)
           as previous,
       (select min(id) from turns after where after.conversation_id = t.conversation_id and after.id > t.id) as next,
       (select coalesce(json_agg(json_build_object('turn', m.turn_id, 'requested_by', m.requested_by,
                                                   'text', m.ask->>'text')
                                 order by m.turn_id), '[]')
        from requests m join turns o on o.id = m.turn_id
        where m.joins = t.id and m.is_told and o.state = 'done' and o.started_at is null and not o.expired) as added
from listed_turns listed join turns t using (id) join requests r on r.turn_id = t.id
     join codebases b using (platform, repository_id)
where t.id = $1 and threadtree_sees($2, $3, platform, repository_id)
"""

CONVERSATION = "select * from listed_conversations where id = $1 and threadtree_sees($2, $3, platform, repository_id)"

NODES = """
-- Whoever does not see everything sees nothing of a disk: what lies there has the names of all repositories.
select n.id, n.name,
       case when n.heartbeat_at > now() - make_interval(secs => $1) then 'alive' else 'silent' end as state,
       n.started_at, nullif(n.heartbeat_at, '-infinity') as heartbeat_at,
       (select count(*) from worktrees w where w.node = n.id and w.is_live
        and threadtree_sees($2, $3, w.platform, w.repository_id)) as worktrees,
       coalesce(busy.running, 0) as running, coalesce(busy.queued, 0) as queued,
       case when $3 is null then n.disk else '{}' end as disk,
       case when $3 is null then n.disk_measured_at end as disk_measured_at,
       (select coalesce(jsonb_agg(k order by k->>'created_at' desc), '[]') from jsonb_array_elements(n.kept) as k
        where $3 is null and not exists (select from rescues r join worktrees w on w.id = r.worktree_id
                          where w.node = n.id and r.kept = k->>'name')) as kept
from nodes n left join (
    select w.node, count(*) filter (where t.state = 'running') as running,
           count(*) filter (where t.state = 'queued') as queued
    from turns t join worktrees w on w.id = t.worktree_id
    where t.state in ('queued', 'running') and threadtree_sees($2, $3, w.platform, w.repository_id) group by w.node
) as busy on busy.node = n.id
order by n.name, n.id
"""


SHORTEST_BEGINNING = 4
# The same that `threadtree_search_words` leaves out.
_BETWEEN_WORDS = re.compile(r"[\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+")


@dataclass(frozen=True, slots=True)
class FoundWorktree:
    """A worktree that was found by its id or its path."""

    id: int
    node: str
    node_name: str
    path: str
    state: WorktreeState | Literal["orphan"]


@statement("""
-- A path may have had several worktrees in succession: the live one counts, then an orphan, then the last.
select w.id, w.node, n.name as node_name, w.path, w.state
from (select id, node, path, state, case when is_live then 0 else 2 end as place from worktrees
      union all select id, node, path, 'orphan', 1 from orphans) w
join nodes n on n.id = w.node
where w.id = $2 or (w.node = $1 and w.path = any ($3::text[]))
order by w.place, w.id desc limit 1
""")
async def find_worktree(
    connection: Connection, node: str, worktree_id: int | None, names: Sequence[str]
) -> FoundWorktree | None:
    """Return the worktree with this id, or the one of the node at the path with these names."""


async def newest(
    connection: Connection,
    of: List,
    limit: int | None,
    before: int | None = None,
    repository: str | None = None,
    state: str | None = None,
    *,
    scope: Scope,
    hidden: str | None = None,
) -> list[Record]:
    """Return the newest `limit` rows of a list, all without one; of this repository, state and scope.

    `before`: only those with a smaller `place`. Those in the state `hidden` are left out.
    """
    more = f" and state <> '{hidden}'" if hidden else ""
    given: list[object] = [limit, before, state]
    if scope.repositories is not None:
        given += [repository, scope.platform, scope.repositories]
        query = NEWEST_BY_KEY.format(of, more + (BY_NAME if of == "deliveries" else ""), SEEN)
        if of not in (*KEYED, "deliveries"):
            query = NEWEST.format(of, more + OF_SCOPE)
    elif repository is not None:
        given.append(repository)
        query = NEWEST_BY_KEY.format(of, more, NAMED) if of in KEYED else NEWEST.format(of, more + OF_REPOSITORY)
    else:
        query = NEWEST.format(of, more)
    return list(await connection.fetch(query, *given))


@statement("""
select listed.* from (
    select t.id, t.round from turns t where t.state = 'queued' and ($3::text is null or exists (
        select from conversations c join codebases b using (platform, repository_id)
        where c.id = t.conversation_id and lower(b.owner || '/' || b.name) = lower($3)))
      and threadtree_sees($4, $5, t.queue_platform, t.queue_repository_id)
    order by t.round, t.id limit $1 offset coalesce($2::bigint, 0)
) line join listed_turns listed using (id) order by line.round, line.id
""")
async def turns_in_line(
    connection: Connection, limit: int | None, skipped: int | None, repository: str | None, scope: Scope
) -> list[dict[str, Any]]:
    """Return the queued turns in the order in which `claims.CLAIM_NEXT` takes them; the first were read before."""


async def found_turns(
    connection: Connection,
    limit: int,
    before: int | None,
    repository: str | None,
    state: str | None,
    search: str,
    scope: Scope,
) -> Any:
    """Return the newest turns of a thread, `owner/repo#1`, or with all words of `search`.

    A longer word is also the beginning of others; a short one would be that of too many.
    """
    thread = re.fullmatch(r"\s*(?P<repository>[\w.-]+/[\w.-]+)#(?P<number>[0-9]{1,9})\s*", search, re.ASCII)
    if thread is None:
        found = _BETWEEN_WORDS.sub(" ", search).split()
        words = " & ".join(f"'{word}'{':*' if len(word) >= SHORTEST_BEGINNING else ''}" for word in found)
        of = (scope.platform, scope.repositories)
        return await connection.fetch(FOUND, limit, before, repository, state, words, *of)
    if repository is not None and repository.lower() != thread["repository"].lower():
        return []
    thread_id = (
        await thread_rows.conversation_named(connection, thread["repository"], int(thread["number"]), scope) or 0
    )
    of_thread, of = NEWEST.format("turns", OF_THREAD), (scope.platform, scope.repositories)
    return await connection.fetch(of_thread, limit, before, state, thread_id, *of)


async def turn(connection: Connection, turn_id: int, scope: Scope) -> dict[str, object] | None:
    """Return a turn as in the list, with its request and what the agent plans, does and says; None without one.

    `request` is None and `expired` is true once its texts are deleted (HISTORY_RETENTION_DAYS).
    """
    row = await connection.fetchrow(TURN, turn_id, scope.platform, scope.repositories)
    if row is None:
        return None
    steps = await connection.fetch(
        "select place, at, words, octet_length(output) as output_bytes from steps where turn_id = $1 order by place",
        turn_id,
    )
    return {**row, **_progress(row), "steps": [dict(step) for step in steps]}


@statement("""
select s.*, octet_length(output) as output_bytes from steps s join turns t on t.id = s.turn_id
where s.turn_id = $1 and place = $2 and threadtree_sees($3, $4, t.queue_platform, t.queue_repository_id)
""")
async def step(connection: Connection, turn_id: int, place: int, scope: Scope) -> dict[str, Any] | None:
    """Return a step of a turn with its output, or None."""


async def progress(connection: Connection, turn_id: int) -> dict[str, object]:
    """Return what a turn does before its agent starts, and what that plans and says; nothing without such a turn."""
    row = await connection.fetchrow("select plan, latest_words, phase from turns where id = $1", turn_id)
    return {**_progress(row), "phase": row["phase"]} if row else {}


def _progress(row: Record) -> dict[str, object]:
    return {"plan": plan_entries(row["plan"]), "latest_words": row["latest_words"]}


def plan_entries(plan: Sequence[str]) -> list[dict[str, str]]:
    """Return the lines of a plan, each of which is stored after its state and a space."""
    return [dict(zip(("state", "text"), entry.split(" ", 1), strict=True)) for entry in plan]


async def conversation(connection: Connection, conversation_id: int, limit: int, scope: Scope) -> dict[str, Any] | None:
    """Return a thread as in the list, with the newest `limit` of its turns and of its sessions; None without one."""
    row = await connection.fetchrow(CONVERSATION, conversation_id, scope.platform, scope.repositories)
    if row is None:
        return None
    newest_of = "select * from listed_{} where conversation_id = $1 order by place desc limit $2"
    asked, contexts = [
        [dict(row) for row in await connection.fetch(newest_of.format(of), conversation_id, limit)]
        for of in ("turns", "sessions")
    ]
    return {**row, "requests": asked, "sessions": contexts}


@statement("""
select l.*, d.turn_id as turn from listed_deliveries l join deliveries d using (guid)
where guid = $1 and threadtree_sees($2, $3, l.platform, l.repository_id)
""")
async def delivery(connection: Connection, guid: str, scope: Scope) -> dict[str, Any] | None:
    """Return a delivery as in the list, with the turn that it became, or None."""


@statement("""
select b.owner || '/' || b.name as codebase, s.line, s.entry->>'every' as every, s.entry->>'as' as person,
       s.entry->>'ask' as ask, case when not s.failed then s.due_at end as next, s.problem,
       b.owner || '/' || b.name || '#' || s.issues[cardinality(s.issues)] as conversation
from standing s join codebases b using (platform, repository_id)
where threadtree_sees($1, $2, s.platform, s.repository_id)
  and ($3::text is null or lower(b.owner || '/' || b.name) = lower($3))
order by 6 nulls last, s.id limit $4
""")
async def standing(connection: Connection, scope: Scope, codebase: str | None, most: int) -> list[dict[str, Any]]:
    """Return what repositories ask again and again, the next one first, without a time where that is paused."""


@statement("""
-- The cost is that of `costs_on`: what has not ended counts for today.
select (coalesce(finished_at, now()) at time zone 'UTC')::date as day, count(finished_at) as turns,
       count(*) filter (where state = 'done') as done,
       count(*) filter (where state = 'stopped') as stopped,
       count(*) filter (where state not in ('queued', 'running', 'done', 'stopped')) as failed,
       coalesce(sum(cost_usd), 0) as cost_usd,
       count(*) filter (where started_at is not null and cost_usd is null) as untold,
       percentile_cont(array[0.5, 0.95]) within group (order by extract(epoch from finished_at - started_at)::float8)
           as seconds
from (select finished_at, started_at, state, cost_usd, queue_platform, queue_repository_id
      from turns where finished_at >= $1::date::timestamp at time zone 'UTC'
      union all
      select finished_at, started_at, state, cost_usd, queue_platform, queue_repository_id
      from turns where state in ('queued', 'running') and started_at is not null) t
where threadtree_sees($2, $3, queue_platform, queue_repository_id)
group by grouping sets ((1), ())
""")
async def days(connection: Connection, since: date, scope: Scope) -> list[dict[str, Any]]:
    """Return how the turns ended on that day (UTC) and later, their cost, and the `seconds` of half and nearly all.

    By day; the row without a day tells of all.
    """


@statement("""
select platform, repository_id from (select queue_platform as platform, queue_repository_id as repository_id
                                     from turns where id = $1
                                     union all select platform, repository_id from worktrees where id = $2) as of
""")
async def repository_of(connection: Connection, turn_id: int | None, worktree_id: int | None) -> tuple[str, int] | None:
    """Return the repository of a turn or of a worktree; None where there is none."""


@statement("""
-- Each day is summed by the index of the ends, which has all of it; names and the day's date come to the sums.
select day::date, b.owner || '/' || b.name as codebase, null as person,
       sums.turns, sums.untold, sums.cost_usd, sums.tokens
from generate_series($1::date::timestamp, now() at time zone 'UTC', interval '1 day') day cross join lateral (
    select platform, repository_id, count(*) as turns, count(*) filter (where untold) as untold,
           sum(cost_usd) as cost_usd, sum(tokens)::bigint as tokens
    from costs_on(day::date)
    where ($2::text is null or (platform, repository_id) in (
               select platform, repository_id from codebases where lower(owner || '/' || name) = lower($2)))
      and threadtree_sees($3, $4, platform, repository_id)
    group by 1, 2) sums join codebases b using (platform, repository_id)
order by 1 desc, cost_usd desc nulls last, 2
""")
async def costs_by_repository(
    connection: Connection, since: date, repository: str | None, scope: Scope
) -> list[dict[str, Any]]:
    """Return what the requests cost since that day (UTC), by day and repository.

    `untold`: those that began, and whose cost is not known.
    """


@statement("""
with sums as (
    select day::date as day, of_day.*
    from generate_series($1::date::timestamp, now() at time zone 'UTC', interval '1 day') day cross join lateral (
        select requested_by_id, max(turn_id) as newest, count(*) as turns, count(*) filter (where untold) as untold,
               sum(cost_usd) as cost_usd, sum(tokens)::bigint as tokens
        from costs_on(day::date)
        where ($2::text is null or (platform, repository_id) in (
                   select platform, repository_id from codebases where lower(owner || '/' || name) = lower($2)))
          and threadtree_sees($3, $4, platform, repository_id)
        group by 1) of_day
), people as (
    -- Asked row by row, by the index: a join may read all requests.
    select p.requested_by_id, (select r.requested_by from requests r where r.turn_id = p.newest) as person
    from (select requested_by_id, max(newest) as newest from sums group by 1) p
)
select day, null as codebase, person, turns, untold, cost_usd, tokens from sums join people using (requested_by_id)
order by 1 desc, cost_usd desc nulls last, 3
""")
async def costs_by_person(
    connection: Connection, since: date, repository: str | None, scope: Scope
) -> list[dict[str, Any]]:
    """Return the same by day and person, whose login is that of the newest request."""


async def nodes(connection: Connection, state: str | None, scope: Scope) -> list[dict[str, Any]]:
    """Return the nodes, or only those that are `alive` or `silent`, with what waits, runs and takes space there.

    `kept` are the directories that no rescue's row names, the newest first.
    """
    rows = await connection.fetch(NODES, SILENT_AFTER_SECONDS, scope.platform, scope.repositories)
    return [
        {**row, "disk": orjson.loads(row["disk"]), "kept": _kept(row["kept"])}
        for row in rows
        if state in (None, row["state"])
    ]


def _kept(directories: str) -> list[dict[str, Any]]:
    return [{**one, "created_at": datetime.fromisoformat(one["created_at"])} for one in orjson.loads(directories)]
