"""Expire what lies beside the worktrees: rescues, kept directories, agents' homes, orphans, bytes in the trash."""

import asyncio
import shutil
from datetime import datetime
from pathlib import Path

import structlog

from bot.clones import entries, metadata, trash
from bot.clones.clone import CloneLock, clone_lock
from bot.clones.metadata import Absent, Corrupt, Metadata
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError
from bot.maintenance.reconcile_rules import started_from
from bot.maintenance.repair import NO_WORKTREE, folders_on_disk, take_away
from bot.maintenance.retention_rules import Policy, exceeds_safety_limit
from bot.node.context import NodeContext
from bot.operations.drop import drop_commit
from bot.rescue.message import RescueLabel
from bot.rescue.stored import drop_rescue, list_rescues
from bot.store import reconciliation, rescues, retention

_ROWS_AT_ONCE = 500
_log = structlog.get_logger()


async def expire(ctx: NodeContext, policy: Policy, *, force: bool = False) -> int:
    """Delete old rescues, unused homes and files of turns that were cut off; empty the trash; return the bytes freed.

    What fails is logged and tried again next time. Raises only what a database raises that is away.
    """
    freed = await _expire_rescues(ctx, policy, force=force)
    await _expire_homes(ctx)
    await _expire_attachments(ctx)
    await _forget_removed(ctx, policy)
    return freed + await trash.empty_trash(ctx.data_dir)


async def end_orphan(ctx: NodeContext, path: Path) -> bool:
    """Rescue an orphan and take it away; what cannot be told to be a worktree of a known repository is kept whole.

    False if it is no orphan any more. Raises GitError, OSError, InvalidNameError.
    """
    folder = path.parent.relative_to(ctx.data_dir / "worktrees").as_posix()
    async with clone_lock(ctx.clone(folder)) as lock:
        async with ctx.pool.acquire() as connection:
            is_orphan = not await retention.claimed_paths(connection, ctx.node, [ctx.stored(path)])
        if is_orphan:
            known = await asyncio.to_thread(metadata.read, path)
            worktree_id = await _row_for_rescues(ctx, lock, path, folder, known)
            branch, users = (known.branch, known.conversations) if isinstance(known, Metadata) else (None, ())
            label = RescueLabel(worktree_id or NO_WORKTREE, branch, users, ctx.clock())
            await take_away(ctx, lock, path, label, whole=worktree_id is None)
            await asyncio.to_thread(metadata.delete, path)
    async with ctx.pool.acquire() as connection:
        await retention.forget_orphans(connection, ctx.node, [ctx.stored(path)])
    return is_orphan


async def _row_for_rescues(
    ctx: NodeContext, lock: CloneLock, path: Path, folder: str, known: Metadata | Absent | Corrupt
) -> int | None:
    """Return the id of a removed row under which the rescues of an orphan are listed; None where nothing tells how it
    began.
    """
    if not isinstance(known, Metadata) or not lock.clone.path.is_dir():
        return None
    start = started_from(known, await entries.registered_head(lock.clone, path))
    if start is None:
        return None
    async with ctx.pool.acquire() as connection:
        earlier = await reconciliation.removed_at(connection, ctx.node, [ctx.stored(path)])
        if earlier is not None:
            return earlier
        return await reconciliation.record_removed(
            connection,
            platform=known.platform,
            repository_id=known.repository_id,
            folder=folder,
            node=ctx.node,
            path=ctx.stored(path),
            branch=known.branch,
            base_branch=known.base,
            owner=next(iter(known.conversations), 0),
            start=start,
            created_at=known.created_at,
        )


async def _expire_rescues(ctx: NodeContext, policy: Policy, *, force: bool) -> int:
    async with ctx.pool.acquire() as connection:
        before = await rescues.expired_before(connection, policy.now, policy.rescue)
    names = await asyncio.to_thread(_names, trash.kept_folder(ctx.data_dir))
    old = sum(since < before for name in names if (since := trash.kept_since(name)) is not None)
    async with ctx.pool.acquire() as connection:
        expired = await rescues.expired(connection, ctx.node, before)
        total = await retention.count_rescues(connection, ctx.node)
    if not force and exceeds_safety_limit(len(expired) + old, total + len(names)):
        _log.warning("rescues-not-expired", expired=len(expired), kept=old, why="did the clock jump?")
        return 0
    freed = await trash.expire_kept(ctx.data_dir, before)
    for rescue in expired:
        try:
            await drop_commit(ctx, rescue)
        except (GitError, OSError, refs.InvalidNameError) as problem:
            _log.warning("prune-error", rescue=rescue.ref or rescue.kept, error=str(problem))
            continue
        reached("rescue-dropped")
        async with ctx.pool.acquire() as connection:
            await rescues.delete(connection, rescue.id)
        _log.info("rescue-expired", rescue=rescue.ref or rescue.kept)
    await _expire_without_row(ctx, before)
    return freed


async def _expire_without_row(ctx: NodeContext, before: datetime) -> None:
    """Delete old rescues without a row: their refs tell how old they are."""
    for folder in sorted(await asyncio.to_thread(folders_on_disk, ctx.data_dir)):
        try:
            clone = ctx.clone(folder)
            if not await asyncio.to_thread(clone.path.is_dir):
                continue
            known = [one for one in await list_rescues(clone) if one.label.at < before]
            async with ctx.pool.acquire() as connection:
                indexed = await reconciliation.indexed(connection, sorted({one.label.worktree_id for one in known}))
            async with clone_lock(clone) as lock:
                for one in known:
                    if one.ref not in indexed:
                        await drop_rescue(lock, one.ref)
                        _log.info("rescue-expired", rescue=one.ref)
        except (GitError, OSError, refs.InvalidNameError) as problem:
            _log.warning("prune-error", clone=folder, error=str(problem))


async def _expire_homes(ctx: NodeContext) -> None:
    homes = ctx.data_dir / "homes"
    present = [int(name) for name in await asyncio.to_thread(_names, homes) if name.isdecimal()]
    async with ctx.pool.acquire() as connection:
        for conversation in await retention.unused_homes(connection, present):
            async with connection.transaction():
                if not await retention.lock_unused_home(connection, conversation):
                    continue
                try:
                    await asyncio.to_thread(trash.move_to_trash, ctx.data_dir, homes / str(conversation))
                except OSError as problem:
                    _log.warning("prune-error", home=conversation, error=str(problem))
                    continue
            _log.info("home-expired", conversation=conversation)


async def _forget_removed(ctx: NodeContext, policy: Policy) -> None:
    """Delete the rows of worktrees that are gone for as long as a rescue is kept, and of which none is left."""
    async with ctx.pool.acquire() as connection:
        before = await rescues.expired_before(connection, policy.now, policy.rescue)
        while (count := await retention.forget_removed(connection, ctx.node, before, _ROWS_AT_ONCE)) > 0:
            _log.info("worktree-rows-deleted", count=count)


async def _expire_attachments(ctx: NodeContext) -> None:
    """Delete what was attached to the threads of turns that ended: their process was killed."""
    names = [name for name in await asyncio.to_thread(_names, ctx.attachments) if name.isdecimal()]
    async with ctx.pool.acquire() as connection:
        ended = await retention.ended(connection, [int(name) for name in names])
    for turn in ended:
        await asyncio.to_thread(shutil.rmtree, ctx.attachments / str(turn), ignore_errors=True)
        _log.info("attachments-expired", turn=turn)


def _names(folder: Path) -> list[str]:
    try:
        return [child.name for child in folder.iterdir()]
    except FileNotFoundError:
        return []
