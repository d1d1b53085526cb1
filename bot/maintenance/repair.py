"""Repair: make rows, directories and git's entries of this node agree, clone by clone, by `reconcile_rules`."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import assert_never

import structlog

from bot.clones import entries, metadata, trash
from bot.clones.clone import Clone, CloneLock, clone_lock
from bot.clones.metadata import Metadata
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError
from bot.maintenance.inventory import Found, folders_on_disk, take_inventory
from bot.maintenance.reconcile_rules import Action, decide
from bot.node.context import NodeContext
from bot.node.process_lock import worker_lock
from bot.operations.remove import remove_all
from bot.rescue.message import RescueLabel
from bot.rescue.save import KeepDirectory
from bot.rescue.stored import list_rescues
from bot.store import reconciliation, rescues, retention
from bot.worktrees.unlink import rescue_first, rescued_commit, unlink_worktree

Progress = Callable[[str], None]
# Shown to an operator who asked, but not logged every hour.
UNCHANGED = frozenset({Action.LEAVE, Action.WAIT})
# The id in the rescues of what has no row: rows count from 1.
NO_WORKTREE = 0
_log = structlog.get_logger()


async def repair(
    ctx: NodeContext, only: int | None = None, progress: Progress = lambda _: None
) -> list[tuple[str, Action]]:
    """Repair all worktrees of this node, or one; return (path, what was done) for those where not all agreed.

    One `git worktree list` per clone, under its lock. A clone or a place that cannot be repaired is logged and skipped.
    Every step can be repeated. Raises only what a database raises that is away.
    """
    async with ctx.pool.acquire() as connection:
        path = await reconciliation.path_of(connection, only, ctx.node) if only is not None else None
        folders = set(await reconciliation.folders(connection, ctx.node, only))
    if only is None:
        folders |= await asyncio.to_thread(folders_on_disk, ctx.data_dir)
    elif path is None:
        return []
    done: list[tuple[str, Action]] = []
    for number, folder in enumerate(sorted(folders), start=1):
        progress(f"{folder} ({number} of {len(folders)})")
        try:
            async with clone_lock(ctx.clone(folder)) as lock:
                done += await _repair_clone(ctx, lock, folder, path)
                await _index_rescues(ctx, lock.clone, folder)
        except (GitError, refs.InvalidNameError) as problem:
            _log.warning("repair-error", clone=folder, error=str(problem))
    if any(action == Action.FINISH_REMOVAL for _, action in done):
        with worker_lock(ctx.workers) as worker:
            await remove_all(ctx, worker)
    if only is None:
        await _forget_former_orphans(ctx)
    _log.info("worktrees-repaired", clones=len(folders), repaired=sum(action not in UNCHANGED for _, action in done))
    return done


async def take_away(ctx: NodeContext, lock: CloneLock, path: Path, label: RescueLabel, *, whole: bool) -> None:
    """Rescue what is at a path and clear it; with `whole` the directory is kept as it is.

    `label.worktree_id` may be NO_WORKTREE. Raises GitError, OSError, InvalidNameError.
    """
    found = await rescue_first(lock, path, label)
    commit, whole = rescued_commit(found), whole or isinstance(found, KeepDirectory)
    size = await asyncio.to_thread(trash.size_of, path) if whole else 0
    note = partial(rescues.record, worktree_id=label.worktree_id, at=label.at, conversations=label.conversations)
    # In one transaction: no row is written for a directory that was not kept.
    async with ctx.pool.acquire() as connection, connection.transaction():
        if commit is not None:
            await note(connection, ref=commit.ref, files=commit.files, commits=commit.commits)
        departed = await asyncio.to_thread(unlink_worktree, lock, path, label.at, whole=whole)
        if departed.kept is not None:
            await note(connection, kept=departed.kept.name, size=size)
        reached("taken-away")


async def _repair_clone(ctx: NodeContext, lock: CloneLock, folder: str, only: str | None) -> list[tuple[str, Action]]:
    """Repair the places of a clone.

    Turns and removals take the clone's lock before they touch a worktree, so the inventory stays true; the row of a
    worktree tells whether a turn that had the lock before runs.
    """
    done: list[tuple[str, Action]] = []
    for found in await take_inventory(ctx, lock.clone, folder, only):
        for action in decide(found.place):
            try:
                applied = await _apply(ctx, lock, action, found)
            except (GitError, OSError, refs.InvalidNameError) as problem:
                _log.warning("repair-error", path=str(found.path), action=action, error=str(problem))
                break
            if applied is None:
                continue
            done.append((str(found.path), applied))
            if applied not in UNCHANGED:
                _log.info("worktree-repaired", path=str(found.path), action=applied)
    return done


async def _apply(ctx: NodeContext, lock: CloneLock, action: Action, found: Found) -> Action | None:
    """Apply an action and return it; None if there was nothing to do any more. Raises GitError, OSError."""
    path, row = found.path, found.row
    match action:
        case Action.LEAVE | Action.WAIT | Action.FINISH_REMOVAL:
            pass
        case Action.LOCK:
            await lock.clone.run("worktree", "lock", "--reason", entries.LIVE, "--", str(path))
        case Action.REBUILD_METADATA:
            if row is not None:
                await asyncio.to_thread(metadata.write, path, metadata.metadata_of(row))
        case Action.KEEP_WHOLE:
            if row is not None:
                label = RescueLabel(row.id, row.branch, row.conversations, ctx.clock())
                await take_away(ctx, lock, path, label, whole=True)
        case Action.ADOPT:
            return action if await _adopt(ctx, found) else None
        case Action.DROP_ENTRY:
            users = found.known.conversations if isinstance(found.known, Metadata) else ()
            branch = found.entry.branch if found.entry else None
            label = RescueLabel(row.id if row else NO_WORKTREE, branch, users, ctx.clock())
            await take_away(ctx, lock, path, label, whole=False)
        case Action.DELETE_METADATA:
            await asyncio.to_thread(metadata.delete, path)
        case _:
            assert_never(action)
    return action


async def _adopt(ctx: NodeContext, found: Found) -> bool:
    """Record an orphan; its age counts from its last use, where its metadata tells that. False if it was known."""
    now = ctx.clock()
    since = min(found.known.updated_at, now) if isinstance(found.known, Metadata) else now
    async with ctx.pool.acquire() as connection:
        return await retention.adopt(connection, ctx.node, str(found.path), since)


async def _index_rescues(ctx: NodeContext, clone: Clone, folder: str) -> None:
    """Write rows for rescues of this clone's worktrees that have none."""
    known = await list_rescues(clone) if await asyncio.to_thread(clone.path.is_dir) else []
    async with ctx.pool.acquire() as connection:
        ids = await reconciliation.ids_in(connection, folder, sorted({one.label.worktree_id for one in known}))
        indexed = await reconciliation.indexed(connection, sorted(ids))
        for one in known:
            label, kept = one.label, one.kept
            if label.worktree_id in ids and one.ref not in indexed:
                await rescues.record(
                    *(connection, label.worktree_id, label.at),
                    ref=one.ref,
                    files=kept.files,
                    commits=kept.commits,
                    conversations=label.conversations,
                )
                _log.info("rescue-indexed", ref=one.ref)


async def _forget_former_orphans(ctx: NodeContext) -> None:
    """Delete the rows of orphans that are gone or have a worktree's row now."""
    async with ctx.pool.acquire() as connection:
        known = await retention.orphans(connection, ctx.node)
        former = await retention.claimed_paths(connection, sorted(known))
        gone = await asyncio.to_thread(lambda: {path for path in known if not os.path.lexists(path)})
        await retention.forget_orphans(connection, ctx.node, sorted(former | gone))
