"""Plans: answers of turns that only looked, until a person has them carried out."""

from dataclasses import dataclass

from bot.model import TurnState
from bot.store.database import Connection, Pool, statement
from bot.store.turns import Claim, under_claim


@dataclass(frozen=True, slots=True)
class Plan:
    """A turn that plans, or asks back. `is_kept`: its answer is there, and neither context nor files were reset since.

    `followed_by` is a later request that changes files and did not fail: it carries the plan out, as it is where
    `is_approved`.
    """

    turn_id: int
    state: TurnState
    answer: str
    pinned_sha: str | None
    is_kept: bool
    followed_by: int | None
    is_approved: bool


@statement("""
select p.id as turn_id, p.state, coalesce(p.answer, '') as answer, asked.pinned_sha,
       p.answer <> '' and (s.active or s.end_reason in ('worktree-missing', 'agent-lost', 'agent-changed', 'node-lost'))
           is true as is_kept,
       later.turn_id as followed_by, later.is_approved is true as is_approved
from requests asked
join turns p on p.id = asked.turn_id
left join sessions s on s.id = p.session_id
left join lateral (
    select l.turn_id, l.plan_of is not distinct from p.id as is_approved
    from requests l join turns t on t.id = l.turn_id
    where l.conversation_id = $1 and l.turn_id > p.id and ($2::bigint is null or l.turn_id < $2)
      and l.mode = 'work' and l.mends is null and t.state in ('queued', 'running', 'done')
    order by is_approved desc, l.turn_id limit 1) later on true
where asked.conversation_id = $1 and ($2::bigint is null or asked.turn_id < $2)
  and asked.mode = 'plan' and p.state in ('queued', 'running', 'done')
order by asked.turn_id desc limit 1
""")
async def newest(connection: Pool | Connection, conversation_id: int, before: int | None = None) -> Plan | None:
    """Return the thread's newest plan that did not fail, of the turns `before` that one; None without any."""


@under_claim("""
with mine as (select id from turns where id = $1 and claim = $2 for no key update)
update requests set mode = 'plan', by_outsider = $3 from mine where turn_id = mine.id returning turn_id
""")
async def begin(connection: Connection, claim: Claim, *, by_outsider: bool) -> None:
    """Record that the turn plans, and whether somebody without write access has a say in it."""


@statement("select by_outsider from requests where turn_id = $1")
async def is_by_outsider(connection: Pool | Connection, turn_id: int) -> bool:
    """Return whether somebody without write access has a say in the plan of a turn, as far as is known."""
