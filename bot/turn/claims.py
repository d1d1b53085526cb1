"""The queue of turns from the side of the runner: which turn is claimed next."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import uuid4

from bot.store.database import Connection, read
from bot.store.turns import CONVERSATION, SO_FAR, ClaimedTurn

CLAIM_NEXT = """
-- The oldest queued turn of this node without obstacle, of those that need an agent or that need none ($6); with $7
-- only of those that operators asked for. Where agents are needed, what no person asked goes last, repositories with
-- fewer running ones go first, then earlier rounds, in which each person has one. Of each repository only the first
-- such turn is looked for: what else waits is not asked for its obstacle.
with busy as (
    select queue_platform as platform, queue_repository_id as repository_id, count(*) as turns
    from turns where state = 'running' and needs_agent and queue_node = $1 group by 1, 2
), next as (
    select first.id
    from codebases b
    left join busy using (platform, repository_id)
    left join held_repositories h using (platform, repository_id)
    cross join lateral (
        select t.id, t.round from turns t
        where t.state = 'queued' and t.queue_node = $1 and t.needs_agent = $6
          and (t.conversation_id is null or not $7)
          and (t.queue_platform, t.queue_repository_id) = (b.platform, b.repository_id)
          and (select o.obstacle is null from turn_obstacles($5) o where o.turn_id = t.id)
        order by t.round, t.id limit 1 for no key update skip locked
    ) first
    where not $6 or (coalesce(busy.turns, 0) < $4 and (h.held_until > $5) is not true)
    order by first.round = 2147483647, coalesce(busy.turns, 0), first.round, first.id limit 1
)
update turns set state = 'running', claim = $2, worker = $3, reason = null, blocked_by = null,
                 started_at = coalesce(started_at, $5)
from next where turns.id = next.id returning turns.id
"""

CLAIMED_TURN = f"""
select t.id as turn_id, t.claim as token, t.worker, r.ask, t.needs_agent, t.switch_to, t.created_at, t.started_at, w.*,
       {CONVERSATION}, {SO_FAR}
from turns t join requests r on r.turn_id = t.id
left join conversations c on c.id = t.conversation_id
join worktree_rows w on w.worktree_id = t.worktree_id
where t.id = $1
"""  # noqa: S608 - of constants


@asynccontextmanager
async def claims_of_node(connection: Connection, node: str) -> AsyncIterator[None]:
    """Open a transaction in which no other claim is made on the node: a claim depends on what runs there."""
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(hashtextextended('claim:' || $1, 0))", node)
        yield


async def claim_next(
    connection: Connection,
    node: str,
    worker: str,
    per_repository: int,
    now: datetime,
    *,
    with_agent: bool,
    only_operators: bool = False,
) -> ClaimedTurn | None:
    """Claim the next turn of the node in one statement; None when there is none to run.

    `with_agent`: one that needs an agent, or else one that needs none. `only_operators`: one of no thread. `now` is the
    node's clock, which measures the turn's duration.
    """
    async with claims_of_node(connection, node):
        turn_id = await connection.fetchval(
            CLAIM_NEXT, node, uuid4(), worker, per_repository, now, with_agent, only_operators
        )
        if turn_id is None:
            return None
        return read(ClaimedTurn, await connection.fetchrow(CLAIMED_TURN, turn_id))
