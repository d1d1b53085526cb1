"""A worktree of a clone as one value: found once under the clone's lock, then taken by each step that works on it.

git itself is asked, in the worktree's sandbox, whether the directory belongs to its folder in the clone, and what is
checked out there.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Self, TypeVar, Unpack

from bot import refs
from bot.files import real_path
from bot.sandbox.bwrap import Bind
from bot.sandbox.untrusted_files import locks_below, remove_blocking, remove_untrusted
from bot.sandbox.view import View, making_private, open_view, remove_locks, show_history, unblock
from bot.tree.clone import admin as records
from bot.tree.clone.admin import Missing, recorded, recorded_branch
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.clone.on_host import is_as_shown, moved_by_a_person, operation_in
from bot.tree.clone.published import lend, unpublished_objects
from bot.tree.clone.status import FLAGS, Change, judged, parse_status, perhaps_product
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import Completed, Options, failure

S = TypeVar("S", bound="Seen")
_NO_COMMIT = "0" * 40
_MOST_NAMED = 500
"""In one command."""
DAMAGE = (GitProblem.NOT_FOUND, GitProblem.CORRUPT)


@dataclass(frozen=True, slots=True)
class Seen:
    """A worktree of a clone as it was seen, to be read.

    `admin` is git's folder for it in the clone, a real path. `view` is what its processes see of git. What was checked
    out: `commit` is None on a branch without one, `branch` when HEAD is detached. `files` are the uncommitted ones,
    if counted; build products that are not tracked do not count, since they are never committed. `lost`:
    the directory is gone, or another one is in its place, and git sees its folder in the clone alone.
    """

    clone: Clone
    path: Path
    admin: Path
    view: View
    commit: str | None = None
    branch: str | None = None
    files: int | None = field(default=None, kw_only=True)
    lost: bool = field(default=False, kw_only=True)

    @property
    def state(self) -> Path:
        """The folder with HEAD, index and operations in progress. An agent can write there."""
        return self.view.state

    @property
    def isolated(self) -> bool:
        """Whether its commits and refs are in a private folder of its sandbox, until they are imported."""
        return self.view.is_isolated

    async def git(self, *args: str, shown: Sequence[Bind] = (), **options: Unpack[Options]) -> Completed:
        """Run a git command that reads the worktree, in its sandbox, which shows further folders. Raises GitError,
        OSError.
        """
        if self.lost and not self.isolated:
            raise GitError(GitProblem.NOT_FOUND, "worktree", "its directory is gone")
        return await self.clone.git.in_sandbox(self.view, *args, in_worktree=not self.lost, shown=shown, **options)

    async def now(self) -> Self:
        """Return it with what is checked out now. Raises GitError, also for another repository, and OSError."""
        # No setting names another place.
        here = {} if self.lost else {"GIT_WORK_TREE": str(self.path)}
        places = ("--path-format=absolute", "--git-dir", "--git-common-dir")
        asked = ("rev-parse", *places, "HEAD^{commit}", "--symbolic-full-name", "HEAD")
        told = await self.git(*asked, check=False, environment=here)
        expected = f"{self.admin}\n{self.clone.path.resolve()}\n"
        if not told.text.startswith(expected):
            if told.status:
                raise failure("rev-parse", told)
            raise GitError(GitProblem.NOT_FOUND, "worktree", "git takes it for a part of another repository")
        head = told.text.removeprefix(expected).split("\n")
        if told.status == 0 and len(head) == 2:
            branch = None if head[1] == "HEAD" else head[1].removeprefix("refs/heads/")
            return replace(self, commit=head[0], branch=branch)
        # A branch without a commit, or one that is named HEAD too.
        named = (await self.git("symbolic-ref", "--quiet", "HEAD", check=False)).text.removeprefix("refs/heads/")
        return replace(self, commit=await self.commit_at("HEAD"), branch=named or None)

    async def commit_at(self, ref: str) -> str | None:
        """Return the commit that a ref has for the worktree's own git, None if there is none."""
        found = await self.git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False)
        return found.text if found.status == 0 else None

    async def changes(self) -> list[Change]:
        """Return the files that differ from HEAD, and untracked ones, but no ignored ones. Raises GitError, OSError."""
        # No setting names another place: these are the files at this path.
        here = {"GIT_WORK_TREE": str(self.path)}
        shown = await self.git("status", *FLAGS, "--ignore-submodules=none", environment=here)
        found = parse_status(shown.stdout)
        folders = sorted({*filter(None, map(perhaps_product, found))})
        asked = folders if len(folders) <= _MOST_NAMED else ()
        tracked = (await self.git("ls-files", "-z", "--", *asked)).fields if folders else ()
        return judged(found, tracked)

    async def work(self) -> list[Change]:
        """Return the changes but for build products, which are no work. Raises GitError, OSError."""
        return [change for change in await self.changes() if change.product is None]

    async def ignored(self) -> list[str]:
        """Return what git ignores here, a folder of nothing else as one name. Raises GitError, OSError."""
        listing = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
        return (await self.git(*listing)).fields

    def operation_in_progress(self) -> str | None:
        """Return the unfinished operation: rebase, merge, cherry-pick, revert, bisect or None."""
        return operation_in(self.state)

    async def unblock(self) -> None:
        """Remove pipes where git would open them and wait, in the worktree and its state. Raises OSError.

        It looks at each name in the worktree: once after an agent was at work there is enough.
        """
        await asyncio.to_thread(unblock, self.view)
        await asyncio.to_thread(remove_blocking, self.path, ".git", links=False)


@dataclass(frozen=True, slots=True)
class Checkout(Seen):
    """A worktree of a clone whose `lock` is held: it may be changed by whoever has its claim, while no agent runs.

    `restored`: git's folder for it was missing and was restored.
    """

    lock: CloneLock = field(kw_only=True)
    restored: bool = field(default=False, kw_only=True)

    def clear_locks(self) -> None:
        """Remove the locks that a killed git left, or what an agent put in their place. Raises OSError."""
        state = self.state
        for lock in (*state.glob("*.lock"), *(state / "refs" / name for name in locks_below(state / "refs"))):
            remove_untrusted(state, lock.relative_to(state))
        remove_untrusted(self.admin, PurePath("HEAD.lock"))
        if self.isolated:
            remove_locks(self.view)
            if not self.clone.is_shallow:
                show_history(self.view)


async def open_checkout(lock: CloneLock, path: Path) -> Checkout | Missing:
    """Return the worktree at `path`, which may be unfinished, freed of locks and pipes that are in git's way, where a
    person has moved it to.

    Needs its claim, and no running agent. Raises GitError, OSError.
    """
    seen = await look_at(lock.clone, path)
    if isinstance(seen, Missing):
        return seen
    found = Checkout(seen.clone, seen.path, seen.admin, seen.view, seen.commit, seen.branch, lock=lock)
    await asyncio.to_thread(found.clear_locks)
    return await _follow_a_person(found)


async def _follow_a_person(found: Checkout) -> Checkout:
    """Move the sandbox's HEAD, branch and index to where a person has moved those of the host; the files are there.

    Not where the sandbox has moved too: then what the person made is kept (see `move_branch`).
    """
    if not found.isolated or (moved := await moved_by_a_person(found.clone, found.admin)) is None:
        return found
    (head, commit), mine = moved, f"refs/heads/{found.branch}" if found.branch else found.commit or ""
    if not is_as_shown(found.admin, mine, found.commit) or found.operation_in_progress():
        return found
    await lend(found.clone, found.view, commit)
    if head == commit:
        await found.git("update-ref", "--no-deref", "HEAD", commit)
    else:
        await found.git("update-ref", head, commit)
        await found.git("symbolic-ref", "HEAD", head)
    await found.git("read-tree", "--reset", commit)
    await found.git("update-index", "-q", "--refresh", check=False)
    return await found.now()


async def registered(lock: CloneLock, path: Path) -> Checkout:
    """Return a worktree that was registered just now, in which git was never started. Raises GitError, OSError."""
    admin = records.admin_directory(lock.clone.path, path)
    if isinstance(admin, Missing):
        raise GitError(GitProblem.OTHER, "worktree", f"the new worktree went away: {admin.why}")
    found = Checkout(lock.clone, path, admin, await _view(lock.clone, path, admin), lock=lock)
    await asyncio.to_thread(found.clear_locks)
    return found


async def require_checkout(lock: CloneLock, path: Path) -> Checkout:
    """Return the worktree at `path` as `open_checkout`. Raises GitError where there is none, OSError."""
    found = await open_checkout(lock, path)
    if isinstance(found, Missing):
        raise GitError(GitProblem.CORRUPT if found.corrupt else GitProblem.NOT_FOUND, "worktree", found.why)
    return found


async def look_at(clone: Clone, path: Path) -> Seen | Missing:
    """Return the worktree at `path`, which may be unfinished. Raises GitError if git cannot tell now, OSError."""
    admin = records.admin_directory(clone.path, path)
    if isinstance(admin, Missing):
        return admin
    try:
        seen = Seen(clone, path, admin, await _view(clone, path, admin))
        await asyncio.to_thread(unblock, seen.view)
        return await seen.now()
    except GitError as error:
        if error.problem in DAMAGE:
            return Missing(str(error), error.problem is GitProblem.CORRUPT)
        raise


@dataclass(frozen=True, slots=True)
class Entry:
    """A registered worktree; its directory may be gone."""

    path: Path
    branch: str | None
    lock_reason: str | None


async def all_entries(clone: Clone) -> list[Entry]:
    """Return all registered worktrees; the time grows with their number. Raises GitError."""
    listed = (await clone.run("worktree", "list", "--porcelain", "-z")).stdout
    found: list[Entry] = []
    for record in os.fsdecode(listed).split("\0\0"):
        lines = dict(line.partition(" ")[::2] for line in record.split("\0") if line)
        if not lines or "bare" in lines:
            continue
        branch = lines["branch"].removeprefix("refs/heads/") if "branch" in lines else None
        found.append(Entry(Path(lines["worktree"]), branch, lines.get("locked")))
    return found


async def on_record(lock: CloneLock, path: Path) -> Checkout | None:
    """Return what git has on record of a worktree whose directory may be gone: nothing may be started in there.

    Its head is the registered one. Raises GitError.
    """
    clone, admin = lock.clone, records.find_admin_directory(lock.clone.path, path)
    if admin is None:
        return None
    view, real = clone.view(path, admin), real_path(admin)
    if not view.private.is_dir():  # nothing was ever started there in a sandbox
        view = open_view(view.clone, view.worktree, real)
    head, branch = recorded(admin / "HEAD"), recorded_branch(admin)
    revision = refs.local(branch) if branch else head if refs.is_commit(head) else None
    commit = await clone.commit_at(revision) if revision else None
    return Checkout(clone, path, real, view, commit, branch, lock=lock, lost=True)


def restore_admin_directory(lock: CloneLock, path: Path, branch: str | None) -> bool:
    """Make a lost folder in the clone again, with `branch` (None: detached); return whether that was needed and done.

    HEAD, index and commits are in the sandbox's private state. Without a sandbox they went with the folder. Raises
    OSError.
    """
    clone, sandbox = lock.clone, lock.clone.git.sandbox
    if not sandbox.isolates or records.find_admin_directory(clone.path, path) is not None:
        return False
    shown = sandbox.private_folder(real_path(path)) / "worktrees"
    names = [entry.name for entry in shown.iterdir()] if shown.is_dir() else []
    if len(names) != 1 or (clone.path / "worktrees" / names[0]).exists():
        return False
    records.add_record(clone.path, names[0], path, refs.local(branch) if branch else _NO_COMMIT, records.LIVE)
    return True


async def inspect(clone: Clone, path: Path) -> Seen | Missing:
    """Return the finished worktree at `path`. Raises GitError if that is unknown, OSError."""
    found = await look_at(clone, path)
    return found if isinstance(found, Missing) else await examine(found)


async def examine(found: S) -> S | Missing:
    """Return a worktree with its uncommitted files, if it is finished. Raises GitError if that is unknown, OSError."""
    if records.is_unfinished(found.admin):
        return Missing("it was never finished")
    # Only the branch of an empty repository has no commit in the clone.
    named = found.branch if found.branch and refs.is_branch(found.branch) else None
    if found.commit is None and (found.branch is None or (named and await found.clone.commit_at(refs.local(named)))):
        return Missing("its HEAD names no commit")
    try:
        await found.unblock()
        return replace(found, files=len(await found.work()))
    except GitError as error:
        if error.problem in DAMAGE:
            return Missing(str(error), error.problem is GitProblem.CORRUPT)
        raise


async def view_of(clone: Clone, path: Path) -> View:
    """Return what a process in the worktree at `path` sees of git. Raises GitError, OSError."""
    admin = records.admin_directory(clone.path, path)
    if isinstance(admin, Missing):
        raise GitError(GitProblem.NOT_FOUND, "worktree", admin.why)
    return await _view(clone, path, admin)


async def _view(clone: Clone, path: Path, admin: Path) -> View:
    """Return what its processes see; the private folder is made where nothing was ever started in the sandbox.

    Of what is not published it has only what this worktree's HEAD and index reach.
    """
    view = clone.view(path, admin)
    if not view.private.is_dir():
        branch = recorded_branch(admin)
        ref = refs.local(branch) if branch else None
        head = await clone.commit_at(ref or recorded(admin / "HEAD"))
        objects = await unpublished_objects(clone, [head] if head else [], admin)
        listing = ("for-each-ref", "--format=%(objectname) %(refname)", "refs/remotes", "refs/tags")
        with making_private(view, ref, head, (await clone.run(*listing)).stdout) as packs:
            if objects:
                packing = ("pack-objects", "--local", "--non-empty", "--delta-base-offset", "-q")
                await clone.git.on_clone(clone.path, *packing, str(packs / "pack"), input=objects)
    return view
