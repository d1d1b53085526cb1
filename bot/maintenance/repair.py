"""Repair: make rows, directories and git's entries of this node agree, clone by clone, by `reconcile_rules`."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import structlog

from bot.clones import entries, metadata, trash
from bot.clones.admin import LIVE, UNFINISHED
from bot.clones.clone import Clone, CloneLock, clone_lock
from bot.clones.metadata import Absent, Corrupt, Metadata
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError
from bot.maintenance.reconcile_rules import Action, EntryState, MetadataState, Place, decide
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.operations.shared import record_rescue
from bot.rescue.message import RescueLabel
from bot.rescue.save import KeepDirectory, Rescued
from bot.rescue.stored import list_rescues
from bot.store import reconciliation, retention
from bot.worktrees.unlink import rescue_first, rescued_commit, unlink_worktree

Progress = Callable[[str], None]
# The id in the rescues of what has no row: rows count from 1.
NO_WORKTREE = 0
METADATA_STATES: dict[type, MetadataState] = {Metadata: "ok", Absent: "missing", Corrupt: "corrupt"}
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Found:
    """A place, and what its repair needs."""

    path: Path
    place: Place
    row: WorktreeRow | None
    entry: entries.Entry | None
    metadata: Metadata | Absent | Corrupt


async def repair(
    ctx: NodeContext, only: int | None = None, progress: Progress = lambda _: None
) -> list[tuple[str, Action]]:
    """Repair all worktrees of this node, or one; return (path, what was done).

    One `git worktree list` per clone, under its lock. A clone or a place that cannot be repaired is logged and skipped.
    Every step can be repeated. Raises only what a database raises that is away.
    """
    async with ctx.pool.acquire() as connection:
        located = await reconciliation.locate(connection, ctx.node, only)
    folders = {folder for folder, _ in located}
    if only is None:
        folders |= await asyncio.to_thread(folders_on_disk, ctx.data_dir)
    done: list[tuple[str, Action]] = []
    for number, folder in enumerate(sorted(folders), start=1):
        progress(f"{folder} ({number} of {len(folders)})")
        try:
            async with clone_lock(ctx.clone(folder)) as lock:
                done += await _repair_clone(
                    ctx, lock, folder, None if only is None else str(ctx.directory(located[0][1]))
                )
                await _index_rescues(ctx, lock.clone, folder)
        except (GitError, refs.InvalidNameError) as problem:
            _log.warning("repair-error", clone=folder, error=str(problem))
    if only is None:
        await _forget_former_orphans(ctx)
    _log.info("worktrees-repaired", clones=len(folders), repaired=len(done))
    return done


async def take_away(ctx: NodeContext, lock: CloneLock, path: Path, label: RescueLabel, *, whole: bool) -> None:
    """Rescue what is at a path and clear it; with `whole` the directory is kept as it is.

    `label.worktree_id` may be NO_WORKTREE. Raises GitError, OSError, InvalidNameError.
    """
    found = await rescue_first(lock, path, label)
    commit, whole = rescued_commit(found), whole or isinstance(found, KeepDirectory)
    size = await asyncio.to_thread(trash.size_of, path) if whole else 0
    # In one transaction: no row is written for a directory that was not kept.
    async with ctx.pool.acquire() as connection, connection.transaction():
        departed = await asyncio.to_thread(unlink_worktree, lock, path, label.at, whole=whole)
        await record_rescue(connection, label, commit, departed.kept, size)
        reached("taken-away")


async def _repair_clone(ctx: NodeContext, lock: CloneLock, folder: str, only: str | None) -> list[tuple[str, Action]]:
    """Repair the places of a clone.

    Turns and removals take the clone's lock before they touch a worktree, so the inventory stays true; the row of a
    worktree tells whether a turn that had the lock before runs.
    """
    done: list[tuple[str, Action]] = []
    for found in await _take_inventory(ctx, lock.clone, folder, only):
        for action in decide(found.place):
            try:
                changed = await _apply(ctx, lock, action, found)
            except (GitError, OSError, refs.InvalidNameError) as problem:
                _log.warning("repair-error", path=str(found.path), action=action, error=str(problem))
                break
            if changed:
                done.append((str(found.path), action))
                _log.info("worktree-repaired", path=str(found.path), action=action)
    return done


async def _take_inventory(ctx: NodeContext, clone: Clone, folder: str, only: str | None) -> list[_Found]:
    """Return every place of the clone in `folder`, or the one at the path `only`, ordered by path.

    The caller holds the clone's lock. Rows are read after disk and git, since a row is written before its checkout is
    made. Worktrees that are being removed, of another node, or lost are left out. Opens one directory.
    """
    directory = ctx.data_dir / "worktrees" / folder
    records = await _records(clone, directory)
    on_disk = await asyncio.to_thread(_places_on_disk, directory)
    async with ctx.pool.acquire() as connection:
        stored = await reconciliation.live_in(connection, folder, ctx.node)
        rows = {str(ctx.directory(path)): row for path, row in stored.items()}
        without_row = {*on_disk, *(records or ())} - rows.keys()
        names = [ctx.stored(Path(path)) for path in sorted(without_row)]
        claimed = await retention.claimed_paths(connection, ctx.node, names)
        without_row -= {str(ctx.directory(path)) for path in claimed}
    paths = [path for path in sorted(rows.keys() | without_row) if only is None or path == only]
    return await asyncio.to_thread(lambda: [_examine(path, rows.get(path), records) for path in paths])


def _examine(path: str, live: tuple[WorktreeRow, bool] | None, records: Mapping[str, entries.Entry] | None) -> _Found:
    row, busy = live or (None, False)
    known = metadata.read(Path(path))
    entry = records.get(path) if records is not None else None
    place = Place(
        row=row is not None,
        directory=os.path.lexists(path),
        entry=_entry_state(entry) if records is not None else "unknown",
        metadata=METADATA_STATES[type(known)],
        busy=busy,
    )
    return _Found(Path(path), place, row, entry, known)


def _entry_state(entry: entries.Entry | None) -> EntryState:
    if entry is None:
        return "absent"
    if entry.lock_reason is None:
        return "unlocked"
    return "unfinished" if entry.lock_reason in UNFINISHED else "locked"


async def _records(clone: Clone, directory: Path) -> dict[str, entries.Entry] | None:
    """Return git's entries for worktrees directly in `directory`, by path; None without a clone that git can read."""
    if not await asyncio.to_thread(clone.path.is_dir):
        return None
    try:
        listed = await entries.all_entries(clone)
    except GitError as problem:
        _log.warning("clone-unreadable", clone=str(clone.path), error=str(problem))
        return None
    parent = await asyncio.to_thread(directory.resolve)
    return {str(directory / entry.path.name): entry for entry in listed if entry.path.parent == parent}


def _places_on_disk(directory: Path) -> set[str]:
    """Return the paths in the folder; a file `<name>.json` stands for the worktree beside it."""
    try:
        with os.scandir(directory) as found:
            children = [(child.path, child.is_file(follow_symlinks=False)) for child in found]
    except (FileNotFoundError, NotADirectoryError):
        return set()
    return {path.removesuffix(".json") if is_file else path for path, is_file in children}


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as found:
            return [child.name for child in found if child.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def folders_on_disk(data_dir: Path) -> set[str]:
    """Return the `owner/repo` folders with worktrees, and those of the clones. Opens a directory per owner."""
    found: set[str] = set()
    for root, suffix in ((data_dir / "worktrees", ""), (data_dir / "repos", ".git")):
        for owner in _folders(root):
            names = _folders(root / owner)
            found |= {f"{owner}/{name.removesuffix(suffix)}" for name in names if name.endswith(suffix)}
    return found


async def _apply(ctx: NodeContext, lock: CloneLock, action: Action, found: _Found) -> bool:
    """Apply an action; False if there was nothing to do any more. Raises GitError, OSError, InvalidNameError."""
    path, row = found.path, found.row
    match action:
        case Action.LOCK:
            await lock.clone.run("worktree", "lock", "--reason", LIVE, "--", str(path))
        case Action.REBUILD_METADATA:
            if row is not None:
                await asyncio.to_thread(metadata.write, path, metadata.metadata_of(row))
                state = METADATA_STATES[type(found.metadata)]
                _log.warning("metadata-rebuilt", path=str(path), worktree=row.id, was=state)
        case Action.KEEP_WHOLE:
            if row is not None:
                label = RescueLabel(row.id, row.branch, row.conversations, ctx.clock())
                await take_away(ctx, lock, path, label, whole=True)
        case Action.ADOPT:
            return await _adopt(ctx, found)
        case Action.DROP_ENTRY:
            await _drop_entry(ctx, lock, found)
        case Action.DELETE_METADATA:
            await asyncio.to_thread(metadata.delete, path)
        case _:
            assert_never(action)
    return True


async def _drop_entry(ctx: NodeContext, lock: CloneLock, found: _Found) -> None:
    async with ctx.pool.acquire() as connection:
        earlier = await reconciliation.removed_at(connection, ctx.node, [ctx.stored(found.path)])
    users = found.metadata.conversations if isinstance(found.metadata, Metadata) else ()
    branch = found.entry.branch if found.entry else None
    label = RescueLabel(earlier if earlier is not None else NO_WORKTREE, branch, users, ctx.clock())
    await take_away(ctx, lock, found.path, label, whole=False)


async def _adopt(ctx: NodeContext, found: _Found) -> bool:
    """Record an orphan; its age counts from its last use, where its metadata tells that. False if it was known."""
    now = ctx.clock()
    since = min(found.metadata.updated_at, now) if isinstance(found.metadata, Metadata) else now
    async with ctx.pool.acquire() as connection:
        return await retention.adopt(connection, ctx.node, ctx.stored(found.path), since)


async def _index_rescues(ctx: NodeContext, clone: Clone, folder: str) -> None:
    """Write rows for rescues of this clone's worktrees that have none."""
    known = await list_rescues(clone) if await asyncio.to_thread(clone.path.is_dir) else []
    async with ctx.pool.acquire() as connection:
        ids = await reconciliation.ids_in(connection, folder, sorted({one.label.worktree_id for one in known}))
        indexed = await reconciliation.indexed(connection, sorted(ids))
        for one in known:
            if one.label.worktree_id in ids and one.ref not in indexed:
                rescued = Rescued(one.ref, one.sha, one.kept.files, one.kept.commits)
                await record_rescue(connection, one.label, rescued, None, 0)
                _log.info("rescue-indexed", ref=one.ref)


async def _forget_former_orphans(ctx: NodeContext) -> None:
    """Delete the rows of orphans that are gone or have a worktree's row now."""
    async with ctx.pool.acquire() as connection:
        known = await retention.orphans(connection, ctx.node)
        former = await retention.claimed_paths(connection, ctx.node, sorted(known))
        gone = await asyncio.to_thread(lambda: {path for path in known if not os.path.lexists(ctx.directory(path))})
        await retention.forget_orphans(connection, ctx.node, sorted(former | gone))
