"""A claimed turn: what its run reads and writes, its end, and runs that were cut off."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from bot.model import Target, ThreadKind, ThreadRef, TurnState, WorktreeRow
from bot.store.database import Connection, fetch_all, fetch_one, read

MOST_STEPS = 1000
LONGEST_STEP = 300
"""In characters. Agents name their steps."""

SAVE_ANSWER = """
update turns set answer = $3, notices = $4 where id = $1 and claim = $2 returning id
"""

SAVE_PROGRESS = """
update turns set plan = $3, latest_words = $4, phase = $5 where id = $1 and claim = $2
"""

STOP_REQUEST = """
-- Locked until the transaction ends: what it writes next does not come after the words of a process that ends the turn.
select stop_requested_at is not null as stopping, stop_reason from turns where id = $1 and claim = $2 for share
"""

RECORD_READ = """
update turns set read = $3, read_whole_thread = $4, waiting_since = null where id = $1 and claim = $2 returning id
"""

LAST_READ_IN_SESSION = """
-- Only a request whose prompt held all that was new: what could not be read then is still new.
select max(asked_at) from turns where session_id = $1 and id < $2 and read_whole_thread
"""

EARLIER_ANSWERS = """
-- The answers that the session does not know, newest first: to a new one all, to a resumed one ($4: since when) those
-- of other threads that share its worktree.
select c.number, t.answer from turns t join conversations c on c.id = t.conversation_id
where c.worktree_id = $1 and t.state = 'done' and t.answer <> '' and t.id <> $2
  and ($4::timestamptz is null or (c.id <> $3 and t.finished_at > $4))
order by t.id desc limit 3
"""

RECORD_USE = """
-- Agents report the cost of the session so far: the cost of the turn is the difference.
with told as (
    select t.id, s.id as session_id, s.cost_usd as before, $3::double precision as sum
    from turns t join sessions s on s.id = t.session_id
    where t.id = $1 and t.claim = $2 for update of s
), summed as (
    update sessions s set cost_usd = greatest(told.before, told.sum)
    from told where s.id = told.session_id and told.sum is not null
)
update turns t set tokens = $4, model = left($5, 100),
                   cost_usd = case when told.sum is not null then greatest(told.sum - told.before, 0) end
from told where t.id = told.id returning t.cost_usd, t.tokens
"""

ADD_STEPS = """
with mine as (select id from turns where id = $1 and claim = $2)
insert into steps (turn_id, place, words)
select mine.id, new.place + (select count(*) from steps where turn_id = $1), left(new.words, $4)
from mine, unnest($3::text[]) with ordinality as new (words, place)
where new.place + (select count(*) from steps where turn_id = $1) <= $5
"""

END_TURN = """
-- The time of a worktree that is being removed stays: it is when the removal was decided.
with ended as (
    update turns set state = $3, reason = $4, notices = coalesce($5, notices), finished_at = now(),
                     claim = null, worker = null
    where id = $1 and claim = $2 returning id, session_id, worktree_id
), session as (
    update sessions s set last_active_at = now() from ended where s.id = ended.session_id
), worktree as (
    update worktrees w set updated_at = now()
    from ended where w.id = ended.worktree_id and w.is_live
)
select id from ended
"""

REQUEUE_TURN = """
-- Another run resumes the turn, at its old place. After a crash ($3) only once: the caller then ends it.
update turns set state = 'queued', claim = null, worker = null, resuming = true, not_before = null,
                 cut_offs = cut_offs + $3::boolean::integer
where id = $1 and claim = $2 and not ($3 and cut_offs > 0) returning id
"""

PUT_TURN_BACK = """
-- The turn keeps its place. If it goes on then ($7), the wait does not count as its time; else it starts anew.
update turns set state = 'queued', claim = null, worker = null, reason = $3, not_before = $4, waiting_since = $5,
                 notices = $6, resuming = resuming or $7,
                 started_at = case when $7 then started_at + ($4::timestamptz - $8::timestamptz) end
where id = $1 and claim = $2 and stop_requested_at is null returning id
"""

RUNNING_ON_NODE = """
select t.id as turn_id, t.claim as token, t.worker from turns t join worktrees w on w.id = t.worktree_id
where t.state = 'running' and w.node = $1
"""

THREAD_OF_TURN = """
select b.*,
       t.conversation_id, t.worktree_id, t.requested_by, t.source_kind, t.source_id, c.number, t.answer, t.notices,
       array(select words from steps where turn_id = t.id order by place) as steps
from turns t
join conversations c on c.id = t.conversation_id
join codebases b on (b.platform, b.repository_id) = (c.platform, c.repository_id)
where t.id = $1
"""

SAVE_WORKTREE = """
with mine as (update turns set head_before = coalesce(head_before, $5) where id = $1 and claim = $2
              returning worktree_id, head_before)
update worktrees w set state = 'ready', branch = $3, base_branch = $4, updated_at = now()
from mine where w.id = mine.worktree_id returning mine.head_before
"""

RECORD_SETUP = """
with mine as (select worktree_id from turns where id = $1 and claim = $2 for no key update)
update worktrees w set setup_done = true from mine where w.id = mine.worktree_id returning w.id
"""

ACTIVE_SESSION = """
select id, assistant_session_id from sessions where conversation_id = $1 and active
"""

START_SESSION = """
insert into sessions (conversation_id, agent, assistant_session_id)
select t.conversation_id, $3, $4 from turns t where t.id = $1 and t.claim = $2
returning id
"""

USE_SESSION = """
-- The session is active now, so it does not expire.
with mine as (update turns set session_id = $3, agent = (select s.agent from sessions s where s.id = $3)
              where id = $1 and claim = $2 returning id)
update sessions set last_active_at = now() where id = $3 and exists (select from mine) returning id
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run one turn. Every effect of the run is written under it; a lost claim writes nothing."""

    turn_id: int
    token: UUID
    worker: str


@dataclass(frozen=True, slots=True)
class Use:
    """The cost of a turn in US dollars and in tokens; None where the agent does not report it."""

    cost_usd: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """A turn with everything that its run needs, as it was when it was claimed.

    `review_parts` are what it was asked of a review: inline comments by id, its own text by the review's id, negated.
    `steps` are those of the agent before the turn was cut off or put back.
    """

    claim: Claim
    conversation_id: int
    number: int
    kind: ThreadKind
    title: str
    request: str
    requested_by: str
    requested_by_id: int
    asked_at: datetime
    target: Target
    pinned_sha: str | None
    context: str
    notices: tuple[str, ...]
    read: tuple[str, ...]
    resuming: bool
    answer: str | None
    started_at: datetime
    use: Use
    worktree: WorktreeRow
    switch_to: str | None = None
    review_parts: tuple[int, ...] = ()
    was_put_back: bool = False
    waiting_since: datetime | None = None
    steps: tuple[str, ...] = ()

    @property
    def id(self) -> int:
        """The turn's id."""
        return self.claim.turn_id


@dataclass(frozen=True, slots=True)
class TurnThread:
    """The thread and the worktree of a turn; `target` is what asked for it. `answer` is the saved one, if any."""

    thread_ref: ThreadRef
    number: int
    worktree_id: int
    requested_by: str
    target: Target
    answer: str | None
    notices: tuple[str, ...]
    steps: tuple[str, ...]


class ClaimLostError(Exception):
    """The run was replaced or ended elsewhere: it stops and writes nothing more."""


async def stop_requested(connection: Connection, claim: Claim) -> str | None:
    """Return the reason to stop, or None to go on. Raises ClaimLostError if the run was replaced."""
    row = await connection.fetchrow(STOP_REQUEST, claim.turn_id, claim.token)
    if row is None:
        raise ClaimLostError
    return row["stop_reason"] if row["stopping"] else None


async def write_under(connection: Connection, claim: Claim, statement: str, *args: object) -> Any:
    """Execute a statement about the turn $1 whose claim is $2; return its value. Raises ClaimLostError without one."""
    value = await connection.fetchval(statement, claim.turn_id, claim.token, *args)
    if value is None:
        raise ClaimLostError
    return value


async def save_answer(connection: Connection, claim: Claim, answer: str, notices: tuple[str, ...]) -> None:
    """Save the agent's answer before anything is pushed: a run that is resumed does not ask the agent again."""
    await write_under(connection, claim, SAVE_ANSWER, answer, notices)


async def record_read(connection: Connection, claim: Claim, read: tuple[str, ...], *, whole_thread: bool) -> None:
    """Record what the agent is given to read, right before it gets its prompt."""
    await write_under(connection, claim, RECORD_READ, read, whole_thread)


async def last_read_in(connection: Connection, session: int, turn_id: int) -> datetime | None:
    """Return the time of the last request before this turn with which the session was told the whole thread."""
    last: datetime | None = await connection.fetchval(LAST_READ_IN_SESSION, session, turn_id)
    return last


async def earlier_answers(
    connection: Connection, turn: ClaimedTurn, since: datetime | None
) -> tuple[tuple[int, str], ...]:
    """Return the last answers in the turn's worktree that its session does not know, each with its thread's number.

    `since` is None for a new session. The newest comes first.
    """
    rows = await connection.fetch(EARLIER_ANSWERS, turn.worktree.id, turn.id, turn.conversation_id, since)
    return tuple((row["number"], row["answer"]) for row in rows)


async def add_notice(connection: Connection, turn_id: int, notice: str) -> None:
    """Add a notice to the reply of a turn that waits."""
    await connection.execute(
        "update turns set notices = notices || $2::text where id = $1 and state = 'queued'", turn_id, notice
    )


async def save_worktree(
    connection: Connection, claim: Claim, branch: str | None, base_branch: str | None, head: str
) -> str:
    """Record that the worktree is made; return the commit at which the turn began: `head`, unless it is resumed."""
    head_before: str = await write_under(connection, claim, SAVE_WORKTREE, branch, base_branch, head)
    return head_before


async def record_setup(connection: Connection, claim: Claim) -> None:
    """Record that the set-up script succeeded in the turn's worktree. Raises ClaimLostError."""
    await write_under(connection, claim, RECORD_SETUP)


async def active_session(connection: Connection, conversation_id: int) -> tuple[int, str | None] | None:
    """Return (id, the agent's own id) of the active session, or None."""
    row = await connection.fetchrow(ACTIVE_SESSION, conversation_id)
    return (row["id"], row["assistant_session_id"]) if row else None


async def start_session(connection: Connection, claim: Claim, agent: str, assistant_session_id: str) -> int:
    """Start a session of the turn's conversation; return its id."""
    return int(await write_under(connection, claim, START_SESSION, agent, assistant_session_id))


async def use_session(connection: Connection, claim: Claim, session_id: int) -> None:
    """Record that the turn runs in this session."""
    await write_under(connection, claim, USE_SESSION, session_id)


async def record_use(
    connection: Connection, claim: Claim, session_cost_usd: float | None, tokens: int | None, model: str | None
) -> Use:
    """Record the cost of the session so far, the turn's tokens and its model; return what the turn itself cost."""
    told = claim.turn_id, claim.token, session_cost_usd, tokens, model
    use = await fetch_one(connection, Use, RECORD_USE, *told)
    if use is None:
        raise ClaimLostError
    return use


async def add_steps(connection: Connection, claim: Claim, steps: Sequence[str]) -> None:
    """Add to the steps of the turn, up to MOST_STEPS; those of a lost claim are dropped."""
    await connection.execute(ADD_STEPS, claim.turn_id, claim.token, steps, LONGEST_STEP, MOST_STEPS)


async def save_progress(
    connection: Connection, claim: Claim, plan: Sequence[str], latest_words: str, phase: str | None
) -> None:
    """Write the agent's plan, each entry after its state and a space, the end of what it says, and the phase before."""
    await connection.execute(SAVE_PROGRESS, claim.turn_id, claim.token, plan, latest_words, phase)


async def end(
    connection: Connection,
    claim: Claim,
    state: TurnState,
    reason: str | None,
    notices: tuple[str, ...] | None = None,
) -> None:
    """End the turn and free its worktree for the next one; `notices` None leaves the earlier ones."""
    await write_under(connection, claim, END_TURN, state, reason, notices)


async def requeue(connection: Connection, claim: Claim, *, crashed: bool = False) -> bool:
    """Queue a running turn again because its process stops, or `crashed`; False if the claim was lost.

    False also if the turn's process crashed before.
    """
    return await connection.fetchval(REQUEUE_TURN, claim.turn_id, claim.token, crashed) is not None


async def put_back(
    connection: Connection,
    claim: Claim,
    reason: str,
    until: datetime,
    now: datetime,
    since: datetime | None,
    notices: tuple[str, ...],
    *,
    goes_on: bool,
) -> bool:
    """Queue a running turn again, not to be claimed before `until`; False if it is to stop. Raises ClaimLostError.

    `goes_on`: its agent has begun, so what the run has done counts then.
    """
    row = PUT_TURN_BACK, claim.turn_id, claim.token, reason, until, since, notices, goes_on, now
    if await connection.fetchval(*row) is not None:
        return True
    await stop_requested(connection, claim)
    return False


async def running_on(connection: Connection, node: str) -> list[Claim]:
    """Return all claims on this node."""
    return await fetch_all(connection, Claim, RUNNING_ON_NODE, node)


async def thread_of(connection: Connection, turn_id: int) -> TurnThread:
    """Return the thread of the turn's answer."""
    return read(TurnThread, await connection.fetchrow(THREAD_OF_TURN, turn_id))
