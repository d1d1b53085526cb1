"""Rows of nodes: a node is its DATA_DIR, with an id that is stored there; its name is a label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from bot.model import NodeLoad
from bot.store.database import Connection

SILENT_AFTER_SECONDS = 30
"""A node without a heartbeat for so long does not work."""

HEARTBEAT = """
-- A node is at one place at a time: another one may have its id only when it has been silent for so long, or when its
-- last heartbeat is still that of $5.
insert into nodes (id, name, place, draining) values ($1, $2, $3, $6)
on conflict (id) do update set name = excluded.name, place = excluded.place, draining = excluded.draining,
                               claimed = true, heartbeat_at = now()
where nodes.place is null or nodes.place = excluded.place or nodes.heartbeat_at = $5
   or nodes.heartbeat_at < now() - make_interval(secs => $4)
returning id
"""

LIVE_NODES = """
-- With what waits or runs there, and what it has. One that ends gets nothing new.
select n.id, n.name,
       (select count(*) from turns where queue_node = n.id and state = 'queued')
       + (select count(*) from turns where queue_node = n.id and state = 'running') as turns,
       (select count(*) from worktrees w where w.node = n.id and w.state in ('reserved', 'ready')) as worktrees
from nodes n
where n.place is not null and not n.draining and n.heartbeat_at > now() - make_interval(secs => $1) order by n.id
"""

NOTE_ABSENCE = """
update turns set notices = notices || $1::text where state in ('queued', 'running')
"""

LAST_SIGN_OF_LIFE = """
select max(heartbeat_at), now() from nodes where heartbeat_at > '-infinity'
"""

LAST_HEARTBEAT = """
select heartbeat_at from nodes where id = $1
"""

SAVE_DISK = """
update nodes set disk_measured_at = now(), disk = $2::text::jsonb || jsonb_build_object('rescues', (
    select coalesce(sum(r.bytes), 0) from rescues r join worktrees w on w.id = r.worktree_id
    where w.node = $1 and r.ref is not null))
where id = $1
"""

SAVE_KEPT = """
update nodes set kept = $2::text::jsonb where id = $1
"""

LEAVE = """
update nodes set place = null where id = $1 and place = $2
"""

LOCK_NODES = """
select pg_advisory_xact_lock(hashtextextended('threadtree nodes', 0))
"""

CLAIM_NAMED = """
-- Rows of a version that had no ids: the name is the id.
update nodes set claimed = true where id = any ($1::text[]) and not claimed returning id
"""

INSERT_NODE = """
-- An operator may use a node whose worker never ran: that is not a heartbeat.
insert into nodes (id, name, heartbeat_at) values ($1, $2, '-infinity') on conflict (id) do update set claimed = true
"""

MERGE_NODES = """
-- Where both have a live worktree at one path, the other's stays where it is.
update worktrees w set node = $1
where w.node = any ($2::text[])
  and (w.state not in ('reserved', 'ready')
       or not exists (select from worktrees o
                      where o.node = $1 and o.path = w.path and o.state in ('reserved', 'ready')))
"""

PLACE_TURNS = """
-- Waiting turns carry their node.
update turns t set worktree_id = t.worktree_id from worktrees w
where w.id = t.worktree_id and w.node = $1 and t.state in ('queued', 'running') and t.queue_node <> $1
"""

ABSOLUTE_PATHS = """
select w.id, w.path, b.folder from worktrees w join codebases b using (platform, repository_id)
where w.node = $1 and starts_with(w.path, '/')
"""

SET_PATH = """
update worktrees w set path = $2
where w.id = $1
  and (w.state not in ('reserved', 'ready')
       or not exists (select from worktrees o
                      where o.node = w.node and o.path = $2 and o.state in ('reserved', 'ready')))
returning id
"""

MAKE_ORPHANS_RELATIVE = """
update orphans o set path = substr(path, length($2) + 2)
where node = $1 and starts_with(path, $2 || '/')
  and not exists (select from orphans n where n.node = o.node and n.path = substr(o.path, length($2) + 2))
"""

PATHS = """
select b.folder, w.path from worktrees w join codebases b using (platform, repository_id)
where w.node = $1 and w.state <> 'removed'
"""

SOME_WORKER_IS_ALIVE = """
-- Heartbeats are written with the database's clock, so it is the one to compare with.
select exists (select from nodes where heartbeat_at > now() - make_interval(secs => $1))
"""


@dataclass(frozen=True, slots=True)
class NodeSelf:
    """This node: its id, its label for people, and the place of its DATA_DIR while it runs."""

    id: str
    name: str
    place: str


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
    beat = await connection.fetchval(HEARTBEAT, node.id, node.name, node.place, timeout_seconds, instead_of, draining)
    return beat is not None


async def absence(connection: Connection) -> tuple[datetime | None, datetime]:
    """Return when the last node was alive, and now, by the database's clock."""
    last, now = await connection.fetchrow(LAST_SIGN_OF_LIFE)
    return last, now


async def note_absence(connection: Connection, notice: str) -> None:
    """Add the notice to every request that waits: no node was alive for a while."""
    await connection.execute(NOTE_ABSENCE, notice)


async def live_nodes(connection: Connection, timeout_seconds: float) -> list[NodeLoad]:
    """Return the nodes that gave a sign of life within that time."""
    return [NodeLoad(**row) for row in await connection.fetch(LIVE_NODES, timeout_seconds)]


async def last_heartbeat(connection: Connection, node: str) -> datetime | None:
    """Return when a node was last alive."""
    at: datetime | None = await connection.fetchval(LAST_HEARTBEAT, node)
    return at


async def save_disk(connection: Connection, node: str, kinds: Mapping[str, int]) -> None:
    """Write the bytes that each kind takes on the node's disk, and those of its rescues in the clones."""
    await connection.execute(SAVE_DISK, node, orjson.dumps(kinds).decode())


async def save_kept(connection: Connection, node: str, directories: Sequence[Mapping[str, object]]) -> None:
    """Write which directories are kept whole on the node's disk."""
    await connection.execute(SAVE_KEPT, node, orjson.dumps(directories).decode())


async def leave(connection: Connection, node: NodeSelf) -> None:
    """Let another place have the id at once: this process ends."""
    await connection.execute(LEAVE, node.id, node.place)


async def claim_named(connection: Connection, names: Sequence[str]) -> set[str]:
    """Claim the nodes with these names that no DATA_DIR has yet, and return them; `lock_nodes` comes before."""
    return {row["id"] for row in await connection.fetch(CLAIM_NAMED, list(names))}


async def lock_nodes(connection: Connection) -> None:
    """Let no other process find out its node until the transaction ends."""
    await connection.execute(LOCK_NODES)


async def save_node(connection: Connection, node: str, name: str, former: Sequence[str] = ()) -> None:
    """Write the row of this node, and give it the worktrees of the nodes `former`."""
    await connection.execute(INSERT_NODE, node, name)
    if former:
        await connection.execute(MERGE_NODES, node, list(former))
        await connection.execute(PLACE_TURNS, node)


async def absolute_paths(connection: Connection, node: str) -> list[tuple[int, str, str]]:
    """Return (worktree, path, folder of its repository) of the node's worktrees with absolute paths."""
    rows = await connection.fetch(ABSOLUTE_PATHS, node)
    return [(row["id"], row["path"], row["folder"]) for row in rows]


async def set_path(connection: Connection, worktree_id: int, path: str) -> bool:
    """Write the path of a worktree; False where another live one has it."""
    return await connection.fetchval(SET_PATH, worktree_id, path) is not None


async def make_orphans_relative(connection: Connection, node: str, data_dir: str) -> None:
    """Write the paths of orphans in DATA_DIR relative to it."""
    await connection.execute(MAKE_ORPHANS_RELATIVE, node, data_dir)


async def paths(connection: Connection, node: str) -> list[tuple[str, str]]:
    """Return (folder of the clone, path) of all worktrees of the node that are not removed."""
    return [(row["folder"], row["path"]) for row in await connection.fetch(PATHS, node)]


async def some_worker_is_alive(connection: Connection, max_age_seconds: float, timeout_seconds: float) -> bool:
    """Return whether any node had a heartbeat within `max_age_seconds`."""
    alive: bool = await connection.fetchval(SOME_WORKER_IS_ALIVE, max_age_seconds, timeout=timeout_seconds)
    return alive
