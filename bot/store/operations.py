"""Operations on a worktree, in line with its turns: enqueued, claimed by the worktree's job, ended."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID, uuid4

from bot.model import Target, WorktreeRow, WorktreeState
from bot.store.claims import claims_of_node
from bot.store.database import Connection, fetch_all, fetch_one, read
from bot.store.doorbell import ring_for_work
from bot.store.nodes import SILENT_AFTER_SECONDS
from bot.store.turns import ClaimLostError

OperationKind = Literal["create", "reset", "restore", "remove", "pull-request", "drop"]
OperationState = Literal["queued", "running", "done", "failed"]

ENQUEUE = """
-- Queued behind the turns that wait or run there now. The row of the worktree is locked, so that no transaction that
-- does not see this row yet releases it.
with place as (select id, node from worktrees where id = $1 for no key update)
insert into operations (worktree_id, kind, conversation_id, source_kind, source_id, requested_by, asked_at, draft,
                        title, rescue_id, after_turn)
select place.id, $2, $3, $4, $5, $6, $7, $8, $9, $10,
       coalesce((select t.id from turns t where t.worktree_id = $1 and t.state in ('queued', 'running')
                 order by t.id desc limit 1), 0)
from place returning id, (select node from place)
"""

NOTE_REPLY = """
update operations set reply_id = $2 where id = $1
"""

RESTORE_BEFORE = """
-- Before the newest turn that waits on the thread, in the worktree of that turn; not twice.
insert into operations (worktree_id, kind, turn_id, requested_by, asked_at)
select t.worktree_id, 'restore', t.id, t.requested_by, t.asked_at
from turns t
where t.id = (select max(id) from turns where conversation_id = $1 and state = 'queued')
  and not exists (select from operations o where o.worktree_id = t.worktree_id and o.state in ('queued', 'running'))
returning (select node from worktrees where id = worktree_id)
"""

CLAIM = """
-- Also one that is carried out: the job of its worktree runs again, so the process that had it is gone or suspended.
update operations set state = 'running', claim = $3
where id = (select id from due_operations where node = $1 and worktree_id = $2) returning id
"""

CLAIMED = """
select o.*, o.id as operation_id, o.claim as token,
       (select c.number from conversations c where c.id = o.conversation_id) as number,
       coalesce((select c.title from conversations c where c.id = o.conversation_id), '') as thread_title,
       (select t.conversation_id from turns t where t.id = o.turn_id) as turn_conversation_id, w.*
from operations o
join worktree_rows w on w.worktree_id = o.worktree_id
where o.id = $1
"""

IS_CLAIMED = """
select exists (select from operations where id = $1 and claim = $2 for no key update)
"""

FINISH = """
update operations set state = $3, outcome = $4, finished_at = now(), claim = null
where id = $1 and claim = $2 returning id
"""

WITHDRAW = """
-- The queued operations of a closed thread, including those before one of its turns.
update operations set state = 'failed', outcome = $3, finished_at = now()
where state = 'queued' and asked_at < $2
  and (conversation_id = $1 or turn_id in (select id from turns where conversation_id = $1))
returning kind, source_kind, source_id, reply_id
"""

IS_BUSY = """
select exists (select from operations where worktree_id = $1 and state in ('queued', 'running'))
"""

ABANDON = """
update operations set state = 'failed', outcome = $2, finished_at = now(), claim = null
where id = $1 and (state = 'queued' or (state = 'running' and $3))
"""

STATUS = """
select o.worktree_id, o.state, o.outcome,
       (select count(*) from turns t where t.worktree_id = o.worktree_id
        and t.state in ('queued', 'running') and t.id <= o.after_turn) as turns_ahead
from operations o where o.id = $1
"""


DESCRIBED = """
-- `waits_for`: the name of its machine while that gives no sign of life.
select o.id, o.kind, o.worktree_id as worktree, o.state, o.outcome, o.requested_by,
       (select count(*) from turns t where t.worktree_id = o.worktree_id
        and t.state in ('queued', 'running') and t.id <= o.after_turn) as turns_ahead,
       case when o.state = 'queued' and n.heartbeat_at < now() - make_interval(secs => $2) then n.name end as waits_for,
       o.created_at, o.finished_at
from operations o join worktrees w on w.id = o.worktree_id left join nodes n on n.id = w.node where o.id = $1
"""

Channel = Literal["API", "dashboard", "command line"]
"""Where an operator asks."""
_LIVE = frozenset[WorktreeState]({"reserved", "ready"})


def fits(kind: OperationKind, state: WorktreeState) -> bool:
    """Return whether an operation of this kind can be carried out on a worktree in this state."""
    return kind == "drop" or state in _LIVE or (state == "removed" and kind not in ("create", "reset"))


@dataclass(frozen=True, slots=True)
class OperationClaim:
    """The right to carry out one operation. Its end is written under it; a lost claim writes nothing."""

    operation_id: int
    token: UUID


@dataclass(frozen=True, slots=True)
class PullRequestAsked:
    """What `/pr` asks for; `title` is None where the bot finds one."""

    draft: bool
    title: str | None


@dataclass(frozen=True, slots=True)
class ClaimedOperation:
    """An operation with everything needed to carry it out, as it was when it was claimed.

    The answer goes to `conversation_id`, at `target`, in the comment `reply_id` of the outbox where there is one
    already; or into the reply of `turn_id`; or, without either, to the operator who asked. `number` is that of the
    thread that asked.
    """

    claim: OperationClaim
    kind: OperationKind
    worktree: WorktreeRow
    conversation_id: int | None
    target: Target | None
    turn_id: int | None
    reply_id: int | None
    requested_by: str
    asked_at: datetime
    created_at: datetime
    number: int | None
    thread_title: str
    turn_conversation_id: int | None
    pull_request: PullRequestAsked | None
    rescue_id: int | None
    """The rescue that is to be dropped or restored; None for the restore of the latest one."""

    @property
    def id(self) -> int:
        """The operation's id."""
        return self.claim.operation_id

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of the other threads that use the worktree."""
        return tuple(number for number in self.worktree.conversations if number != self.number)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A queued operation that was ended; `target` asked for it, `reply_id` is the outbox's comment that tells of it."""

    kind: OperationKind
    target: Target | None
    reply_id: int | None


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """The state of an operation: its end, or how many turns go before it."""

    worktree_id: int
    state: OperationState
    outcome: str | None
    turns_ahead: int


@dataclass(frozen=True, slots=True)
class RequestedBy:
    """The request for an operation; the answer goes to its thread, or to no thread if an operator asked."""

    requested_by: str
    asked_at: datetime
    conversation_id: int | None = None
    target: Target | None = None


def by_operator(channel: Channel, at: datetime) -> RequestedBy:
    """Return the request of an operator."""
    return RequestedBy(f"the operator, by the {channel}", at)


async def enqueue(
    connection: Connection,
    worktree_id: int,
    kind: OperationKind,
    asker: RequestedBy,
    pull_request: PullRequestAsked | None = None,
    rescue_id: int | None = None,
) -> int:
    """Enqueue an operation and ring its node, in the caller's transaction; return its id.

    `pull_request` says more of the kind `pull-request`, `rescue_id` of `drop`, and of the `restore` of one rescue.
    """
    target = asker.target
    row = await connection.fetchrow(
        ENQUEUE,
        worktree_id,
        kind,
        asker.conversation_id,
        target.kind if target else None,
        target.id if target else None,
        asker.requested_by,
        asker.asked_at,
        pull_request.draft if pull_request else None,
        pull_request.title if pull_request else None,
        rescue_id,
    )
    await ring_for_work(connection, row["node"])
    operation_id: int = row["id"]
    return operation_id


async def note_reply(connection: Connection, operation_id: int, reply_id: int) -> None:
    """Record the outbox's comment that tells of the queued operation."""
    await connection.execute(NOTE_REPLY, operation_id, reply_id)


async def restore_before_newest_turn(connection: Connection, conversation_id: int) -> None:
    """Enqueue a restore before the thread's newest waiting turn and ring its node; that turn's reply tells of it."""
    if (node := await connection.fetchval(RESTORE_BEFORE, conversation_id)) is not None:
        await ring_for_work(connection, node)


async def claim(connection: Connection, node: str, worktree_id: int) -> ClaimedOperation | None:
    """Claim the operation of the worktree that may be carried out now, from the worktree's job; None without any."""
    async with claims_of_node(connection, node):
        claimed = await connection.fetchval(CLAIM, node, worktree_id, uuid4())
        return None if claimed is None else await fetch_one(connection, ClaimedOperation, CLAIMED, claimed)


async def check_claim(connection: Connection, claim: OperationClaim) -> None:
    """Raise ClaimLostError if the operation was claimed again or ended; else it is not before the transaction ends."""
    if not await connection.fetchval(IS_CLAIMED, claim.operation_id, claim.token):
        raise ClaimLostError


async def finish(
    connection: Connection, claim: OperationClaim, state: Literal["done", "failed"], outcome: str, node: str
) -> None:
    """End it with a sentence for people, and ring for what waited behind it. Raises ClaimLostError."""
    if await connection.fetchval(FINISH, claim.operation_id, claim.token, state, outcome) is None:
        raise ClaimLostError
    await ring_for_work(connection, node)


async def withdraw(
    connection: Connection, conversation_id: int, asked_before: datetime, outcome: str
) -> list[Withdrawn]:
    """End the queued operations that the thread asked for before that time, and return them."""
    return await fetch_all(connection, Withdrawn, WITHDRAW, conversation_id, asked_before, outcome)


async def is_busy(connection: Connection, worktree_id: int) -> bool:
    """Return whether an operation on the worktree waits or runs."""
    found: bool = await connection.fetchval(IS_BUSY, worktree_id)
    return found


async def abandon(connection: Connection, operation_id: int, outcome: str, *, also_begun: bool = False) -> None:
    """End an operation that no process has begun, or with `also_begun` one whose process is gone."""
    await connection.execute(ABANDON, operation_id, outcome, also_begun)


async def status_of(connection: Connection, operation_id: int) -> OperationStatus:
    """Return the state of an operation."""
    return read(OperationStatus, await connection.fetchrow(STATUS, operation_id))


async def described(connection: Connection, operation_id: int) -> dict[str, object] | None:
    """Return an operation as the operator sees it, or None."""
    row = await connection.fetchrow(DESCRIBED, operation_id, SILENT_AFTER_SECONDS)
    return dict(row) if row else None
