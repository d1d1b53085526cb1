"""A rescue of another node is brought here: this one asks, that one packs what is missing here, through Postgres."""

import asyncio
from dataclasses import dataclass

import structlog

from bot.clones.clone import Clone, clone_lock
from bot.clones.importing import import_pack
from bot.git import refs
from bot.git.errors import GitError
from bot.git.refs import InvalidNameError
from bot.messages.worktree_replies import NotBrought
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.store import parcels
from bot.store.parcels import Parcel, Problem, Wanted
from bot.store.rescues import Rescue

MOST_BYTES = 50_000_000
PART_BYTES = 1_000_000
POLL_SECONDS = 0.5
WAIT_SECONDS = 120.0
"""Longer than it takes to pack and to store MOST_BYTES."""
_MOST_TIPS = 2000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Brought:
    """The commit of the rescue is in this node's clone, held for a while."""

    sha: str


async def bring(ctx: NodeContext, clone: Clone, rescue: Rescue) -> Brought | NotBrought:
    """Bring the commit of another node's rescue into this node's clone, after a fetch, or return why it stays there.

    It can be repeated after it was cut off. Raises GitError, OSError.
    """
    listed = await clone.run("for-each-ref", f"--count={_MOST_TIPS}", "--format=%(objectname)", "refs/remotes/origin/")
    has, key = listed.text.split(), (rescue.id, ctx.node)
    await persist(ctx.pool, lambda connection: parcels.ask(connection, *key, has))
    parcel = await _arrival(ctx, *key)
    if parcel is None:
        return "gone"
    if parcel.sha is None and parcel.problem is None:
        return "silent"  # once that node is back, it waits here for an hour
    packed = await persist(ctx.pool, lambda connection: parcels.take(connection, *key))
    if parcel.sha is None:
        return parcel.problem or "gone"
    async with clone_lock(clone) as lock:
        await import_pack(lock, parcel.sha, packed)
    _log.info("rescue-brought", rescue=rescue.id, sha=parcel.sha, bytes=len(packed))
    return Brought(parcel.sha)


async def _arrival(ctx: NodeContext, rescue_id: int, node: str) -> Parcel | None:
    """Wait until the other node has packed the parcel or gives no sign of life; None where the rescue was dropped."""
    waited = 0.0
    while True:
        parcel = await persist(ctx.pool, lambda connection: parcels.state(connection, rescue_id, node))
        if parcel is None or parcel.sha is not None or parcel.problem is not None:
            return parcel
        if not parcel.is_coming or waited >= WAIT_SECONDS:
            return parcel
        await ctx.sleep(POLL_SECONDS)
        waited += POLL_SECONDS


async def send(ctx: NodeContext) -> None:
    """Pack the rescues of this node for which others wait. What fails is logged and tried again next time."""
    async with ctx.pool.acquire() as connection:
        wanted = await parcels.wanted(connection, ctx.node)
    for asked in wanted:
        try:
            packed = await _pack(ctx.clone(asked.folder), asked)
        except (GitError, InvalidNameError, OSError) as problem:
            _log.warning("rescue-not-packed", rescue=asked.rescue_id, problem=str(problem))
            continue
        async with ctx.pool.acquire() as connection, connection.transaction():
            if isinstance(packed, str):
                await parcels.fill(connection, asked, None, packed, ())
            else:
                sha, content = packed
                parts = [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]
                await parcels.fill(connection, asked, sha, None, parts)
        _log.info("rescue-packed", rescue=asked.rescue_id, node=asked.node)


async def _pack(clone: Clone, asked: Wanted) -> tuple[str, bytes] | Problem:
    """Return the rescue's commit and what the other clone lacks of it. Raises GitError, OSError."""
    sha = await clone.commit_at(asked.ref) if await asyncio.to_thread(clone.path.is_dir) else None
    if sha is None:
        return "gone"
    known = [one for one in asked.has if refs.is_commit(one) and await clone.commit_at(one) is not None]
    given = "".join([f"{sha}\n", *(f"^{one}\n" for one in known)]).encode()
    size = await clone.git.on_clone(clone.path, "rev-list", "--objects", "--disk-usage", "--stdin", input=given)
    if int(size.text) > MOST_BYTES:
        return "large"
    pack = ("pack-objects", "--revs", "--thin", "--delta-base-offset", "--stdout", "-q")
    content = (await clone.git.on_clone(clone.path, *pack, input=given)).stdout
    return (sha, content) if len(content) <= MOST_BYTES else "large"
