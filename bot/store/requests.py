"""The queue of turns from the side of the requests: enqueueing, places in line, stopping."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bot.model import Target, TurnMode, UnfinishedTurn, WaitingTurn
from bot.store.database import Connection, statement
from bot.store.jobs import TURN_WAITS

REVIEW_TURN = """
select turn_id, $3 = any (review_parts) as is_held from requests join turns t on t.id = turn_id
where requests.conversation_id = $1 and review_id = $2 for update
"""

COLLECTING_TURN = """
-- That has not begun.
select t.id from turns t join requests r on r.turn_id = t.id
where t.conversation_id = $1 and t.state = 'queued' and t.started_at is null and t.waiting_since is null
  and t.requested_by_id = $2 and r.collects
order by t.id limit 1 for update
"""

ADD_REVIEW_PART = """
-- An answer that is saved is not asked for again. Several remarks get one answer, which is in no thread of theirs.
update requests set text = text || E'\\n\\n' || $3, review_parts = review_parts || $2::bigint,
                    source_kind = case when collects then 'review' else source_kind end,
                    source_id = case when collects then review_id else source_id end,
                    hash = sha256(convert_to(text || E'\\n\\n' || $3, 'UTF8')),
                    context = ltrim(context || E'\\n\\n' || $4, E'\\n')
from turns t where turn_id = $1 and t.id = turn_id and t.state = 'queued' and t.answer is null returning turn_id
"""

_LINE = """
-- How many turns run or wait before `me` in its worktree or thread, the first one's thread, and its wait at {now}.
select count(*) as ahead,
       (array_agg(case when ahead.state = 'queued' and ahead.not_before > {now} then ahead.reason end
                  order by ahead.id))[1] as wait,
       (array_agg(ahead.conversation_id order by ahead.id))[1] as behind
from turns ahead
where ahead.id < me.id and ahead.state in ('queued', 'running')
  and (ahead.worktree_id = me.worktree_id or ahead.conversation_id = me.conversation_id)
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
    """A turn that was written, and its place: so many turns go before it, of which the first waits for `wait`.

    `is_set_up`: the set-up script of an operation runs in its worktree.
    """

    id: int
    ahead: int
    wait: str | None
    is_set_up: bool


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to be enqueued. `seen`: the text as a person sees it, where that matters for `is_repeated`.

    `retry_of`: the turn whose request this repeats. `agent`: the one that the request names. `plan_of`: the turn whose
    plan it carries out. `collects_until`: it waits until then for further remarks, which join it.
    """

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
    retry_of: int | None = None
    mode: TurnMode = "work"
    agent: str | None = None
    plan_of: int | None = None
    collects_until: datetime | None = None


@statement(f"""
-- With its place in line; its node's doorbell rings when the transaction commits.
with me as (
    insert into turns (conversation_id, worktree_id, requested_by_id, notices, state, reason, finished_at, switch_to,
                       not_before)
    values ($1, $2, $5, $12, case when $21::text is null then 'queued' else 'refused' end, coalesce($21, $23),
            case when $21 is not null then now() end, $22, $19)
    returning id, conversation_id, worktree_id, state
), asked as (
    insert into requests (turn_id, conversation_id, text, hash, requested_by, asked_at, source_kind, source_id,
                          review_id, pinned_sha, context, review_parts, retry_of, mode, agent, plan_of, collects)
    select id, $1, $3, sha256(convert_to(coalesce($14, $3), 'UTF8')), $4, $6, $7, $8, $9, $10, $11, $13, $15, $16, $17,
           $18, $19::timestamptz is not null
    from me
)
select me.id, line.ahead, line.wait,
       exists (select from operations o where o.worktree_id = me.worktree_id and o.state = 'running'
                                          and o.outcome is not null) as is_set_up,
       (select pg_notify('{TURN_WAITS}', w.node) is not null from worktrees w
        where w.id = me.worktree_id and me.state = 'queued') as rings
from me cross join lateral ({_LINE.format(now="$20")}) line
""")  # noqa: S608 - of constants
async def enqueue(
    connection: Connection,
    conversation_id: int,
    worktree_id: int | None,
    request: NewTurn,
    now: datetime,
    refused: str | None = None,
    switch_to: str | None = None,
    waits: str | None = None,
) -> Enqueued:
    """Enqueue a turn and ring its node, or record it as `refused` with that reason.

    `switch_to`: the branch that the worktree is to have when the turn runs there. `waits` says why it does not run yet.
    """


async def join_turn_of_review(
    connection: Connection, conversation_id: int, review_id: int, part: int, text: str, context: str
) -> bool | None:
    """Return whether the review's turn was asked `part`, whose text and context are added while the turn waits.

    None where the review has no turn; False where its turn began without this part.
    """
    row = await connection.fetchrow(REVIEW_TURN, conversation_id, review_id, part)
    if row is None:
        return None
    return row["is_held"] or await connection.fetchval(ADD_REVIEW_PART, row["turn_id"], part, text, context) is not None


async def join_remarks(
    connection: Connection, conversation_id: int, person_id: int, part: int, text: str, context: str
) -> bool:
    """Add a remark to the turn that collects the person's remarks; return whether there is one."""
    turn_id = await connection.fetchval(COLLECTING_TURN, conversation_id, person_id)
    return await connection.fetchval(ADD_REVIEW_PART, turn_id, part, text, context) is not None


@statement("""
update turns t set not_before = null, reason = null from requests r
where t.conversation_id = $1 and t.state = 'queued' and t.started_at is null and t.waiting_since is null
  and r.turn_id = t.id and r.collects
""")
async def collect_no_more(connection: Connection, conversation_id: int) -> None:
    """Let turns that wait for further remarks begin: one that comes after them does not wait for that."""


@statement("""
-- Events with the same text within a minute (opened, labelled, assigned) are one request. The agent that one of them
-- names is asked, if it is the same person's and waits.
with same as (
    select turn_id from requests
    where conversation_id = $1 and source_kind in ('issue', 'pull') and review_id is null
      and hash = sha256(convert_to($2, 'UTF8')) and abs(extract(epoch from asked_at - $3)) <= 60
), named as (
    update requests r set agent = $4 from same, turns t
    where r.turn_id = same.turn_id and t.id = r.turn_id and t.state = 'queued' and t.requested_by_id = $5
      and r.agent is null and $4::text is not null
)
select exists (select from same)
""")
async def is_repeated(
    connection: Connection, conversation_id: int, seen: str, asked_at: datetime, agent: str | None, person_id: int
) -> bool:
    """Return whether the text of the thread itself was a request within a minute of `asked_at` already.

    That gets the `agent` that a label of the person names, unless it has begun.
    """


@statement("""
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
""")
async def before_a_turn(connection: Connection, conversation_id: int, person_id: int) -> BeforeATurn:
    """Return what is known before a turn of this person is queued in the thread."""


@statement(f"""
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
cross join lateral ({_LINE.format(now="$2")}) line
left join nodes n on n.id = me.queue_node
where me.id = any ($1::bigint[]) and me.state = 'queued' order by me.id
""")  # noqa: S608 - of constants
async def why_turns_wait(
    connection: Connection, turn_ids: Sequence[int], now: datetime, silent_after_seconds: float
) -> list[WaitingTurn]:
    """Return those of the turns that are queued, the oldest first, and why they wait."""


@statement("""
-- What runs comes first, then the queue in its order.
select t.id, t.state, r.requested_by, r.source_kind, r.source_id, c.number, t.started_at,
       coalesce((select words from steps where turn_id = t.id order by place desc limit 1), t.phase) as step,
       (select count(*) from requests told where told.joins = t.id and told.is_told) as messages
from turns t join requests r on r.turn_id = t.id join conversations c on c.id = t.conversation_id
where t.state in ('queued', 'running')
  and (t.conversation_id = $1 or t.worktree_id = (select worktree_id from conversations where id = $1))
order by t.state = 'queued', t.id
""")
async def unfinished(connection: Connection, conversation_id: int) -> list[UnfinishedTurn]:
    """Return the turns that run or wait in a conversation, and those of others in its worktree."""


@statement("""
-- None once its text has expired.
select t.id, r.text as request, r.pinned_sha, r.context, coalesce(r.retry_of, t.id) as first, r.mode, r.agent,
       r.plan_of
from turns t join requests r on r.turn_id = t.id
where t.conversation_id = $1 and t.state in ('failed', 'stopped', 'timed-out', 'interrupted', 'refused')
  and not t.expired
order by t.id desc limit 1
""")
async def last_not_done(connection: Connection, conversation_id: int) -> dict[str, Any] | None:
    """Return the last request that did not end as done, or None."""


@statement("""
select c.kind, c.title, c.closed_at, t.requested_by_id from turns t join conversations c on c.id = t.conversation_id
where t.id = $1
""")
async def asked_in(connection: Connection, turn_id: int) -> dict[str, Any] | None:
    """Return the person's id, and the kind, title and close of the thread in which a turn was asked; or None."""


@statement("""
select id from turns where conversation_id = $1 and state in ('queued', 'running') order by id for update
""")
async def lock_unfinished(connection: Connection, conversation_id: int) -> None:
    """Let none of the thread's turns be claimed, put back or ended until the caller's transaction ends."""


@statement("""
update turns t set stop_requested_at = now(), stop_reason = $2
from requests r
where r.turn_id = t.id and r.asked_at < $3 and ($4::bigint is null or t.id = $4)
  and t.conversation_id = $1 and t.state = 'running' and t.stop_requested_at is null
returning t.id
""")
async def stop_running(
    connection: Connection, conversation_id: int, reason: str, asked_before: datetime, turn_id: int | None = None
) -> list[int]:
    """Ask the running turn to stop if it was requested before that time, or is `turn_id`; its process is notified."""


@statement("""
update turns t set state = 'stopped', reason = $2, finished_at = now()
from requests r
where r.turn_id = t.id and r.asked_at < $3 and ($5::bigint is null or t.id = $5)
  and t.conversation_id = $1 and t.state = 'queued' and ($4::timestamptz is null or t.not_before > $4)
returning t.id, r.requested_by, r.source_kind, r.source_id, t.answer, t.notices, t.read,
          array(select words from steps s where s.turn_id = t.id order by place) as steps
""")
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
