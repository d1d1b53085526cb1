"""A directory that was kept whole, put back over a fresh checkout: files, links, and repositories inside."""

import asyncio
import filecmp
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from bot.failpoints import reached
from bot.run.worktrees import entries
from bot.run.worktrees.clone import CloneLock
from bot.run.worktrees.restore import MARK, Restored, RestoreRefused, mark, marked, ready
from bot.run.worktrees.snapshot import existing_files

# Where submodules have their commits, within what git knew of a kept directory: with a cage, and without.
_MODULES = ("private/state/modules", "worktrees/*/modules")

log = structlog.get_logger()


async def restore_kept(lock: CloneLock, path: Path, branch: str | None, kept: Path) -> Restored | RestoreRefused:
    """Makes the files of the clean worktree at `path` those of the directory `kept`, ignored ones and repositories
    inside too; what git knew of it is in `<kept>.git`. It stays where it is kept. Commits do not come back by this.

    One that was cut off can be repeated, and so can one that was done until something is changed in the worktree.
    Raises GitError, OSError, InvalidNameError.
    """
    state = await ready(lock, path, branch)
    if isinstance(state, RestoreRefused):
        return state
    if not stat.S_ISDIR(_mode(kept)):
        return RestoreRefused("the directory that was kept is gone")
    dirty = await entries.changed_files(lock.clone, path)
    if dirty and marked(state) != kept.name and await asyncio.to_thread(_differs, kept, path):
        return RestoreRefused("the worktree holds uncommitted work; commit it or reset the worktree first")
    mark(state, kept.name)
    reached("restore-begun")
    tracked = (await lock.clone.on_worktree(path, "ls-files", "-z")).fields
    files = await asyncio.to_thread(_make_same, kept, path, tracked)
    modules = next((found for place in _MODULES for found in kept.with_name(f"{kept.name}.git").glob(place)), None)
    if modules is not None:
        await asyncio.to_thread(_make_same, modules, state / "modules", ())
    reached("files-restored")
    (state / MARK).unlink()
    log.info("kept-directory-restored", path=str(path), kept=str(kept), files=files)
    return Restored(0, files)


def _differs(source: Path, target: Path) -> bool:
    return next(_unlike(source, target), None) is not None


def _make_same(source: Path, target: Path, tracked: Sequence[str]) -> int:
    """Copies what is not the same and deletes what is `tracked` and not in the source; returns how many files."""
    gone = set(existing_files(target, tracked)) - set(existing_files(source, tracked))
    for name in gone:
        (target / name).unlink()
    if not stat.S_ISDIR(_mode(target)):
        target.unlink(missing_ok=True)
        target.mkdir()
    copied = 0
    for wanted, place in _unlike(source, target):
        _copy(wanted, place)
        copied += not stat.S_ISDIR(_mode(wanted))
    return len(gone) + copied


def _unlike(source: Path, target: Path) -> Iterator[tuple[Path, Path]]:
    """Directories, links and files of the source, each with its place where that does not hold the same.

    What is above them comes first. The worktree's own link to its clone is none of them.
    """
    folders = [source]
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as found:
            names = sorted(entry.name for entry in found if Path(entry.path) != source / ".git")
        for name in names:
            wanted, place = folder / name, target / folder.relative_to(source) / name
            if not _is_same(wanted, place):
                yield wanted, place
            if stat.S_ISDIR(_mode(wanted)):
                folders.append(wanted)


def _is_same(wanted: Path, place: Path) -> bool:
    kind, mode = _mode(wanted), _mode(place)
    if stat.S_ISDIR(kind):
        return stat.S_ISDIR(mode)
    if stat.S_ISLNK(kind):
        return stat.S_ISLNK(mode) and wanted.readlink() == place.readlink()
    # A socket or a pipe cannot be copied.
    return not stat.S_ISREG(kind) or (kind == mode and filecmp.cmp(wanted, place, shallow=False))


def _copy(wanted: Path, place: Path) -> None:
    if stat.S_ISDIR(_mode(place)):
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    if stat.S_ISDIR(_mode(wanted)):
        place.mkdir()
    else:
        shutil.copy2(wanted, place, follow_symlinks=False)


def _mode(file: Path) -> int:
    try:
        return file.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
