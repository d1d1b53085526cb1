"""Operations on a worktree, in line with its turns: enqueued, claimed by the worktree's job, ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import orjson

from bot.model import Target, WorktreeRow, WorktreeState
from bot.store.claims import claims_of_node
from bot.store.database import Connection, read, statement
from bot.store.jobs import defer_on_node, ring_for_work
from bot.store.nodes import SILENT_AFTER_SECONDS
from bot.store.scope import EVERYTHING, Scope
from bot.store.turns import ClaimLostError

OperationKind = Literal["create", "reset", "restore", "remove", "pull-request", "describe", "drop"]
NodeOperationKind = Literal["prune", "repair", "remove", "restore"]
"""What is asked of a whole node, or of an orphan on it."""
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

RESTORE_BEFORE = """
-- Before the newest turn that waits on the thread, in the worktree of that turn; not twice.
insert into operations (worktree_id, kind, turn_id, requested_by, asked_at)
select t.worktree_id, 'restore', t.id, r.requested_by, r.asked_at
from turns t join requests r on r.turn_id = t.id
where t.id = (select max(id) from turns where conversation_id = $1 and state = 'queued')
  and not exists (select from operations o where o.worktree_id = t.worktree_id and o.state in ('queued', 'running'))
returning (select node from worktrees where id = worktree_id)
"""

BEGIN = """
-- Also one that is carried out: the job of its worktree runs again, so the process that had it is gone or suspended.
-- Whoever has it may end it meanwhile.
update operations set state = 'running'
where id = (select id from due_operations where node = $1 and worktree_id = $2) and state in ('queued', 'running')
"""

FINISH = """
update operations set state = $3, outcome = $4, finished_at = now()
where id = $1 and worktree_id = $2 and state = 'running' returning id
"""

ENQUEUE_ON_NODES = """
-- Of one node, or of those that live or have files.
insert into operations (node, kind, details, requested_by, asked_at)
select n.id, $1, $2::text::jsonb, $3, $4 from nodes n
where n.id = $5 or ($5 is null and (n.heartbeat_at > now() - make_interval(secs => $6)
                                    or exists (select from worktrees w where w.node = n.id and w.state <> 'removed')
                                    or exists (select from orphans o where o.node = n.id)))
order by n.name, n.id returning id, node
"""

Channel = Literal["API", "dashboard", "command line"]
"""Where an operator asks."""
_LIVE = frozenset[WorktreeState]({"reserved", "ready"})


def fits(kind: OperationKind, state: WorktreeState | Literal["orphan"]) -> bool:
    """Return whether an operation of this kind can be carried out on a worktree in this state."""
    if state == "orphan":
        return kind in ("remove", "restore")
    return kind == "drop" or state in _LIVE or (state == "removed" and kind not in ("create", "reset"))


@dataclass(frozen=True, slots=True)
class PullRequestAsked:
    """What `/pr` asks for; `title` is None where the bot finds one."""

    draft: bool
    title: str | None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that is carried out, with everything needed for that.

    The answer goes to `conversation_id`, at `target`, in the comment `reply_id` of the outbox where there is one
    already; or into the reply of `turn_id`; or, without either, to the operator who asked. `number` is that of the
    thread that asked. `home_of`: the conversation in whose HOME its set-up script runs, 0 where none uses it.
    `outcome`: what was done, while that runs.
    """

    id: int
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
    home_of: int
    outcome: str | None

    @property
    def others(self) -> tuple[int, ...]:
        """The numbers of the other threads that use the worktree; none for an operator, who is on no thread."""
        return tuple(one for one in self.worktree.conversations if self.number not in (None, one))


@dataclass(frozen=True, slots=True)
class NodeOperation:
    """An operation of a whole node that is carried out; `details` are JSON."""

    id: int
    kind: NodeOperationKind
    details: str
    requested_by: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A queued operation that was ended; `target` asked for it, `reply_id` is the outbox's comment that tells of it."""

    kind: OperationKind
    target: Target | None
    reply_id: int | None


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """The state of an operation: its end, or how many turns go before it."""

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


def by_operator(channel: Channel, at: datetime, login: str | None = None) -> RequestedBy:
    """Return the request of an operator, whose `login` may be known."""
    return RequestedBy(f"{login or 'the operator'}, by the {channel}", at)


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
    if kind == "describe":  # one is enough: that of the last push
        await connection.execute(
            "delete from operations where worktree_id = $1 and kind = $2 and state = 'queued'", worktree_id, kind
        )
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


async def enqueue_on_nodes(
    connection: Connection,
    kind: NodeOperationKind,
    details: Mapping[str, object],
    asker: RequestedBy,
    node: str | None = None,
) -> list[int]:
    """Enqueue an operation of a node, or one on each node, in the caller's transaction; return their ids."""
    said, who = orjson.dumps(details).decode(), (asker.requested_by, asker.asked_at)
    rows = await connection.fetch(ENQUEUE_ON_NODES, kind, said, *who, node, SILENT_AFTER_SECONDS)
    for row in rows:
        await defer_on_node(connection, row["node"], row["id"])
    return [row["id"] for row in rows]


@statement("""
update operations set state = 'running' where id = $1 and node = $2 and state in ('queued', 'running')
returning id, kind, details, requested_by
""")
async def begin_on_node(connection: Connection, operation_id: int, node: str) -> NodeOperation | None:
    """Begin an operation of the node, or go on with one that was cut off; None where it has ended."""


@statement("""
update operations set state = $3, outcome = $4, report = nullif($5, 'null')::jsonb, finished_at = now()
where id = $1 and node = $2 and state = 'running'
""")
async def finish_on_node(
    connection: Connection, operation_id: int, node: str, state: Literal["done", "failed"], outcome: str, report: str
) -> None:
    """End it with a sentence for people and a report in JSON, unless another process did."""


async def move_to_worktree(connection: Connection, operation_id: int, node: str, worktree_id: int) -> None:
    """Go on with it as an operation of that worktree."""
    moves = "update operations set worktree_id = $3, node = null, state = 'queued' where id = $1 and node = $2"
    await connection.execute(f"{moves} and state = 'running'", operation_id, node, worktree_id)
    await ring_for_work(connection, node)


@statement("update operations set reply_id = $2 where id = $1")
async def note_reply(connection: Connection, operation_id: int, reply_id: int) -> None:
    """Record the outbox's comment that tells of the queued operation."""


async def restore_before_newest_turn(connection: Connection, conversation_id: int) -> None:
    """Enqueue a restore before the thread's newest waiting turn and ring its node; that turn's reply tells of it."""
    if (node := await connection.fetchval(RESTORE_BEFORE, conversation_id)) is not None:
        await ring_for_work(connection, node)


async def begin(connection: Connection, node: str, worktree_id: int) -> Operation | None:
    """Begin the operation of the worktree that may be carried out now, from the worktree's job; None without any."""
    async with claims_of_node(connection, node):
        await connection.execute(BEGIN, node, worktree_id)
        return await begun(connection, node, worktree_id)


@statement("""
select o.*,
       (select c.number from conversations c where c.id = o.conversation_id) as number,
       coalesce((select c.title from conversations c where c.id = o.conversation_id), '') as thread_title,
       (select t.conversation_id from turns t where t.id = o.turn_id) as turn_conversation_id,
       coalesce(o.conversation_id, (select c.id from conversations c where c.worktree_id = o.worktree_id
                                    order by c.number limit 1), 0) as home_of, w.*
from operations o
join worktree_rows w on w.worktree_id = o.worktree_id
where o.id = (select id from due_operations where node = $1 and worktree_id = $2) and o.state = 'running'
""")
async def begun(connection: Connection, node: str, worktree_id: int) -> Operation | None:
    """Return the operation that is carried out in the worktree, None where it has ended or moved to another node."""


@statement("update operations set outcome = $2 where id = $1")
async def note_made(connection: Connection, operation_id: int, words: str) -> None:
    """Record what was done, before its set-up script runs."""


@statement("""
-- In the worktree of a thread.
update operations o set stopping = true from conversations c
where c.id = $1 and o.worktree_id = c.worktree_id and o.state = 'running' and o.outcome is not null returning true
""")
async def stop_setup(connection: Connection, conversation_id: int) -> bool | None:
    """Let the set-up script end that runs beside any turn in the thread's worktree; None if there is none."""


@statement(
    "select stopping from operations where id = $1 and worktree_id = $2 and state = 'running'", otherwise=ClaimLostError
)
async def is_stopping(connection: Connection, operation_id: int, worktree_id: int) -> bool:
    """Return whether its set-up script is to end. Raises ClaimLostError if the operation has ended."""


async def finish(
    connection: Connection, operation: Operation, state: Literal["done", "failed"], outcome: str, node: str
) -> None:
    """End it with a sentence for people, and ring for what waited behind it. Raises ClaimLostError if it has ended."""
    if await connection.fetchval(FINISH, operation.id, operation.worktree.id, state, outcome) is None:
        raise ClaimLostError
    await ring_for_work(connection, node)


@statement("""
-- The queued operations of a closed thread, including those before one of its turns.
update operations set state = 'failed', outcome = $3, finished_at = now()
where state = 'queued' and asked_at < $2
  and (conversation_id = $1 or turn_id in (select id from turns where conversation_id = $1))
returning kind, source_kind, source_id, reply_id
""")
async def withdraw(
    connection: Connection, conversation_id: int, asked_before: datetime, outcome: str
) -> list[Withdrawn]:
    """End the queued operations that the thread asked for before that time, and return them."""


@statement("select exists (select from operations where worktree_id = $1 and state in ('queued', 'running'))")
async def is_busy(connection: Connection, worktree_id: int) -> bool:
    """Return whether an operation on the worktree waits or runs."""


@statement("""
update operations set state = 'failed', outcome = $2, finished_at = now()
where id = $1 and (state = 'queued' or (state = 'running' and $3))
""")
async def abandon(connection: Connection, operation_id: int, outcome: str, *, also_begun: bool = False) -> None:
    """End an operation that no process has begun, or with `also_begun` one whose process is gone."""


@statement("""
-- `waits_for`: the name of its machine while that gives no sign of life. `beside`: what was asked of other nodes in the
-- same call.
select o.id, o.kind, o.worktree_id as worktree, n.name as node, n.id as node_id, o.state, o.details,
       case when o.finished_at is not null then o.outcome end as outcome, o.report, o.requested_by,
       (select count(*) from turns t where t.worktree_id = o.worktree_id
        and t.state in ('queued', 'running') and t.id <= o.after_turn) as turns_ahead,
       case when o.finished_at is null and n.heartbeat_at < now() - make_interval(secs => $2) then n.name end
           as waits_for,
       array(select b.id from operations b where b.id between o.id - 100 and o.id + 100 and b.id <> o.id
             and (b.kind, b.created_at) = (o.kind, o.created_at) and b.node <> o.node order by b.id) as beside,
       o.created_at, o.finished_at
from operations o left join worktrees w on w.id = o.worktree_id left join nodes n on n.id = coalesce(w.node, o.node)
where o.id = $1 and threadtree_sees($3, $4, w.platform, w.repository_id)
""")
async def described(
    connection: Connection, operation_id: int, silent_after_seconds: float = SILENT_AFTER_SECONDS, *, scope: Scope
) -> dict[str, Any] | None:
    """Return an operation as the operator sees it, or None; `details` and `report` are JSON."""


async def status_of(connection: Connection, operation_id: int) -> OperationStatus:
    """Return the state of an operation."""
    return read(OperationStatus, await described(connection, operation_id, scope=EVERYTHING) or {})
