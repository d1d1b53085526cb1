"""A directory that was kept whole, put back over a fresh checkout: files, links, and repositories inside."""

import asyncio
import filecmp
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from bot.clones import entries
from bot.clones.admin import last_reflog_commit
from bot.clones.clone import Clone, CloneLock
from bot.clones.trash import GIT_STATE
from bot.failpoints import reached
from bot.rescue.restore import MARK, Restored, RestoreRefused, mark, marked, ready, restore_rescue
from bot.rescue.snapshot import existing_files

# Where submodules have their commits, within what git knew of a kept directory: with a cage, and without.
_MODULES = ("private/state/modules", "worktrees/*/modules")
# Where it went last with its HEAD.
_LOGS = ("private/state/logs/HEAD", "worktrees/*/logs/HEAD")

_log = structlog.get_logger()


async def restore_all(
    lock: CloneLock, path: Path, branch: str | None, sha: str | None, kept: Path | None
) -> Restored | RestoreRefused:
    """Brings back the rescue commit `sha`, and the directory `kept` of the same removal, as far as there is either.

    One that was cut off can be repeated. Raises GitError, OSError, InvalidNameError.
    """
    state = await ready(lock, path, branch)
    if isinstance(state, RestoreRefused):
        return state
    done: Restored | RestoreRefused = Restored(0, 0)
    # Half of a repository is no state that the commit's files could be compared with: they are there by then.
    if sha is not None and (kept is None or marked(state) != kept.name):
        done = await restore_rescue(lock, path, branch, sha)
    if kept is None or isinstance(done, RestoreRefused):
        return done
    whole = await restore_kept(lock, path, branch, kept)
    if isinstance(whole, Restored):
        return replace(done, whole=whole.files > 0)
    return whole if sha is None else replace(done, left=whole.why)


async def restore_kept(lock: CloneLock, path: Path, branch: str | None, kept: Path) -> Restored | RestoreRefused:
    """Makes the files of the worktree at `path` those of the directory `kept`, ignored ones and repositories inside
    too, where that takes nothing which only the worktree has; what git knew of it is in `<kept>.git`. It stays where it
    is kept. Commits do not come back by this.

    One that was cut off can be repeated, and so can one that was done until something is changed in the worktree.
    Raises GitError, OSError, InvalidNameError.
    """
    state = await ready(lock, path, branch)
    if isinstance(state, RestoreRefused):
        return state
    if not stat.S_ISDIR(_mode(kept)):
        return RestoreRefused("the directory that was kept is gone")
    tracked = (await lock.clone.on_worktree(path, "ls-files", "-z")).fields
    if marked(state) != kept.name:
        if await _is_elsewhere(lock.clone, path, kept):
            return RestoreRefused("the worktree is at another commit than that directory was")
        changed = {name for _, name in await entries.changed_files(lock.clone, path)}
        if await asyncio.to_thread(_loses, kept, path, tracked, changed):
            return RestoreRefused("the worktree holds uncommitted work; commit it or reset the worktree first")
    mark(state, kept.name)
    reached("kept-restore-begun")
    files = await asyncio.to_thread(_make_same, kept, path, tracked)
    modules = next((found for place in _MODULES for found in _git_state(kept).glob(place)), None)
    if modules is not None:
        await asyncio.to_thread(_make_same, modules, state / "modules", ())
    reached("kept-files-restored")
    (state / MARK).unlink()
    _log.info("kept-directory-restored", path=str(path), kept=str(kept), files=files)
    return Restored(0, files)


def _git_state(kept: Path) -> Path:
    return kept.with_name(kept.name + GIT_STATE)


async def _is_elsewhere(clone: Clone, path: Path, kept: Path) -> bool:
    """Whether the files of `kept` would undo, or redo, what commits changed; not where its commit is unknown."""
    logs = [log for place in _LOGS for log in _git_state(kept).glob(place)]
    base = next(filter(None, map(last_reflog_commit, logs)), None)
    return base is not None and await clone.commit_at(base) is not None and base != await entries.head_of(clone, path)


def _loses(source: Path, target: Path, tracked: Sequence[str], changed: Collection[str]) -> bool:
    """Whether making the target the same would take what neither the source nor HEAD has."""
    clean = set(tracked) - set(changed)
    deleted = set(existing_files(target, tracked)) - set(existing_files(source, tracked))
    if deleted - clean:
        return True
    return any(
        str(file.relative_to(target)) not in clean for _, place in _unlike(source, target) for file in _in(place)
    )


def _in(place: Path) -> Iterator[Path]:
    """The file at this place, or those below it."""
    if not stat.S_ISDIR(_mode(place)):
        yield from [place] if os.path.lexists(place) else []
        return
    for folder, folders, names in os.walk(place):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in (*names, *links))


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
