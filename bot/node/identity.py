"""Which node this is: an id in DATA_DIR. A copy of DATA_DIR that runs beside the original is refused."""

import asyncio
import platform
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import orjson
import structlog

from bot.clones import metadata
from bot.clones.metadata import Metadata
from bot.messages import notices
from bot.node.process_lock import any_alive
from bot.node.transactions import persist
from bot.store import nodes
from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.store.nodes import NodeSelf

FILE = "node.json"
LOOKS, LOOK_SECONDS = 4, 3.0
"""A live process gives a sign of life in each of these looks."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,33}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = structlog.get_logger()


class NodeInUseError(Exception):
    """Another process has this node's id or its DATA_DIR. No process may go on; the message names the next step."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """The content of `node.json`. `data_dir` is where DATA_DIR was when the node last started."""

    id: str
    data_dir: str


@dataclass(frozen=True, slots=True)
class Identified:
    """This node, and where its DATA_DIR was before; the same path unless it was moved."""

    node: NodeSelf
    was_at: Path


async def identify(pool: Pool, data_dir: Path, name: str) -> Identified:
    """Return the node of DATA_DIR, with the label `name`. The id is made, or taken over from an older version, once.

    Versions without ids named a node by NODE_NAME. Its rows are this DATA_DIR's if that is the name, or if the files
    beside the worktrees name it; a node that another DATA_DIR has already is left alone.
    """
    place, here = place_of(data_dir), await asyncio.to_thread(data_dir.resolve)
    stored = await asyncio.to_thread(_read, data_dir)
    if stored is None:
        named = await asyncio.to_thread(_named_by_metadata, data_dir)
        stored = await persist(pool, lambda connection: _first(connection, data_dir, here, name, named))
    else:
        known = stored.id
        await persist(pool, lambda connection: nodes.save_node(connection, known, name))
    return Identified(NodeSelf(stored.id, name, place), Path(stored.data_dir))


async def _first(connection: Connection, data_dir: Path, here: Path, name: str, named: list[str]) -> _Stored:
    """Make the id, in the caller's transaction."""
    await nodes.lock_nodes(connection)
    if (found := _read(data_dir)) is not None:  # another process was faster
        return found
    if any_alive(data_dir / "workers"):
        raise NodeInUseError(
            f"A process that knows no {FILE} uses DATA_DIR {data_dir}, one of an older version or of another node: "
            "stop it first."
        )
    candidates = list(dict.fromkeys([name, *named]))
    free = await nodes.claim_named(connection, candidates)
    claimed = [one for one in candidates if one in free]
    node = claimed[0] if claimed else secrets.token_hex(8)
    await nodes.save_node(connection, node, name, claimed[1:])
    stored = _Stored(node, str(here))
    # Before the commit: an id without a row is harmless, a claimed row without an id is lost.
    record(data_dir, stored.id)
    _log.info("node-made", node=node, name=name, former=claimed)
    return stored


def record(data_dir: Path, node: str) -> None:
    """Write the id, and where DATA_DIR is now. Raises OSError."""
    path = data_dir / FILE
    written = path.with_name(f".{FILE}.{secrets.token_hex(4)}")
    written.write_bytes(orjson.dumps(asdict(_Stored(node, str(data_dir.resolve()))), option=orjson.OPT_APPEND_NEWLINE))
    written.rename(path)


def known_id(data_dir: Path) -> str | None:
    """Return the id of the node, None where it has none yet or its file is damaged."""
    try:
        stored = _read(data_dir)
    except NodeInUseError:
        return None
    return stored.id if stored else None


def _read(data_dir: Path) -> _Stored | None:
    """Return what is stored, None where nothing is. Raises NodeInUseError for a file that cannot be understood."""
    path = data_dir / FILE
    try:
        content = orjson.loads(path.read_bytes())
        stored = _Stored(content["id"], content["data_dir"])
        if not _ID.fullmatch(stored.id) or not Path(stored.data_dir).is_absolute():
            raise ValueError("no id")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as problem:
        raise NodeInUseError(
            f"{path} is damaged: bring it back from a backup, or delete it to make a new node."
        ) from problem
    return stored


def _named_by_metadata(data_dir: Path) -> list[str]:
    """Return the nodes that the files beside the worktrees name, the most frequent first."""
    files = (data_dir / "worktrees").glob("*/*/*.json")
    known = (metadata.read(file.with_suffix("")) for file in files)
    return [name for name, _ in Counter(one.node for one in known if isinstance(one, Metadata)).most_common()]


def place_of(data_dir: Path) -> str:
    """Return where DATA_DIR is: the same for all processes that share it, another one for a copy."""
    status = data_dir.stat()
    machine = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else platform.node()
    return f"{machine}:{status.st_dev}:{status.st_ino}"


@asynccontextmanager
async def registered(
    pool: Pool, node: NodeSelf, timeout_seconds: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[None]:
    """Give the first sign of life; take it back at the end. Raises NodeInUseError where a copy of DATA_DIR runs."""
    before = None
    for look in range(LOOKS + 1):
        appear = partial(
            _appear, node=node, timeout_seconds=timeout_seconds, instead_of=before if look == LOOKS else None
        )
        if await persist(pool, appear):
            break
        last = await persist(pool, lambda connection: nodes.last_heartbeat(connection, node.id))
        if look == LOOKS or (look and last != before):
            raise in_use_elsewhere(node)
        before = last
        _log.info("node-seen-elsewhere", node=node.id, last=str(last))
        await sleep(LOOK_SECONDS)
    try:
        yield
    finally:
        try:
            async with pool.acquire() as connection:
                await nodes.leave(connection, node)
        except DATABASE_AWAY:
            _log.info("node-not-left", node=node.id)


def in_use_elsewhere(node: NodeSelf) -> NodeInUseError:
    """Return the error of a process whose node's id another DATA_DIR has."""
    return NodeInUseError(
        f"A process with a copy of this DATA_DIR runs (node {node.id}): stop it, or delete {FILE} in the copy, which "
        "makes it a node of its own."
    )


async def _appear(
    connection: Connection, node: NodeSelf, timeout_seconds: float, instead_of: datetime | None = None
) -> bool:
    """Give a sign of life, in the caller's transaction; tell the requests that waited while no node gave any."""
    last, now = await nodes.absence(connection)
    if not await nodes.heartbeat(connection, node, timeout_seconds, instead_of):
        return False
    if last is not None and now - last > notices.LATE:
        _log.info("nodes-were-absent", since=last.isoformat())
        await nodes.note_absence(connection, notices.not_running(last, now))
    return True
