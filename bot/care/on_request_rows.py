"""Rows of what an operator asks of a whole node, of an orphan on it, or of a rescue there: jobs of the node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from bot.node.node_rows import SILENT_AFTER_SECONDS
from bot.store.database import Connection, Pool, statement
from bot.store.jobs import NewJob, defer, lock_queues, queue_of
from bot.store.scope import Scope

OperationKind = Literal["prune", "repair", "remove", "restore", "drop"]

ENQUEUE = """
-- Of one node, or of those that live or have files.
insert into operations (node, kind, details, requested_by)
select n.id, $1, $2::text::jsonb, $3 from nodes n
where n.id = $4 or ($4 is null and (n.heartbeat_at > now() - make_interval(secs => $5)
                                    or exists (select from worktrees w where w.node = n.id and w.state <> 'removed')
                                    or exists (select from orphans o where o.node = n.id)))
order by n.name, n.id returning id, node
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """What is carried out on a node; `details` are JSON."""

    id: int
    kind: OperationKind
    details: str
    requested_by: str


async def enqueue(
    connection: Connection,
    kind: OperationKind,
    details: Mapping[str, object],
    requested_by: str,
    node: str | None = None,
) -> list[int]:
    """Enqueue an operation of a node, or one on each node, in the caller's transaction; return their ids.

    Those of a node run one at a time.
    """
    said = orjson.dumps(details).decode()
    rows = await connection.fetch(ENQUEUE, kind, said, requested_by, node, SILENT_AFTER_SECONDS)
    for row in rows:
        lock = f"upkeep:{row['node']}"
        await lock_queues(connection, [lock])
        await defer(connection, NewJob(queue_of(row["node"]), "node", lock, {"operation": row["id"]}))
    return [row["id"] for row in rows]


@statement("""
update operations set state = 'running' where id = $1 and node = $2 and state in ('queued', 'running')
returning id, kind, details, requested_by
""")
async def begin(connection: Connection, operation_id: int, node: str) -> Operation | None:
    """Begin an operation of the node, or go on with one that was cut off; None where it has ended."""


@statement("""
update operations set state = $3, outcome = $4, report = nullif($5, 'null')::jsonb, turn_id = $6, finished_at = now()
where id = $1 and node = $2 and state = 'running'
""")
async def finish(
    connection: Connection,
    operation_id: int,
    node: str,
    state: Literal["done", "failed"],
    outcome: str,
    report: str = "null",
    turn_id: int | None = None,
) -> None:
    """End it with a sentence for people and a report in JSON, unless another process did.

    `turn_id`: the turn that goes on with it.
    """


@statement("""
update operations o set state = 'failed', finished_at = now(), outcome = $2 || n.name || $3
from nodes n
where n.id = o.node and o.state = 'queued' and n.heartbeat_at < now() - make_interval(secs => $1)
  and o.created_at < now() - make_interval(secs => $1)
returning o.id
""")
async def give_up_silent(connection: Pool, timeout_seconds: float, before: str, after: str) -> list[int]:
    """End what waits for nodes that have been silent for so long, and return it; a node that is back leaves it.

    Its outcome is the node's name between the words `before` and `after`.
    """


@statement("""
update operations set state = 'failed', outcome = $2, finished_at = now() where id = $1 and state = 'queued'
""")
async def withdraw(connection: Pool, operation_id: int, outcome: str) -> None:
    """End an operation that has not begun."""


@statement("""
-- `waits_for`: the name of its machine while that gives no sign of life. `beside`: what was asked of other nodes in the
-- same call.
select o.id, o.kind, n.name as node, n.id as node_id, o.state, o.details, o.outcome, o.report, o.requested_by,
       o.turn_id as turn,
       case when o.finished_at is null and n.heartbeat_at < now() - make_interval(secs => $2) then n.name end
           as waits_for,
       array(select b.id from operations b where b.id between o.id - 100 and o.id + 100 and b.id <> o.id
             and (b.kind, b.created_at) = (o.kind, o.created_at) and b.node <> o.node order by b.id) as beside,
       o.created_at, o.finished_at
from operations o join nodes n on n.id = o.node
where o.id = $1 and threadtree_sees($3, $4, null, null)
""")
async def described(
    connection: Connection | Pool,
    operation_id: int,
    silent_after_seconds: float = SILENT_AFTER_SECONDS,
    *,
    scope: Scope,
) -> dict[str, Any] | None:
    """Return an operation as the operator sees it, or None; `details` and `report` are JSON."""
