"""A claimed turn: what its run reads and writes, its end, and runs that were cut off."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from bot.ask import Ask
from bot.model import Conversation, ThreadRef, WorktreeRow
from bot.store.database import Connection, P, Pool, Statement, T, statement

TurnState = Literal["queued", "running", "done", "failed", "stopped", "timed-out", "interrupted", "refused"]


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn that ended: its conversation as `owner/repo#number`, and the bot's comment once it is on GitHub.

    `outcome` is in a word; `check` is JSON, None where there was none.
    """

    conversation: str
    state: TurnState
    reason: str | None
    outcome: str | None
    check: str | None
    requested_by: str
    comment_url: str | None
    pull_request: str | None
    finished_at: datetime | None


MOST_STEPS = 1000
MOST_OUTPUT_BYTES = 512 * 1024
"""All outputs of one turn's steps: when they are so many, no more are kept."""
LONGEST_STEP = 300
"""In characters. Agents name their steps."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run one turn. Every effect of the run is written under it; a lost claim writes nothing."""

    turn_id: int
    token: UUID
    worker: str

    @property
    def key(self) -> tuple[int, UUID]:
        """What statements about the turn begin with."""
        return self.turn_id, self.token


@dataclass(frozen=True, slots=True)
class Use:
    """The cost of a turn in US dollars and its tokens, as its agent tells them, and the model; None where unknown."""

    cost_usd: float | None = None
    tokens: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Counted(Use):
    """What counts of a turn's use. `beyond_usd` was told beyond the turn's limit just now, and does not count."""

    beyond_usd: float | None = None


@dataclass(frozen=True, slots=True)
class SoFar:
    """What earlier runs of a turn have left, in the columns `SO_FAR`.

    `thread_answers` are those in threads of inline comments, each after the comment's id and a space. `kept` is what
    its kind keeps beside the answer, as JSON.
    """

    answer: str | None
    notices: tuple[str, ...]
    read: tuple[str, ...]
    steps: tuple[str, ...]
    thread_answers: tuple[str, ...]
    kept: str | None
    agent: str | None
    use: Use
    resuming: bool
    """It was cut off or put back, and goes on."""
    was_put_back: bool
    waiting_since: datetime | None
    asks_since: datetime | None

    @property
    def began_with(self) -> str | None:
        """The agent of a run that goes on."""
        return self.agent if self.resuming else None


SO_FAR = """
t.answer, t.notices, t.read, array(select words from steps where turn_id = t.id order by place) as steps,
t.thread_answers, t.kept, t.agent, t.cost_usd, t.tokens, t.model, t.resuming,
t.not_before is not null as was_put_back, t.waiting_since, t.asks_since
"""
CONVERSATION = """
coalesce(c.id, 0) as conversation_id, coalesce(c.number, 0) as number, coalesce(c.kind, 'issue') as kind,
coalesce(c.title, '') as title, c.closed_at, c.agent as chosen_agent, c.model as chosen_model
"""


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """A turn with everything that its run needs, as it was when it was claimed.

    `switch_to`: the branch that its worktree is to have.
    """

    claim: Claim
    ask: Ask
    conversation: Conversation
    worktree: WorktreeRow
    needs_agent: bool
    switch_to: str | None
    created_at: datetime
    started_at: datetime
    so_far: SoFar

    @property
    def id(self) -> int:
        """The turn's id."""
        return self.claim.turn_id


@dataclass(frozen=True, slots=True)
class TurnOfThread:
    """A turn that no run has: its thread, its worktree, and what its runs have left."""

    ask: Ask
    thread_ref: ThreadRef
    conversation: Conversation
    worktree_id: int
    so_far: SoFar


class ClaimLostError(Exception):
    """The run was replaced or ended elsewhere: it stops and writes nothing more."""


def under_claim(sql: str) -> Callable[[Callable[P, Awaitable[T]]], Statement[P, T]]:
    """Let the function execute a statement about the turn $1 whose claim is $2, or raise ClaimLostError."""
    return statement(sql, ClaimLostError)


@under_claim("""
-- Locked until the transaction ends: what it writes next does not come after the words of a process that ends the turn.
select case when stop_requested_at is not null then stop_reason end from turns where id = $1 and claim = $2 for share
""")
async def stop_requested(connection: Connection, claim: Claim) -> str | None:
    """Return the reason to stop, or None to go on. Raises ClaimLostError if the run was replaced."""


@under_claim("""
update turns set answer = $3, notices = $4, thread_answers = $5, kept = $6::text::jsonb,
                 description = coalesce($7, description)
where id = $1 and claim = $2 returning id
""")
async def save_answer(
    connection: Connection,
    claim: Claim,
    answer: str,
    notices: tuple[str, ...],
    in_threads: tuple[str, ...],
    kept: str | None = None,
    description: str | None = None,
) -> None:
    """Save the agent's answers before anything is pushed: a run that is resumed does not ask the agent again.

    `kept` is what the turn's kind keeps beside the answer, as JSON; `description` is that of the pull request, which
    stays as it is without a new one.
    """


@under_claim("update turns set notices = $3 where id = $1 and claim = $2 returning id")
async def save_notices(connection: Connection, claim: Claim, notices: tuple[str, ...]) -> None:
    """Save what the reply is to say so far. Raises ClaimLostError."""


@statement("select ask from requests where turn_id = $1")
async def ask_of(connection: Connection | Pool, turn_id: int) -> Ask | None:
    """Return what was asked, None without such a turn."""


@under_claim("""
with mine as (select id from turns where id = $1 and claim = $2 for no key update)
update requests set ask = $3 from mine where turn_id = mine.id returning turn_id
""")
async def save_ask(connection: Connection, claim: Claim, ask: Ask) -> None:
    """Record the request as it is asked by now."""


@under_claim("""
update turns set read = $3, read_whole_thread = $4, waiting_since = null where id = $1 and claim = $2 returning id
""")
async def record_read(connection: Connection, claim: Claim, read: tuple[str, ...], *, whole_thread: bool) -> None:
    """Record what the agent is given to read, right before it gets its prompt."""


@statement("""
-- Only a request whose prompt held all that was new: what could not be read then is still new.
select max(asked_at) from turns join requests on turn_id = id
where session_id = $1 and id < $2 and read_whole_thread
""")
async def last_read_in(connection: Connection, session: int, turn_id: int) -> datetime | None:
    """Return the time of the last request before this turn with which the session was told the whole thread."""


@statement("""
-- The answers that the session does not know: to a new one the last fifty, to a resumed one ($4: since when) those of
-- other threads that share its worktree, and what was taken back.
select number, answer from (
    select t.id, c.number, t.answer from turns t join conversations c on c.id = t.conversation_id
    where c.worktree_id = $1 and t.state = 'done' and t.answer <> '' and t.id <> $2
      and (t.needs_agent or t.undoes is not null)
      and ($4::timestamptz is null or ((c.id <> $3 or t.undoes is not null) and t.finished_at > $4))
    order by t.id desc limit 50) newest
order by id
""")
async def earlier_answers(
    connection: Connection, worktree_id: int, turn_id: int, conversation_id: int, since: datetime | None
) -> list[tuple[int, str]]:
    """Return the last answers in the turn's worktree that its session does not know, each with its thread's number.

    `since` is None for a new session. The oldest comes first.
    """


@statement("select 1 from turns where conversation_id = $1 and id < $2 and $3 = any (notices) limit 1")
async def was_told(connection: Connection, conversation_id: int, turn_id: int, notice: str) -> bool:
    """Return whether the reply of an earlier turn of the conversation had the notice."""


@under_claim("""
with mine as (update turns set head_before = coalesce(head_before, $5) where id = $1 and claim = $2
              returning worktree_id, head_before)
update worktrees w set state = 'ready', branch = $3, base_branch = $4, updated_at = now()
from mine where w.id = mine.worktree_id returning mine.head_before
""")
async def save_worktree(
    connection: Connection, claim: Claim, branch: str | None, base_branch: str | None, head: str
) -> str:
    """Record that the worktree is made; return the commit at which the turn began: `head`, unless it is resumed."""


@under_claim("""
with mine as (select worktree_id from turns where id = $1 and claim = $2 for no key update)
update worktrees w set setup_done = true from mine where w.id = mine.worktree_id returning w.id
""")
async def record_setup(connection: Connection, claim: Claim) -> None:
    """Record that the set-up script succeeded in the turn's worktree. Raises ClaimLostError."""


@statement("select id, assistant_session_id, agent from sessions where conversation_id = $1 and active")
async def active_session(connection: Connection, conversation_id: int) -> tuple[int, str | None, str] | None:
    """Return (id, the agent's own id, the agent) of the active session, or None."""


@under_claim("""
insert into sessions (conversation_id, agent, assistant_session_id)
select t.conversation_id, $3, $4 from turns t where t.id = $1 and t.claim = $2
returning id
""")
async def start_session(connection: Connection, claim: Claim, agent: str, assistant_session_id: str) -> int:
    """Start a session of the turn's conversation; return its id."""


@under_claim("""
-- The session is active now, so it does not expire.
with mine as (update turns set session_id = $3, agent = (select s.agent from sessions s where s.id = $3)
              where id = $1 and claim = $2 returning id)
update sessions set last_active_at = now(), models = $4 where id = $3 and exists (select from mine) returning id
""")
async def use_session(connection: Connection, claim: Claim, session_id: int, models: Sequence[str] = ()) -> None:
    """Record that the turn runs in this session, whose agent offers these models."""


@under_claim("""
-- Agents report the cost of the session so far: the cost of the turn is what its runs added to that, up to its limit.
-- What was told last is where the next turn begins: a figure that was too large once hides nothing that follows.
with session as (
    select s.id, coalesce(t.cost_usd, 0) + greatest($3 - s.cost_usd, 0) as told
    from turns t join sessions s on s.id = t.session_id
    where t.id = $1 and t.claim = $2 and $3::double precision is not null for update of s
), summed as (
    update sessions s set cost_usd = $3 from session where s.id = session.id
)
update turns t set tokens = coalesce($4, t.tokens), model = coalesce($5, t.model),
                   cost_usd = case when told is null then t.cost_usd else least(told, $6) end
from (select (select told from session) as told) as cost
where t.id = $1 and t.claim = $2
returning t.cost_usd, t.tokens, t.model, greatest(told - $6, 0) as beyond_usd
""")
async def record_use(
    connection: Connection,
    claim: Claim,
    session_cost_usd: float | None,
    tokens: int | None,
    model: str | None,
    most_usd: float,
) -> Counted:
    """Record the cost of the session so far, the turn's tokens and its model; return what counts of it for the turn.

    None is what is not known: what is recorded stays. May be repeated.
    """


@statement("""
insert into steps (turn_id, place, words, output)
select t.id, new.place, left(new.words, $6), case when kept.bytes < $8 then new.output end
from turns t, unnest($3::integer[], $4::text[], $5::text[]) as new (place, words, output),
     (select coalesce(sum(octet_length(output)), 0) as bytes from steps where turn_id = $1) as kept
where t.id = $1 and t.claim = $2 and new.place <= $7
on conflict (turn_id, place) do update set words = excluded.words, output = coalesce(excluded.output, steps.output)
""")
async def save_steps(
    connection: Connection,
    claim: Claim,
    places: Sequence[int],
    words: Sequence[str],
    outputs: Sequence[str | None],
    longest: int = LONGEST_STEP,
    most: int = MOST_STEPS,
    most_output: int = MOST_OUTPUT_BYTES,
) -> None:
    """Write steps of the turn by their place, up to MOST_STEPS, with outputs; those of a lost claim are dropped."""


@statement("""
update turns set plan = $3, latest_words = $4, phase = $5, tokens = $6, model = $7
where id = $1 and claim = $2
""")
async def save_progress(
    connection: Connection,
    claim: Claim,
    plan: Sequence[str],
    latest_words: str,
    phase: str | None,
    tokens: int | None,
    model: str | None,
) -> None:
    """Write the agent's plan, each entry after its state and a space, the end of what it says, the phase before, and
    the tokens so far with the model.
    """


@under_claim("""
-- The time of a worktree that is being removed stays: it is when the removal was decided.
with ended as (
    update turns set state = $3, reason = $4, notices = coalesce($5, notices), outcome = $6::text::jsonb,
                     -- Where no agent was asked, the cost is known.
                     cost_usd = coalesce(cost_usd, case when session_id is null then 0 end),
                     finished_at = now(), claim = null, worker = null
    where id = $1 and claim = $2 returning id, session_id, worktree_id
), session as (
    update sessions s set last_active_at = now() from ended where s.id = ended.session_id
), worktree as (
    update worktrees w set updated_at = now()
    from ended where w.id = ended.worktree_id and w.is_live
)
select id from ended
""")
async def end(
    connection: Connection,
    claim: Claim,
    state: TurnState,
    reason: str | None,
    notices: tuple[str, ...] | None = None,
    outcome: str | None = None,
) -> None:
    """End the turn and free its worktree for the next one; `notices` None leaves the earlier ones.

    `outcome` is JSON, None where the state says it.
    """


@statement("""
select conversation, state, reason, outcome, "check", requested_by, comment_url, pull_request, finished_at
from listed_turns where id = $1
""")
async def ended(connection: Pool | Connection, turn_id: int) -> EndedTurn | None:
    """Return a turn for the message about its end."""


@statement("""
-- Another run resumes the turn, at its old place. After a crash ($3) only once: the caller then ends it.
update turns set state = 'queued', claim = null, worker = null, resuming = true, not_before = null,
                 asks_since = null, cut_offs = cut_offs + $3::boolean::integer
where id = $1 and claim = $2 and not ($3 and cut_offs > 0) returning id
""")
async def requeue(connection: Connection, claim: Claim, *, crashed: bool = False) -> bool:
    """Queue a running turn again because its process stops, or `crashed`; False if the claim was lost.

    False also if the turn's process crashed before.
    """


@under_claim("""
-- The turn keeps its place. If it goes on then ($8), the wait does not count as its time; else it starts anew.
with mine as (
    select id, stop_requested_at is null as goes_on from turns where id = $1 and claim = $2 for no key update
), put_back as (
    update turns t set state = 'queued', claim = null, worker = null, reason = $3, not_before = $4, waiting_since = $6,
                       notices = $7, resuming = resuming or $8, blocked_by = $9,
                       asks_since = case when $10 then coalesce(asks_since, $5) end,
                       started_at = case when $8 then started_at + ($4::timestamptz - $5::timestamptz) end
    from mine where t.id = mine.id and mine.goes_on
)
select goes_on from mine
""")
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
    blocked_by: Sequence[str] | None = None,
    asks: bool = False,
) -> bool:
    """Queue a running turn again, not to be claimed before `until`; False if it is to stop. Raises ClaimLostError.

    `goes_on`: its agent has begun, so what the run has done counts then. `blocked_by`: the issues that it waits for;
    with `asks`, for what a person says about them.
    """


@dataclass(frozen=True, slots=True)
class EndOfTurn:
    """How a turn ended, for the operator who asked for it: in one sentence, or in the Markdown of what was done."""

    state: TurnState
    verb: str
    worktree_id: int
    words: str


@statement("""
select t.state, r.verb, t.worktree_id, coalesce(t.reason, t.answer, '') as words
from turns t join requests r on r.turn_id = t.id where t.id = $1 and t.finished_at is not null
""")
async def end_of(connection: Pool, turn_id: int) -> EndOfTurn | None:
    """Return how a turn ended, None before."""


@statement("select n.id, n.name from turns t join nodes n on n.id = t.queue_node where t.id = $1")
async def node_of(connection: Connection, turn_id: int) -> tuple[str, str] | None:
    """Return the id and the name of the node on which a turn waits."""


@statement("""
select t.id as turn_id, t.claim as token, t.worker from turns t join worktrees w on w.id = t.worktree_id
where t.state = 'running' and w.node = $1
""")
async def running_on(connection: Connection, node: str) -> list[Claim]:
    """Return all claims on this node."""


@statement(f"""
select b.*, r.ask, t.worktree_id, {CONVERSATION}, {SO_FAR}
from turns t join requests r on r.turn_id = t.id
join conversations c on c.id = t.conversation_id
join codebases b on (b.platform, b.repository_id) = (c.platform, c.repository_id)
where t.id = $1
""")  # noqa: S608 - of constants
async def of_thread(connection: Connection, turn_id: int) -> TurnOfThread | None:
    """Return a turn of a thread, None where an operator asked."""
