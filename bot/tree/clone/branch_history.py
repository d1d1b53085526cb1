"""The history of a branch on GitHub: its last pushed commit, and whether it was rewritten or merged."""

from bot import refs
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.git.runner import Identity

# In the clone's configuration of the branch, so that it goes when the branch goes.
_KEY = "threadtree-published"
# Always the same commit: asking again leaves nothing new behind.
_SQUASHER = Identity("threadtree", "threadtree@localhost")
_DATES = {f"GIT_{role}_DATE": "1700000000 +0000" for role in ("AUTHOR", "COMMITTER")}


async def last_pushed(clone: Clone, branch: str) -> str | None:
    """Return the remote's newest commit that the branch held; None if the branch was never there."""
    found = await clone.run("config", "--local", "--get", f"branch.{branch}.{_KEY}", check=False)
    return found.text if refs.is_commit(found.text) else None


async def record_pushed(lock: CloneLock, branch: str, commit: str | None) -> None:
    """Remember the remote's commit, which the branch holds; None: the branch is not there. Raises GitError."""
    key = f"branch.{branch}.{_KEY}"
    if commit is not None:
        await lock.clone.run("config", "--local", "--replace-all", key, commit)
    elif await last_pushed(lock.clone, branch) is not None:
        await lock.clone.run("config", "--local", "--unset-all", key)


async def is_rewritten(clone: Clone, branch: str) -> bool:
    """Return whether the remote's branch has lost commits that it had: a force push. Raises GitError."""
    before, now = await last_pushed(clone, branch), await clone.commit_at(refs.remote(branch))
    if before is None or now is None or await clone.commit_at(before) is None:
        return False
    return not await clone.is_ancestor(before, now)


async def is_merged(clone: Clone, tip: str, base: str | None, merged_head: str | None) -> bool:
    """Return whether everything up to the commit `tip` was merged into the commit `base`; unknown is not merged.

    `merged_head`: the last commit that GitHub says was merged from this branch, None if that is unknown or none.
    Raises GitError.
    """
    known = await clone.commit_at(merged_head) if merged_head is not None and refs.is_commit(merged_head) else None
    if known is not None and await clone.is_ancestor(tip, known):
        return True
    if base is None:
        return False
    return await clone.is_ancestor(tip, base) or await _is_squashed(clone, tip, base)


async def _is_squashed(clone: Clone, tip: str, base: str) -> bool:
    """Return whether one commit of `base` changes the same as all commits of the branch together, by its patch id."""
    if (forked := await clone.merge_base(base, tip)) is None:
        return False
    trees = await clone.run("rev-parse", f"{tip}^{{tree}}", f"{forked}^{{tree}}")
    if len(set(trees.text.split())) == 1:
        return False  # its commits undid each other: they are nowhere else
    squash = await clone.git.on_clone(
        clone.path,
        *("commit-tree", "-p", forked, "-m", "squash", f"{tip}^{{tree}}"),
        environment=_SQUASHER.environment | _DATES,
    )
    listed = await clone.run("cherry", base, squash.text)
    return listed.text.startswith("- ")
