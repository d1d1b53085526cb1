"""Repair: make rows, directories and git's entries of this node agree, clone by clone, by `reconcile_rules`."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import structlog

from bot import refs
from bot.care import reconciliation_rows as reconciliation
from bot.care import retention_rows as retention
from bot.care.asked import Repaired, Repairing
from bot.care.reconcile_rules import Action, EntryState, Place, decide
from bot.care.retention_rows import Live
from bot.care.retention_rules import MetadataState
from bot.failpoints import reached
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.node.rescues import record_rescue
from bot.sandbox import trash
from bot.store import worktrees
from bot.tree import (
    Clone,
    Entry,
    GitError,
    Metadata,
    OpenClone,
    OpenTree,
    Rescued,
    RescueLabel,
    last_change,
    open_clone,
)

Progress = Callable[[str], None]
# The id in the rescues of what has no row: rows count from 1.
NO_WORKTREE = 0
EVERYTHING = Repairing()
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Found:
    """A place, and what its repair needs."""

    path: Path
    place: Place
    row: WorktreeRow | None
    entry: Entry | None
    metadata: Metadata | MetadataState


async def repair(
    ctx: NodeContext, asked: Repairing = EVERYTHING, progress: Progress = lambda _: None
) -> list[Repaired]:
    """Repair all worktrees of this node, or those that are asked for; return what was done.

    One `git worktree list` per clone, under its lock. A clone or a place that cannot be repaired is logged and skipped.
    Every step can be repeated. Raises only what a database raises that is away.
    """
    done: list[Repaired] = []
    path, clones = None, await asyncio.to_thread(clones_on_disk, ctx)
    if asked.repo is not None:
        folders = await reconciliation.folders_of(ctx.pool, asked.repo)
        clones = {folder: clone for folder, clone in clones.items() if folder in folders}
    if asked.worktree is not None:
        row = await worktrees.row_of(ctx.pool, asked.worktree)
        if row is None or row.node != ctx.node:
            return []
        path, clones = str(ctx.directory(row.path)), {row.folder: ctx.clone(row.folder)}
    for number, (folder, clone) in enumerate(clones.items(), start=1):
        progress(f"{folder} ({number} of {len(clones)})")
        try:
            async with open_clone(clone) as opened:
                done += await _repair_clone(ctx, opened, folder, path)
                await _index_rescues(ctx, opened, folder)
        except (GitError, refs.InvalidNameError) as problem:
            _log.warning("repair-error", clone=folder, error=str(problem))
    if asked == EVERYTHING:
        loose = await asyncio.to_thread(_loose, ctx, clones)
        done += [Repaired(str(path), Action.ADOPT) for path in loose if await _adopt(ctx, None, path, None)]
        await _forget_former_orphans(ctx)
    _log.info("worktrees-repaired", clones=len(clones), repaired=len(done))
    return done


async def take_away(ctx: NodeContext, tree: OpenTree, label: RescueLabel, *, whole: bool) -> tuple[Path, ...]:
    """Rescue what is at a path and clear it; with `whole` the directory is kept. Return what went to the trash.

    `label.worktree_id` may be NO_WORKTREE. Raises GitError, OSError, InvalidNameError.
    """
    commit, why = await tree.rescue(label)
    whole = whole or why is not None
    size = await asyncio.to_thread(trash.size_of, tree.path) if whole else 0
    # In one transaction: no row is written for a directory that was not kept.
    async with ctx.pool.acquire() as connection, connection.transaction():
        departed = await asyncio.to_thread(tree.unlink, label.at, whole=whole)
        await record_rescue(connection, label, commit, departed.kept, size)
        reached("taken-away")
    return departed.trashed


async def _repair_clone(ctx: NodeContext, opened: OpenClone, folder: str, only: str | None) -> list[Repaired]:
    """Repair the places of a clone.

    Turns and removals take the clone's lock before they touch a worktree, so the inventory stays true; the row of a
    worktree tells whether a turn that had the lock before runs.
    """
    done: list[Repaired] = []
    for found in await _take_inventory(ctx, opened, folder, only):
        for action in decide(found.place):
            try:
                changed = await _apply(ctx, opened.at(found.path), action, found)
            except (GitError, OSError, refs.InvalidNameError) as problem:
                _log.warning("repair-error", path=str(found.path), action=action, error=str(problem))
                break
            if changed:
                done.append(Repaired(str(found.path), action))
                _log.info("worktree-repaired", path=str(found.path), action=action)
    return done


async def _take_inventory(ctx: NodeContext, opened: OpenClone, folder: str, only: str | None) -> list[_Found]:
    """Return every place of the clone in `folder`, or the one at the path `only`, ordered by path.

    The caller holds the clone's lock. Rows are read after disk and git, since a row is written before its checkout is
    made. Worktrees that are being removed, of another node, or lost are left out. Opens one directory.
    """
    directory = ctx.data_dir / "worktrees" / folder
    records = await opened.entries(directory)
    on_disk = await asyncio.to_thread(_places_on_disk, directory)
    live = await retention.live_worktrees(ctx.pool, ctx.node, folder=folder)
    rows = {str(ctx.directory(one.worktree.path)): one for one in live}
    without_row = {*on_disk, *(records or ())} - rows.keys()
    names = [ctx.stored(Path(path)) for path in sorted(without_row)]
    claimed = await retention.claimed_paths(ctx.pool, ctx.node, names)
    without_row -= {str(ctx.directory(path)) for path in claimed}
    paths = [path for path in sorted(rows.keys() | without_row) if only is None or path == only]
    return await asyncio.to_thread(lambda: [_examine(path, rows.get(path), records) for path in paths])


def _examine(path: str, live: Live | None, records: Mapping[str, Entry] | None) -> _Found:
    known = Metadata.read(Path(path))
    entry = (records or {}).get(path)
    state: EntryState = "unknown" if records is None else "absent"
    if entry is not None:
        state = "unlocked" if entry.lock_reason is None else "locked"
    place = Place(
        row=live is not None,
        directory=os.path.lexists(path),
        entry=state,
        metadata="ok" if isinstance(known, Metadata) else known,
        busy=live is not None and live.busy,
    )
    return _Found(Path(path), place, live.worktree if live else None, entry, known)


def _places_on_disk(directory: Path) -> set[str]:
    """Return the paths in the folder; a file `<name>.json` stands for the worktree beside it."""
    try:
        with os.scandir(directory) as found:
            children = [(child.path, child.is_file(follow_symlinks=False)) for child in found]
    except (FileNotFoundError, NotADirectoryError):
        return set()
    return {path.removesuffix(".json") if is_file else path for path, is_file in children}


def clones_on_disk(ctx: NodeContext) -> dict[str, Clone]:
    """Return the clones of the repositories that have one here, or worktrees, by their folders `owner/repo`.

    Opens a directory for each owner.
    """
    found: dict[str, Clone] = {}
    for root, suffix in (("worktrees", ""), ("repos", ".git")):
        for place in sorted((ctx.data_dir / root).glob(f"*/*{suffix}")):
            if _is_folder(place) and _is_folder(place.parent):
                folder = f"{place.parent.name}/{place.name.removesuffix(suffix)}"
                with contextlib.suppress(refs.InvalidNameError):
                    found[folder] = ctx.clone(folder)
    return found


def _loose(ctx: NodeContext, folders: Collection[str]) -> list[Path]:
    """Return what lies above these folders of repositories, or beside them under a name that none has."""
    owners = sorted((ctx.data_dir / "worktrees").glob("*"))
    inside = [place for owner in owners if _is_folder(owner) for place in sorted(owner.iterdir())]
    stray = [place for place in inside if not _is_folder(place) or f"{place.parent.name}/{place.name}" not in folders]
    return [*stray, *(owner for owner in owners if not _is_folder(owner))]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


async def _apply(ctx: NodeContext, tree: OpenTree, action: Action, found: _Found) -> bool:
    """Apply an action; False if there was nothing to do any more. Raises GitError, OSError, InvalidNameError."""
    path, row = found.path, found.row
    match action:
        case Action.LOCK:
            await tree.mark_live()
        case Action.REBUILD_METADATA:
            if row is not None:
                runs = await reconciliation.runs_in(ctx.pool, row.id)
                await asyncio.to_thread(Metadata.of(row, *runs).write, path)
                _log.warning("metadata-rebuilt", path=str(path), worktree=row.id, was=found.place.metadata)
        case Action.KEEP_WHOLE:
            if row is not None:
                label = RescueLabel(row.id, row.branch, row.conversations, ctx.clock())
                await take_away(ctx, tree, label, whole=True)
        case Action.ADOPT:
            return await _adopt(ctx, tree.clone, path, found.metadata)
        case Action.DROP_ENTRY:
            await _drop_entry(ctx, tree, found)
        case Action.DELETE_METADATA:
            await asyncio.to_thread(Metadata.delete, path)
        case _:
            assert_never(action)
    return True


async def _drop_entry(ctx: NodeContext, tree: OpenTree, found: _Found) -> None:
    earlier = await reconciliation.removed_at(ctx.pool, ctx.node, [ctx.stored(found.path)])
    users = found.metadata.conversations if isinstance(found.metadata, Metadata) else ()
    branch = found.entry.branch if found.entry else None
    label = RescueLabel(earlier if earlier is not None else NO_WORKTREE, branch, users, ctx.clock())
    await take_away(ctx, tree, label, whole=False)


async def _adopt(ctx: NodeContext, clone: Clone | None, path: Path, known: Metadata | str | None) -> bool:
    """Record an orphan; its age counts from its last use, by its metadata or else its files. False if it was known."""
    used = known.updated_at if isinstance(known, Metadata) else await asyncio.to_thread(last_change, clone, path)
    since = min(used or ctx.clock(), ctx.clock())
    return await retention.adopt(ctx.pool, ctx.node, ctx.stored(path), since)


async def _index_rescues(ctx: NodeContext, opened: OpenClone, folder: str) -> None:
    """Write rows for rescues of this clone's worktrees that have none."""
    known = await opened.rescues() if await asyncio.to_thread(opened.clone.path.is_dir) else []
    async with ctx.pool.acquire() as connection:
        refs = [one.ref for one in known]
        missing = await reconciliation.not_on_record(connection, folder, [one.label.worktree_id for one in known], refs)
        for one in known:
            if one.ref in missing:
                rescued = Rescued(one.ref, one.sha, one.kept.files, one.kept.commits)
                await record_rescue(connection, one.label, rescued, None, 0)
                _log.info("rescue-indexed", ref=one.ref)


async def _forget_former_orphans(ctx: NodeContext) -> None:
    """Delete the rows of orphans that are gone or have a worktree's row now."""
    async with ctx.pool.acquire() as connection:
        known = [one.path for one in await retention.orphans(connection, ctx.node)]
        former = await retention.claimed_paths(connection, ctx.node, known)
        gone = await asyncio.to_thread(lambda: {path for path in known if not os.path.lexists(ctx.directory(path))})
        await retention.forget_orphans(connection, ctx.node, sorted(former | gone))
