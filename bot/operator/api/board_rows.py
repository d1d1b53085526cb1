"""Rows for the board: what runs, what is in review, and what was merged lately, a request or a pull request each."""

from datetime import datetime
from typing import Any

from bot.store.database import Connection, statement
from bot.store.scope import Scope


@statement("""
-- Of each thread what runs, else what waits first; `behind` are its other requests that wait.
with first as (
    select distinct on (coalesce(conversation_id, -id)) id, state, round,
           count(*) over (partition by coalesce(conversation_id, -id)) - 1 as behind
    from turns where state in ('queued', 'running') and needs is null
      and threadtree_sees($2, $3, queue_platform, queue_repository_id)
    order by coalesce(conversation_id, -id), state desc, round, id
)
select listed.*, first.behind, t.plan, right(t.latest_words, 300) as latest_words,
       (select words from steps where turn_id = t.id order by place desc limit 1) as latest_step
from (select * from first order by state desc, round, id limit $1) first
     join listed_turns listed using (id) join turns t using (id)
order by listed.state desc, first.round, listed.id
""")
async def at_work(connection: Connection, limit: int, scope: Scope) -> list[dict[str, Any]]:
    """Return what runs and what waits in the queue, with what the agents do now."""


@statement("""
select listed.*, page.since
from (select w.turn_id, w.since, coalesce(r.requested_by = $4, false) as own
      from waiting_turns w join requests r using (turn_id)
      where threadtree_sees($2, $3, w.platform, w.repository_id) order by own desc, w.since, w.turn_id limit $1) page
     join listed_turns listed on listed.id = page.turn_id
order by page.own desc, page.since, page.turn_id
""")
async def for_people(connection: Connection, limit: int, scope: Scope, login: str | None) -> list[dict[str, Any]]:
    """Return the plans, questions and failures that wait for a person, first those of `login`, the oldest first."""


@statement("""
select listed.*, p.number, p.opened_at as since from pull_requests p cross join lateral (
    select t.id from turns t
    where t.pushed_to = p.branch and (t.queue_platform, t.queue_repository_id) = (p.platform, p.repository_id)
    order by t.id desc limit 1) last join listed_turns listed using (id)
where p.check_at is not null and threadtree_sees($2, $3, p.platform, p.repository_id)
order by p.opened_at, listed.id limit $1
""")
async def in_review(connection: Connection, limit: int, scope: Scope) -> list[dict[str, Any]]:
    """Return the last request that pushed to each open pull request of the bot, with its number, the oldest first."""


@statement("""
-- Of each repository the last checks, by their index.
select b.owner || '/' || b.name as codebase, count(*) as checked,
       count(*) filter (where latest.state = 'passed') as passed,
       json_agg(json_build_object('turn', latest.id, 'check', latest."check") order by latest.id desc) as latest
from codebases b cross join lateral (
    select t.id, t.outcome->'check' as "check", t.outcome #>> '{check,state}' as state from turns t
    where t.outcome ? 'check' and (t.queue_platform, t.queue_repository_id) = (b.platform, b.repository_id)
    order by t.id desc limit 100) latest
where threadtree_sees($2, $3, b.platform, b.repository_id)
group by b.platform, b.repository_id order by max(latest.id) desc limit $1
""")
async def checks(connection: Connection, limit: int, scope: Scope) -> list[dict[str, Any]]:
    """Return the repositories that were checked last: how many of their last hundred checks passed, and each of these.

    `latest` is JSON, the latest first.
    """


@statement("""
select listed.* from (
    select id from outcomes where merged and closed_at > $2 and threadtree_sees($3, $4, platform, repository_id)
    order by closed_at desc limit $1) last join listed_outcomes listed using (id)
order by listed.closed_at desc
""")
async def merged(connection: Connection, limit: int, since: datetime, scope: Scope) -> list[dict[str, Any]]:
    """Return what was merged since then, the latest first."""
