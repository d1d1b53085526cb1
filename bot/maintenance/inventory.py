"""The inventory of a clone: directory, git's entry, metadata and row at each path of a worktree."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.clones import entries, metadata
from bot.clones.clone import Clone
from bot.clones.metadata import Absent, Corrupt, Metadata
from bot.git.errors import GitError
from bot.maintenance.reconcile_rules import EntryState, MetadataState, Place
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.store import reconciliation, retention
from bot.store.reconciliation import RowInUse

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Found:
    """A place, and what its repair needs."""

    path: Path
    place: Place
    row: WorktreeRow | None
    entry: entries.Entry | None
    known: Metadata | Absent | Corrupt


def folders_on_disk(data_dir: Path) -> set[str]:
    """Return the `owner/repo` folders with worktrees, and those of the clones. Opens a directory per owner."""
    found: set[str] = set()
    for root, suffix in ((data_dir / "worktrees", ""), (data_dir / "repos", ".git")):
        for owner in _folders(root):
            names = _folders(root / owner)
            found |= {f"{owner}/{name.removesuffix(suffix)}" for name in names if name.endswith(suffix)}
    return found


async def take_inventory(ctx: NodeContext, clone: Clone, folder: str, only: str | None) -> list[Found]:
    """Return every place of the clone in `folder`, or the one at the path `only`, ordered by path.

    The caller holds the clone's lock. Rows are read after disk and git, since a row is written before its checkout is
    made. Places of another node's rows, and those this node has lost, are left out. Opens one directory.
    """
    directory = ctx.data_dir / "worktrees" / folder
    records = await _records(clone, directory)
    on_disk = await asyncio.to_thread(_places_on_disk, directory)
    async with ctx.pool.acquire() as connection:
        rows = {row.worktree.path: row for row in await reconciliation.live_in(connection, folder, ctx.node)}
        without_row = {*on_disk, *(records or ())} - rows.keys()
        without_row -= await retention.claimed_paths(connection, sorted(without_row))
        paths = sorted(rows.keys() | without_row)
        if only is not None:
            paths = [path for path in paths if path == only]
        known = await asyncio.to_thread(_read_all, paths)
        ids = {int(one.id) for one in known.values() if isinstance(one, Metadata) and one.id.isdecimal()}
        named = await reconciliation.by_id(connection, sorted(ids), ctx.node)
    return await asyncio.to_thread(_found, paths, rows, named, records, known)


def _found(
    paths: Sequence[str],
    rows: Mapping[str, RowInUse],
    named: Mapping[int, RowInUse],
    records: Mapping[str, entries.Entry] | None,
    known: Mapping[str, Metadata | Absent | Corrupt],
) -> list[Found]:
    found = []
    for path in paths:
        one = known[path]
        row = rows.get(path)
        if row is None and isinstance(one, Metadata) and one.id.isdecimal():
            row = named.get(int(one.id))
            # The number may be another worktree's by now.
            row = row if row is not None and row.worktree.path == path else None
        entry = records.get(path) if records is not None else None
        place = Place(
            row=row.worktree.state if row else None,
            directory=os.path.lexists(path),
            entry=_entry_state(entry) if records is not None else "unknown",
            metadata=_metadata_state(one),
            busy=row.busy if row else False,
        )
        found.append(Found(Path(path), place, row.worktree if row else None, entry, one))
    return found


def _entry_state(entry: entries.Entry | None) -> EntryState:
    if entry is None:
        return "absent"
    if entry.lock_reason is None:
        return "unlocked"
    return "unfinished" if entry.lock_reason in entries.UNFINISHED else "locked"


def _metadata_state(known: Metadata | Absent | Corrupt) -> MetadataState:
    match known:
        case Metadata():
            return "ok"
        case Absent():
            return "missing"
        case Corrupt():
            return "corrupt"


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


def _read_all(paths: Sequence[str]) -> dict[str, Metadata | Absent | Corrupt]:
    return {path: metadata.read(Path(path)) for path in paths}


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as found:
            return [child.name for child in found if child.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
