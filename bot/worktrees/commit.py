"""After a turn: its work becomes commits on the worktree's branch."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath

from bot.clones import entries
from bot.clones.admin import real_path
from bot.clones.checkout import ignored_in_the_way, marked
from bot.clones.clone import Clone, CloneLock
from bot.clones.importing import import_commit, import_commits, move_branch
from bot.clones.status import Change, changes_in
from bot.git import refs
from bot.git.runner import Identity, failure
from bot.rescue.save import rescue_stray_work
from bot.sandbox.untrusted_files import status_of_untrusted

MAX_FILE_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class StrayWork:
    """HEAD was elsewhere and did not descend from the branch: commits and files are rescued under `ref`.

    `uncovered` are files that were ignored there, and are not on this branch: they stay, as uncommitted files.
    """

    ref: str
    uncovered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit. `left_out` stays in the worktree: too big, or a repository of its own, or changed in a submodule."""

    sha: str
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NothingToCommit:
    """Nothing but `left_out` was uncommitted."""

    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A merge or rebase was left with conflicts in these files; nothing was committed."""

    files: tuple[str, ...]


async def return_to_branch(
    lock: CloneLock, path: Path, branch: str, rescue: str, identity: Identity
) -> StrayWork | None:
    """Put the worktree back on its branch, which gets commits made elsewhere that continue it; others are rescued.

    Ignored files stay, even where another `.gitignore` hid them, but for those that the branch has files in the place
    of: they are in the rescue. Raises GitError, InvalidNameError.
    """
    clone = lock.clone
    await entries.clear_stale_locks(clone, path)
    await import_commits(lock, path, branch)
    ref = refs.local(branch)
    if await entries.branch_of(clone, path) == branch:
        return None
    await entries.unblock(clone, path)
    head, tip = await entries.head_of(clone, path), await clone.commit_at(ref)
    if head is not None and (tip is None or await clone.is_ancestor(tip, head)):
        await move_branch(lock, path, ref, head, tip)
        # The commit stays the same, so neither the index nor a file has to change.
        await clone.on_worktree(path, "symbolic-ref", "HEAD", ref)
        await _quit_rebase(clone, path)
        await import_commits(lock, path, branch)
        return None
    if head is not None:
        await import_commit(lock, path, head)
    if tip is not None:
        # What is in the index is rescued, ignored or not.
        await _stage(clone, path, await ignored_in_the_way(clone, path, head, tip))
    rescued = await rescue_stray_work(lock, path, rescue, branch, identity)
    await _quit_rebase(clone, path)
    # `reset` deletes what is in the index and not in the branch: all that was rescued, and no ignored file.
    # Repositories inside the worktree are in no rescue and stay.
    changed = await entries.changed_files(clone, path)
    await _stage(clone, path, [name for name in changed if not name.endswith("/")])
    with marked(clone, path, rescued.sha, tip or rescued.sha):
        await clone.on_worktree(path, "symbolic-ref", "HEAD", ref)
        await clone.on_worktree(path, "reset", "--quiet", "--hard")
    await import_commits(lock, path, branch)
    uncovered = [name for name in await entries.changed_files(clone, path) if not name.endswith("/")]
    return StrayWork(rescued.ref, tuple(uncovered))


async def commit_all(
    lock: CloneLock, path: Path, message: str, author: Identity, co_author: Identity | None
) -> Committed | NothingToCommit | Unresolved:
    """Commit what is neither ignored, nor over MAX_FILE_BYTES, nor a repository inside, nor a change in a submodule.

    Raises GitError, OSError.
    """
    clone = lock.clone
    await entries.clear_stale_locks(clone, path)
    await entries.unblock(clone, path)
    await _import_head(lock, path)
    changed = await changes_in(clone, path)
    unresolved = tuple(change.name for change in changed if change.unresolved)
    if unresolved:
        return Unresolved(unresolved)
    inside = await _unpublished_inside(clone, path, changed)
    left_out = tuple(one.name for one in changed if one.name in inside or not _fits(path, one.name))
    wanted = [change for change in changed if change.name not in left_out]
    await _stage(clone, path, [change.name for change in wanted if change.unstaged != "."])
    await _unstage(clone, path, [change.name for change in changed if change.name in left_out and change.is_staged])
    is_sure = wanted and await entries.operation_in_progress(clone, path) is None
    if not is_sure and not await _has_staged(clone, path):
        return NothingToCommit(left_out)
    # Lines that begin with # are references to issues here, not comments.
    options = ("--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace", "--file=-")
    text = _message(message, co_author)
    done = await clone.on_worktree(path, "commit", *options, input=text, environment=author.environment, check=False)
    if done.status == 1 and not await _has_staged(clone, path):
        return NothingToCommit(left_out)
    if done.status:
        raise failure("commit", done)
    sha = await entries.named_head(clone, path) or (await clone.on_worktree(path, "rev-parse", "HEAD")).text
    await import_commit(lock, path, sha)
    return Committed(sha, left_out)


async def _has_staged(clone: Clone, path: Path) -> bool:
    """Return whether the index differs from HEAD."""
    differs = ("diff", "--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff")
    return bool((await clone.on_worktree(path, *differs)).fields)


async def _import_head(lock: CloneLock, path: Path) -> None:
    head = await entries.head_of(lock.clone, path)
    if head is not None:
        await import_commit(lock, path, head)


def _message(message: str, co_author: Identity | None) -> bytes:
    trailer = f"\n\nCo-authored-by: {co_author}" if co_author else ""
    return (message.replace("\0", " ").rstrip() + trailer + "\n").encode(errors="replace")


def _fits(path: Path, name: str) -> bool:
    """Return whether git can commit what is at `name`, and it is not too large. A file that is gone fits."""
    if name.endswith("/"):
        return False
    status = status_of_untrusted(path, PurePath(name))
    if status is None or stat.S_ISDIR(status.st_mode):
        return True
    return stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK) and status.st_size <= MAX_FILE_BYTES


async def _unpublished_inside(clone: Clone, path: Path, changed: list[Change]) -> set[str]:
    """Return the submodules with uncommitted changes of their own, or at a commit that only this worktree has."""
    inside = [change for change in changed if change.inside]
    return {one.name for one in inside if one.uncommitted or not await has_published(clone, path, one.name, "HEAD")}


async def has_published(clone: Clone, path: Path, submodule: str, commit: str) -> bool:
    """Return whether the submodule's own remote branches, as its repository in the worktree knows them, reach a commit.

    An agent can write there what it likes: the answer protects it from a mistake, and nothing else.
    """
    command = ("-C", submodule, "rev-list", "--max-count=1", commit, "--not", "--remotes")
    # Where nothing is checked out, git would take the worktree for the submodule's repository.
    ceiling = {"GIT_CEILING_DIRECTORIES": str(real_path(path))}
    listed = await clone.on_worktree(path, *command, check=False, environment=ceiling)
    return listed.status == 0 and not listed.stdout


async def _stage(clone: Clone, path: Path, names: list[str]) -> None:
    """Stage files as they are on disk, deleted ones too. Names go to stdin, since argv has a limit."""
    if not names:
        return
    listed = b"".join(os.fsencode(name) + b"\0" for name in names)
    arguments = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
    await clone.on_worktree(path, *arguments, input=listed)


async def _unstage(clone: Clone, path: Path, names: list[str]) -> None:
    if names:
        arguments = ("reset", "--quiet", "--pathspec-from-file=-", "--pathspec-file-nul")
        await clone.on_worktree(path, *arguments, input=b"\0".join(os.fsencode(name) for name in names))


async def _quit_rebase(clone: Clone, path: Path) -> None:
    if await entries.operation_in_progress(clone, path) == "rebase":
        await clone.on_worktree(path, "rebase", "--quit")
