"""Import commits from a cage into the clone: read one object name, check its commits, move one ref."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from bot.clones import holding
from bot.clones.admin import recorded, recorded_branch, write_head
from bot.clones.checkout import Checkout
from bot.clones.clone import Clone, CloneLock
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.git.runner import SIGPIPE_STATUSES, Completed, failure, piped
from bot.sandbox.view import View

MAX_PACK_BYTES = 2 << 30
# Memory for reading a pack that an agent made: deltas of a few bytes can stand for gigabytes.
MAX_INDEX_PACK_BYTES = 4 << 30
# A few trees that name each other can stand for more files than any program can list.
MAX_FILES = 2_000_000
# The words in the `.keep` file of a pack, which is left when the process is killed.
IMPORTING = "threadtree: imported"
# Refs of the clone that a cage sees and cannot change.
_SHARED = ("refs/remotes/", "refs/tags/")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Private:
    """Commits in a cage that the clone's refs do not reach: `stashes`, newest first, and the `tips` of other refs."""

    stashes: tuple[str, ...]
    tips: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.stashes or self.tips)


async def import_commits(checkout: Checkout, branch: str | None) -> None:
    """Import what was committed in a worktree's cage; move `branch` in the clone, and register the HEAD.

    Then the branch is the same on both sides. Without a cage they are one. Raises GitError, InvalidNameError.
    """
    if not checkout.isolated:
        return
    view = checkout.view
    head = await checkout.read_head()
    on_branch = branch is not None and head.branch == branch
    if head.commit is not None:
        await _import(checkout.lock, view, head.commit)
    if branch is not None:
        ref = refs.local(branch)
        await _follow(checkout.lock, view, ref, head.commit if on_branch else await _private_tip(checkout, ref))
    now = refs.local(branch) if branch and on_branch else head.commit
    if now is not None and now != recorded(view.admin / "HEAD").removeprefix("ref: "):
        write_head(view.admin, now)


async def import_commit(checkout: Checkout, sha: str) -> None:
    """Import one commit with all it needs from a worktree's cage. Raises GitError, OSError."""
    if checkout.isolated:
        await _import(checkout.lock, checkout.view, sha)


async def move_branch(checkout: Checkout, ref: str, after: str, before: str | None) -> None:
    """Move a worktree's branch from `before` to a commit that the clone has, in the cage too. Raises GitError."""
    if checkout.isolated:
        await checkout.git("update-ref", ref, after)
    if after != before:
        await checkout.clone.run("update-ref", ref, after, before or "0" * len(after))


async def private_commits(checkout: Checkout, named: Sequence[str] = ()) -> Private:
    """Return what the cage's refs and the objects `named` reach and the clone's refs do not, also for a lost directory.

    Raises GitError, OSError.
    """
    clone, view = checkout.clone, checkout.view
    if not checkout.isolated:
        return Private((), ())

    async def git(*args: str, input: bytes | None = None, check: bool = True) -> Completed:  # noqa: A002
        return await clone.git.in_cage(view, *args, in_worktree=False, input=input, check=check)

    stashed = await git("reflog", "show", "--format=%H", "refs/stash", check=False)
    stashes = stashed.text.split() if stashed.status == 0 else []
    listed = await git("for-each-ref", "--format=%(objectname) %(objecttype) %(refname)")
    refs_of_its_own = (line.split(" ", 2) for line in listed.text.splitlines())
    tips = [sha for sha, kind, ref in refs_of_its_own if kind == "commit" and not ref.startswith(_SHARED)]
    tips = [tip for tip in dict.fromkeys((*tips, *named)) if tip not in stashes]
    given = "".join(f"{tip}\n" for tip in tips).encode() + await _known(clone)
    # A name of something else than a commit is no error.
    only_here = set((await git("rev-list", "--ignore-missing", "--stdin", input=given)).text.split()) if tips else set()
    return Private(tuple(stashes), tuple(tip for tip in tips if tip in only_here))


async def _private_tip(checkout: Checkout, ref: str) -> str | None:
    """Return the commit of a ref in the cage."""
    found = await checkout.git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", check=False)
    return found.text if found.status == 0 else None


async def _follow(lock: CloneLock, view: View, ref: str, tip: str | None) -> None:
    """Move the clone's branch to the cage's, with a reflog entry; restore a branch that was deleted in the cage."""
    clone = lock.clone
    known = await clone.commit_at(ref)
    if tip == known:
        return
    if tip is None:
        await clone.git.in_cage(view, "update-ref", ref, known or "", in_worktree=False)
        return
    await _import(lock, view, tip)
    await clone.run("update-ref", "--create-reflog", "-m", "from its cage", ref, tip, known or "0" * len(tip))


async def _import(lock: CloneLock, view: View, sha: str) -> None:
    """Pack in the cage; outside, check every object and that nothing is missing."""
    clone = lock.clone
    if not refs.is_commit(sha):
        raise GitError(GitProblem.CORRUPT, "rev-parse", "the cage named no commit")
    if await clone.commit_at(sha) is not None:
        return
    listing = ("ls-tree", "-r", "-z", "--name-only", sha)
    try:
        too_many = await piped(_has_too_many, partial(clone.git.in_cage, view, *listing, in_worktree=False))
    except GitError as error:
        raise GitError(GitProblem.CORRUPT, "ls-tree", error.stderr) from error
    if too_many:
        raise GitError(GitProblem.CORRUPT, "ls-tree", f"{sha} has more than {MAX_FILES} files")
    reading, writing = os.pipe()
    packing = clone.git.in_cage(
        view,
        *("pack-objects", "--revs", "--thin", "--delta-base-offset", "--stdout", "-q"),
        in_worktree=False,
        input=sha.encode() + b"\n" + (await _near(clone, view) or await _known(clone)),
        check=False,
        stdout=writing,
    )
    receiving = _index_pack(clone, reading)
    packed, received = await asyncio.gather(packing, receiving)
    if packed.status != 0 and packed.status not in SIGPIPE_STATUSES:
        raise failure("pack-objects", packed)
    await _hold_received(clone, sha, received)
    _log.info("commits-imported", worktree=str(view.worktree), commit=sha)


async def _index_pack(clone: Clone, stdin: int) -> Completed:
    """Check every object of a pack, and that nothing is missing."""
    return await clone.git.on_clone(
        clone.path,
        *("index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={MAX_PACK_BYTES}"),
        f"--keep={IMPORTING}",
        check=False,
        stdin=stdin,
        program=("prlimit", f"--data={MAX_INDEX_PACK_BYTES}", "--", "git"),
    )


async def _hold_received(clone: Clone, sha: str, received: Completed) -> None:
    if received.status != 0:
        raise GitError(GitProblem.CORRUPT, "index-pack", received.stderr)
    if await clone.commit_at(sha) is None:
        raise GitError(GitProblem.CORRUPT, "index-pack", f"{sha} was not in the pack")
    # Until now no ref reached it: an operator's `git gc` would have deleted the pack.
    await holding.hold(clone, [sha])
    _, _, pack = received.text.partition("keep\t")
    if pack:
        (clone.path / "objects" / "pack" / f"pack-{pack}.keep").unlink(missing_ok=True)


def _has_too_many(pieces: Iterator[bytes]) -> bool:
    files = 0
    return any((files := files + piece.count(b"\0")) > MAX_FILES for piece in pieces)


async def _near(clone: Clone, view: View) -> bytes:
    """Return the clone's commits from which a worktree's own most likely went on, as `_known`; empty without any."""
    branch = recorded_branch(view.admin)
    names = (refs.local(branch), refs.remote(branch)) if branch else (recorded(view.admin / "HEAD"),)
    tips = [await clone.commit_at(name) for name in names]
    return "".join(f"^{tip}\n" for tip in dict.fromkeys(tips) if tip).encode()


async def _known(clone: Clone) -> bytes:
    """Return what the clone's refs reach, to be left out, as `git rev-list` takes it on stdin."""
    listed = await clone.run("for-each-ref", "--format=^%(objectname)")
    return b"".join(line + b"\n" for line in sorted(set(listed.stdout.splitlines())))
