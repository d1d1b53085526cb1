"""A clone is made, fetched, and replaced where it is damaged; its remote is asked for a ref and the default branch."""

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from bot import failpoints
from bot.clones import holding, trash
from bot.clones.admin import has_worktrees
from bot.clones.clone import Clone, CloneLock, DefaultBranch, NoDefaultBranch
from bot.clones.listing import Listing, changes_since
from bot.git import refs
from bot.git.errors import GitError, GitProblem, is_unauthenticated
from bot.git.progress import Reader
from bot.messages import reasons

REFSPEC = "+refs/heads/*:refs/remotes/origin/*"
# So many files of refs make each git slower; fewer wait until the clone is packed.
_MANY_REFS = 200
_BARE = {"core.bare": "true", "core.repositoryformatversion": "0"}
_UNBORN = "refs/heads/main"
_HEAD = f"ref: {_UNBORN}\n"
# What a fetch reads and writes; https://git-scm.com/docs/gitrepository-layout
_FETCHED_INTO = ("config", "objects", "refs", "packed-refs", "logs", "shallow")
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Updated:
    """The clone is up to date. `replaced`: it was damaged, and the damaged one has this name in DATA_DIR/kept."""

    replaced: str | None


@dataclass(frozen=True, slots=True)
class NoAccess:
    """The remote refuses the bot's credentials, or shows it no such repository."""


async def update(
    lock: CloneLock,
    remote_url: str,
    on_progress: Callable[[str], None] | None = None,
    listed: Awaitable[Listing | None] | None = None,
) -> Updated | NoAccess:
    """Make the clone if there is none, set its `remote_url` (without credentials) and fetch; replace a damaged clone.

    `on_progress` gets short lines for people ("Receiving objects 43%, 1.2 GiB"). `listed` is what the remote has by
    then, where that was asked. Raises GitError, OSError.
    """
    try:
        is_new = not lock.clone.path.is_dir()
        replaced = await _ensure(lock, remote_url, on_progress)
        try:
            await fetch(lock, on_progress, await listed if listed is not None else None)
        except GitError as error:
            replaced = await replace_after(error, lock, on_progress)
        if is_new and len(await asyncio.to_thread(holding.tips, lock.clone.path, "refs/")) > _MANY_REFS:
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
        making = await _init(clone)
        failpoints.reached("clone-initialised")
        making.rename(clone.path)
    await _configure(clone, clone.path, remote_url)
    return replaced


async def fetch(
    lock: CloneLock, on_progress: Callable[[str], None] | None = None, listing: Listing | None = None
) -> None:
    """Bring `refs/remotes/origin/*` up to date, without what the remote no longer has. Raises GitError, OSError.

    With a `listing` only what differs from it is fetched.
    """
    clone = lock.clone.path
    branches = await _changed_branches(lock.clone, listing) if listing is not None else None
    if branches == ():
        return
    await asyncio.to_thread(holding.begin_fetch, clone, await asyncio.to_thread(_tips_in_use, clone))
    await _fetch(lock.clone, clone, on_progress, branches or ())
    failpoints.reached("clone-pruned")
    await end_fetch(lock)
    failpoints.reached("clone-fetched")


async def _changed_branches(clone: Clone, listing: Listing) -> tuple[str, ...] | None:
    """Return the branches to fetch, none where all is here; None where the whole is to be fetched. Raises GitError."""
    changes = await changes_since(clone.path, listing)
    # git fetches the tags of what it fetches by itself, and with the whole those of what is here.
    if changes is None or any([await clone.commit_at(sha) is not None for sha in changes.tagged]):
        return None
    return changes.branches


async def end_fetch(lock: CloneLock) -> None:
    """Hold what the last fetch replaced or deleted, also if it was cut off. Raises OSError."""
    clone = lock.clone.path
    await asyncio.to_thread(holding.end_fetch, clone, await asyncio.to_thread(_tips_in_use, clone))


def _tips_in_use(clone: Path) -> dict[str, str] | None:
    """Return the remote's branches as the worktrees have seen them; None without worktrees."""
    return holding.tips(clone, "refs/remotes/origin/") if has_worktrees(clone) else None


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
        holding.hold(lock.clone.path, [before])
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


async def _init(clone: Clone) -> Path:
    making = clone.path.with_name(f".{clone.path.name}.{secrets.token_hex(4)}.making")
    await clone.git.run("init", "--quiet", "--bare", "--template=", "--", str(making), cwd=None)
    return making


async def _fetch(
    clone: Clone, path: Path, on_progress: Callable[[str], None] | None, branches: Sequence[str] = ()
) -> None:
    """Fetch these branches, or all."""
    # With --quiet git would report nothing while it receives, which takes longest.
    arguments = ("fetch", "--progress", "--prune", "--no-write-fetch-head", "--no-auto-maintenance", "origin")
    # A pattern also stands for a branch that is gone, and `--prune` deletes it.
    patterns = [f"+{refs.local(branch)}*:{refs.remote(branch)}*" for branch in branches]
    with _without_worktrees(path) as place:
        await clone.git.on_clone(place, *arguments, *patterns, on_stderr=Reader(on_progress or _ignore))


@contextlib.contextmanager
def _without_worktrees(clone: Path) -> Iterator[Path]:
    """Yield a git directory of links to the clone, without its worktrees: a fetch would read the files of each.

    git follows the links also where it replaces or locks a file. Needs the clone's lock. Raises OSError.
    """
    # What a killed process leaves goes with git's locks.
    with tempfile.TemporaryDirectory(prefix="fetching.", suffix=".lock", dir=clone) as place:
        (Path(place) / "HEAD").symlink_to(_UNBORN)
        for name in _FETCHED_INTO:
            (Path(place) / name).symlink_to(Path("..") / name)
        yield Path(place)


async def _replace(clone: Clone, remote_url: str, on_progress: Callable[[str], None] | None) -> str:
    """Fetch the clone again, then move the damaged one whole to DATA_DIR/kept; return its name there.

    The directory of each of its worktrees follows when that worktree is made again, under its own claim: until then
    another turn may be at work in it.
    """
    making = await _init(clone)
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
        known = (await clone.git.configuration(clone.path)).values
        if _has_head(clone) and all(known.get(key) == [value] for key, value in _BARE.items()):
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
    """Write HEAD and config again where a full disk or a power cut left half of them: they hold nothing unique."""
    config = clone.path / "config"
    if not _has_head(clone):
        (clone.path / "HEAD").write_text(_HEAD)
    asked = ("config", "--file", str(config), "--type=bool", "--get", "core.bare")
    if (await clone.git.run(*asked, cwd=None, check=False)).text != "true":
        config.write_text(_CONFIG)


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
    configured = (await clone.git.configuration(path)).values
    for key, value in wanted.items():
        if configured.get(key.lower()) != [value]:
            await clone.git.on_clone(path, "config", "--local", "--replace-all", key, value)
