"""Commits of the clone that worktrees may use, held by refs: git deletes what no ref reaches.

A sandbox borrows the clone's objects, and the clone knows nothing of its branches, stashes and logs. But what they can
have got from the clone is what its refs had at some time. So a tip that a fetch replaces or deletes, and each commit
that is imported, gets a ref of its own until a sweep finds that nothing can need it (see `bot.clones.packing`).

What a fetch will replace is known only afterwards. Until then one commit holds all tips: they are its parents.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from bot.clones.clone import Clone, CloneLock
from bot.git import refs

ORIGIN = "refs/remotes/origin/"
NOTE = f"{refs.HELD_PREFIX}tips"
_NOBODY = "threadtree <> 0 +0000"


async def note_tips(lock: CloneLock) -> None:
    """Hold the tips that the remote's branches had at the last call and have no more, and note those of now.

    Comes before each fetch and after it, so a fetch that is cut off loses nothing. Raises GitError, OSError.
    """
    clone = lock.clone
    tips = sorted(set((await clone.refs(ORIGIN)).values()))
    noted = (await clone.run("for-each-ref", "--format=%(parent)", NOTE)).text.split()
    if tips == sorted(noted):
        return
    change = f"delete {NOTE}"
    if tips:
        parents = "".join(f"parent {tip}\n" for tip in tips)
        # An empty tree, since the tree of a tip may be missing in a damaged clone.
        tree = await clone.git.on_clone(clone.path, "hash-object", "-t", "tree", "-w", "--stdin", input=b"")
        note = f"tree {tree.text}\n{parents}author {_NOBODY}\ncommitter {_NOBODY}\n\n".encode()
        written = await clone.git.on_clone(clone.path, "hash-object", "-t", "commit", "-w", "--stdin", input=note)
        change = f"update {NOTE} {written.text}"
    await hold(clone, set(noted).difference(tips), change)


async def hold(clone: Clone, commits: Iterable[str], *changes: str) -> None:
    """Make a ref for each of these commits under this day, in one transaction with `changes` of other refs.

    The changes are lines of `git update-ref --stdin`. Needs the clone's lock. Raises GitError, OSError.
    """
    now = datetime.now(UTC)
    lines = [*(f"update {refs.held(sha, now)} {sha}" for sha in commits), *changes]
    if lines:
        given = "".join(f"{line}\n" for line in lines).encode()
        await clone.git.on_clone(clone.path, "update-ref", "--stdin", input=given)
