"""After a turn: its work becomes commits on the worktree's branch."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath

from bot.clones.admin import real_path
from bot.clones.check_out import ignored_in_the_way, marked
from bot.clones.checkout import Checkout
from bot.clones.importing import import_commit, import_commits, move_branch
from bot.clones.status import Change
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


async def return_to_branch(checkout: Checkout, branch: str, rescue: str, identity: Identity) -> StrayWork | None:
    """Put the worktree back on its branch, which gets commits made elsewhere that continue it; others are rescued.

    Ignored files stay, even where another `.gitignore` hid them, but for those that the branch has files in the place
    of: they are in the rescue. Raises GitError, InvalidNameError.
    """
    clone, ref = checkout.clone, refs.local(branch)
    await import_commits(checkout, branch)
    if checkout.head.branch == branch:
        return None
    await checkout.unblock()
    head, tip = checkout.head.commit, await clone.commit_at(ref)
    if head is not None and (tip is None or await clone.is_ancestor(tip, head)):
        await move_branch(checkout, ref, head, tip)
        # The commit stays the same, so neither the index nor a file has to change.
        await checkout.git("symbolic-ref", "HEAD", ref)
        await _quit_rebase(checkout)
        await import_commits(checkout, branch)
        return None
    if tip is not None:
        # What is in the index is rescued, ignored or not.
        await _stage(checkout, await ignored_in_the_way(checkout, head, tip))
    rescued = await rescue_stray_work(checkout, rescue, branch, identity)
    await _quit_rebase(checkout)
    # `reset` deletes what is in the index and not in the branch: all that was rescued, and no ignored file.
    # Repositories inside the worktree are in no rescue and stay.
    changed = await checkout.changed_files()
    await _stage(checkout, [name for name in changed if not name.endswith("/")])
    with marked(checkout, rescued.sha, tip or rescued.sha):
        await checkout.git("symbolic-ref", "HEAD", ref)
        await checkout.git("reset", "--quiet", "--hard")
    await import_commits(checkout, branch)
    uncovered = [name for name in await checkout.changed_files() if not name.endswith("/")]
    return StrayWork(rescued.ref, tuple(uncovered))


async def commit_all(
    checkout: Checkout, message: str, author: Identity, co_author: Identity | None
) -> Committed | NothingToCommit | Unresolved:
    """Commit what is neither ignored, nor over MAX_FILE_BYTES, nor a repository inside, nor a change in a submodule.

    Raises GitError, OSError.
    """
    await checkout.unblock()
    if checkout.head.commit is not None:
        await import_commit(checkout, checkout.head.commit)
    changed = await checkout.changes()
    unresolved = tuple(change.name for change in changed if change.unresolved)
    if unresolved:
        return Unresolved(unresolved)
    inside = await _unpublished_inside(checkout, changed)
    left_out = tuple(one.name for one in changed if one.name in inside or not _fits(checkout.path, one.name))
    wanted = [change for change in changed if change.name not in left_out]
    await _stage(checkout, [change.name for change in wanted if change.unstaged != "."])
    await _unstage(checkout, [change.name for change in changed if change.name in left_out and change.is_staged])
    is_sure = wanted and checkout.operation_in_progress() is None
    if not is_sure and not await _has_staged(checkout):
        return NothingToCommit(left_out)
    # Lines that begin with # are references to issues here, not comments.
    options = ("--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace", "--file=-")
    text = _message(message, co_author)
    done = await checkout.git("commit", *options, input=text, environment=author.environment, check=False)
    if done.status == 1 and not await _has_staged(checkout):
        return NothingToCommit(left_out)
    if done.status:
        raise failure("commit", done)
    sha = (await checkout.git("rev-parse", "--verify", "HEAD")).text
    await import_commit(checkout, sha)
    return Committed(sha, left_out)


async def _has_staged(checkout: Checkout) -> bool:
    """Return whether the index differs from HEAD."""
    differs = ("diff", "--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff")
    return bool((await checkout.git(*differs)).fields)


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


async def _unpublished_inside(checkout: Checkout, changed: list[Change]) -> set[str]:
    """Return the submodules with uncommitted changes of their own, or at a commit that only this worktree has."""
    inside = [change for change in changed if change.inside]
    return {one.name for one in inside if one.uncommitted or not await has_published(checkout, one.name, "HEAD")}


async def has_published(checkout: Checkout, submodule: str, commit: str) -> bool:
    """Return whether the submodule's own remote branches, as its repository in the worktree knows them, reach a commit.

    An agent can write there what it likes: the answer protects it from a mistake, and nothing else.
    """
    command = ("-C", submodule, "rev-list", "--max-count=1", commit, "--not", "--remotes")
    # Where nothing is checked out, git would take the worktree for the submodule's repository.
    ceiling = {"GIT_CEILING_DIRECTORIES": str(real_path(checkout.path))}
    listed = await checkout.git(*command, check=False, environment=ceiling)
    return listed.status == 0 and not listed.stdout


async def _stage(checkout: Checkout, names: list[str]) -> None:
    """Stage files as they are on disk, deleted ones too. Names go to stdin, since argv has a limit."""
    if not names:
        return
    listed = b"".join(os.fsencode(name) + b"\0" for name in names)
    arguments = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
    await checkout.git(*arguments, input=listed)


async def _unstage(checkout: Checkout, names: list[str]) -> None:
    if names:
        arguments = ("reset", "--quiet", "--pathspec-from-file=-", "--pathspec-file-nul")
        await checkout.git(*arguments, input=b"\0".join(os.fsencode(name) for name in names))


async def _quit_rebase(checkout: Checkout) -> None:
    if checkout.operation_in_progress() == "rebase":
        await checkout.git("rebase", "--quit")
