"""Objects of Git LFS: fetched into the clone, from where the worktrees take them, and pushed from a worktree.

git-lfs talks to GitHub, with git's own credentials. Its settings are these alone: a repository's `.lfsconfig`, which
names other servers, is not read. https://github.com/git-lfs/git-lfs/blob/main/docs/man/git-lfs-config.adoc
"""

import asyncio
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType

import structlog

from bot import refs
from bot.failpoints import reached
from bot.sandbox.untrusted_files import (
    UntrustedFileError,
    entries_below,
    open_untrusted,
    read_untrusted,
    remove_untrusted,
    status_of_untrusted,
)
from bot.sandbox.view import LFS, PUBLISHED
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.git.errors import GitProblem
from bot.tree.git.runner import WITH_CONTENT, Completed, Identity, Options, failure
from bot.tree.lfs.pointers import MAX_POINTER_BYTES, Pointer, pointers_in, read_pointers

# The objects of one commit, smallest first. For a moment the disk has three copies: DISK_RESERVE_GB has room for them.
MOST_BYTES = 1 << 30
MOST_OBJECTS = 5000
# The search for secrets before a push reads no more.
MAX_OBJECT_BYTES = 512 << 20
_MOST_AT_ONCE = 500
_TIMEOUT_SECONDS = 1800.0
_NOBODY = Identity("threadtree", "threadtree")
_PIECE_BYTES = 1 << 20
_PASSING = (GitProblem.NETWORK, GitProblem.DISK_FULL, GitProblem.KILLED)
# The files that are being given their content, in the clone's folder of the worktree.
_MARK = "threadtree-lfs"
_INDEX = "threadtree-lfs-index"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Provided:
    """The files that stay pointers: those beyond the limits, and those that GitHub did not give, with its words.

    `lines` are those of attributes that name files under Git LFS, `others` those that name files under other filters.
    """

    beyond: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    why: str = ""
    lines: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


async def provide(checkout: Checkout, commit: str) -> Provided:
    """Give the files of HEAD, which is `commit`, that are still pointers their content. Raises GitError, OSError."""
    clone = checkout.clone
    # Where this is, an agent's git looks for objects there.
    (clone.path / LFS / "objects").mkdir(parents=True, exist_ok=True)
    known = await pointers_in(clone, commit)
    wanted, beyond = _within_limits({name: one for name, one in known.items() if _is_bare(checkout.path, name, one)})
    why = await _fetch(clone, {one.oid: one for one in wanted.values() if not _has(checkout, one)})
    there = {name: one for name, one in wanted.items() if _has(checkout, one)}
    if there:
        (checkout.admin / _MARK).write_bytes(b"".join(os.fsencode(name) + b"\0" for name in there))
        await write_again(checkout)
    for one in there.values():
        if (clone.path / LFS / one.path).is_file():  # git-lfs has made a copy of it
            remove_untrusted(checkout.state, LFS / one.path)
    return Provided(tuple(beyond), tuple(sorted(wanted.keys() - there.keys())), why)


async def write_again(checkout: Checkout) -> None:
    """Write the files whose content was being written when that was cut off; else do nothing.

    Needs the worktree's claim, and that no agent ran since. Raises GitError, OSError.
    """
    mark = checkout.admin / _MARK
    if not mark.is_file():
        return
    names = mark.read_bytes()
    for name in filter(None, names.split(b"\0")):
        remove_untrusted(checkout.path, PurePath(os.fsdecode(name)))
    out = ("checkout-index", "--quiet", "--force", "-u", "-z", "--stdin")
    await checkout.git(*out, input=names, environment=WITH_CONTENT, timeout_seconds=_TIMEOUT_SECONDS)
    reached("lfs-files-written")
    mark.unlink()


def _is_bare(path: Path, name: str, pointer: Pointer) -> bool:
    try:
        return read_untrusted(path, PurePath(name), MAX_POINTER_BYTES) == pointer.text
    except OSError:
        return False


def _within_limits(found: Mapping[str, Pointer]) -> tuple[dict[str, Pointer], list[str]]:
    within, beyond, left = dict[str, Pointer](), list[str](), MOST_BYTES
    for name, one in sorted(found.items(), key=lambda item: item[1].size):
        left -= one.size
        if left >= 0 and len(within) < MOST_OBJECTS:
            within[name] = one
        else:
            beyond.append(name)
    return within, beyond


def _has(checkout: Checkout, pointer: Pointer) -> bool:
    """Return whether the worktree's git-lfs has the object, or something that it takes for it."""
    made = status_of_untrusted(checkout.state, LFS / pointer.path)
    return (checkout.clone.path / LFS / pointer.path).is_file() or (made is not None and made.st_size == pointer.size)


async def _fetch(clone: Clone, wanted: Mapping[str, Pointer]) -> str:
    """Fetch objects into the clone; return git-lfs's words where it could not fetch all."""
    if not wanted:
        return ""
    # git-lfs fetches what a commit needs: one that has these pointers, and no names that anybody chose.
    entries = "".join(f"100644 blob {one.blob}\t{oid}\n" for oid, one in sorted(wanted.items())).encode()
    with tempfile.TemporaryDirectory() as folder:
        known = f"{clone.path / 'objects'}:{clone.path / PUBLISHED}"
        variables = {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": known} | _NOBODY.environment
        tree = await clone.git.on_clone(clone.path, "mktree", input=entries, environment=variables)
        made = ("commit-tree", "-m", "Objects to fetch", tree.text)
        commit = (await clone.git.on_clone(clone.path, *made, environment=variables)).text
        done = await _lfs(clone, "fetch", "origin", commit, storage=clone.path / LFS, environment=variables)
    if not done.status:
        return ""
    _log.warning("lfs-not-fetched", clone=str(clone.path), said=done.stderr[:2000])
    if (error := failure("lfs fetch", done)).problem in _PASSING:
        raise error
    return next((line for line in map(str.strip, done.stderr.splitlines()) if line), str(error))


@asynccontextmanager
async def staging(
    checkout: Checkout, pointers: Iterable[tuple[str, Pointer]]
) -> AsyncIterator[tuple[Path, tuple[str, ...]]]:
    """Copy the objects that these files need, and that GitHub is not known to have, from the worktree into a folder.

    Yield the folder, and the files whose object is not there as its pointer tells. Raises OSError.
    """
    clone = checkout.clone
    (clone.path / LFS / "objects").mkdir(parents=True, exist_ok=True)
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="pushing-", dir=clone.path / LFS) as folder:
        for name, one in pointers:
            copy = Path(folder) / one.path
            if not (clone.path / LFS / one.path).is_file() and not copy.is_file():
                try:
                    await asyncio.to_thread(_copy, checkout.state, one, copy)
                except UntrustedFileError:
                    missing.append(name)
        yield Path(folder), tuple(missing)


def contents(folder: Path) -> Iterator[bytes]:
    """Yield the contents of what `staging` has copied, piece by piece."""
    for file in _files(folder):
        with file.open("rb") as opened:
            yield from iter(partial(opened.read, _PIECE_BYTES), b"")


def _files(folder: Path) -> list[Path]:
    return [file for file in sorted((folder / "objects").rglob("*")) if file.is_file()]


async def push_objects(clone: Clone, folder: Path) -> None:
    """Upload what `staging` has copied; from then on all worktrees see it. Raises GitError, OSError."""
    names = [file.name for file in _files(folder)]
    for first in range(0, len(names), _MOST_AT_ONCE):
        some = names[first : first + _MOST_AT_ONCE]
        done = await _lfs(clone, "push", "--object-id", "origin", *some, storage=folder)
        if done.status:
            raise failure("lfs push", done)
    reached("lfs-objects-pushed")
    for file in _files(folder):
        place = clone.path / LFS / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.rename(place)


async def save_objects(checkout: Checkout, commits: Iterable[str], environment: Mapping[str, str]) -> str | None:
    """Commit the objects that only this worktree has and that its unpublished `commits` need; None without any.

    The commit, with the identity in `environment`, is in the worktree's own git. Raises GitError, OSError.
    """
    if status_of_untrusted(checkout.state, PurePath(LFS)) is None:
        return None
    clone = checkout.clone
    new = (*commits, "--not", "--remotes=origin", f"--glob={refs.FETCHED_PREFIX}*")
    blobs = (await clone.run("rev-list", "--objects", "--no-object-names", *new)).text.split()
    known = (await read_pointers(clone, blobs)).values()
    names = {one.path for one in known if not (clone.path / LFS / one.path).is_file() and _has(checkout, one)}
    if not names:
        return None
    async with _index_of_objects(checkout, environment) as git:
        await git("update-index", "--add", "-z", "--stdin", input=b"".join(bytes(name) + b"\0" for name in names))
        return (await git("commit-tree", (await git("write-tree")).text, "-m", "Objects of Git LFS")).text


async def put_objects_back(checkout: Checkout, commit: str) -> None:
    """Give the worktree the objects of a commit of `save_objects`, which it must have. Raises GitError, OSError."""
    async with _index_of_objects(checkout, {}) as git:
        await git("read-tree", commit)
        await git("checkout-index", "--quiet", "--all", "--force")


@asynccontextmanager
async def _index_of_objects(
    checkout: Checkout, environment: Mapping[str, str]
) -> AsyncIterator[Callable[..., Awaitable[Completed]]]:
    """Yield a git whose work tree is the worktree's folder of git-lfs, with an index of its own."""
    run = checkout.git if checkout.isolated else partial(checkout.clone.git.on_clone, checkout.clone.path)
    places = {"GIT_WORK_TREE": str(checkout.admin / LFS), "GIT_INDEX_FILE": str(checkout.admin / _INDEX)}
    (checkout.state / LFS).mkdir(exist_ok=True)
    try:
        yield partial(run, environment={**places, **environment}, timeout_seconds=_TIMEOUT_SECONDS)
    finally:
        remove_untrusted(checkout.state, PurePath(_INDEX))


def delete_old(lock: CloneLock, before: float) -> int:
    """Delete the objects that came before this time, in seconds of the epoch; return their bytes.

    No turn of the repository may run. GitHub has them all: who needs one fetches it again. Raises OSError.
    """
    freed = 0
    for one in entries_below(lock.clone.path / LFS):
        if one.is_file(follow_symlinks=False) and (status := one.stat(follow_symlinks=False)).st_mtime < before:
            Path(one).unlink()
            freed += status.st_size
    return freed


def _copy(state: Path, pointer: Pointer, copy: Path) -> None:
    """Raises UntrustedFileError for an object that is not there, or not what its pointer tells."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), pointer.size
    try:
        with open_untrusted(state, LFS / pointer.path) as descriptor, copy.open("xb") as target:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or pointer.size > MAX_OBJECT_BYTES:
                raise UntrustedFileError(pointer.oid)
            while left >= 0 and (piece := os.read(descriptor, _PIECE_BYTES)):
                left -= len(piece)
                digest.update(piece)
                target.write(piece)
    except OSError as error:
        copy.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            raise
        raise UntrustedFileError(pointer.oid) from error
    if left or digest.hexdigest() != pointer.oid:
        copy.unlink()
        raise UntrustedFileError(pointer.oid)


async def _lfs(
    clone: Clone, *arguments: str, storage: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> Completed:
    url = await clone.git.remote_url(clone.path)
    settings = {
        "remote.origin.url": url,
        f"lfs.{url.removesuffix('.git')}.git/info/lfs.access": "basic",
        "lfs.storage": str(storage),
    }
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    # In a bare repository git-lfs reads the `.lfsconfig` of HEAD, which in the clone names a branch that can be there.
    with tempfile.TemporaryDirectory() as folder:
        for name in ("objects", "refs"):
            (Path(folder) / name).mkdir()
        (Path(folder) / "HEAD").write_text("ref: refs/heads/none\n")
        (Path(folder) / "config").write_text("[core]\n\tbare = true\n")
        given: Options = {"check": False, "environment": environment, "timeout_seconds": _TIMEOUT_SECONDS}
        return await clone.git.on_clone(Path(folder), *options, "lfs", *arguments, **given)
