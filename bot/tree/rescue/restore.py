"""A rescue is restored into a worktree: missing commits on its branch, staged files staged, other files uncommitted."""

import asyncio
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.failpoints import reached
from bot.files import real_path
from bot.model import Saved
from bot.sandbox import trash
from bot.sandbox.view import private_folder
from bot.thread.worktree_replies import RestoreObstacle
from bot.tree.clone.admin import Missing
from bot.tree.clone.check_out import in_the_way, put_back
from bot.tree.clone.checkout import Checkout, inspect, open_checkout
from bot.tree.clone.clone import EMPTY_TREE, Clone, CloneLock
from bot.tree.clone.importing import import_commits
from bot.tree.clone.published import lend
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import failure
from bot.tree.lfs.objects import put_objects_back
from bot.tree.merge import commit_tree
from bot.tree.rescue.message import RescuedCommits, read_rescue
from bot.tree.rescue.save import AUTHOR
from bot.tree.rescue.snapshot import DISK, TIMEOUT_SECONDS, ScratchGit, Snapshot, read_state, scratch_git_dir, snapshot
from bot.tree.signing import remade

_TARGET = "target"
# Where submodules have their commits, in what git knew of a kept directory: with a sandbox, and without.
_MODULES = ("private/state/modules", "worktrees/*/modules")
_FOREIGN_LINK = "replaced-link"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Restored:
    """What is `back`, nothing where nothing was missing. `elsewhere` are commits that only the rescue has, since this
    branch does not lead to them.
    """

    back: Saved
    elsewhere: tuple[str, ...] = ()


@dataclass(unsafe_hash=True)
class RestoreRefusedError(Exception):
    """Nothing was changed, and the rescue stays. `names`: the files, the commit or the branch that are in the way."""

    obstacle: RestoreObstacle
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Position:
    """The branch's commit now (`head`), in the rescue (`goal`), and after the restore (`after`).

    `base`: what the goal is now, since it was made anew before a push; None where it is as it was.
    """

    head: str | None
    goal: str | None
    after: str | None
    base: str | None = None


async def restore(
    lock: CloneLock, path: Path, branch: str | None, sha: str | None, kept: Path | None, operation_id: int
) -> Restored:
    """Bring back the rescue commit `sha` and the directory `kept` of the same removal, as far as there is either.

    The worktree on `branch` (None: detached) must be without changes. The branch only goes forward, and no ignored
    file is overwritten. A merge or rebase is not entered again; its files come back as they were. A restore that was
    cut off completes when it is repeated with its `operation_id`. Raises RestoreRefusedError, GitError, OSError,
    InvalidNameError.
    """
    clone = lock.clone
    rescued = await read_rescue(clone, sha) if sha is not None else None
    if sha is not None and rescued is None:
        raise RestoreRefusedError("commit-gone")
    checkout = await _opened(lock, path, branch)
    if sha is not None:  # where the restore is refused, the next step may need it too
        await lend(clone, checkout.view, sha)
    position = await _position(checkout, rescued)
    progress = _Progress(progress_file(clone.data_dir, path), f"{operation_id} {sha} {kept.name if kept else None}")
    files, whole = 0, False
    if kept is not None and (progress.is_mine() or is_directory(kept)):
        await _restore_directory(checkout, rescued, kept, position, progress)
        whole = True
    elif sha is not None and rescued is not None:
        files = await _restore_commit(checkout, sha, rescued, position, progress)
    else:
        raise RestoreRefusedError("directory-gone")
    if rescued is not None and rescued.lfs is not None:
        await put_objects_back(checkout, rescued.lfs)
    await import_commits(await checkout.now(), branch)
    commits = 0
    if position.after is not None and position.after != position.head:
        commits = await clone.count(position.after, *([f"^{position.head}"] if position.head else []))
    if rescued is not None:
        await _put_stashes_back(checkout, rescued.stashes)
    _log.info("rescue-restored", path=str(path), sha=sha, commits=commits, files=files, whole=whole)
    return Restored(Saved(files, commits, whole), await _elsewhere(clone, rescued, position.after))


async def _opened(lock: CloneLock, path: Path, branch: str | None) -> Checkout:
    """Refuse where there is no worktree, where an operation of git is in progress, and on another branch."""
    checkout = await open_checkout(lock, path)
    if isinstance(checkout, Missing):
        raise RestoreRefusedError("no-worktree")
    await checkout.unblock()
    await put_back(checkout)
    await import_commits(checkout, branch)
    if operation := checkout.operation_in_progress():
        raise RestoreRefusedError("unfinished", (operation,))
    if (current := checkout.branch) != branch:
        raise RestoreRefusedError("off-branch", (current,) if current else ())
    return checkout


async def _position(checkout: Checkout, rescued: RescuedCommits | None) -> _Position:
    clone, head, goal = checkout.clone, checkout.commit, None
    if rescued is not None:  # HEAD's commit if HEAD continued the branch, else the branch's
        goal, tip = rescued.head or rescued.tip, rescued.tip
        if goal is not None and tip is not None and not await clone.is_ancestor(tip, goal):
            goal = tip
    if goal is None or head == goal:
        return _Position(head, goal, head)
    if head is None or await clone.is_ancestor(head, goal):
        return _Position(head, goal, goal)
    if await clone.is_ancestor(goal, head):
        return _Position(head, goal, head)
    if (base := remade(clone, goal)) != goal and await clone.is_ancestor(base, head):
        return _Position(head, goal, head, base)
    raise RestoreRefusedError("diverged", (goal,))


async def _restore_commit(
    checkout: Checkout, sha: str, rescued: RescuedCommits, position: _Position, progress: "_Progress"
) -> int:
    """Bring back the files of the rescue commit; return how many were not committed, 0 where nothing was missing."""
    head = position.head
    files_of, staged_of = [await _on_base(checkout, one, position.base) for one in (sha, rescued.staged)]
    with scratch_git_dir(checkout, head) as own:
        seen = await read_state(own, head)
        merged: str | None = None
        if head is not None and position.after == head != position.goal:
            merged = await _merge(own, head, files_of or sha, sha)
            staged = await _merge(own, head, staged_of, sha) if staged_of else await own.tree_of(head)
        else:
            staged = await own.tree_of(rescued.staged or position.after)
        taken = await snapshot(own, head, seen)
        target = await own.tree_of(sha)
        if merged is not None:
            target = await with_changes(own, taken, await own.tree_of(head), merged)
        is_there = taken.tree == target and (taken.staged or await own.tree_of(head)) == staged
        if not progress.is_mine():
            if is_there and position.after == head:
                return 0
            if seen.changes:
                raise RestoreRefusedError("changes", tuple(change.name for change in seen.changes))
            ignored = await ignored_in_the_way(own, taken, target)
            if ignored:
                raise RestoreRefusedError("ignored-files", tuple(ignored))
            progress.begin()
        reached("restore-begun")
        # git would write again each file of which it does not know that it is as listed.
        await own.run("update-index", "-q", "--refresh", index=DISK, check=False)
        await own.run("read-tree", "--reset", "-u", target, index=DISK)
        reached("files-restored")
    await _set_head_and_index(checkout, position, staged)
    reached("commits-restored")
    return rescued.files


async def _on_base(checkout: Checkout, commit: str | None, base: str | None) -> str | None:
    """Return a commit with the same files on top of `base`, if there is one: a merge of it begins there."""
    if commit is None or base is None:
        return commit
    return await commit_tree(checkout, f"{commit}^{{tree}}", (base,), "As it was\n", AUTHOR)


async def _restore_directory(
    checkout: Checkout, rescued: RescuedCommits | None, kept: Path, position: _Position, progress: "_Progress"
) -> None:
    """Put the kept directory in the place of the worktree's, at the commit that it was at."""
    if position.goal is not None and position.after != position.goal:
        raise RestoreRefusedError("newer-than-directory")
    if not progress.is_mine():
        with scratch_git_dir(checkout, position.head) as own:
            seen = await read_state(own, position.head)
        if seen.changes:
            raise RestoreRefusedError("changes", tuple(change.name for change in seen.changes))
        listing = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
        ignored = (await checkout.git(*listing)).fields
        if ignored:
            raise RestoreRefusedError("ignored-files", tuple(ignored))
        progress.begin()
    reached("kept-restore-begun")
    await put_directory_back(checkout, kept)
    staged = rescued.staged if rescued is not None else None
    if staged is not None or position.after is not None:
        await _set_head_and_index(checkout, position, staged or position.after or EMPTY_TREE)
    reached("kept-files-restored")


async def _set_head_and_index(checkout: Checkout, position: _Position, staged: str) -> None:
    if position.after is not None and position.after != position.head:
        await checkout.git("update-ref", "-m", "restore", "HEAD", position.after)
    await checkout.git("read-tree", "--reset", staged, timeout_seconds=TIMEOUT_SECONDS)
    # git then knows which files are as HEAD has them, and need not read them again.
    await checkout.git("update-index", "-q", "--refresh", check=False, timeout_seconds=TIMEOUT_SECONDS)


async def _elsewhere(clone: Clone, rescued: RescuedCommits | None, head: str | None) -> tuple[str, ...]:
    commits = (rescued.head, *rescued.others) if rescued is not None else ()
    return tuple([one for one in commits if one and (head is None or not await _leads_to(clone, one, head))])


async def _leads_to(clone: Clone, commit: str, head: str) -> bool:
    return await clone.is_ancestor(commit, head) or await clone.is_ancestor(remade(clone, commit), head)


async def _put_stashes_back(checkout: Checkout, stashes: Sequence[str]) -> None:
    listed = await checkout.git("reflog", "show", "--format=%H", "refs/stash", check=False)
    there = listed.text.split() if listed.status == 0 else []
    for stash in reversed([one for one in stashes if one not in there]):
        # An argument has a limit of its own, and the agent chose this text.
        subject = (await checkout.clone.run("show", "--no-patch", "--format=%s", stash)).text[:200]
        arguments = ("stash", "store", "--quiet", f"--message={subject}", stash)
        stored = await checkout.git(*arguments, check=False, environment=AUTHOR.environment)
        if stored.status != 0:  # the rescue still has it
            _log.warning("stash-not-restored", path=str(checkout.path), sha=stash, problem=stored.stderr)


def progress_file(data_dir: Path, path: Path) -> Path:
    """Return the file that names the restore that has begun at `path`. It is in DATA_DIR, where no agent can write."""
    return data_dir / "restoring" / private_folder(data_dir.resolve(), real_path(path)).name


@dataclass(frozen=True, slots=True)
class _Progress:
    """`token` names one operation and what it restores. Its half-written files are no work that a restore must spare.

    The file stays at the end: the token means nothing to any other operation.
    """

    file: Path
    token: str

    def is_mine(self) -> bool:
        try:
            return self.file.read_text() == self.token
        except FileNotFoundError:
            return False

    def begin(self) -> None:
        self.file.parent.mkdir(mode=0o700, exist_ok=True)
        self.file.write_text(self.token)


# The files and the index of a rescue, byte for byte


async def _merge(own: ScratchGit, head: str, commit: str, rescue: str) -> str:
    """Return the tree of a merge in which no file is written: https://git-scm.com/docs/git-merge-tree.

    Call it before `own.verbatim()`. Raises RestoreRefusedError where both changed a file, GitError, OSError.
    """
    # A rescue has files as they lay on disk. Where git converts line ends, an unchanged file must not look changed.
    options = ("--write-tree", "--name-only", "--no-messages", "--allow-unrelated-histories", "-z")
    done = await own.run("-c", "merge.renormalize=true", "merge-tree", *options, head, commit, check=False)
    if done.status not in (0, 1):
        raise failure("merge-tree", done)
    tree, *names = done.fields
    if done.status:
        # git appends the name of its side to a file whose path is a directory on the other side.
        raise RestoreRefusedError("newer-commits", (rescue, *(name.removesuffix(f"~{commit}") for name in names)))
    return tree


async def with_changes(own: ScratchGit, taken: Snapshot, before: str, after: str) -> str:
    """Return the snapshot's tree, with the files that differ between two trees as in `after`. Raises GitError."""
    fields = (await own.run("diff-tree", "-r", "-z", "--no-renames", before, after)).fields
    facts = (one.split(" ") for one in fields[::2])
    changed = [(one[1], one[3], name) for one, name in zip(facts, fields[1::2], strict=True)]
    await own.run("read-tree", taken.tree, index=_TARGET)
    # A file may take the place of a directory, and the other way round: what goes, goes first.
    await own.fill(_TARGET, sorted(changed, key=lambda one: one[0].strip("0") != ""))
    return await own.tree(_TARGET)


async def ignored_in_the_way(own: ScratchGit, taken: Snapshot, target: str) -> list[str]:
    """Return the files that writing the tree `target` would overwrite or delete, and that no snapshot has: ignored ones
    and build products. Raises GitError, OSError.
    """
    diff = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=d", taken.tree, target)
    written = set((await own.run(*diff)).fields)
    listed = await own.run("ls-files", "--others", "-z", index=DISK)
    return in_the_way(written, listed.fields)


# A directory that was kept whole, with ignored files and repositories inside
#
# It moves by rename. No file in it is opened, and no name in it is used: an agent wrote them.


async def put_directory_back(checkout: Checkout, kept: Path) -> None:
    """Put the directory `kept` in the place of the worktree's, which goes to the trash.

    git's entry, HEAD and index stay those of the worktree. Can be repeated. What git knew of `kept` stays in
    `<kept>.git`, but for the commits of submodules. Raises GitError, OSError.
    """
    clone, path = checkout.clone, checkout.path
    await asyncio.to_thread(_exchange, clone.data_dir, checkout.admin, path, kept)
    await asyncio.to_thread(_put_modules_back, kept, checkout.state / "modules")
    found = await inspect(clone, path)
    if isinstance(found, Missing):
        raise GitError(GitProblem.OTHER, "worktree", f"the directory is back, but it is no worktree: {found.why}")


def is_directory(path: Path) -> bool:
    """Return whether `path` itself is a directory, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def _exchange(data_dir: Path, admin: Path, path: Path, kept: Path) -> None:
    if not is_directory(kept):  # it was put back before this was cut off
        return
    # Linked first: as soon as it is at `path`, git and the next attempt know it as the worktree.
    _link(kept, admin)
    trash.move_to_trash(data_dir, path)
    reached("worktree-set-aside")
    trash.move(kept, path)


def _put_modules_back(kept: Path, place: Path) -> None:
    git_state = kept.with_name(kept.name + trash.GIT_STATE)
    modules = next((found for pattern in _MODULES for found in git_state.glob(pattern)), None)
    if modules is not None and not os.path.lexists(place):
        trash.move(modules, place)


def _link(kept: Path, admin: Path) -> None:
    """Make `kept/.git` name git's folder of the worktree. A repository in its place goes to `<kept>.git`."""
    kept.chmod(stat.S_IMODE(kept.lstat().st_mode) | stat.S_IRWXU)
    link = kept / ".git"
    if is_directory(link):
        trash.move(link, kept.with_name(kept.name + trash.GIT_STATE) / _FOREIGN_LINK)
    link.unlink(missing_ok=True)
    descriptor = os.open(link, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"gitdir: {admin}\n")
