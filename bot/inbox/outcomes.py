"""What became of the pull requests whose branches the bot pushed to: a row each, written when one is closed."""

from datetime import date, datetime
from typing import Any

from bot.github.events import ClosedPull
from bot.model import Repository
from bot.store.database import Connection, statement
from bot.store.scope import Scope


@statement("""
-- Rewritten: the last commit is not the one that the bot pushed last. Closes may be told twice, and in any order.
insert into outcomes (platform, repository_id, number, branch, opened_at, merged, rewritten, closed_at)
select $1, $2, $3, $4, $6, $7::timestamptz is not null, last.pushed_head <> $5, coalesce($7, $8)
from (select pushed_head from turns where pushed_to = $4 and (queue_platform, queue_repository_id) = ($1, $2)
      order by id desc limit 1) last
on conflict (platform, repository_id, number) do update
   set merged = excluded.merged, rewritten = excluded.rewritten, closed_at = excluded.closed_at
   where outcomes.closed_at <= excluded.closed_at
""")
async def record_outcome(connection: Connection, repository: Repository, pull: ClosedPull, closed_at: datetime) -> None:
    """Record what became of a pull request, if the bot pushed to its branch."""


@statement("update outcomes set reverted_by = $4 where (platform, repository_id, number) = ($1, $2, $3) and merged")
async def record_revert(connection: Connection, repository: Repository, number: int, reverted_by: int) -> None:
    """Record that a merged pull request was taken back by another one that was merged."""


@statement("delete from outcomes where (platform, repository_id, number) = ($1, $2, $3) and closed_at <= $4")
async def forget_outcome(connection: Connection, repository: Repository, number: int, reopened_at: datetime) -> None:
    """Forget what became of a pull request: it was opened again after that."""


@statement("""
select codebase, agent, model, count(*) as closed, count(*) filter (where state <> 'closed') as merged,
       count(*) filter (where state = 'reverted') as reverted,
       count(*) filter (where rewritten and state <> 'closed') as rewritten,
       percentile_cont(0.5) within group (order by seconds_to_merge) as seconds_to_merge, sum(cost_usd) as cost_usd,
       count(*) filter (where cost_usd is null) as untold
from listed_outcomes
where closed_at >= $1::date::timestamp at time zone 'UTC' and ($2::text is null or lower(codebase) = lower($2))
  and threadtree_sees($3, $4, platform, repository_id)
group by codebase, agent, model order by merged desc, codebase, agent, model
""")
async def sums(connection: Connection, since: date, repository: str | None, scope: Scope) -> list[dict[str, Any]]:
    """Return what became of those that were closed on that day (UTC) or later, by repository, agent and model.

    `seconds_to_merge` is what half of the merged ones took at most. `untold`: those with no known cost.
    """
