"""Messages: requests that the agent of a running turn of their thread is told, instead of turns of their own.

`requests.joins` names that turn. A message is `taken` before the agent is told and `ended` after it: a run that dies in
between leaves it to the run that resumes the turn, or to its own turn.
"""

from dataclasses import dataclass

from bot.ask import Ask
from bot.store.database import Connection, Pool, statement
from bot.store.turns import Claim, under_claim

MESSAGE_WAITS = "threadtree_message"
"""The channel on which the process of a running turn hears that there is a message for it: the turn's id."""
MOST_MESSAGES = 30
"""So many for one turn; Claude Code names at most 64 in a result. What comes later waits for a turn of its own."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request that joins the running turn `joins`; `turn_id` is its own."""

    turn_id: int
    joins: int
    ask: Ask


@statement(f"""
with joining as (
    update requests r set joins = running.id
    from turns mine, turns running
    where r.turn_id = $1 and mine.id = $1 and mine.state = 'queued' and mine.switch_to is null
      and running.conversation_id = mine.conversation_id and running.worktree_id = mine.worktree_id
      and running.state = 'running' and running.stop_requested_at is null
      and not exists (select from requests first where first.turn_id = running.id and first.ask ? 'pinned_sha')
    returning r.joins
)
select pg_notify('{MESSAGE_WAITS}', joins::text) from joining
""")  # noqa: S608 - of a constant
async def offer(connection: Connection, turn_id: int) -> None:
    """Offer a queued request to the agent of the running turn of its thread, if there is one, and tell its process."""


@statement("""
-- The thread's oldest waiting request, so that none is overtaken; not behind a reset of another thread or the like, and
-- not once the session has ended.
select r.turn_id, r.joins, r.ask
from turns me join requests r on r.joins = me.id join turns t on t.id = r.turn_id
where me.id = $1 and me.claim = $2 and me.stop_requested_at is null and t.state = 'queued'
  and t.id = (select min(e.id) from turns e where e.conversation_id = me.conversation_id and e.state = 'queued')
  and exists (select from sessions s where s.id = me.session_id and s.active)
  and not exists (select from turns e
                  where e.worktree_id = me.worktree_id and e.state in ('queued', 'running') and not e.needs_agent
                    and e.id < t.id)
  and (select count(*) from requests told where told.joins = me.id and told.is_told) < $3
""")
async def next_for(connection: Connection, claim: Claim, most: int = MOST_MESSAGES) -> Message | None:
    """Return the next request that the turn's agent may be told, if there is one."""


@statement("""
with me as (select id from turns where id = $1 and claim = $2 and stop_requested_at is null for no key update),
     mine as (select id from turns where id = $3 and state = 'queued' for no key update)
update requests r set is_told = true, ask = $4 from me, mine
where r.turn_id = mine.id and r.joins = me.id returning true
""")
async def take(connection: Connection, claim: Claim, message: int, ask: Ask) -> bool:
    """Take a message for the turn, in the words that stand on GitHub by now; False if one of both is to stop."""


@statement("update requests set is_told = false where turn_id = $1")
async def give_back(connection: Connection, message: int) -> None:
    """Leave a message that the agent did not take to its own turn."""


@under_claim("""
with me as (select id, stop_requested_at from turns where id = $1 and claim = $2 for no key update), ended as (
    update turns t set state = 'done', reason = $4, finished_at = now()
    from me where t.id = $3 and t.state = 'queued' and me.stop_requested_at is null returning t.id
)
select exists (select from ended) from me
""")
async def end(connection: Connection, claim: Claim, message: int, reason: str) -> bool:
    """End the message's own turn, for the agent has it; False if one of both is to stop. Raises ClaimLostError."""


@statement("""
select (r.ask #>> '{target,id}')::bigint from turns t join requests r on r.joins = t.id
where t.session_id = $1 and r.is_told
""")
async def told_in(connection: Connection, session: int) -> set[int]:
    """Return the comments that the agent knows as messages of this session."""


@statement("""
-- What was told in the runs of a turn, and of the turns whose request it repeats. A message that ran is none.
select r.turn_id, r.joins, r.ask
from requests own
join requests same on same.turn_id in (own.turn_id, own.retry_of) or same.retry_of = own.retry_of
join requests r on r.joins = same.turn_id join turns t on t.id = r.turn_id
where own.turn_id = $1 and same.conversation_id = own.conversation_id and r.is_told and t.started_at is null
  and (t.state = 'done' or ($2 and t.state = 'queued' and r.joins = own.turn_id))
order by r.turn_id
""")
async def told(connection: Connection | Pool, turn_id: int, *, also_taken: bool = False) -> list[Message]:
    """Return what was added to the request of a turn while its agent worked, in all runs, oldest first.

    `also_taken`: also what a run had taken that was cut off then, for the next run tells it.
    """
