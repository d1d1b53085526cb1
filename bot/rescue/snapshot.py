"""A snapshot of a worktree: one tree of every file on disk, byte for byte, and one of what is staged."""

import errno
import os
import stat
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bot.clones.status import Change
from bot.git.errors import GitError, GitProblem
from bot.rescue.contents import SUBMODULE, Contents, IndexEntry, read_state
from bot.rescue.scratch_git import CONVERSIONS, NO_OBJECT, ScratchGit

DISK, STAGED, _COMPARED = "disk", "staged", "compared"
_NO_CONVERSION = frozenset({"unspecified", "unset"})
_UNREADABLE = "Unable to process path"
# An index can name what no disk can hold.
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})


class UnreadableError(GitError):
    """A file cannot become an object of git: no permission, or a name that git does not allow."""

    def __init__(self, why: str) -> None:
        super().__init__(GitProblem.OTHER, "snapshot", why)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`tree` is what is on disk, `staged` the index where it differs from HEAD."""

    tree: str
    staged: str | None
    changes: Sequence[Change]


async def snapshot(own: ScratchGit, head: str | None, contents: Contents | None = None) -> Snapshot:
    """Make objects of all files that are neither ignored nor in a repository inside, and an index named DISK.

    It reads the files that differ from HEAD, and all files whose bytes attributes convert.
    Ignored files are left out unless they are tracked; so are empty directories, sockets and the like: git knows none
    of them. Raises UnreadableError, GitError, OSError.
    """
    seen = contents or await read_state(own, head)
    if seen.unseen is not None:
        raise UnreadableError(seen.unseen)
    converted = await _converted(own, seen)
    own.verbatim()
    # The name of a repository inside ends in `/`.
    changed = {change.name for change in seen.changes if not change.name.endswith("/")}
    doubtful = changed | {entry.name for entry in seen.entries if entry.flagged}
    files = set(existing_files(own.path, doubtful))
    files |= {one.name for one in seen.entries if one.name not in doubtful and one.mode != SUBMODULE}
    stays = {one.name: one for one in seen.entries if one.stage == 0 and _stays(own.path, one, files)}
    # It starts with HEAD, whose trees git need not make again.
    await own.run("read-tree", head or "--empty", index=DISK)
    await own.fill(DISK, sorted(_line(name, stays.get(name)) for name in changed))
    unlike = await _unlike(own, [stays[name] for name in converted & stays.keys() - changed])
    await _add(own, sorted(files & (changed | unlike) | (files - stays.keys())))
    staged = await _staged(own, head, seen) if any(change.is_staged for change in seen.changes) else None
    return Snapshot(await own.tree(DISK), staged, seen.changes)


async def _converted(own: ScratchGit, seen: Contents) -> Set[str]:
    """Return the files that git can take for unchanged although their bytes differ from its objects."""
    names_seen = (*(entry.name for entry in seen.entries), *(change.name for change in seen.changes))
    if not any(name.endswith(".gitattributes") for name in names_seen):
        return frozenset()
    names = b"".join(os.fsencode(entry.name) + b"\0" for entry in seen.entries)
    fields = (await own.run("check-attr", "--stdin", "-z", *CONVERSIONS, input=names)).fields
    return {name for name, value in zip(fields[::3], fields[2::3], strict=True) if value not in _NO_CONVERSION}


async def _unlike(own: ScratchGit, entries: Sequence[IndexEntry]) -> Set[str]:
    """Return the names of those entries whose bytes on disk differ."""
    if not entries:
        return frozenset()
    await own.fill(_COMPARED, ((one.mode, one.sha, one.name) for one in entries))
    await own.run("update-index", "-q", "--refresh", index=_COMPARED, check=False)
    return set((await own.run("diff-files", "--name-only", "-z", "--no-renames", index=_COMPARED)).fields)


def _stays(path: Path, entry: IndexEntry, files: Set[str]) -> bool:
    """Return whether the tree has the entry: its file is there, it is a submodule, or a sparse checkout left it out."""
    if entry.mode == SUBMODULE:
        return entry.name in files or stat.S_ISDIR(_mode(path / entry.name))
    return entry.name in files or (entry.skipped and not os.path.lexists(path / entry.name))


def _line(name: str, entry: IndexEntry | None) -> tuple[str, str, str]:
    return (entry.mode, entry.sha, name) if entry is not None else ("0", NO_OBJECT, name)


async def _add(own: ScratchGit, names: Iterable[str]) -> None:
    listed = b"".join(os.fsencode(name) + b"\0" for name in names)
    try:
        await own.run("update-index", "--add", "--remove", "--replace", "-z", "--stdin", index=DISK, input=listed)
    except GitError as error:
        if _UNREADABLE in error.stderr and error.problem is not GitProblem.DISK_FULL:
            raise UnreadableError(error.stderr.strip()) from error
        raise


async def _staged(own: ScratchGit, head: str | None, seen: Contents) -> str | None:
    """Return the index as a tree. A file in conflict is as in HEAD: nothing was staged for it."""
    unresolved = {change.name for change in seen.changes if change.unresolved}
    intended = {change.name for change in seen.changes if (change.staged, change.unstaged) == (".", "A")}
    entries = [(one.mode, one.sha, one.name) for one in seen.entries if one.stage == 0 and one.name not in intended]
    if unresolved and head is not None:
        listed = (await own.run("ls-tree", "-r", "-z", "--full-tree", head)).fields
        of_head = [(line.split(" ", 2), line.split("\t", 1)[1]) for line in listed]
        entries += [(facts[0], facts[2].split("\t")[0], name) for facts, name in of_head if name in unresolved]
    await own.fill(STAGED, entries)
    try:
        return await own.tree(STAGED)
    except GitError as error:
        if error.problem in (GitProblem.TIMEOUT, GitProblem.NETWORK):
            raise
        return None  # it names objects that do not exist: only what is on disk can be kept


def existing_files(path: Path, names: Iterable[str]) -> list[str]:
    """Return the names that are files or symbolic links, and lie below no symbolic link."""
    directories = {""}
    return [name for name in sorted(names) if _is_file(path, name, directories)]


def _is_file(path: Path, name: str, directories: set[str]) -> bool:
    """Return whether the path is a file; `directories` are known to be real directories."""
    parents = [str(parent) for parent in PurePosixPath(name).parents][-2::-1]
    for parent in parents:
        if parent not in directories:
            if not stat.S_ISDIR(_mode(path / parent)):
                return False
            directories.add(parent)
    mode = _mode(path / name)
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _mode(file: Path) -> int:
    try:
        return file.lstat().st_mode
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return 0
