"""A codebase's bare clone on this node, what can be asked of it, and the lock that guards it."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bot.clones.linked import Missing, admin_directory, admin_on_record, branch_on_record, real
from bot.git import refs
from bot.git.runner import DEFAULT_TIMEOUT_SECONDS, Completed, Git, GitError, GitProblem, failure
from bot.sandbox.view import View, make_private, private_folder

LOCK_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Clone:
    """A bare clone at `path`; what is taken out of use goes to `trash`, on the same file system, by rename."""

    path: Path
    trash: Path
    git: Git

    @property
    def data_dir(self) -> Path:
        return self.trash.parent

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


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
