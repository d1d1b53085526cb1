"""What is in a worktree, read by a scratch git: no setting, attribute or flag of the worktree hides a file from it.

Its index, each file that differs from HEAD, and a snapshot: one tree of every file on disk, byte for byte, and one of
what is staged.
"""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

from bot.files import real_path
from bot.sandbox.untrusted_files import leads_out, remove_untrusted
from bot.tree.clone.checkout import Checkout, Seen
from bot.tree.clone.clone import EMPTY_TREE
from bot.tree.clone.status import Change, judged, parse_status
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import Completed
from bot.tree.lfs.pointers import LFS, read_pointers

# Reading every byte of a large worktree takes its time.
TIMEOUT_SECONDS = 3600.0
NO_OBJECT = "0" * 40
_PREFIX = "threadtree-git-"
# In the place that ranks above every .gitattributes: bytes become objects, and files again, as they are.
CONVERSIONS = ("text", "crlf", "eol", "ident", "filter", "working-tree-encoding")
_VERBATIM = f"* {' '.join(f'-{attribute}' for attribute in CONVERSIONS)}\n"


@dataclass(frozen=True, slots=True)
class ScratchGit:
    """A git that writes objects to the clone (in a sandbox: to the worktree's own); settings and indexes are in
    `folder`.

    `inside` is the same folder as the sandbox knows it. What attributes say of line ends counts until `verbatim`.
    """

    checkout: Checkout
    folder: Path
    inside: Path

    @property
    def path(self) -> Path:
        return self.checkout.path

    async def run(
        self,
        *args: str,
        input: bytes | None = None,  # noqa: A002
        index: Path | str = "index",
        environment: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Completed:
        """Run git on the worktree, with an index in `folder` or at a full path. Raises GitError, OSError."""
        clone = real_path(self.checkout.clone.path)
        # Other systems' rules for names would refuse what is on this disk.
        settings = {"core.excludesFile": clone / "info" / "exclude", "core.protectNTFS": "false"}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        places = {
            "GIT_DIR": str(self.inside),
            "GIT_WORK_TREE": str(real_path(self.path)),
            "GIT_OBJECT_DIRECTORY": str(clone / "objects"),
            "GIT_INDEX_FILE": str(self.inside / index),
        }
        return await self.checkout.git(
            *options,
            *args,
            input=input,
            environment=places | dict(environment or {}),
            check=check,
            timeout_seconds=TIMEOUT_SECONDS,
        )

    async def fill(self, index: str, entries: Iterable[tuple[str, str, str]]) -> None:
        """Put (mode, object, name) into a scratch index; mode "0" removes the name. Raises GitError, OSError."""
        lines = b"".join(os.fsencode(f"{mode} {sha}\t{name}") + b"\0" for mode, sha, name in entries)
        await self.run("update-index", "--replace", "-z", "--index-info", index=index, input=lines)

    async def tree(self, index: str) -> str:
        """Write the tree object of a scratch index. Raises GitError, OSError."""
        return (await self.run("write-tree", index=index)).text

    async def tree_of(self, revision: str | None) -> str:
        """Return the tree of a commit or tree; without one, the tree that has no file. Raises GitError, OSError."""
        return (await self.run("rev-parse", "--verify", f"{revision}^{{tree}}")).text if revision else EMPTY_TREE

    def verbatim(self) -> None:
        """Keep attributes from changing bytes between files and objects, from now on. Raises OSError."""
        (self.folder / "info").mkdir(exist_ok=True)
        (self.folder / "info" / "attributes").write_text(_VERBATIM)


@contextlib.contextmanager
def scratch_git_dir(checkout: Checkout, head: str | None) -> Iterator[ScratchGit]:
    """Make a scratch git directory with its HEAD at `head`, and delete it at the end. Raises OSError."""
    # Beside the worktree's own index: a place that a sandbox shows. An agent can write there, hence the name by chance.
    state = checkout.state
    for leftover in state.glob(f"{_PREFIX}*"):
        remove_untrusted(state, PurePath(leftover.name))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=state))
    try:
        (folder / "refs").mkdir()
        (folder / "HEAD").write_text(f"{head}\n" if head else "ref: refs/heads/none\n")
        yield ScratchGit(checkout, folder, checkout.admin / folder.name)
    finally:
        remove_untrusted(state, PurePath(folder.name))


# Index and changes

SUBMODULE = "160000"
_OF_ENTRIES, _OF_HEAD = "of-entries", "of-head"
_LISTED = ("--stage", "-v", "-z")
_UNSEEN = "could not open directory"


class IndexEntry(NamedTuple):
    """A file of an index. There can be very many, and a named tuple is the fastest to make.

    `stage` is 0 unless a merge left it unresolved. `flagged`: git was told not to look at it on disk; `skipped`: nor to
    expect it there (skip-worktree).
    """

    name: str
    mode: str
    sha: str
    stage: int
    skipped: bool
    flagged: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of the index, and what differs from HEAD but for build products.

    `unseen`: git's words on an unreadable directory.
    """

    entries: Sequence[IndexEntry]
    changes: Sequence[Change]
    unseen: str | None


async def read_state(own: ScratchGit, head: str | None) -> Contents:
    """Compare HEAD, index and disk. An index that cannot be read counts as equal to HEAD. Raises GitError, OSError."""
    entries = await _entries(own.checkout)
    if entries is None:
        await own.run("read-tree", head or "--empty", index=_OF_HEAD)
        entries, index = parse_entries((await own.run("ls-files", *_LISTED, index=_OF_HEAD)).stdout), Path(_OF_HEAD)
    elif any(entry.flagged for entry in entries) or any(own.folder.parent.glob("sharedindex.*")):
        # The worktree's own index would not tell of all; one of the same files without flags does.
        lines = b"".join(os.fsencode(f"{one.mode} {one.sha} {one.stage}\t{one.name}") + b"\0" for one in entries)
        await own.run("update-index", "-z", "--index-info", index=_OF_ENTRIES, input=lines)
        index = Path(_OF_ENTRIES)
    else:
        index = own.inside.parent / "index"
    flags = ("--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=none", "--no-renames")
    shown = await own.run("status", *flags, index=index)
    absent = {one.name for one in entries if one.skipped and not os.path.lexists(own.path / one.name)}  # noqa: ASYNC240
    changes = [
        replace(change, unstaged=".") if change.name in absent else change
        for change in judged(parse_status(shown.stdout), (entry.name for entry in entries))
        if change.product is None and (change.name not in absent or change.staged != ".")
    ]
    unseen = next((line for line in shown.stderr.splitlines() if _UNSEEN in line), None)
    return Contents(entries, changes, unseen)


async def _entries(checkout: Checkout) -> list[IndexEntry] | None:
    """Read the index with the worktree's own git, which finds the rest of a split index. None if it cannot be read."""
    if not os.path.lexists(checkout.state / "index"):  # noqa: ASYNC240
        return None
    listed = await checkout.git("ls-files", *_LISTED, check=False, timeout_seconds=TIMEOUT_SECONDS)
    return parse_entries(listed.stdout) if listed.status == 0 else None


async def flagged_file(checkout: Seen) -> str | None:
    """Return a file of which git was told not to see edits, None where there is none. Raises GitError, OSError."""
    listed = await checkout.git("ls-files", *_LISTED)
    return next((entry.name for entry in parse_entries(listed.stdout) if entry.flagged), None)


def parse_entries(listed: bytes) -> list[IndexEntry]:
    """Parse the output of `git ls-files --stage -v -z`: https://git-scm.com/docs/git-ls-files."""
    found: list[IndexEntry] = []
    for line in filter(None, os.fsdecode(listed).split("\0")):
        facts, name = line.split("\t", 1)
        if leads_out(name):
            continue  # no file of the worktree: git itself adds no such name
        tag, mode, sha, stage = facts.split(" ")
        # S is skip-worktree; lower case, assume-unchanged.
        found.append(IndexEntry(name, mode, sha, int(stage), tag in "Ss", tag == "S" or tag.islower()))
    return found


# Snapshot

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


async def snapshot(own: ScratchGit, head: str | None, seen: Contents) -> Snapshot:
    """Make objects of all files that are neither ignored nor in a repository inside, and an index named DISK.

    It reads the files that differ from HEAD, and all files whose bytes attributes convert.
    Ignored files are left out unless they are tracked; so are empty directories, sockets and the like: git knows none
    of them. Raises UnreadableError, GitError, OSError.
    """
    if seen.unseen is not None:
        raise UnreadableError(seen.unseen)
    converted = await _converted(own, seen)
    own.verbatim()
    # The name of a repository inside ends in `/`.
    changed = {change.name for change in seen.changes if not change.name.endswith("/")}
    doubtful = changed | {entry.name for entry in seen.entries if entry.flagged}
    directories = {""}
    files = {name for name in sorted(doubtful) if _is_file(own.path, name, directories)}
    files |= {one.name for one in seen.entries if one.name not in doubtful and one.mode != SUBMODULE}
    stays = {one.name: one for one in seen.entries if one.stage == 0 and _stays(own.path, one, files)}
    # It starts with HEAD, whose trees git need not make again.
    await own.run("read-tree", head or "--empty", index=DISK)
    staying = [(one.mode, one.sha, one.name) for one in stays.values() if one.name in changed]
    await own.fill(DISK, sorted([*staying, *(("0", NO_OBJECT, name) for name in changed - stays.keys())]))
    unlike = await _unlike(own, [stays[name] for name in converted & stays.keys() - changed])
    await _add(own, sorted(files & (changed | unlike) | (files - stays.keys())))
    staged = await _staged(own, head, seen) if any(change.is_staged for change in seen.changes) else None
    return Snapshot(await own.tree(DISK), staged)


async def _converted(own: ScratchGit, seen: Contents) -> Set[str]:
    """Return the files that git can take for unchanged although their bytes differ from its objects.

    Not those under Git LFS that GitHub has: their pointers are enough.
    """
    names_seen = (*(entry.name for entry in seen.entries), *(change.name for change in seen.changes))
    if not any(name.endswith(".gitattributes") for name in names_seen):
        return frozenset()
    names = b"".join(os.fsencode(entry.name) + b"\0" for entry in seen.entries)
    told = (await own.run("check-attr", "--stdin", "-z", *CONVERSIONS, input=names)).stdout
    fields = os.fsdecode(told).split("\0")[:-1]  # a value can be empty
    told_of = [one for one in zip(fields[::3], fields[2::3], strict=True) if one[1] not in _NO_CONVERSION]
    of_lfs = {name for name, value in told_of if value == LFS}
    clone, blobs = own.checkout.clone, {one.name: one.sha for one in seen.entries if one.name in of_lfs}
    known = await read_pointers(clone, blobs.values()) if clone.git.lfs else {}
    published = {blob for blob, one in known.items() if (clone.path / LFS / one.path).is_file()}
    return {name for name, value in told_of if value != LFS or blobs[name] not in published}


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
