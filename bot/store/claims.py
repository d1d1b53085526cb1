"""The queue of turns from the side of the runner: which turn is claimed next."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import uuid4

from bot.model import Target
from bot.store.database import Connection, worktree_of
from bot.store.turns import Claim, ClaimedTurn, Use
from bot.store.worktrees import IS_IN_THE_WAY

CLAIM = f"""
-- The oldest queued turn of this node whose worktree has no running turn and whose conversation has no earlier
-- unfinished one; repositories with fewer running turns go first, then earlier rounds, in which each person has one.
-- A turn waits until its time, while a directory that is to go is in its way, while an operation that was enqueued
-- before it is unfinished, and while GitHub limits its writer. Only the first such turn of each repository is looked
-- for: whatever else waits is not read. `case` keeps the cheap questions before those that look at other rows.
with recursive running as materialized (
    select worktree_id, queue_platform as platform, queue_repository_id as repository_id
    from turns where state = 'running' and queue_node = $1
), leaving as materialized (
    select * from worktrees where node = $1 and state = 'removing'
    union all select * from worktrees where node = $1 and state = 'lost'
), busy as (
    select platform, repository_id, count(*) as turns from running group by platform, repository_id
), held as materialized (
    select b.platform, b.repository_id from writers h
    join codebases b on h.writer = b.platform || '/' || coalesce(b.installation_id::text, 'token')
    where h.held_until > $5
), repositories (platform, repository_id) as (
    (select queue_platform, queue_repository_id from turns where state = 'queued' and queue_node = $1
     order by queue_platform, queue_repository_id limit 1)
    union all
    select another.* from repositories r cross join lateral (
        select queue_platform, queue_repository_id from turns
        where state = 'queued' and queue_node = $1
          and (queue_platform, queue_repository_id) > (r.platform, r.repository_id)
        order by queue_platform, queue_repository_id limit 1
    ) another
), next as (
    select first.id
    from repositories r left join busy b on (b.platform, b.repository_id) = (r.platform, r.repository_id)
    cross join lateral (
        select t.id, t.round from turns t
        where t.state = 'queued' and t.queue_node = $1
          and (t.queue_platform, t.queue_repository_id) = (r.platform, r.repository_id)
          and case
              when t.not_before > $5 or t.worktree_id in (select worktree_id from running) then false
              else t.id = (select min(e.id) from turns e
                           where e.conversation_id = t.conversation_id and e.state in ('queued', 'running'))
                   and (select w.state in ('reserved', 'ready')
                               and not exists (select from leaving l where {IS_IN_THE_WAY})
                        from worktrees w where w.id = t.worktree_id)
                   and not exists (select from operations p where p.worktree_id = t.worktree_id
                                   and (p.state = 'running' or (p.state = 'queued' and p.after_turn < t.id)))
              end
        order by t.round, t.id limit 1 for no key update skip locked
    ) first
    where coalesce(b.turns, 0) < $4 and (r.platform, r.repository_id) not in (table held)
    order by coalesce(b.turns, 0), first.round, first.id limit 1
)
update turns set state = 'running', claim = $2, worker = $3, reason = null, started_at = coalesce(started_at, $5)
from next where turns.id = next.id returning turns.id
"""  # noqa: S608 - of constants

CLAIMED_TURN = """
select t.id, t.conversation_id, t.request, t.requested_by, t.requested_by_id, t.asked_at,
       t.source_kind, t.source_id, t.pinned_sha, t.context, t.notices, t.read, t.resuming, t.answer, t.started_at,
       t.cost_usd, t.tokens, t.switch_to, t.not_before, t.waiting_since,
       t.review_parts, c.number,
       case when t.resuming then array(select words from steps where turn_id = t.id order by place) end as steps,
       c.kind, c.title, w.*
from turns t
join conversations c on c.id = t.conversation_id
join worktree_rows w on w.worktree_id = t.worktree_id
where t.id = $1
"""


@asynccontextmanager
async def claims_of_node(connection: Connection, node: str) -> AsyncIterator[None]:
    """Open a transaction in which no other claim is made on the node: a claim depends on what runs there."""
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(hashtextextended('claim:' || $1, 0))", node)
        yield


async def claim_next(
    connection: Connection, node: str, worker: str, per_repository: int, now: datetime
) -> ClaimedTurn | None:
    """Claim the next turn of the node in one statement; None when there is none to run.

    `now` is the node's clock, which measures the turn's duration.
    """
    token = uuid4()
    async with claims_of_node(connection, node):
        turn_id = await connection.fetchval(CLAIM, node, token, worker, per_repository, now)
        if turn_id is None:
            return None
        row = await connection.fetchrow(CLAIMED_TURN, turn_id)
    return ClaimedTurn(
        claim=Claim(turn_id, token, worker),
        conversation_id=row["conversation_id"],
        number=row["number"],
        kind=row["kind"],
        title=row["title"],
        request=row["request"],
        requested_by=row["requested_by"],
        requested_by_id=row["requested_by_id"],
        asked_at=row["asked_at"],
        target=Target(row["source_kind"], row["source_id"]),
        pinned_sha=row["pinned_sha"],
        context=row["context"],
        notices=tuple(row["notices"]),
        read=tuple(row["read"]),
        resuming=row["resuming"],
        answer=row["answer"],
        started_at=row["started_at"],
        use=Use(row["cost_usd"], row["tokens"]),
        worktree=worktree_of(row),
        switch_to=row["switch_to"],
        review_parts=tuple(row["review_parts"]),
        was_put_back=row["not_before"] is not None,
        waiting_since=row["waiting_since"],
        steps=tuple(row["steps"] or ()),
    )
