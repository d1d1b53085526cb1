"""A clone is made, fetched, and replaced where it is damaged; its remote is asked for a ref and the default branch."""

import asyncio
import os
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from bot import failpoints, refs
from bot.sandbox import trash
from bot.sandbox.view import PUBLISHED, show_history
from bot.thread import reasons
from bot.tree.clone.admin import admin_directories, recorded
from bot.tree.clone.clone import CheckoutRefused, Clone, CloneLock, DefaultBranch
from bot.tree.clone.published import make_stores, publish, publish_tips, writing_published
from bot.tree.git.errors import GitError, GitProblem, is_refused, is_unauthenticated
from bot.tree.git.progress import Reader

REFSPEC = "+refs/heads/*:refs/remotes/origin/*"
FETCH = ("fetch", "--progress", "--prune", "--no-write-fetch-head", "--no-auto-maintenance", "origin")
"""With --quiet git would report nothing while it receives, which takes longest."""
# It has no refspec to fetch: git moves no remote branch when it pushes there. Sandboxes see those branches at once, and
# what they reach must be published first.
PUSH_REMOTE = "push"
# So many files of refs make each git slower; fewer wait until the clone is packed.
_MANY_REFS = 200

_CANNOT = "does not support shallow"
_PASSING = (GitProblem.NETWORK, GitProblem.TIMEOUT, GitProblem.KILLED, GitProblem.DISK_FULL)
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Updated:
    """The clone is up to date. `replaced`: it was damaged, and the damaged one has this name in DATA_DIR/kept.

    `no_access`: it is not, since the remote refuses the bot's credentials, or shows it no such repository.
    """

    replaced: str | None = None
    no_access: bool = False


async def update(
    lock: CloneLock,
    remote_url: str,
    on_progress: Callable[[str], None] | None = None,
    refspecs: Collection[str] = (),
    *,
    newest: bool = False,
) -> Updated:
    """Make the clone if there is none, set its `remote_url` (without credentials) and fetch; replace a damaged clone.

    Of a clone that was there before, only what `refspecs` name, if there are any; of a new one all, or with `newest`
    the last commit of each branch that they name. `on_progress` gets short lines for people ("Receiving objects 43%,
    1.2 GiB"). Raises GitError, OSError.
    """
    try:
        is_new = not lock.clone.path.is_dir()
        replaced = await _ensure(lock, remote_url, on_progress)
        try:
            newest = newest and is_new
            await fetch(lock, on_progress, refspecs if newest or not is_new else (), newest=newest)
        except GitError as error:
            replaced = await replace_after(lock, error, on_progress)
        if is_new and len(await lock.clone.refs()) > _MANY_REFS:
            # The fetch made a file of each branch; no sandbox has seen them yet.
            await lock.clone.run("pack-refs", "--all")
    except GitError as error:
        if (error.problem is GitProblem.AUTH or is_refused(error.stderr)) and not is_unauthenticated(error.stderr):
            return Updated(no_access=True)
        raise
    return Updated(replaced)


async def _ensure(lock: CloneLock, remote_url: str, on_progress: Callable[[str], None] | None) -> str | None:
    """Make an empty clone if there is none, replace what is no repository, and configure it.

    Return the name in DATA_DIR/kept of what was replaced.
    """
    clone = lock.clone
    for unfinished in clone.path.parent.glob(f".{clone.path.name}.*.making"):
        trash.move_to_trash(clone.data_dir, unfinished)
    configured: list[str] | None = []
    if os.path.lexists(clone.path):  # noqa: ASYNC240
        configured = await _configuration(clone)
    else:
        making = await _new(clone)
        failpoints.reached("clone-initialised")
        making.rename(clone.path)
    if configured is None:
        return await _replace(clone, remote_url, on_progress)
    await _configure(clone, clone.path, remote_url, configured)
    return None


async def fetch(
    lock: CloneLock,
    on_progress: Callable[[str], None] | None = None,
    refspecs: Collection[str] = (),
    *,
    newest: bool = False,
) -> None:
    """Bring `refs/remotes/origin/*`, or what `refspecs` name of it, up to date, without what the remote no longer has.

    With `newest`, take only the last commit of each branch, if the server can do that. Where history is missing from
    before, everything is fetched. Raises GitError, OSError.
    """
    clone = lock.clone
    is_shallow = clone.is_shallow
    asked = ("--depth=1", *refspecs) if newest else everything(clone) or refspecs
    try:
        await _fetch(clone, clone.path, on_progress, asked)
    except GitError as error:
        # The remote has deleted a branch that is not among them, and the name of one of them was impossible beside it.
        is_in_the_way = bool(refspecs) and error.problem is GitProblem.LOCKED
        # A server that cannot leave out history is heard of in several ways, also as a connection that ended.
        is_refused = newest and (_CANNOT in error.stderr or error.problem not in _PASSING)
        if not is_in_the_way and not is_refused:
            raise
        _log.info("all-fetched", clone=str(clone.path), why=str(error))
        await _fetch(clone, clone.path, on_progress, everything(clone))
    if is_shallow and not clone.is_shallow:
        await show_history_inside(clone)
    failpoints.reached("clone-pruned")
    await publish_tips(lock)
    failpoints.reached("clone-fetched")


def everything(clone: Clone) -> tuple[str, ...]:
    """Return what a fetch of all branches needs to bring the missing history too; nothing where none is missing."""
    return ("--unshallow",) if clone.is_shallow else ()


async def show_history_inside(clone: Clone) -> None:
    """Let agents that are at work see the history that has arrived. Raises OSError."""
    for admin in admin_directories(clone.path) if clone.git.sandbox.isolates else ():
        view = clone.view(Path(recorded(admin / "gitdir")).parent, admin)
        if view.common.is_dir():
            await asyncio.to_thread(show_history, view)


async def complete(lock: CloneLock) -> None:
    """Fetch the history that is still missing, if any: before what needs it. Raises GitError, OSError."""
    if lock.clone.is_shallow:
        await fetch(lock)


async def replace_after(lock: CloneLock, error: GitError, on_progress: Callable[[str], None] | None) -> str:
    """Replace a clone whose damage is the cause of an error, as below; else raise the error."""
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
    checked = await clone.git.on_clone(clone.path, *checks, check=False, on_stderr=Reader(on_progress))
    if checked.status == 0:
        return None
    _log.warning("clone-damaged", clone=str(clone.path), found=checked.stderr[:2000])
    return await _replace(clone, await clone.git.remote_url(clone.path), on_progress)


async def fetch_ref(lock: CloneLock, remote_ref: str) -> str:
    """Fetch one ref outside the remote's branches and return its commit. Raises GitError, InvalidNameError."""
    clone, kept_at = lock.clone, refs.fetched(remote_ref)
    arguments = ("fetch", "--quiet", "--no-write-fetch-head", "--no-tags", "--no-auto-maintenance", "origin")
    environment = writing_published(clone.path)
    await clone.git.on_clone(clone.path, *arguments, f"+{remote_ref}:{kept_at}", environment=environment)
    fetched = (await clone.run("rev-parse", "--verify", f"{kept_at}^{{commit}}")).text
    await publish(lock, [fetched])
    return fetched


async def remote_default_branch(lock: CloneLock) -> DefaultBranch | CheckoutRefused:
    """Ask the remote for its default branch, once under a lock, and fetch it if it is new. Raises GitError, OSError."""
    if lock.default is not None:
        return lock.default
    answer = (await lock.clone.run("ls-remote", "--symref", "origin", "HEAD")).text
    heads = [value for value, name in (line.split("\t", 1) for line in answer.splitlines()) if name == "HEAD"]
    if not any(refs.is_commit(value) for value in heads):
        return CheckoutRefused(reasons.NO_FIRST_COMMIT)
    tip, prefix = heads[-1], "ref: refs/heads/"
    name = next((value.removeprefix(prefix) for value in heads if value.startswith(prefix)), "")
    if not refs.is_branch(name):
        return CheckoutRefused(reasons.NO_DEFAULT_BRANCH)
    if await lock.clone.commit_at(refs.remote(name)) != tip:
        await fetch(lock, None, (refs.refspec(name),))
    return DefaultBranch(name, tip)


async def _new(clone: Clone) -> Path:
    making = clone.path.with_name(f".{clone.path.name}.{secrets.token_hex(4)}.making")
    await clone.git.run("init", "--quiet", "--bare", "--template=", "--", str(making), cwd=None)
    make_stores(making)
    return making


async def _fetch(
    clone: Clone, path: Path, on_progress: Callable[[str], None] | None, refspecs: Collection[str] = ()
) -> None:
    environment = writing_published(path)
    await clone.git.on_clone(path, *FETCH, *refspecs, environment=environment, on_stderr=Reader(on_progress))


async def _replace(clone: Clone, remote_url: str, on_progress: Callable[[str], None] | None) -> str:
    """Fetch the clone again, then move the damaged one whole to DATA_DIR/kept; return its name there.

    The directory of each of its worktrees follows when that worktree is made again, under its own claim: until then
    another turn may be at work in it.
    """
    making = await _new(clone)
    await _configure(clone, making, remote_url, [])
    await _fetch(clone, making, on_progress)
    failpoints.reached("clone-remade")
    kept = trash.keep_whole(clone.data_dir, clone.path, datetime.now(UTC))
    failpoints.reached("clone-set-aside")
    making.rename(clone.path)
    if clone.objects is not None:
        await clone.objects.close()
    _log.warning("clone-replaced", clone=str(clone.path), kept=str(kept))
    return kept.name


async def _configuration(clone: Clone) -> list[str] | None:
    """Return the clone's configuration, each as "key\nvalue" with the key in lower case; None if git does not take it
    for a bare repository. If git fails for another reason, a good clone stays.
    """
    if clone.path.is_symlink() or not all((clone.path / name).is_dir() for name in ("objects", PUBLISHED, "refs")):
        return None
    try:
        listed = await clone.git.configuration(clone.path, anew=True)
    except GitError as error:
        if error.problem in (GitProblem.NOT_FOUND, GitProblem.CORRUPT):
            return None
        raise
    return listed if "core.bare\ntrue" in listed else None


async def _configure(clone: Clone, path: Path, remote_url: str, configured: list[str]) -> None:
    wanted = {
        "remote.origin.url": remote_url,
        "remote.origin.fetch": REFSPEC,
        f"remote.{PUSH_REMOTE}.url": remote_url,
        "gc.auto": "0",
        # An operator's `git gc` would take the files of refs that sandboxes see.
        "gc.packRefs": "false",
    }
    for key, value in wanted.items():
        if [one for one in configured if one.startswith(f"{key.lower()}\n")] != [f"{key.lower()}\n{value}"]:
            await clone.git.on_clone(path, "config", "--local", "--replace-all", key, value)
