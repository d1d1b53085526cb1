"""The bare clone of a codebase, the lock that guards it, and what the remote says."""

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bot.run.sandbox.view import View, make_private, private_folder
from bot.run.worktrees import refs
from bot.run.worktrees.git import DEFAULT_TIMEOUT_SECONDS, Completed, Git, GitError, GitProblem, failure
from bot.run.worktrees.linked import Missing, admin_directory, admin_on_record, branch_on_record, real

REFSPEC = "+refs/heads/*:refs/remotes/origin/*"
LOCK_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Clone:
    """A bare clone at `path`; what is taken out of use goes to `trash`, on the same file system, by rename."""

    path: Path
    trash: Path
    git: Git

    async def run(self, *args: str, check: bool = True) -> Completed:
        """Ref-level git on this clone; raises GitError."""
        return await self.git.on_clone(self.path, *args, check=check)

    async def on_worktree(
        self,
        path: Path,
        *args: str,
        input: bytes | None = None,  # noqa: A002
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Completed:
        """Every git command that reads a worktree, in its cage if there is one. Raises GitError, OSError."""
        cage = self.git.cage
        if cage is None:
            return await self.git.on_worktree(
                path, *args, input=input, check=check, environment=environment, timeout_seconds=timeout_seconds
            )
        view = await self.view(path)
        return await self.git.in_cage(
            cage, view, *args, input=input, check=check, environment=environment, timeout_seconds=timeout_seconds
        )

    async def view(self, path: Path) -> View:
        """What a process in the worktree at `path` sees of this clone: only with a cage. Raises GitError, OSError."""
        admin = admin_directory(self.path, path)
        if isinstance(admin, Missing):
            raise GitError(GitProblem.NOT_FOUND, "worktree", admin.why)
        view = self._view(path, admin)
        if not view.private.is_dir():
            branch = branch_on_record(view.admin)
            ref = refs.local(branch) if branch else None
            make_private(view, ref, await self.commit_at(ref) if ref else None)
        return view

    def view_on_record(self, path: Path) -> View | None:
        """The view whose private state is there, whatever became of the directory at `path`. Never to run in it."""
        if self.git.cage is None or not private_folder(self.git.cage.data_dir, real(path)).is_dir():
            return None
        admin = admin_directory(self.path, path)
        on_record = admin_on_record(self.path, path) if isinstance(admin, Missing) else admin
        return self._view(path, on_record) if on_record else None

    def _view(self, path: Path, admin: Path) -> View:
        if self.git.cage is None:
            raise ValueError("without a cage there is no view")
        return self.git.cage.view(self.path.resolve(), real(path), real(admin))

    async def state_folder(self, path: Path) -> Path | None:
        """Where git keeps a worktree's HEAD and index and what is in progress; None if it is no worktree."""
        admin = admin_directory(self.path, path)
        if isinstance(admin, Missing):
            return None
        return admin if self.git.cage is None else (await self.view(path)).state

    async def commit_at(self, revision: str) -> str | None:
        """The commit a full ref or object name stands for; None when there is none here."""
        found = await self.run(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", check=False
        )
        return found.text if found.status == 0 else None

    async def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        """Whether `ancestor` is reachable from `descendant`; raises GitError when one of them cannot be read."""
        answer = await self.run("merge-base", "--is-ancestor", ancestor, descendant, check=False)
        if answer.status not in (0, 1):
            raise failure("merge-base", answer)
        return answer.status == 0

    async def count(self, *revisions: str) -> int:
        """How many commits `git rev-list` finds for these revisions; raises GitError."""
        return int((await self.run("rev-list", "--count", *revisions)).text)

    async def unpublished(self, revision: str) -> int:
        """How many commits of `revision` are reachable from nothing that was fetched."""
        return await self.count(revision, "--not", "--remotes=origin", f"--glob={refs.FETCHED_PREFIX}*")


@dataclass(frozen=True, slots=True)
class CloneLock:
    """Held while fetch, ref and administrative work on `clone` is allowed; only `clone_lock` makes one."""

    clone: Clone


@dataclass(frozen=True, slots=True)
class DefaultBranch:
    """The branch the remote's HEAD names, and its commit."""

    name: str
    tip: str


@dataclass(frozen=True, slots=True)
class NoDefaultBranch:
    """The remote has no commit to start from."""

    next_step: str


def clone_at(data_dir: Path, owner: str, folder: str, git: Git) -> Clone:
    """The clone in `DATA_DIR/repos/<owner>/<folder>.git`; `folder` is the repository's name unless that is taken.

    Raises InvalidNameError.
    """
    path = data_dir / "repos" / refs.checked_owner(owner) / f"{refs.checked_folder(folder)}.git"
    return Clone(path, data_dir / "trash", git)


@contextlib.asynccontextmanager
async def clone_lock(clone: Clone) -> AsyncIterator[CloneLock]:
    """Waits until no other task or process holds this clone; the kernel lets go of the lock of a killed process."""
    clone.path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(clone.path.with_name(clone.path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Polled: a thread that waits in flock could not be cancelled.
        while not _try_lock(descriptor):  # noqa: ASYNC110
            await asyncio.sleep(LOCK_POLL_SECONDS)
        yield CloneLock(clone)
    finally:
        os.close(descriptor)


async def ensure(lock: CloneLock, remote_url: str) -> None:
    """Makes the clone, or a half-made one again, and sets `remote_url` (without credentials). Raises GitError."""
    clone = lock.clone
    if not await _is_bare_repository(clone):
        await _make(clone)
    wanted = {
        "remote.origin.url": remote_url,
        "remote.origin.fetch": REFSPEC,
        "gc.auto": "0",
        "worktree.guessRemote": "false",
    }
    configured = await _local_config(clone)
    for key, value in wanted.items():
        if configured.get(key.lower()) != [value]:
            await clone.run("config", "--local", "--replace-all", key, value)


async def fetch(lock: CloneLock) -> None:
    """Brings `refs/remotes/origin/*` up to date and drops what the remote no longer has. Raises GitError."""
    await lock.clone.run("fetch", "--quiet", "--prune", "--no-write-fetch-head", "origin")


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
    if not os.path.lexists(path):
        return None
    clone.trash.mkdir(parents=True, exist_ok=True)
    trashed = clone.trash / f"{path.name}.{secrets.token_hex(8)}"
    path.rename(trashed)
    return trashed


async def _make(clone: Clone) -> None:
    for leftover in clone.path.parent.glob(f".{clone.path.name}.*.making"):
        await asyncio.to_thread(shutil.rmtree, leftover)
    move_to_trash(clone, clone.path)
    making = clone.path.with_name(f".{clone.path.name}.{secrets.token_hex(4)}.making")
    await clone.git.run("init", "--quiet", "--bare", "--template=", "--", str(making), cwd=None)
    making.rename(clone.path)


async def _is_bare_repository(clone: Clone) -> bool:
    """Structure first: a git that fails for another reason must not cost a good clone its place."""
    parts = ((clone.path / "HEAD").is_file(), (clone.path / "objects").is_dir(), (clone.path / "refs").is_dir())
    if clone.path.is_symlink() or not all(parts):
        return False
    return (await clone.run("rev-parse", "--is-bare-repository")).text == "true"


async def _local_config(clone: Clone) -> Mapping[str, list[str]]:
    values: dict[str, list[str]] = {}
    listed = await clone.run("config", "--local", "--list", "-z")
    for entry in listed.fields:
        key, _, value = entry.partition("\n")
        values.setdefault(key.lower(), []).append(value)
    return values


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
