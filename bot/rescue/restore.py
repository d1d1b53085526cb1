"""A rescue is restored into a worktree: missing commits on its branch, staged files staged, other files uncommitted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from bot.clones.admin import Missing, real_path
from bot.clones.check_out import EMPTY_TREE, put_back
from bot.clones.checkout import Checkout, open_checkout
from bot.clones.clone import Clone, CloneLock
from bot.clones.importing import import_commits
from bot.failpoints import reached
from bot.messages.worktree_replies import RestoreObstacle
from bot.rescue.apply import Conflict, Merged, ignored_in_the_way, merge_rescue, with_changes, write_files
from bot.rescue.contents import read_state
from bot.rescue.message import RescuedCommits
from bot.rescue.restore_directory import is_directory, put_directory_back
from bot.rescue.save import AUTHOR
from bot.rescue.scratch_git import TIMEOUT_SECONDS, scratch_git_dir
from bot.rescue.snapshot import snapshot
from bot.rescue.stored import read_rescue
from bot.sandbox.view import private_folder

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Restored:
    """`commits` were added to the branch, and `files` are uncommitted as before. Both are 0 where nothing was missing.

    `elsewhere` are commits that only the rescue has, since this branch does not lead to them. `whole`: the directory
    that was kept came back.
    """

    commits: int
    files: int
    elsewhere: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class RestoreRefused:
    """Nothing was changed, and the rescue stays. `names`: the files, the commit or the branch that are in the way."""

    obstacle: RestoreObstacle
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Position:
    """The branch's commit now (`head`), in the rescue (`goal`), and after the restore (`after`)."""

    head: str | None
    goal: str | None
    after: str | None

    @property
    def is_newer(self) -> bool:
        """Whether the branch has commits that came after the rescue."""
        return self.goal is not None and self.after != self.goal


async def restore(
    lock: CloneLock, path: Path, branch: str | None, sha: str | None, kept: Path | None, operation_id: int
) -> Restored | RestoreRefused:
    """Bring back the rescue commit `sha` and the directory `kept` of the same removal, as far as there is either.

    The worktree on `branch` (None: detached) must be without changes. The branch only goes forward, and no ignored
    file is overwritten. A merge or rebase is not entered again; its files come back as they were. A restore that was
    cut off completes when it is repeated with its `operation_id`. Raises GitError, OSError, InvalidNameError.
    """
    clone = lock.clone
    rescued = await read_rescue(clone, sha) if sha is not None else None
    if sha is not None and rescued is None:
        return RestoreRefused("commit-gone")
    checkout = await _opened(lock, path, branch)
    if isinstance(checkout, RestoreRefused):
        return checkout
    position = await _position(checkout, rescued)
    if isinstance(position, RestoreRefused):
        return position
    progress = _Progress(progress_file(clone.data_dir, path), f"{operation_id} {sha} {kept.name if kept else None}")
    files = 0
    if kept is not None and (progress.is_mine() or is_directory(kept)):
        refused, whole = await _restore_directory(checkout, rescued, kept, position, progress), True
    elif sha is not None and rescued is not None:
        done, whole = await _restore_commit(checkout, sha, rescued, position, progress), False
        refused, files = (done, 0) if isinstance(done, RestoreRefused) else (None, done)
    else:
        return RestoreRefused("directory-gone")
    if refused is not None:
        return refused
    await import_commits(checkout, branch)
    commits = 0
    if position.after is not None and position.after != position.head:
        commits = await clone.count(position.after, *([f"^{position.head}"] if position.head else []))
    if rescued is not None:
        await _put_stashes_back(checkout, rescued.stashes)
    _log.info("rescue-restored", path=str(path), sha=sha, commits=commits, files=files, whole=whole)
    return Restored(commits, files, await _elsewhere(clone, rescued, position.after), whole)


async def _opened(lock: CloneLock, path: Path, branch: str | None) -> Checkout | RestoreRefused:
    """Refuse where there is no worktree, where an operation of git is in progress, and on another branch."""
    checkout = await open_checkout(lock, path)
    if isinstance(checkout, Missing):
        return RestoreRefused("no-worktree")
    await checkout.unblock()
    await put_back(checkout)
    await import_commits(checkout, branch)
    if operation := checkout.operation_in_progress():
        return RestoreRefused("unfinished", (operation,))
    current = checkout.head.branch
    return RestoreRefused("off-branch", (current,) if current else ()) if current != branch else checkout


async def _position(checkout: Checkout, rescued: RescuedCommits | None) -> _Position | RestoreRefused:
    clone, head = checkout.clone, checkout.head.commit
    goal = await _goal(clone, rescued) if rescued else None
    if goal is None or head == goal:
        return _Position(head, goal, head)
    if head is None or await clone.is_ancestor(head, goal):
        return _Position(head, goal, goal)
    if await clone.is_ancestor(goal, head):
        return _Position(head, goal, head)
    return RestoreRefused("diverged", (goal,))


async def _goal(clone: Clone, rescued: RescuedCommits) -> str | None:
    """Return the commit that the branch must have: HEAD's if HEAD continued the branch, else the branch's."""
    if rescued.head is None or rescued.tip is None:
        return rescued.head or rescued.tip
    return rescued.head if await clone.is_ancestor(rescued.tip, rescued.head) else rescued.tip


async def _restore_commit(
    checkout: Checkout, sha: str, rescued: RescuedCommits, position: _Position, progress: "_Progress"
) -> RestoreRefused | int:
    """Bring back the files of the rescue commit; return how many were not committed, 0 where nothing was missing."""
    head = position.head
    with scratch_git_dir(checkout, head) as own:
        seen = await read_state(own, head)
        merge: Merged | None = None
        if head is not None and position.after == head != position.goal:
            found = await merge_rescue(own, head, sha, rescued)
            if isinstance(found, Conflict):
                return RestoreRefused("newer-commits", (sha, *found.names))
            merge = found
        taken = await snapshot(own, head, seen)
        if merge is not None:
            target, staged = await with_changes(own, taken, await own.tree_of(head), merge.files), merge.staged
        else:
            target, staged = await own.tree_of(sha), await own.tree_of(rescued.staged or position.after)
        is_there = taken.tree == target and (taken.staged or await own.tree_of(head)) == staged
        if not progress.is_mine():
            if is_there and position.after == head:
                return 0
            if seen.changes:
                return RestoreRefused("changes", tuple(change.name for change in seen.changes))
            ignored = await ignored_in_the_way(own, taken, target)
            if ignored:
                return RestoreRefused("ignored-files", tuple(ignored))
            progress.begin()
        reached("restore-begun")
        await write_files(own, target)
        reached("files-restored")
    await _set_head_and_index(checkout, position, staged)
    reached("commits-restored")
    return rescued.files


async def _restore_directory(
    checkout: Checkout,
    rescued: RescuedCommits | None,
    kept: Path,
    position: _Position,
    progress: "_Progress",
) -> RestoreRefused | None:
    """Put the kept directory in the place of the worktree's, at the commit that it was at."""
    if position.is_newer:
        return RestoreRefused("newer-than-directory")
    if not progress.is_mine():
        with scratch_git_dir(checkout, position.head) as own:
            seen = await read_state(own, position.head)
        if seen.changes:
            return RestoreRefused("changes", tuple(change.name for change in seen.changes))
        listing = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
        ignored = (await checkout.git(*listing)).fields
        if ignored:
            return RestoreRefused("ignored-files", tuple(ignored))
        progress.begin()
    reached("kept-restore-begun")
    await put_directory_back(checkout, kept)
    staged = rescued.staged if rescued is not None else None
    if staged is not None or position.after is not None:
        await _set_head_and_index(checkout, position, staged or position.after or EMPTY_TREE)
    reached("kept-files-restored")
    return None


async def _set_head_and_index(checkout: Checkout, position: _Position, staged: str) -> None:
    if position.after is not None and position.after != position.head:
        await checkout.git("update-ref", "-m", "restore", "HEAD", position.after)
    await checkout.git("read-tree", "--reset", staged, timeout_seconds=TIMEOUT_SECONDS)
    # git then knows which files are as HEAD has them, and need not read them again.
    await checkout.git("update-index", "-q", "--refresh", check=False, timeout_seconds=TIMEOUT_SECONDS)


async def _elsewhere(clone: Clone, rescued: RescuedCommits | None, head: str | None) -> tuple[str, ...]:
    commits = (rescued.head, *rescued.others) if rescued is not None else ()
    return tuple([one for one in commits if one and (head is None or not await clone.is_ancestor(one, head))])


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
