"""The queue of turns from the side of the requests: enqueueing, places in line, stopping."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from bot.model import Target
from bot.store.database import Connection, fetch_all, fetch_column, read
from bot.store.doorbell import TURN_WAITS

Obstacle = Literal["time", "turn", "github-limit", "operation", "directory"]
"""What keeps a turn from being claimed; see `turn_obstacles` in the migrations."""

REVIEW_TURN = """
select id, $3 = any (review_parts) as is_held from turns where conversation_id = $1 and review_id = $2 for update
"""

ADD_REVIEW_PART = """
-- An answer that is saved is not asked for again.
update turns set request = request || E'\\n\\n' || $3, review_parts = review_parts || $2::bigint,
                 request_hash = sha256(convert_to(request || E'\\n\\n' || $3, 'UTF8')),
                 context = ltrim(context || E'\\n\\n' || $4, E'\\n')
where id = $1 and state = 'queued' and answer is null returning id
"""

SAME_TEXT_WITHIN_A_MINUTE = """
-- Events with the same text within a minute (opened, labelled, assigned) are one request.
select exists (select from turns
               where conversation_id = $1 and source_kind in ('issue', 'pull') and review_id is null
                 and request_hash = sha256(convert_to($2, 'UTF8')) and abs(extract(epoch from asked_at - $3)) <= 60)
"""

BEFORE_A_TURN = """
-- Whether work of a thread with this number, in any repository, was rescued; whether the thread's worktree is being
-- removed after its close or its retention, not by command; and how many turns the person $2 got in the last 24 hours.
-- Rescues are counted, for `exists` would not be asked by their index.
select (select count(*) from rescues r where r.conversations @> array[c.number]) > 0 as may_have_rescue,
       exists (select from worktrees w where w.id = c.worktree_id
                                         and w.state = 'removing' and w.removal in ('closed', 'retention'))
       as is_being_removed,
       (select count(*) from turns where requested_by_id = $2 and state <> 'refused'
                                     and created_at > now() - interval '1 day') as turns_today
from conversations c where c.id = $1
"""

_LINE = """
-- How many turns run or wait before `me` in its worktree or thread, the first one's thread, and its wait at $2.
select count(*) as ahead,
       (array_agg(case when ahead.state = 'queued' and ahead.not_before > $2 then ahead.reason end
                  order by ahead.id))[1] as wait,
       (array_agg(ahead.conversation_id order by ahead.id))[1] as behind
from turns ahead
where ahead.id < me.id and ahead.state in ('queued', 'running')
  and (ahead.worktree_id = me.worktree_id or ahead.conversation_id = me.conversation_id)
"""

ENQUEUE_TURN = f"""
-- With its place in line; its node's doorbell rings when the transaction commits.
with me as (
    insert into turns (conversation_id, worktree_id, request, request_hash, requested_by, requested_by_id, asked_at,
                       source_kind, source_id, review_id, pinned_sha, context, notices, state, reason, finished_at,
                       switch_to, review_parts)
    values ($1, $3, $4, sha256(convert_to(coalesce($18, $4), 'UTF8')), $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
            case when $14 = 'queued' then null else now() end, $16, $17)
    returning id, conversation_id, worktree_id, state
)
select me.id, line.ahead, line.wait,
       (select pg_notify('{TURN_WAITS}', w.node) is not null from worktrees w
        where w.id = me.worktree_id and me.state = 'queued') as rings
from me cross join lateral ({_LINE}) line
"""  # noqa: S608 - of constants

WHY_TURNS_WAIT = f"""
select me.id, o.obstacle, me.reason, line.ahead, line.wait,
       (select conversation from conversation_names where id = line.behind and id <> me.conversation_id) as behind,
       (select held_until from held_repositories h
        where (h.platform, h.repository_id) = (me.queue_platform, me.queue_repository_id)) as held_until,
       (select removal_error from directories_in_the_way d
        where d.worktree_id = me.worktree_id and removal_error is not null limit 1) as removal_error,
       coalesce(n.name, '') as node,
       coalesce(n.heartbeat_at < now() - make_interval(secs => $3), false) as node_is_silent,
       (select count(*) from turns r where r.state = 'running' and r.queue_node = me.queue_node) as running,
       (select count(*) from turns r
        where r.state = 'running' and (r.queue_node, r.queue_platform, r.queue_repository_id)
                                      = (me.queue_node, me.queue_platform, me.queue_repository_id)) as running_here
from turns me
join turn_obstacles($2) o on o.turn_id = me.id
cross join lateral ({_LINE}) line
left join nodes n on n.id = me.queue_node
where me.id = any ($1::bigint[])
"""  # noqa: S608 - of constants

LAST_NOT_DONE = """
-- None once its text has expired.
select id, request, pinned_sha, context from turns
where conversation_id = $1 and state in ('failed', 'stopped', 'timed-out', 'interrupted', 'refused')
  and request is not null
order by id desc limit 1
"""

ASKED_IN = """
select c.kind, c.title, c.closed_at, t.requested_by_id from turns t join conversations c on c.id = t.conversation_id
where t.id = $1
"""

LOCK_UNFINISHED = """
select id from turns where conversation_id = $1 and state in ('queued', 'running') order by id for update
"""

STOP_RUNNING = """
update turns set stop_requested_at = now(), stop_reason = $2
where conversation_id = $1 and state = 'running' and stop_requested_at is null and asked_at < $3
  and ($4::bigint is null or id = $4)
returning id
"""

STOP_QUEUED = """
update turns set state = 'stopped', reason = $2, finished_at = now()
where conversation_id = $1 and state = 'queued' and asked_at < $3 and ($4::timestamptz is null or not_before > $4)
  and ($5::bigint is null or id = $5)
returning id, requested_by, source_kind, source_id, answer, notices, read,
          array(select words from steps where turn_id = turns.id order by place) as steps
"""


@dataclass(frozen=True, slots=True)
class StoppedTurn:
    """A turn that ended while it waited. `answer` is its agent's, if the agent was done."""

    id: int
    requested_by: str
    target: Target
    answer: str | None
    notices: tuple[str, ...]
    read: tuple[str, ...]
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BeforeATurn:
    """What a turn that is to be queued depends on. Without `may_have_rescue`, none of the thread's work was rescued.

    `turns_today`: how many turns the person got in the last 24 hours.
    """

    may_have_rescue: bool
    is_being_removed: bool
    turns_today: int


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A turn that was written, and its place: so many turns go before it, of which the first waits for `wait`."""

    id: int
    ahead: int
    wait: str | None


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """A queued turn, and why it waits. Without an obstacle, its node claims it as soon as it has room.

    `reason` belongs to the obstacle `time`, `held_until` to `github-limit`. `removal_error`: why a directory that is in
    its way cannot be removed. `ahead` and `wait` as in `Enqueued`; `behind`: the thread of the first of these, if it is
    another one. `running` turns are on its `node`, `running_here` of its repository.
    """

    id: int
    obstacle: Obstacle | None
    reason: str | None
    ahead: int
    wait: str | None
    behind: str | None
    held_until: datetime | None
    removal_error: str | None
    node: str
    node_is_silent: bool
    running: int
    running_here: int


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to be enqueued. `seen`: the text as a person sees it, where that matters for `is_repeated`."""

    text: str
    requested_by: str
    requested_by_id: int
    asked_at: datetime
    target: Target
    review_id: int | None = None
    pinned_sha: str | None = None
    context: str = ""
    notices: tuple[str, ...] = ()
    review_parts: tuple[int, ...] = ()
    seen: str | None = None


async def enqueue(
    connection: Connection,
    conversation_id: int,
    worktree_id: int | None,
    request: NewTurn,
    now: datetime,
    refused: str | None = None,
    switch_to: str | None = None,
) -> Enqueued:
    """Enqueue a turn and ring its node, or record it as `refused` with that reason.

    `switch_to`: the branch that the worktree is to have when the turn runs there.
    """
    row = await connection.fetchrow(
        ENQUEUE_TURN,
        conversation_id,
        now,
        worktree_id,
        request.text,
        request.requested_by,
        request.requested_by_id,
        request.asked_at,
        request.target.kind,
        request.target.id,
        request.review_id,
        request.pinned_sha,
        request.context,
        request.notices,
        "refused" if refused else "queued",
        refused,
        switch_to,
        request.review_parts,
        request.seen,
    )
    return read(Enqueued, row)


async def join_turn_of_review(
    connection: Connection, conversation_id: int, review_id: int, part: int, text: str, context: str
) -> bool | None:
    """Return whether the review's turn was asked `part`, whose text and context are added while the turn waits.

    None where the review has no turn; False where its turn began without this part.
    """
    row = await connection.fetchrow(REVIEW_TURN, conversation_id, review_id, part)
    if row is None:
        return None
    return row["is_held"] or await connection.fetchval(ADD_REVIEW_PART, row["id"], part, text, context) is not None


async def is_repeated(connection: Connection, conversation_id: int, seen: str, asked_at: datetime) -> bool:
    """Return whether the text of the thread itself was a request within a minute of `asked_at` already."""
    return bool(await connection.fetchval(SAME_TEXT_WITHIN_A_MINUTE, conversation_id, seen, asked_at))


async def before_a_turn(connection: Connection, conversation_id: int, person_id: int) -> BeforeATurn:
    """Return what is known before a turn of this person is queued in the thread."""
    return read(BeforeATurn, await connection.fetchrow(BEFORE_A_TURN, conversation_id, person_id))


async def why_turns_wait(
    connection: Connection, turn_ids: Sequence[int], silent_after_seconds: float, now: datetime
) -> list[WaitingTurn]:
    """Return those of the turns that are queued, and why."""
    return await fetch_all(connection, WaitingTurn, WHY_TURNS_WAIT, turn_ids, now, silent_after_seconds)


async def last_not_done(connection: Connection, conversation_id: int) -> dict[str, Any] | None:
    """Return the last request that did not end as done, or None."""
    row = await connection.fetchrow(LAST_NOT_DONE, conversation_id)
    return dict(row) if row else None


async def asked_in(connection: Connection, turn_id: int) -> dict[str, Any] | None:
    """Return the person's id, and the kind, title and close of the thread in which a turn was asked; or None."""
    row = await connection.fetchrow(ASKED_IN, turn_id)
    return dict(row) if row else None


async def lock_unfinished(connection: Connection, conversation_id: int) -> None:
    """Let none of the thread's turns be claimed, put back or ended until the caller's transaction ends."""
    await connection.execute(LOCK_UNFINISHED, conversation_id)


async def stop_running(
    connection: Connection, conversation_id: int, reason: str, asked_before: datetime, turn_id: int | None = None
) -> list[int]:
    """Ask the running turn to stop if it was requested before that time, or is `turn_id`; its process is notified."""
    return await fetch_column(connection, STOP_RUNNING, conversation_id, reason, asked_before, turn_id)


async def stop_queued(
    connection: Connection,
    conversation_id: int,
    reason: str,
    asked_before: datetime,
    put_back_at: datetime | None = None,
    turn_id: int | None = None,
) -> list[StoppedTurn]:
    """End the waiting turns that were requested before that time, and return them.

    With `put_back_at`, only those that began and were put back until a time after it; with `turn_id`, only that one.
    """
    values = (conversation_id, reason, asked_before, put_back_at, turn_id)
    return await fetch_all(connection, StoppedTurn, STOP_QUEUED, *values)
