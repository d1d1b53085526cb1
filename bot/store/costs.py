"""What requests cost, summed over rows: one definition for the caps, the lists and the pages (see `turn_costs`)."""

from dataclasses import dataclass
from datetime import date
from typing import Any

from bot.model import Repository
from bot.store.database import Connection, statement
from bot.store.scope import Scope


@dataclass(frozen=True, slots=True)
class SpentToday:
    """What is known of today's cost (UTC) in US dollars: of one repository, and of all. What runs now counts too."""

    repository_usd: float
    all_usd: float


@statement("""
select coalesce(sum(cost_usd) filter (where (platform, repository_id) = ($1, $2)), 0) as repository_usd,
       coalesce(sum(cost_usd), 0) as all_usd
from costs_on((now() at time zone 'UTC')::date)
""")
async def spent_today(connection: Connection, repository: Repository) -> SpentToday:
    """Return what was spent today, on all nodes."""


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
async def by_repository(
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
async def by_person(connection: Connection, since: date, repository: str | None, scope: Scope) -> list[dict[str, Any]]:
    """Return the same by day and person, whose login is that of the newest request."""
