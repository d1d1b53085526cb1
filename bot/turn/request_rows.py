"""The queue of turns from the side of the requests: enqueueing, places in line, stopping."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from bot.ask import Ask, Part, UnfinishedTurn
from bot.model import Actor, Target
from bot.store.database import Connection, Pool, statement
from bot.store.jobs import TURN_WAITS, WORK_WAITS
from bot.store.turns import SO_FAR, SoFar
from bot.thread.tracking import WaitingTurn

Channel = Literal["API", "dashboard", "command line"]
"""Where an operator asks."""


@statement("""
-- An answer that is saved is not asked for again.
select r.ask, t.id, t.state = 'queued' and t.answer is null from requests r join turns t on t.id = r.turn_id
where r.conversation_id = $1 and review_id = $2 for update
""")
async def turn_of_review(connection: Connection, conversation_id: int, review_id: int) -> tuple[Ask, int, bool] | None:
    """Return what a review asks, its turn, and whether that waits for its agent."""


@statement("""
-- That has not begun.
select r.ask, t.id from turns t join requests r on r.turn_id = t.id
where t.conversation_id = $1 and t.state = 'queued' and t.started_at is null and t.waiting_since is null
  and t.requested_by_id = $2 and r.ask @> '{"review": {"collects": true}}'
order by t.id limit 1 for update
""")
async def collecting_turn(connection: Connection, conversation_id: int, person_id: int) -> tuple[Ask, int] | None:
    """Return what the turn that collects a person's remarks is asked, and itself."""


@statement("update requests set ask = $2 where turn_id = $1")
async def _save_ask(connection: Connection, turn_id: int, ask: Ask) -> None:
    """Record what is asked by now of a turn that waits; its row is locked."""


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
    """A turn that ended while it waited; it has an answer where its agent was done."""

    id: int
    ask: Ask
    so_far: SoFar


@dataclass(frozen=True, slots=True)
class BeforeATurn:
    """What a turn that is to be queued depends on. Without `may_have_rescue`, none of the thread's work was rescued.

    `turns_today`: how many turns with an agent the person got in the last 24 hours.
    """

    may_have_rescue: bool
    turns_today: int


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A turn that was written, and its place: so many turns go before it, of which the first waits for `wait`."""

    id: int
    ahead: int
    wait: str | None


def operator(channel: Channel, login: str | None = None) -> str:
    """Return how an operator is named, whose `login` may be known."""
    return f"{login or 'the operator'}, by the {channel}"


@statement(f"""
-- With its place in line; its node's doorbell rings when the transaction commits.
with me as (
    insert into turns (conversation_id, worktree_id, requested_by_id, notices, state, reason, finished_at, switch_to,
                       not_before, needs_agent)
    values ($1, $2, nullif(($3::jsonb #>> '{{by,id}}')::bigint, 0), $5,
            case when $6::text is null then 'queued' else 'refused' end, coalesce($6, $8),
            case when $6 is not null then now() end, $7, $9, $10)
    returning id, conversation_id, worktree_id, state
), asked as (
    insert into requests (turn_id, conversation_id, ask) select id, $1, $3 from me
)
select me.id, line.ahead, line.wait,
       (select pg_notify(case when $10 then '{TURN_WAITS}' else '{WORK_WAITS}' end, w.node) is not null from worktrees w
        where w.id = me.worktree_id and me.state = 'queued') as rings
from me cross join lateral ({_LINE.format(now="$4")}) line
""")  # noqa: S608 - of constants
async def enqueue(
    connection: Connection,
    conversation_id: int | None,
    worktree_id: int | None,
    ask: Ask,
    now: datetime,
    notices: Sequence[str] = (),
    refused: str | None = None,
    switch_to: str | None = None,
    waits: str | None = None,
    until: datetime | None = None,
    *,
    needs_agent: bool = True,
) -> Enqueued:
    """Enqueue a turn and ring its node, or record it as `refused` with that reason.

    `switch_to`: the branch that the worktree is to have when the turn runs there. `waits` says why it does not run
    before `until`. `needs_agent`: it may need one.
    """


async def enqueue_for_operator(
    connection: Connection, worktree_id: int, verb: str, words: str, who: str, now: datetime, rescue: int | None = None
) -> int:
    """Enqueue what an operator, `who` as in `operator`, asks of a worktree in the words of the command line; return the
    turn. `rescue` is the one to restore, where that is named.
    """
    of = {} if rescue is None else {"rescue": rescue}
    ask = Ask(words, Actor(who, 0), now, Target("issue"), verb, of=of)
    return (await enqueue(connection, None, worktree_id, ask, now, needs_agent=False)).id


async def join_turn_of_review(connection: Connection, conversation_id: int, review_id: int, part: Part) -> bool | None:
    """Return whether the review's turn was asked `part`, which is added while the turn waits.

    None where the review has no turn; False where its turn began without this part.
    """
    row = await turn_of_review(connection, conversation_id, review_id)
    if row is None:
        return None
    ask, turn_id, waits = row
    if ask.review is not None and part.id in ask.review.parts:
        return True
    if waits:
        await _save_ask(connection, turn_id, ask.joined_by(part))
    return waits


async def join_remarks(connection: Connection, conversation_id: int, person_id: int, part: Part) -> bool:
    """Add a remark to the turn that collects the person's remarks; return whether there is one."""
    row = await collecting_turn(connection, conversation_id, person_id)
    if row is not None:
        ask, turn_id = row
        await _save_ask(connection, turn_id, ask.joined_by(part))
    return row is not None


@statement("""
update turns t set not_before = null, reason = null from requests r
where t.conversation_id = $1 and t.state = 'queued' and t.started_at is null and t.waiting_since is null
  and r.turn_id = t.id and r.ask @> '{"review": {"collects": true}}'
""")
async def collect_no_more(connection: Connection, conversation_id: int) -> None:
    """Let turns that wait for further remarks begin: one that comes after them does not wait for that."""


@statement("""
-- Events with the same text within a minute (opened, labelled, assigned) are one request. The agent that one of them
-- names is asked, if it is the same person's and waits.
with same as (
    select turn_id from requests
    where conversation_id = $1 and ask->>'seen' = $2 and abs(extract(epoch from asked_at - $3)) <= 60
), named as (
    update requests r set ask = ask || jsonb_build_object('agent', $4::text) from same, turns t
    where r.turn_id = same.turn_id and t.id = r.turn_id and t.state = 'queued' and t.requested_by_id = $5
      and r.ask->>'agent' is null and $4::text is not null
)
select exists (select from same)
""")
async def is_repeated(
    connection: Connection, conversation_id: int, seen: str, asked_at: datetime, agent: str | None, person_id: int
) -> bool:
    """Return whether the text of the thread itself, `seen`, was a request within a minute of `asked_at` already.

    That gets the `agent` that a label of the person names, unless it has begun.
    """


@statement("""
select pushed_to from turns where conversation_id = $1 and pushed_to is not null order by id desc limit 1
""")
async def last_pushed_to(connection: Connection | Pool, conversation_id: int) -> str | None:
    """Return the branch that a turn of the conversation pushed last, in whichever worktree; None without one."""


@statement("""
-- Whether work of a thread with this number, in any repository, was rescued; and how many turns with an agent the
-- person $2 got in the last 24 hours.
-- Rescues are counted, for `exists` would not be asked by their index.
select (select count(*) from rescues r where r.conversations @> array[c.number]) > 0 as may_have_rescue,
       (select count(*) from turns where requested_by_id = $2 and needs_agent and state <> 'refused'
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
       (select count(*) from turns r
        where r.state = 'running' and r.needs_agent and r.queue_node = me.queue_node) as running,
       (select count(*) from turns r
        where r.state = 'running' and r.needs_agent and (r.queue_node, r.queue_platform, r.queue_repository_id)
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
select exists (select from turns where worktree_id = $1 and state in ('queued', 'running') and not needs_agent)
""")
async def may_rescue(connection: Connection, worktree_id: int) -> bool:
    """Return whether a turn waits or runs there that may rescue work first, such as a reset."""


@statement("""
-- What runs comes first, then the queue in its order.
select t.id, t.state, r.ask, c.number, t.started_at,
       coalesce((select words from steps where turn_id = t.id order by place desc limit 1), t.phase) as step,
       (select count(*) from requests told where told.joins = t.id and told.is_told) as messages
from turns t join requests r on r.turn_id = t.id left join conversations c on c.id = t.conversation_id
where t.state in ('queued', 'running')
  and (t.conversation_id = $1 or t.worktree_id = (select worktree_id from conversations where id = $1))
order by t.state = 'queued', t.id
""")
async def unfinished(connection: Connection, conversation_id: int) -> list[UnfinishedTurn]:
    """Return the turns that run or wait in a conversation, and those of others in its worktree."""


@statement("""
-- None once its text has expired.
select r.ask, t.id
from turns t join requests r on r.turn_id = t.id
where t.conversation_id = $1 and t.state in ('failed', 'stopped', 'timed-out', 'interrupted', 'refused')
  and not t.expired
order by t.id desc limit 1
""")
async def last_not_done(connection: Connection, conversation_id: int) -> tuple[Ask, int] | None:
    """Return the last request that did not end as done, and its turn."""


@statement("""
select id from turns where conversation_id = $1 and state in ('queued', 'running') order by id for update
""")
async def lock_unfinished(connection: Connection, conversation_id: int) -> None:
    """Let none of the thread's turns be claimed, put back or ended until the caller's transaction ends."""


@statement("""
update turns t set stop_requested_at = now(), stop_reason = $2
from requests r
where r.turn_id = t.id and r.asked_at < $3 and ($4::bigint is null or t.id = $4)
  and (t.conversation_id = $1 or (t.conversation_id is null and t.id = $4))
  and t.state = 'running' and t.stop_requested_at is null
returning t.id
""")
async def stop_running(
    connection: Connection, conversation_id: int, reason: str, asked_before: datetime, turn_id: int | None = None
) -> list[int]:
    """Ask the running turn to stop if it was requested before that time, or is `turn_id`; its process is notified.

    That may be an operator's, who is on no thread.
    """


@statement("""
update turns set state = 'stopped', reason = $2, finished_at = now()
where id = $1 and state = 'queued' and started_at is null
""")
async def withdraw(connection: Pool, turn_id: int, reason: str) -> None:
    """End a turn that has not begun: nobody waits for it any more."""


@statement(f"""
update turns t set state = 'stopped', reason = $2, finished_at = now()
from requests r
where r.turn_id = t.id and r.asked_at < $3 and ($5::bigint is null or t.id = $5)
  and (t.conversation_id = $1 or (t.conversation_id is null and t.id = $5))
  and t.state = 'queued' and ($4::timestamptz is null or t.not_before > $4)
returning t.id, r.ask, {SO_FAR}
""")  # noqa: S608 - of constants
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
