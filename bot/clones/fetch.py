"""A clone is made, fetched, and replaced where it is damaged; its remote is asked for a ref and the default branch."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from bot import failpoints
from bot.clones import trash
from bot.clones.clone import Clone, CloneLock, DefaultBranch, NoDefaultBranch
from bot.clones.holding import hold, note_tips
from bot.git import refs
from bot.git.errors import GitError, GitProblem, is_unauthenticated
from bot.git.progress import Reader
from bot.messages import reasons

REFSPEC = "+refs/heads/*:refs/remotes/origin/*"
# So many files of refs make each git slower; fewer wait until the clone is packed.
_MANY_REFS = 200
# What a fetch reads and writes; https://git-scm.com/docs/gitrepository-layout
_FETCHED_INTO = ("config", "objects", "refs", "packed-refs", "logs", "shallow")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Updated:
    """The clone is up to date. `replaced`: it was damaged, and the damaged one has this name in DATA_DIR/kept."""

    replaced: str | None


@dataclass(frozen=True, slots=True)
class NoAccess:
    """The remote refuses the bot's credentials, or shows it no such repository."""


async def update(
    lock: CloneLock, remote_url: str, on_progress: Callable[[str], None] | None = None
) -> Updated | NoAccess:
    """Make the clone if there is none, set its `remote_url` (without credentials) and fetch; replace a damaged clone.

    `on_progress` gets short lines for people ("Receiving objects 43%, 1.2 GiB"). Raises GitError, OSError.
    """
    try:
        is_new = not lock.clone.path.is_dir()
        replaced = await _ensure(lock, remote_url, on_progress)
        try:
            await fetch(lock, on_progress)
        except GitError as error:
            replaced = await replace_after(error, lock, on_progress)
        if is_new and len(await lock.clone.refs()) > _MANY_REFS:
            # The fetch made a file of each branch; no cage has seen them yet.
            await lock.clone.run("pack-refs", "--all")
    except GitError as error:
        if error.problem in (GitProblem.AUTH, GitProblem.NOT_FOUND) and not is_unauthenticated(error.stderr):
            return NoAccess()
        raise
    return Updated(replaced)


async def _ensure(lock: CloneLock, remote_url: str, on_progress: Callable[[str], None] | None) -> str | None:
    """Make an empty clone if there is none, replace what is no repository, and configure it.

    Return the name in DATA_DIR/kept of what was replaced.
    """
    clone = lock.clone
    for unfinished in clone.path.parent.glob(f".{clone.path.name}.*.making"):
        trash.move_to_trash(clone.data_dir, unfinished)
    replaced = None
    if os.path.lexists(clone.path):  # noqa: ASYNC240
        if not await _is_bare_repository(clone):
            replaced = await _replace(clone, remote_url, on_progress)
    else:
        making = await _new(clone)
        failpoints.reached("clone-initialised")
        making.rename(clone.path)
    await _configure(clone, clone.path, remote_url)
    return replaced


async def fetch(lock: CloneLock, on_progress: Callable[[str], None] | None = None) -> None:
    """Bring `refs/remotes/origin/*` up to date, without what the remote no longer has. Raises GitError, OSError."""
    await note_tips(lock)
    await _fetch(lock.clone, lock.clone.path, on_progress)
    failpoints.reached("clone-pruned")
    await note_tips(lock)
    failpoints.reached("clone-fetched")


async def replace_after(error: GitError, lock: CloneLock, on_progress: Callable[[str], None] | None) -> str:
    """Replace a clone whose damage is the cause of an error, as below; raise the error where it is not."""
    replaced = await replace_if_damaged(lock, on_progress) if error.problem is GitProblem.CORRUPT else None
    if replaced is None:
        raise error
    return replaced


async def replace_if_damaged(lock: CloneLock, on_progress: Callable[[str], None] | None = None) -> str | None:
    """Fetch the clone again if git finds damage in it, which reads every object. Raises GitError, OSError.

    Return the name of the damaged one in DATA_DIR/kept. The new one knows none of its worktrees, branches and rescues.
    """
    clone = lock.clone
    checks = ("fsck", "--full", "--no-dangling", "--no-reflogs", "--progress")
    checked = await clone.git.on_clone(clone.path, *checks, check=False, on_stderr=Reader(on_progress or _ignore))
    if checked.status == 0:
        return None
    _log.warning("clone-damaged", clone=str(clone.path), found=checked.stderr[:2000])
    url = (await clone.run("config", "--get", "remote.origin.url")).text
    return await _replace(clone, url, on_progress)


async def fetch_ref(lock: CloneLock, remote_ref: str) -> str:
    """Fetch one ref outside the remote's branches and return its commit. Raises GitError, InvalidNameError."""
    kept_at = refs.fetched(remote_ref)
    before = await lock.clone.commit_at(kept_at)
    if before is not None:
        await hold(lock.clone, [before])
    arguments = ("fetch", "--quiet", "--no-write-fetch-head", "--no-tags", "--no-auto-maintenance", "origin")
    with _without_worktrees(lock.clone.path) as place:
        await lock.clone.git.on_clone(place, *arguments, f"+{remote_ref}:{kept_at}")
    return (await lock.clone.run("rev-parse", "--verify", f"{kept_at}^{{commit}}")).text


async def remote_default_branch(lock: CloneLock) -> DefaultBranch | NoDefaultBranch:
    """Ask the remote for its default branch, once under a lock. Raises GitError."""
    if lock.default is not None:
        return lock.default
    answer = (await lock.clone.run("ls-remote", "--symref", "origin", "HEAD")).text
    heads = [value for value, name in (line.split("\t", 1) for line in answer.splitlines()) if name == "HEAD"]
    if not any(refs.is_commit(value) for value in heads):
        return NoDefaultBranch(reasons.NO_FIRST_COMMIT)
    name, tip = "", heads[-1]
    for value in heads:
        name = value.removeprefix("ref: refs/heads/") if value.startswith("ref: refs/heads/") else name
    if not refs.is_branch(name):
        return NoDefaultBranch(reasons.NO_DEFAULT_BRANCH)
    return DefaultBranch(name, tip)


def _ignore(_: str) -> None:
    """Ignore the progress."""


async def _new(clone: Clone) -> Path:
    making = clone.path.with_name(f".{clone.path.name}.{secrets.token_hex(4)}.making")
    await _init(clone, making)
    return making


async def _init(clone: Clone, path: Path) -> None:
    await clone.git.run("init", "--quiet", "--bare", "--template=", "--", str(path), cwd=None)


async def _fetch(clone: Clone, path: Path, on_progress: Callable[[str], None] | None) -> None:
    # With --quiet git would report nothing while it receives, which takes longest.
    arguments = ("fetch", "--progress", "--prune", "--no-write-fetch-head", "--no-auto-maintenance", "origin")
    with _without_worktrees(path) as place:
        await clone.git.on_clone(place, *arguments, on_stderr=Reader(on_progress or _ignore))


@contextlib.contextmanager
def _without_worktrees(clone: Path) -> Iterator[Path]:
    """Yield a git directory of links to the clone, without its worktrees. Needs the clone's lock. Raises OSError.

    A fetch reads the files of each worktree, some of them twice: 2,000 take 0.2 to 0.4 s, and no option leaves them
    out. git follows the links also where it replaces or locks a file, as in its own
    https://github.com/git/git/blob/master/contrib/workdir/git-new-workdir
    """
    # What a killed process leaves goes with git's locks.
    with tempfile.TemporaryDirectory(prefix="fetching.", suffix=".lock", dir=clone) as place:
        (Path(place) / "HEAD").symlink_to("refs/heads/main")  # it must name a ref, which need not exist
        for name in _FETCHED_INTO:
            (Path(place) / name).symlink_to(Path("..") / name)
        yield Path(place)


async def _replace(clone: Clone, remote_url: str, on_progress: Callable[[str], None] | None) -> str:
    """Fetch the clone again, then move the damaged one whole to DATA_DIR/kept; return its name there.

    The directory of each of its worktrees follows when that worktree is made again, under its own claim: until then
    another turn may be at work in it.
    """
    making = await _new(clone)
    await _configure(clone, making, remote_url)
    await _fetch(clone, making, on_progress)
    failpoints.reached("clone-remade")
    kept = trash.keep_whole(clone.data_dir, clone.path, datetime.now(UTC))
    failpoints.reached("clone-set-aside")
    making.rename(clone.path)
    if clone.objects is not None:
        await clone.objects.close()
    _log.warning("clone-replaced", clone=str(clone.path), kept=str(kept))
    return kept.name


async def _is_bare_repository(clone: Clone) -> bool:
    """Check the structure first: if git fails for another reason, a good clone stays."""
    if clone.path.is_symlink() or not all((clone.path / name).is_dir() for name in ("objects", "refs")):
        return False
    with contextlib.suppress(GitError):
        known = await _settings(clone, clone.path)
        is_bare = (known.get("core.bare"), known.get("core.repositoryformatversion")) == (["true"], ["0"])
        if is_bare and _has_head(clone):
            return True
    await _rewrite_broken_files(clone)
    try:
        return (await clone.run("rev-parse", "--is-bare-repository")).text == "true"
    except GitError as error:
        if error.problem in (GitProblem.NOT_FOUND, GitProblem.CORRUPT):
            return False
        raise


def _has_head(clone: Clone) -> bool:
    return (clone.path / "HEAD").is_file() and (clone.path / "HEAD").read_bytes().startswith(b"ref: refs/heads/")


async def _rewrite_broken_files(clone: Clone) -> None:
    """Let git write HEAD and config again where a full disk or a power cut left half of them.

    They hold nothing unique.
    """
    config = clone.path / "config"
    if not _has_head(clone):
        (clone.path / "HEAD").unlink(missing_ok=True)
    asked = ("config", "--file", str(config), "--type=bool", "--get", "core.bare")
    if (await clone.git.run(*asked, cwd=None, check=False)).text != "true":
        config.unlink(missing_ok=True)
    await _init(clone, clone.path)


async def _configure(clone: Clone, path: Path, remote_url: str) -> None:
    wanted = {
        "core.bare": "true",
        "remote.origin.url": remote_url,
        "remote.origin.fetch": REFSPEC,
        "gc.auto": "0",
        # An operator's `git gc` would take the files of refs that cages see.
        "gc.packRefs": "false",
        "worktree.guessRemote": "false",
    }
    configured = await _settings(clone, path)
    for key, value in wanted.items():
        if configured.get(key.lower()) != [value]:
            await clone.git.on_clone(path, "config", "--local", "--replace-all", key, value)


async def _settings(clone: Clone, path: Path) -> dict[str, list[str]]:
    """Return the values in a clone's own file of settings by their keys, in lower case. Raises GitError."""
    found = dict[str, list[str]]()
    for entry in (await clone.git.on_clone(path, "config", "--local", "--list", "-z")).fields:
        key, _, value = entry.partition("\n")
        found.setdefault(key, []).append(value)
    return found
