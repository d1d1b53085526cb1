"""Which node this is: an id in DATA_DIR. A copy of DATA_DIR that runs beside the original is refused."""

import asyncio
import contextlib
import platform
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import orjson
import structlog

from bot.node import node_rows as nodes
from bot.node.node_rows import NodeSelf
from bot.node.transactions import persist
from bot.store.database import DATABASE_AWAY, Connection, Pool
from bot.thread import notices

FILE = "node.json"
LOOKS, LOOK_SECONDS = 4, 3.0
"""A live process gives a sign of life in each of these looks."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,33}")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = structlog.get_logger()


class NodeInUseError(Exception):
    """Another process has this node's id or its DATA_DIR. No process may go on; the message names the next step."""


async def identify(pool: Pool, data_dir: Path, name: str) -> NodeSelf:
    """Return the node of DATA_DIR, with the label `name`; its id is made once. Raises NodeInUseError, OSError."""
    stored = await asyncio.to_thread(_stored_or_new, data_dir)
    await persist(pool, nodes.save_node, stored, name)
    return NodeSelf(stored, name, place_of(data_dir))


def _stored_or_new(data_dir: Path) -> str:
    """Return the stored id; where there is none, make one, which is the same for all processes that start now."""
    if (stored := _read(data_dir)) is None:
        made = data_dir / f".{FILE}.{secrets.token_hex(4)}"
        made.write_bytes(orjson.dumps({"id": secrets.token_hex(8)}, option=orjson.OPT_APPEND_NEWLINE))
        with contextlib.suppress(FileExistsError):
            (data_dir / FILE).hardlink_to(made)
        made.unlink()
        stored = _read(data_dir)
    if stored is None:
        raise FileNotFoundError(data_dir / FILE)
    return stored


def known_id(data_dir: Path) -> str | None:
    """Return the id of the node, None where it has none yet or its file is damaged."""
    try:
        return _read(data_dir)
    except NodeInUseError:
        return None


def _read(data_dir: Path) -> str | None:
    """Return the stored id, None where there is none. Raises NodeInUseError for a file that cannot be understood."""
    path = data_dir / FILE
    try:
        stored: str = orjson.loads(path.read_bytes())["id"]
        if not _ID.fullmatch(stored):
            raise ValueError("no id")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as problem:
        raise NodeInUseError(
            f"{path} is damaged: bring it back from a backup, or delete it to make a new node."
        ) from problem
    return stored


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
        if await persist(pool, _appear, node, timeout_seconds, before if look == LOOKS else None):
            break
        last = await persist(pool, nodes.last_heartbeat, node.id)
        if look == LOOKS or (look and last != before):
            raise in_use_elsewhere(node)
        before = last
        _log.info("node-seen-elsewhere", node=node.id, last=str(last))
        await sleep(LOOK_SECONDS)
    try:
        yield
    finally:
        try:
            await nodes.leave(pool, node)
        except DATABASE_AWAY:
            _log.info("node-release-failed", node=node.id)


def in_use_elsewhere(node: NodeSelf) -> NodeInUseError:
    """Return the error: another DATA_DIR uses this node's id."""
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
