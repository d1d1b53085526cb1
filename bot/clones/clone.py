"""A clone is made, brought up to date, and made again when it is damaged; what the remote says."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from bot import failpoints
from bot.clones import leftovers, trash
from bot.clones.bare import Clone as Clone
from bot.clones.bare import CloneLock as CloneLock
from bot.clones.bare import clone_at as clone_at
from bot.clones.bare import clone_lock as clone_lock
from bot.clones.salvage import salvage
from bot.git import refs
from bot.git.progress import Reader
from bot.git.runner import Git, GitError, GitProblem, failure

REFSPEC = "+refs/heads/*:refs/remotes/origin/*"
_HEAD = "ref: refs/heads/main\n"
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Remade:
    """The clone was damaged and was made again; the damaged one is `kept` in DATA_DIR/kept, `lost` are refs of it whose
    commits could not be read.
    """

    kept: str
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DefaultBranch:
    """The branch the remote's HEAD names, and its commit."""

    name: str
    tip: str


@dataclass(frozen=True, slots=True)
class NoDefaultBranch:
    """The remote has no commit to start from."""

    next_step: str


async def ensure(lock: CloneLock, remote_url: str, on_progress: Callable[[str], None] | None = None) -> Remade | None:
    """Makes the clone, or a damaged one again, and sets `remote_url` (without credentials). Raises GitError, OSError.

    A new one is empty; only what replaces a damaged one was fetched already, as `on_progress` hears.
    """
    clone = lock.clone
    for leftover in clone.path.parent.glob(f".{clone.path.name}.*.making"):
        move_to_trash(clone, leftover)
    remade = None
    if os.path.lexists(clone.path):  # noqa: ASYNC240
        move_to_trash(clone, _ready(clone))
        if not await _is_bare_repository(clone):
            remade = await _remake(clone, remote_url, on_progress)
    elif _ready(clone).is_dir():
        _ready(clone).rename(clone.path)
    else:
        making = await _init(clone)
        failpoints.reached("clone-initialised")
        making.rename(clone.path)
    leftovers.remove_unfinished_packs(clone.path, clone.git)
    await _configure(clone.git, clone.path, remote_url)
    return remade


async def fetch(lock: CloneLock, on_progress: Callable[[str], None] | None = None) -> Remade | None:
    """Brings `refs/remotes/origin/*` up to date and drops what the remote no longer has. Raises GitError, OSError.

    `on_progress` hears short lines for people ("Receiving objects 43%, 1.2 GiB") while it runs. Locks that a killed git
    left are removed, and a damaged clone is made again.
    """
    clone = lock.clone
    remade = None
    try:
        await _fetch(clone.git, clone.path, on_progress)
    except GitError as error:
        if error.problem is GitProblem.CORRUPT and (remade := await remake_if_damaged(lock, on_progress)) is not None:
            return remade
        if error.problem is not GitProblem.LOCKED or not leftovers.remove_stale_locks(clone.path, clone.git):
            raise
        await _fetch(clone.git, clone.path, on_progress)
    failpoints.reached("clone-fetched")
    return remade


async def remake_if_damaged(lock: CloneLock, on_progress: Callable[[str], None] | None = None) -> Remade | None:
    """Makes the clone again, with all that can be read of it, if git finds damage in it. Reads every object.

    Raises GitError, OSError.
    """
    clone = lock.clone
    whole = ("fsck", "--full", "--no-dangling", "--no-reflogs", "--progress")
    checked = await clone.git.on_clone(clone.path, *whole, check=False, on_stderr=Reader(on_progress or _nobody))
    if checked.status == 0:
        return None
    _log.warning("clone-damaged", clone=str(clone.path), found=checked.stderr[:2000])
    url = (await clone.run("config", "--get", "remote.origin.url")).text
    return await _remake(clone, url, on_progress)


async def fetch_ref(lock: CloneLock, remote_ref: str) -> str:
    """Fetches one ref outside the remote's branches and returns its commit. Raises GitError, InvalidNameError."""
    kept_at = refs.fetched(remote_ref)
    await lock.clone.run("fetch", "--quiet", "--no-write-fetch-head", "--no-tags", "origin", f"+{remote_ref}:{kept_at}")
    return (await lock.clone.run("rev-parse", "--verify", f"{kept_at}^{{commit}}")).text


async def remote_default_branch(lock: CloneLock) -> DefaultBranch | NoDefaultBranch:
    """The default branch as the remote names it now. Raises GitError."""
    answer = (await lock.clone.run("ls-remote", "--symref", "origin", "HEAD")).text
    heads = [value for value, name in (line.split("\t", 1) for line in answer.splitlines()) if name == "HEAD"]
    if not any(refs.is_commit(value) for value in heads):
        return NoDefaultBranch(
            "The repository has no commit on its default branch yet. Push a first one, then ask again."
        )
    name, tip = "", heads[-1]
    for value in heads:
        name = value.removeprefix("ref: refs/heads/") if value.startswith("ref: refs/heads/") else name
    if not refs.is_branch(name):
        return NoDefaultBranch("The repository's HEAD names no branch. Set a default branch, then ask again.")
    return DefaultBranch(name, tip)


def move_to_trash(clone: Clone, path: Path) -> Path | None:
    """Renames `path` out of the way, whatever it is, and returns where to; None if it is gone. Raises OSError."""
    return trash.move_to_trash(clone.data_dir, path)


def _nobody(_: str) -> None:
    """Hears no progress."""


def _ready(clone: Clone) -> Path:
    """Where a clone made again lies, complete, until the damaged one is out of its way."""
    return clone.path.with_name(f".{clone.path.name}.ready")


async def _init(clone: Clone) -> Path:
    making = clone.path.with_name(f".{clone.path.name}.{secrets.token_hex(4)}.making")
    await clone.git.run("init", "--quiet", "--bare", "--template=", "--", str(making), cwd=None)
    return making


async def _fetch(git: Git, path: Path, on_progress: Callable[[str], None] | None) -> None:
    # With --quiet git would not tell of the longest part, receiving.
    arguments = ("fetch", "--progress", "--prune", "--no-write-fetch-head", "origin")
    await git.on_clone(path, *arguments, on_stderr=Reader(on_progress or _nobody))


async def _remake(clone: Clone, remote_url: str, on_progress: Callable[[str], None] | None) -> Remade:
    """A new clone with all that can be read of the damaged one, which is out of use only once the new one is whole."""
    making = await _init(clone)
    await _configure(clone.git, making, remote_url)
    await _fetch(clone.git, making, on_progress)
    lost = await salvage(clone.git, clone.path, making)
    making.rename(_ready(clone))
    failpoints.reached("clone-remade")
    kept = trash.keep_whole(clone.data_dir, clone.path, datetime.now(UTC))
    failpoints.reached("clone-set-aside")
    _ready(clone).rename(clone.path)
    _log.warning("clone-remade", clone=str(clone.path), kept=str(kept), lost=lost)
    return Remade(kept.name, lost)


async def _is_bare_repository(clone: Clone) -> bool:
    """Structure first: a git that fails for another reason must not cost a good clone its place."""
    if clone.path.is_symlink() or not all((clone.path / name).is_dir() for name in ("objects", "refs")):
        return False
    await _mend_files(clone)
    try:
        return (await clone.run("rev-parse", "--is-bare-repository")).text == "true"
    except GitError as error:
        if error.problem in (GitProblem.NOT_FOUND, GitProblem.CORRUPT):
            return False
        raise


async def _mend_files(clone: Clone) -> None:
    """What a full disk or a power cut leaves half-written holds nothing that cannot be written again."""
    head, config = clone.path / "HEAD", clone.path / "config"
    if not head.is_file() or not head.read_bytes().startswith(b"ref: refs/heads/"):
        head.write_text(_HEAD)
    asked = ("config", "--file", str(config), "--type=bool", "--get", "core.bare")
    if (await clone.git.run(*asked, cwd=None, check=False)).text != "true":
        config.write_text(_CONFIG)


async def _configure(git: Git, path: Path, remote_url: str) -> None:
    wanted = {
        "core.bare": "true",
        "remote.origin.url": remote_url,
        "remote.origin.fetch": REFSPEC,
        "gc.auto": "0",
        "worktree.guessRemote": "false",
    }
    configured: dict[str, list[str]] = {}
    for entry in (await git.on_clone(path, "config", "--local", "--list", "-z")).fields:
        key, _, value = entry.partition("\n")
        configured.setdefault(key.lower(), []).append(value)
    for key, value in wanted.items():
        if configured.get(key.lower()) != [value]:
            await _set(git, path, key, value)


async def _set(git: Git, path: Path, key: str, value: str) -> None:
    arguments = ("config", "--local", "--replace-all", key, value)
    done = await git.on_clone(path, *arguments, check=False)
    if done.status and leftovers.remove_stale_locks(path, git):
        done = await git.on_clone(path, *arguments, check=False)
    if done.status:
        raise failure("config", done)
