"""Rows of nodes: a node is its DATA_DIR, with an id that is stored there; its name is a label."""

from dataclasses import dataclass
from datetime import datetime

from bot.sharing_rules import NodeLoad
from bot.store.database import Connection, statement

SILENT_AFTER_SECONDS = 30
"""A node without a heartbeat for so long does not work."""
OF_A_MACHINE = 20
"""The connections to Postgres that a worker and its web open at most, with those of the engine."""


@dataclass(frozen=True, slots=True)
class NodeSelf:
    """This node: its id, its label for people, and the place of its DATA_DIR while it runs."""

    id: str
    name: str
    place: str


@statement(
    """
-- A node is at one place at a time: another one may have its id only when it has been silent for so long, or when its
-- last heartbeat is still that of $5.
insert into nodes (id, name, place, draining) values ($1, $2, $3, $6)
on conflict (id) do update set name = excluded.name, place = excluded.place, draining = excluded.draining,
                               heartbeat_at = now()
where nodes.place is null or nodes.place = excluded.place or nodes.heartbeat_at = $5
   or nodes.heartbeat_at < now() - make_interval(secs => $4)
returning id
""",
    seconds=10,
)
async def heartbeat(
    connection: Connection,
    node: NodeSelf,
    timeout_seconds: float,
    instead_of: datetime | None = None,
    *,
    draining: bool = False,
) -> bool:
    """Record that this node is alive; False where a process with another DATA_DIR has its id.

    `instead_of`: the other's heartbeat, which was its last one. `draining`: it ends, and gets nothing new.
    """


@statement("select max(heartbeat_at), now() from nodes where heartbeat_at > '-infinity'")
async def absence(connection: Connection) -> tuple[datetime | None, datetime]:
    """Return when the last node was alive, and now, by the database's clock."""


@statement("""
select current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
       greatest(count(*), 1)::integer
from nodes where heartbeat_at > now() - interval '1 day'
""")
async def connections(connection: Connection) -> tuple[int, int]:
    """Return how many connections Postgres gives, and the number of nodes that were alive within a day."""


@statement("update turns set notices = notices || $1::text where state in ('queued', 'running')")
async def note_absence(connection: Connection, notice: str) -> None:
    """Add the notice to every request that waits: no node was alive for a while."""


@statement("""
-- With what waits or runs there, and what it has. One that ends gets nothing new.
select n.id, n.name,
       (select count(*) from turns where queue_node = n.id and state = 'queued')
       + (select count(*) from turns where queue_node = n.id and state = 'running') as turns,
       (select count(*) from worktrees w where w.node = n.id and w.is_live) as worktrees
from nodes n
where n.place is not null and not n.draining and n.heartbeat_at > now() - make_interval(secs => $1) order by n.id
""")
async def live_nodes(connection: Connection, timeout_seconds: float) -> list[NodeLoad]:
    """Return the nodes that gave a sign of life within that time."""


@statement("select heartbeat_at from nodes where id = $1")
async def last_heartbeat(connection: Connection, node: str) -> datetime | None:
    """Return when a node was last alive."""


@statement("""
update nodes set disk_measured_at = now(), disk = $2::text::jsonb || jsonb_build_object('rescues', (
    select coalesce(sum(r.bytes), 0) from rescues r join worktrees w on w.id = r.worktree_id
    where w.node = $1 and r.ref is not null))
where id = $1
""")
async def save_disk(connection: Connection, node: str, kinds: str) -> None:
    """Write the bytes that each kind takes on the node's disk, as JSON, and those of its rescues in the clones."""


@statement("update nodes set kept = $2::text::jsonb where id = $1")
async def save_kept(connection: Connection, node: str, directories: str) -> None:
    """Write which directories are kept whole on the node's disk, as JSON."""


@statement("update nodes set place = null where id = $1 and name = $2 and place = $3")
async def leave(connection: Connection, node: NodeSelf) -> None:
    """Let another place have the id at once: this process ends."""


# An operator may use a node whose worker never ran: that is not a heartbeat.
@statement("insert into nodes (id, name, heartbeat_at) values ($1, $2, '-infinity') on conflict (id) do nothing")
async def save_node(connection: Connection, node: str, name: str) -> None:
    """Write the row of this node if it has none."""


# Heartbeats are written with the database's clock, so it is the one to compare with.
@statement("""
select exists (select from nodes where heartbeat_at > now() - make_interval(secs => $1))
   and exists (select from procrastinate_workers where last_heartbeat > now() - make_interval(secs => $1))
""")
async def some_worker_is_alive(connection: Connection, max_age_seconds: float) -> bool:
    """Return whether any node had a heartbeat within that time, and any worker of the job engine."""
