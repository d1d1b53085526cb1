"""Expire what lies beside the worktrees: rescues, kept directories, agents' homes, orphans, bytes in the trash."""

import asyncio
import os
from datetime import datetime
from pathlib import Path

import structlog

from bot import refs
from bot.care import reconciliation_rows as reconciliation
from bot.care import retention_rows as retention
from bot.care.reconcile_rules import started_from
from bot.care.removing import delete_trashed
from bot.care.repair import NO_WORKTREE, clones_on_disk, take_away
from bot.care.retention_rules import Kind, RetentionPolicy, exceeds_safety_limit
from bot.check.running import expire_places
from bot.failpoints import reached
from bot.model import Repository, Rescue
from bot.node import rescue_rows as rescues
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.sandbox import trash
from bot.store import conversations
from bot.tree import GitError, Metadata, OpenClone, OpenTree, RescueLabel, Tree, open_clone

_ROWS_AT_ONCE = 500
_log = structlog.get_logger()


async def expire(ctx: NodeContext, policy: RetentionPolicy, *, force: bool = False, dry_run: bool = False) -> int:
    """Delete old rescues, unused homes and files of turns that were cut off; empty the trash; return the bytes freed.

    A dry run returns the bytes that would be freed. What fails is logged and tried again next time. Raises only what a
    database raises that is away.
    """
    freed = await _expire_rescues(ctx, policy, force=force, dry_run=dry_run)
    homes = await _unused_homes(ctx)
    if dry_run:
        bin_ = trash.trash_folder(ctx.data_dir)
        folders = [*homes, *(bin_ / name for name in await asyncio.to_thread(trash.names_in, bin_))]
        return freed + sum([await asyncio.to_thread(trash.size_of, folder) for folder in folders])
    await _expire_homes(ctx, homes)
    await _expire_scratch(ctx, policy)
    await _forget_removed(ctx, policy)
    return freed + await trash.empty_trash(ctx.data_dir)


async def drop(ctx: NodeContext, opened: OpenClone, rescue: Rescue) -> tuple[Path, ...]:
    """Delete a rescue; return what is to be deleted from the trash. Raises GitError, OSError, InvalidNameError."""
    trashed = drop_kept(ctx, rescue.kept) if rescue.kept is not None else ()
    if rescue.ref is not None and await asyncio.to_thread(opened.clone.path.is_dir):
        await opened.drop(rescue.ref)
    reached("rescue-dropped")
    await persist(ctx.pool, rescues.delete, rescue.id)
    return trashed


def drop_kept(ctx: NodeContext, name: str) -> tuple[Path, ...]:
    """Move a directory that was kept whole, with git's state of it, to the trash; return its places. Raises OSError."""
    places = (trash.kept_folder(ctx.data_dir) / one for one in (name, f"{name}{trash.GIT_STATE}"))
    return tuple(filter(None, (trash.move_to_trash(ctx.data_dir, place) for place in places)))


async def end_orphan(ctx: NodeContext, path: Path, *, dry_run: bool = False, needs_row: bool = False) -> int | None:
    """Rescue an orphan and take it away; what cannot be told to be a worktree of a known repository is kept whole, or
    with `needs_row` left where it is.

    Return the bytes freed, None if it is no orphan any more. Raises GitError, OSError.
    """
    folder = path.parent.relative_to(ctx.data_dir / "worktrees").as_posix()
    try:
        clone = ctx.clone(folder)
    except refs.InvalidNameError:  # it lies above the folders of repositories
        return await _end_loose(ctx, path, stays=dry_run or needs_row)
    if dry_run:
        if not await _is_orphan(ctx, path):
            return None
        known = await asyncio.to_thread(Metadata.read, path)
        if not isinstance(known, Metadata) or not clone.path.is_dir() or started_from(known, "HEAD") is None:
            return 0
        is_ours = await reconciliation.is_codebase(ctx.pool, known.platform, known.repository_id, folder)
        return await asyncio.to_thread(Tree(clone, path).bytes) if is_ours else 0
    freed = None
    async with Tree(clone, path).open() as tree:
        if await _is_orphan(ctx, path):
            known = await asyncio.to_thread(Metadata.read, path)
            worktree_id = await _row_for_rescues(ctx, tree, folder, known)
            branch, users = (known.branch, known.conversations) if isinstance(known, Metadata) else (None, ())
            if worktree_id is None and needs_row:
                return 0
            label = RescueLabel(worktree_id or NO_WORKTREE, branch, users, ctx.clock())
            trashed = await take_away(ctx, tree, label, whole=worktree_id is None)
            await asyncio.to_thread(Metadata.delete, path)
            freed = await delete_trashed(trashed)
    await retention.forget_orphans(ctx.pool, ctx.node, [ctx.stored(path)])
    return freed


async def _end_loose(ctx: NodeContext, path: Path, *, stays: bool) -> int | None:
    if not os.path.lexists(path):  # noqa: ASYNC240
        return None
    if not stays:
        await asyncio.to_thread(trash.keep_whole, ctx.data_dir, path, ctx.clock())
        await retention.forget_orphans(ctx.pool, ctx.node, [ctx.stored(path)])
    return 0


async def _is_orphan(ctx: NodeContext, path: Path) -> bool:
    return not await retention.claimed_paths(ctx.pool, ctx.node, [ctx.stored(path)])


async def _row_for_rescues(ctx: NodeContext, tree: OpenTree, folder: str, known: Metadata | str) -> int | None:
    """Return the id of a removed row under which the rescues of an orphan are listed; None where nothing tells how it
    began.
    """
    if not isinstance(known, Metadata) or not tree.clone.path.is_dir():
        return None
    if (start := started_from(known, await tree.commit_on_record())) is None:
        return None
    async with ctx.pool.acquire() as connection, connection.transaction():
        stored = ctx.stored(tree.path)
        earlier = await reconciliation.removed_at(connection, ctx.node, [stored])
        if earlier is not None:
            return earlier
        if not await reconciliation.is_codebase(connection, known.platform, known.repository_id, folder):
            return None
        owner, name = tree.path.parts[-3:-1]
        repository = Repository(known.platform, known.repository_id, owner, name)
        worktree_id = await conversations.reserve_worktree(
            connection,
            repository,
            node=ctx.node,
            path=stored,
            owner=next(iter(known.conversations), 0),
            start=start,
        )
        await reconciliation.record_removed(connection, worktree_id, known.branch, known.base, known.created_at)
        return worktree_id


async def _expire_rescues(ctx: NodeContext, policy: RetentionPolicy, *, force: bool, dry_run: bool) -> int:
    before = await rescues.expired_before(ctx.pool, policy.now, policy.rescue)
    names = await asyncio.to_thread(trash.names_in, trash.kept_folder(ctx.data_dir))
    kept = await asyncio.to_thread(trash.kept_before, ctx.data_dir, before)
    old = sum(not folder.name.endswith(trash.GIT_STATE) for folder in kept)
    expired = await rescues.expired(ctx.pool, ctx.node, before)
    total = await retention.count_rescues(ctx.pool, ctx.node)
    if not force and exceeds_safety_limit(len(expired) + old, total + len(names)):
        _log.warning("rescues-not-expired", expired=len(expired), kept=old, why="did the clock jump?")
        return 0
    freed = 0
    if dry_run:
        return sum([await asyncio.to_thread(trash.size_of, folder) for folder in kept])
    for rescue in expired:
        try:
            async with open_clone(ctx.clone(rescue.folder)) as opened:
                trashed = await drop(ctx, opened, rescue)
        except (GitError, OSError, refs.InvalidNameError) as problem:
            _log.warning("prune-error", rescue=rescue.ref or rescue.kept, error=str(problem))
            continue
        freed += await delete_trashed(trashed)
        _log.info("rescue-expired", rescue=rescue.ref or rescue.kept)
    await _expire_without_row(ctx, before)
    for folder in kept:
        if (gone := trash.move_to_trash(ctx.data_dir, folder)) is not None:
            freed += await trash.delete(gone)
    return freed


async def _expire_without_row(ctx: NodeContext, before: datetime) -> None:
    """Delete old rescues without a row: their refs tell how old they are."""
    for folder, clone in (await asyncio.to_thread(clones_on_disk, ctx)).items():
        try:
            if not await asyncio.to_thread(clone.path.is_dir):
                continue
            async with open_clone(clone) as opened:
                known = [one for one in await opened.rescues() if one.label.at < before]
                indexed = await reconciliation.indexed(ctx.pool, sorted({one.label.worktree_id for one in known}))
                for one in known:
                    if one.ref not in indexed:
                        await opened.drop(one.ref)
                        _log.info("rescue-expired", rescue=one.ref)
        except (GitError, OSError, refs.InvalidNameError) as problem:
            _log.warning("prune-error", clone=folder, error=str(problem))


async def _unused_homes(ctx: NodeContext) -> list[Path]:
    homes = ctx.data_dir / "homes"
    present = [int(name) for name in await asyncio.to_thread(trash.names_in, homes) if name.isdecimal()]
    async with ctx.pool.acquire() as connection:
        return [homes / str(one) for one in await retention.unused_homes(connection, present)]


async def _expire_homes(ctx: NodeContext, homes: list[Path]) -> None:
    async with ctx.pool.acquire() as connection:
        for home in homes:
            async with connection.transaction():
                if not await retention.lock_unused_home(connection, int(home.name)):
                    continue
                try:
                    await asyncio.to_thread(trash.move_to_trash, ctx.data_dir, home)
                except OSError as problem:
                    _log.warning("prune-error", home=home.name, error=str(problem))
                    continue
            _log.info("home-expired", conversation=int(home.name))


async def _forget_removed(ctx: NodeContext, policy: RetentionPolicy) -> None:
    """Delete the rows of worktrees that are gone for as long as a rescue is kept, and of which none is left.

    What a node had that gave no sign of life for so long counts as gone.
    """
    async with ctx.pool.acquire() as connection:
        before = await rescues.expired_before(connection, policy.now, policy.rescue)
        if count := await retention.give_up_silent_nodes(connection, before):
            _log.warning("silent-nodes-given-up", worktrees=count)
        while (count := await retention.forget_removed(connection, ctx.node, before, _ROWS_AT_ONCE)) > 0:
            _log.info("worktree-rows-deleted", count=count)


async def _expire_scratch(ctx: NodeContext, policy: RetentionPolicy) -> None:
    """Delete what was attached to the threads of turns that ended: their process was killed. And what checks left,
    also the packages of a repository that had none for as long as a detached worktree is kept.
    """
    names = [name for name in await asyncio.to_thread(trash.names_in, ctx.attachments) if name.isdecimal()]
    for turn in await retention.ended(ctx.pool, [int(name) for name in names]):
        try:
            await asyncio.to_thread(trash.move_to_trash, ctx.data_dir, ctx.attachments / str(turn))
        except OSError as problem:
            _log.warning("prune-error", folder=f"attachments/{turn}", error=str(problem))
            continue
        _log.info("scratch-expired", turn=turn)
    await expire_places(ctx, policy.expired_before(Kind.DETACHED).timestamp())
