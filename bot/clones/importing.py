"""Import commits from a cage into the clone: read one object name, check its commits, move one ref."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from bot.clones import holding
from bot.clones.admin import head_in, loose_commit, recorded, recorded_branch, write_head
from bot.clones.clone import Clone, CloneLock
from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.git.loose_refs import point_at
from bot.git.runner import SIGPIPE_STATUSES, Completed, failure, piped
from bot.sandbox.cage import Cage
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


async def import_commits(lock: CloneLock, path: Path, branch: str | None) -> None:
    """Import what was committed in a worktree's cage; move `branch` in the clone, and register the HEAD.

    Then the branch is the same on both sides. Without a cage they are one. Raises GitError, InvalidNameError.
    """
    clone = lock.clone
    cage, view = clone.git.cage, clone.existing_view(path)
    if cage is None or view is None:
        return
    shown = await _shown_head(clone, cage, view)
    head = await _private_tip(clone, cage, view, "HEAD", shown)
    on_branch = branch is not None and shown == refs.local(branch)
    if head is not None:
        await _import(lock, cage, view, head)
    if branch is not None:
        ref = refs.local(branch)
        tip = head if on_branch else await _private_tip(clone, cage, view, ref, ref)
        await _follow(lock, cage, view, ref, tip)
    now = refs.local(branch) if branch and on_branch else head
    if now is not None and now != recorded(view.admin / "HEAD").removeprefix("ref: "):
        write_head(view.admin, now)


async def _shown_head(clone: Clone, cage: Cage, view: View) -> str:
    """Return the ref or the commit that HEAD names in the cage; empty where git alone understands it."""
    if (name := head_in(view.state)) is not None:
        return name
    shown = await clone.git.in_cage(cage, view, "symbolic-ref", "--quiet", "HEAD", in_worktree=False, check=False)
    if shown.status not in (0, 1):
        raise GitError(GitProblem.CORRUPT, "worktree", "its HEAD cannot be read")
    return shown.text


async def import_commit(lock: CloneLock, path: Path, sha: str) -> None:
    """Import one commit with all it needs from a worktree's cage. Raises GitError, OSError."""
    cage = lock.clone.git.cage
    if cage is not None:
        await _import(lock, cage, lock.clone.existing_view(path) or await lock.clone.view(path), sha)


async def move_branch(lock: CloneLock, path: Path, ref: str, after: str, before: str | None) -> None:
    """Move a worktree's branch from `before` to a commit that the clone has, in the cage too. Raises GitError."""
    clone = lock.clone
    if clone.git.cage is not None:
        await clone.on_worktree(path, "update-ref", ref, after)
    if after != before:
        await clone.run("update-ref", ref, after, before or "0" * len(after))


async def private_commits(lock: CloneLock, path: Path, named: Sequence[str] = ()) -> Private:
    """Return what the cage's refs and the objects `named` reach and the clone's refs do not, also for a lost directory.

    Raises GitError, OSError.
    """
    clone = lock.clone
    cage, view = clone.git.cage, clone.existing_view(path)
    if cage is None or view is None:
        return Private((), ())

    async def git(*args: str, input: bytes | None = None, check: bool = True) -> Completed:  # noqa: A002
        return await clone.git.in_cage(cage, view, *args, in_worktree=False, input=input, check=check)

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


async def _private_tip(clone: Clone, cage: Cage, view: View, revision: str, name: str) -> str | None:
    """Return the commit of a revision in the cage. `name` is the ref or commit that it is there, by git's files.

    The file that names a commit of the clone is enough. All else git is asked.
    """
    commit = name if refs.is_commit(name) else loose_commit(view.refs, name)
    if commit is not None and await clone.commit_at(commit) == commit:
        return commit
    found = await clone.git.in_cage(
        cage, view, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", in_worktree=False, check=False
    )
    return found.text if found.status == 0 else None


async def _follow(lock: CloneLock, cage: Cage, view: View, ref: str, tip: str | None) -> None:
    """Move the clone's branch to the cage's, with a reflog entry; restore a branch that was deleted in the cage."""
    clone = lock.clone
    known = await clone.commit_at(ref)
    if tip == known:
        return
    if tip is None:
        await clone.git.in_cage(cage, view, "update-ref", ref, known or "", in_worktree=False)
        return
    await _import(lock, cage, view, tip)
    why = "from its cage"
    if known is None or not point_at(clone.path, ref, tip, known, why):
        await clone.run("update-ref", "--create-reflog", "-m", why, ref, tip, known or "0" * len(tip))


async def _import(lock: CloneLock, cage: Cage, view: View, sha: str) -> None:
    """Pack in the cage; outside, check every object and that nothing is missing."""
    clone = lock.clone
    if not refs.is_commit(sha):
        raise GitError(GitProblem.CORRUPT, "rev-parse", "the cage named no commit")
    if await clone.commit_at(sha) is not None:
        return
    listing = ("ls-tree", "-r", "-z", "--name-only", sha)
    try:
        too_many = await piped(_has_too_many, partial(clone.git.in_cage, cage, view, *listing, in_worktree=False))
    except GitError as error:
        raise GitError(GitProblem.CORRUPT, "ls-tree", error.stderr) from error
    if too_many:
        raise GitError(GitProblem.CORRUPT, "ls-tree", f"{sha} has more than {MAX_FILES} files")
    reading, writing = os.pipe()
    packing = clone.git.in_cage(
        cage,
        view,
        *("pack-objects", "--revs", "--thin", "--delta-base-offset", "--stdout", "-q"),
        in_worktree=False,
        input=sha.encode() + b"\n" + (await _near(clone, view) or await _known(clone)),
        check=False,
        stdout=writing,
    )
    receiving = _index_pack(clone, stdin=reading)
    packed, received = await asyncio.gather(packing, receiving)
    if packed.status != 0 and packed.status not in SIGPIPE_STATUSES:
        raise failure("pack-objects", packed)
    await _hold_received(clone, sha, received)
    _log.info("commits-imported", worktree=str(view.worktree), commit=sha)


async def import_pack(lock: CloneLock, sha: str, pack: bytes) -> None:
    """Import a commit that another node packed; it is held for a while. Raises GitError, OSError."""
    await _hold_received(lock.clone, sha, await _index_pack(lock.clone, pack=pack))


async def _index_pack(clone: Clone, *, stdin: int | None = None, pack: bytes | None = None) -> Completed:
    """Check every object of a pack, and that nothing is missing."""
    return await clone.git.on_clone(
        clone.path,
        *("index-pack", "--stdin", "--fix-thin", "--strict", f"--max-input-size={MAX_PACK_BYTES}"),
        f"--keep={IMPORTING}",
        check=False,
        stdin=stdin,
        input=pack,
        program=("prlimit", f"--data={MAX_INDEX_PACK_BYTES}", "--", "git"),
    )


async def _hold_received(clone: Clone, sha: str, received: Completed) -> None:
    if received.status != 0:
        raise GitError(GitProblem.CORRUPT, "index-pack", received.stderr)
    if await clone.commit_at(sha) is None:
        raise GitError(GitProblem.CORRUPT, "index-pack", f"{sha} was not in the pack")
    # Until now no ref reached it: an operator's `git gc` would have deleted the pack.
    holding.hold(clone.path, [sha])
    _, _, pack = received.text.partition("keep\t")
    if pack:
        (clone.path / "objects" / "pack" / f"pack-{pack}.keep").unlink(missing_ok=True)


def _has_too_many(pieces: Iterator[bytes]) -> bool:
    files = 0
    return any((files := files + piece.count(b"\0")) > MAX_FILES for piece in pieces)


async def _near(clone: Clone, view: View) -> bytes:
    """Return the clone's commits from which a worktree's own most likely went on, as `_known`; empty without any."""
    branch, head = recorded_branch(view.admin), head_in(view.admin)
    names = (refs.local(branch), refs.remote(branch)) if branch else (head,)
    tips = [await clone.commit_at(name) for name in names if name is not None]
    return "".join(f"^{tip}\n" for tip in dict.fromkeys(tips) if tip).encode()


async def _known(clone: Clone) -> bytes:
    """Return what the clone's refs reach, to be left out, as `git rev-list` takes it on stdin."""
    listed = await clone.run("for-each-ref", "--format=^%(objectname)")
    return b"".join(line + b"\n" for line in sorted(set(listed.stdout.splitlines())))
