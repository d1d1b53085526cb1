"""Rows of rescues on their way to another node: asked for there, packed on the node that has them, then deleted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bot.store.database import Connection
from bot.store.nodes import SILENT_AFTER_SECONDS

Problem = Literal["large", "gone"]
"""Why a rescue is not sent: it takes too many bytes, or its commit is not in the clone any more."""

ASK = """
insert into parcels (rescue_id, node, has) values ($1, $2, $3) on conflict do nothing
"""

STATE = """
select p.sha, p.problem, n.heartbeat_at > now() - make_interval(secs => $3) as is_coming
from parcels p join rescue_rows r on r.id = p.rescue_id join nodes n on n.id = r.node
where (p.rescue_id, p.node) = ($1, $2)
"""

CONTENT = """
select content from parcel_parts where (rescue_id, node) = ($1, $2) order by place
"""

DELETE = """
delete from parcels where (rescue_id, node) = ($1, $2)
"""

WANTED = """
select p.rescue_id, p.node, p.has, r.folder, r.ref
from parcels p join rescue_rows r on r.id = p.rescue_id
where r.node = $1 and r.ref is not null and p.sha is null and p.problem is null
order by p.asked_at, p.rescue_id
"""

LOCK = """
select from parcels where (rescue_id, node) = ($1, $2) and sha is null and problem is null for update
"""

ADD_PART = """
insert into parcel_parts (rescue_id, node, place, content) values ($1, $2, $3, $4)
"""

FILL = """
update parcels set sha = $3, problem = $4 where (rescue_id, node) = ($1, $2)
"""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A parcel for a node: `sha` once it can be fetched, or a `problem`. `is_coming`: the node that has it is alive."""

    sha: str | None
    problem: Problem | None
    is_coming: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """A rescue of this node, under `ref` in the clone `folder`, that another `node` asks for, which `has` commits."""

    rescue_id: int
    node: str
    has: tuple[str, ...]
    folder: str
    ref: str


async def ask(connection: Connection, rescue_id: int, node: str, has: Sequence[str]) -> None:
    """Ask for a rescue, as one that needs nothing of what the commits `has` reach. Twice is once."""
    await connection.execute(ASK, rescue_id, node, list(has))


async def state(connection: Connection, rescue_id: int, node: str) -> Parcel | None:
    """Return the parcel for the node, None where the rescue was dropped."""
    row = await connection.fetchrow(STATE, rescue_id, node, SILENT_AFTER_SECONDS)
    return Parcel(**row) if row else None


async def take(connection: Connection, rescue_id: int, node: str) -> bytes:
    """Return what was packed and delete the parcel, in the caller's transaction."""
    packed = b"".join([row["content"] for row in await connection.fetch(CONTENT, rescue_id, node)])
    await connection.execute(DELETE, rescue_id, node)
    return packed


async def wanted(connection: Connection, node: str) -> list[Wanted]:
    """Return the rescues of this node for which others wait."""
    rows = await connection.fetch(WANTED, node)
    return [Wanted(row["rescue_id"], row["node"], tuple(row["has"]), row["folder"], row["ref"]) for row in rows]


async def fill(
    connection: Connection, asked: Wanted, sha: str | None, problem: Problem | None, parts: Sequence[bytes]
) -> None:
    """Write the packed commit or the problem, in the caller's transaction, unless nobody waits for it any more."""
    key = asked.rescue_id, asked.node
    if await connection.fetchrow(LOCK, *key) is None:
        return
    await connection.executemany(ADD_PART, [(*key, place, part) for place, part in enumerate(parts)])
    await connection.execute(FILL, *key, sha, problem)
