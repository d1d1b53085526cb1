"""Import commits from a sandbox into the clone: read one object name, check its commits, move one ref."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from bot import refs
from bot.sandbox.view import View
from bot.tree.clone import on_host
from bot.tree.clone.admin import recorded, recorded_branch
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.clone.published import connected, lend, noted_tips, unknown_to_published, unpublished_objects
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import SIGPIPE_STATUSES, failure, piped

MAX_PACK_BYTES = 2 << 30
# Memory for reading a pack that an agent made: deltas of a few bytes can stand for gigabytes.
MAX_INDEX_PACK_BYTES = 4 << 30
LIMITED = ("prlimit", f"--data={MAX_INDEX_PACK_BYTES}", "--", "git")
"""git outside of the sandbox, where it reads into what an agent made."""
# A few trees that name each other can stand for more files than any program can list.
MAX_FILES = 2_000_000
# The words in the `.keep` file of a pack: no ref reaches it yet, and an operator's `git gc` would delete it.
IMPORTING = "threadtree: imported"
# Refs of the clone that a sandbox sees and cannot change.
_SHARED = ("refs/remotes/", "refs/tags/")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Private:
    """Commits in a sandbox that no ref of the clone reaches: `stashes`, newest first, and the `tips` of other refs."""

    stashes: tuple[str, ...]
    tips: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.stashes or self.tips)


async def import_commits(checkout: Checkout, branch: str | None) -> None:
    """Import what was committed in a worktree's sandbox; move `branch` in the clone, and register the HEAD.

    Then the branch is the same on both sides. Without a sandbox they are one. What is checked out is asked again only
    of a lost directory: whoever has changed it gives it as it is now. Raises GitError, InvalidNameError.
    """
    if not checkout.isolated:
        return
    view = checkout.view
    head = await checkout.now() if checkout.lost else checkout
    on_branch = branch is not None and head.branch == branch
    if head.commit is not None:
        await _import(checkout.lock, view, head.commit)
    if branch is not None:
        ref = refs.local(branch)
        await _follow(checkout, ref, head.commit if on_branch else await checkout.commit_at(ref))
    if head.commit is not None:
        now = refs.local(branch) if branch and on_branch else head.commit
        await on_host.show(checkout.lock, checkout.path, view.admin, now, head.commit)


async def import_commit(checkout: Checkout, sha: str) -> None:
    """Import one commit with all it needs from a worktree's sandbox. Raises GitError, OSError."""
    if checkout.isolated:
        await _import(checkout.lock, checkout.view, sha)


async def move_branch(checkout: Checkout, ref: str, after: str, before: str | None) -> None:
    """Move a worktree's branch from `before` to a commit that the clone has, in the sandbox too. Raises GitError."""
    if checkout.isolated:
        await checkout.git("update-ref", ref, after)
    if after != before:
        was_shown = await _move(checkout, ref, after, before)
        if was_shown:
            await on_host.show(checkout.lock, checkout.path, checkout.admin, ref, after)


async def private_commits(checkout: Checkout, named: Sequence[str] = ()) -> Private:
    """Return what the sandbox's refs and the objects `named` reach and the clone's refs do not, also for a lost
    directory.

    Raises GitError, OSError.
    """
    clone, view = checkout.clone, checkout.view
    if not checkout.isolated:
        return Private((), ())
    git = partial(clone.git.in_sandbox, view, in_worktree=False)
    stashed = await git("reflog", "show", "--format=%H", "refs/stash", check=False)
    stashes = stashed.text.split() if stashed.status == 0 else []
    listed = await git("for-each-ref", "--format=%(objectname) %(objecttype) %(refname)")
    refs_of_its_own = (line.split(" ", 2) for line in listed.text.splitlines())
    tips = [sha for sha, kind, ref in refs_of_its_own if kind == "commit" and not ref.startswith(_SHARED)]
    tips = [tip for tip in dict.fromkeys((*tips, *named)) if tip not in stashes]
    known = sorted({f"^{sha}" for sha in (await clone.refs()).values()})
    given = "".join(f"{one}\n" for one in (*tips, *known)).encode()
    # A name of something else than a commit is no error.
    only_here = set((await git("rev-list", "--ignore-missing", "--stdin", input=given)).text.split()) if tips else set()
    return Private(tuple(stashes), tuple(tip for tip in tips if tip in only_here))


async def _follow(checkout: Checkout, ref: str, tip: str | None) -> None:
    """Move the clone's branch to the sandbox's, with a reflog entry; restore one that was deleted in the sandbox."""
    lock, clone, view = checkout.lock, checkout.clone, checkout.view
    known = await clone.commit_at(ref)
    if tip == known:
        return
    if tip is None and known is not None:
        await lend(clone, view, known)
        await clone.git.in_sandbox(view, "update-ref", ref, known, in_worktree=False)
    if tip is None:
        return
    await _import(lock, view, tip)
    await _move(checkout, ref, tip, known)


async def _move(checkout: Checkout, ref: str, after: str, before: str | None) -> bool:
    """Move the clone's branch; return whether both sides had it at `before`, and HEAD there. What they had an agent, or
    who signs, may rewrite. What others put there is kept.
    """
    if checkout.isolated and before is not None and on_host.is_as_shown(checkout.admin, ref, before):
        await checkout.clone.run("update-ref", "--create-reflog", "-m", "from its sandbox", ref, after, before)
        return True
    await on_host.move_branch(checkout.lock, checkout.path, ref, after, before)
    return False


async def _import(lock: CloneLock, view: View, sha: str) -> None:
    """Pack in the sandbox; outside, check every object and that nothing is missing.

    Whoever knows the name of another conversation's commit or file can make a commit that leads to it. So the pack must
    bring all that is neither published nor this worktree's already.
    """
    clone = lock.clone
    if not refs.is_commit(sha):
        raise GitError(GitProblem.CORRUPT, "rev-parse", "the sandbox named no commit")
    if (view.private, sha) in lock.imported:
        return
    # The commits that the clone knows as this worktree's.
    branch, head = recorded_branch(view.admin), recorded(view.admin / "HEAD")
    names = (refs.local(branch), refs.remote(branch)) if branch else (head,)
    own = [tip for name in names if (tip := await clone.commit_at(name))]
    new = (sha, "--not", *own, "--remotes=origin", f"--glob={refs.FETCHED_PREFIX}*")
    if sha in own or (await clone.commit_at(sha) is not None and not await clone.count("--max-count=1", *new)):
        return
    listing = ("ls-tree", "-r", "-z", "--name-only", sha)
    try:
        too_many = await piped(_has_too_many, partial(clone.git.in_sandbox, view, *listing, in_worktree=False))
    except GitError as error:
        raise GitError(GitProblem.CORRUPT, "ls-tree", error.stderr) from error
    if too_many:
        raise GitError(GitProblem.CORRUPT, "ls-tree", f"{sha} has more than {MAX_FILES} files")
    packing = partial(
        clone.git.in_sandbox,
        view,
        *("pack-objects", "--revs", "--delta-base-offset", "--stdout", "-q"),
        in_worktree=False,
        input=sha.encode() + b"\n" + await _shared(clone, view, own),
        check=False,
    )
    # It checks every object, and that nothing is missing.
    checking = ("index-pack", "--stdin", "--strict", f"--max-input-size={MAX_PACK_BYTES}", f"--keep={IMPORTING}")
    receiving = partial(clone.git.on_clone, clone.path, *checking, check=False, program=LIMITED)
    packed, received = await connected(packing, receiving)
    if packed.status != 0 and packed.status not in SIGPIPE_STATUSES:
        raise failure("pack-objects", packed)
    if received.status != 0:
        raise GitError(GitProblem.CORRUPT, "index-pack", received.stderr)
    index = clone.path / "objects" / "pack" / f"pack-{received.text.rpartition(chr(9))[2]}.idx"
    listed = await clone.git.on_clone(clone.path, "show-index", stdin=os.open(index, os.O_RDONLY | os.O_CLOEXEC))
    brought = {line.split(b" ")[1] for line in listed.stdout.splitlines()}
    needed = set((await clone.run("rev-list", "--objects", "--no-object-names", *new)).stdout.split())
    missing = needed - brought
    # git looks for what is known in the nearest commits only: a file that came back is in an older one.
    if missing:
        missing = await unknown_to_published(clone, missing)
    if missing and own:
        missing -= set((await unpublished_objects(clone, own)).split())
    if not needed or missing:
        raise GitError(GitProblem.CORRUPT, "index-pack", f"the sandbox does not have all of {sha}")
    lock.imported.add((view.private, sha))
    if brought <= needed:
        lock.packs[sha] = index
    _log.info("commits-imported", worktree=str(view.worktree), commit=sha)


def _has_too_many(pieces: Iterator[bytes]) -> bool:
    files = 0
    return any((files := files + piece.count(b"\0")) > MAX_FILES for piece in pieces)


async def _shared(clone: Clone, view: View, own: Sequence[str]) -> bytes:
    """Return commits that the clone and the sandbox have, to be left out, as `git rev-list` takes them on stdin.

    A worktree's own commits most likely went on from its branch. An agent can have deleted that from its sandbox.
    """
    asked = ("cat-file", "--batch-check=%(objectname)")
    told = await clone.git.in_sandbox(view, *asked, input="\n".join(own).encode(), in_worktree=False)
    shared = {line for line in told.text.split("\n") if refs.is_commit(line)}
    if not shared:
        # A push that was cut off is noted and no branch of the remote yet: the pack would lack what it published.
        shared = noted_tips(clone).intersection((await clone.refs("refs/remotes/origin/")).values())
    return "".join(f"^{tip}\n" for tip in shared).encode()
