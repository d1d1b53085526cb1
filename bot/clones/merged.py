"""Whether the work of a branch is in its base: by its commits, by what it changed, or because GitHub says so."""

from bot.clones.clone import Clone
from bot.git import refs
from bot.git.runner import Identity, failure

# The same commit every time: asking again leaves nothing new behind.
_NOBODY = Identity("threadtree", "threadtree@localhost")
_THEN = {f"GIT_{role}_DATE": "1700000000 +0000" for role in ("AUTHOR", "COMMITTER")}


async def is_merged(clone: Clone, tip: str, base: str | None, merged_head: str | None) -> bool:
    """Whether everything up to the commit `tip` was merged into the commit `base`; what cannot be told was not.

    `merged_head`: the last commit that GitHub says was merged from this branch, None where that is unknown or none.
    Raises GitError.
    """
    if merged_head is not None and await _is_within(clone, tip, merged_head):
        return True
    if base is None:
        return False
    return await clone.is_ancestor(tip, base) or await _is_squashed(clone, tip, base)


async def _is_within(clone: Clone, tip: str, merged_head: str) -> bool:
    if tip == merged_head:
        return True
    known = refs.is_commit(merged_head) and await clone.commit_at(merged_head) is not None
    return known and await clone.is_ancestor(tip, merged_head)


async def _is_squashed(clone: Clone, tip: str, base: str) -> bool:
    """Whether a commit of `base` changes what all commits of the branch together do, as its patch id tells."""
    forked = await clone.run("merge-base", base, tip, check=False)
    if forked.status == 1:
        return False  # no common history
    if forked.status:
        raise failure("merge-base", forked)
    trees = await clone.run("rev-parse", f"{tip}^{{tree}}", f"{forked.text}^{{tree}}")
    if len(set(trees.text.split())) == 1:
        return False  # what its commits did and undid again is nowhere else
    squash = await clone.git.on_clone(
        clone.path,
        *("commit-tree", "-p", forked.text, "-m", "squash", f"{tip}^{{tree}}"),
        environment=_NOBODY.environment | _THEN,
    )
    listed = await clone.run("cherry", base, squash.text)
    return listed.text.startswith("- ")
