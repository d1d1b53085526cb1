"""What of a branch was on the remote when its worktree last agreed with it: tells a deleted or rewritten branch.

Kept in the clone's configuration of the branch, so that it goes when the branch goes.
"""

from bot.clones.clone import Clone, CloneLock
from bot.git import refs

_KEY = "threadtree-published"


async def read(clone: Clone, branch: str) -> str | None:
    """The remote's newest commit that the branch held; None if the branch was never there."""
    found = await clone.run("config", "--local", "--get", f"branch.{branch}.{_KEY}", check=False)
    return found.text if refs.is_commit(found.text) else None


async def record(lock: CloneLock, branch: str, commit: str | None) -> None:
    """Remembers the remote's commit, which the branch holds; None: it is not there. Raises GitError."""
    clone = lock.clone
    if commit == await read(clone, branch):
        return
    key = f"branch.{branch}.{_KEY}"
    if commit is None:
        await clone.run("config", "--local", "--unset-all", key)
    else:
        await clone.run("config", "--local", "--replace-all", key, commit)


async def is_rewritten(clone: Clone, branch: str) -> bool:
    """Whether the remote's branch has lost commits that it had: a force push. Raises GitError."""
    was, now = await read(clone, branch), await clone.commit_at(refs.remote(branch))
    if was is None or now is None or await clone.commit_at(was) is None:
        return False
    return not await clone.is_ancestor(was, now)
