"""What waits for a person: the rows of the view `waiting`, whose rule stands in the migrations (DESIGN.md §4)."""

from typing import Any

from bot.model import Repository
from bot.store.database import Connection, statement
from bot.store.scope import Scope
from bot.thread.waits import Waiting, WaitsFor


@statement("""
-- The page is found before its rows are made: each has its title and its comment.
with page as materialized (
    select w.*, case when $6::text is not null then (select lower(r.requested_by) = lower($6) from requests r
                                                     where r.turn_id = w.turn_id) end as own
    from waiting w
    where threadtree_sees($4, $5, w.platform, w.repository_id)
      and ($3::text is null or (w.platform, w.repository_id) in (
               select platform, repository_id from codebases where lower(owner || '/' || name) = lower($3)))
    order by own desc, w.since, w.turn_id limit $1 offset coalesce($2::bigint, 0)
)
select p.turn_id as turn, l.conversation, l.title, p.waits_for, p.since, l.requested_by, l.comment_url,
       p.pull_request
from page p join listed_turns l on l.id = p.turn_id order by p.own desc, p.since, p.turn_id
""")
async def listed(
    connection: Connection, limit: int, skipped: int | None, repository: str | None, scope: Scope, login: str | None
) -> list[dict[str, Any]]:
    """Return what waits, the oldest first; before all others what the person with this `login` asked."""


@statement("""
select turn_id, waits_for, pull_request from waiting
where platform = (select platform from conversations where id = $1)
  and repository_id = (select repository_id from conversations where id = $1)
  and conversation_id in (select o.id from conversations c join conversations o
                          on o.id = c.id or o.worktree_id = c.worktree_id where c.id = $1)
order by since, turn_id limit 20
""")
async def of_thread(connection: Connection, conversation_id: int) -> list[Waiting]:
    """Return what waits in a thread and in those that share its worktree, the oldest first."""


@statement("select threadtree_waits_for(t) from turns t where id = $1")
async def of_turn(connection: Connection, turn_id: int) -> WaitsFor | None:
    """Return what the turn waits for, None for nothing."""


@statement("""
select turn_id from waiting_reviews where (platform, repository_id, number) = ($1, $2, $3)
""")
async def to_review(connection: Connection, repository: Repository, number: int) -> int | None:
    """Return the turn for which the pull request waits for a review, None if it does not."""


@statement("""
-- What waits no more although nothing of its thread is left to do: later it is not looked at again.
update turns t set settled = true
where t.conversation_id = $1 and t.needs is not null
  and not exists (select from waiting_turns w where w.turn_id = t.id)
  and not exists (select from turns u where u.conversation_id = $1 and u.state in ('queued', 'running'))
""")
async def settle(connection: Connection, conversation_id: int) -> None:
    """Mark what waits for nobody any more, after a turn of the thread is done."""
