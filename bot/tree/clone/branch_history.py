"""The history of a branch on GitHub: what it had, what was taken off it, and whether it was merged."""

from collections.abc import Iterable

from bot import refs
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.clone.published import unknown_to_published
from bot.tree.git.runner import Identity

# In the clone's configuration of the branch, so that it goes when the branch goes.
_KEY = "threadtree-published"
# Always the same commit: asking again leaves nothing new behind.
_SQUASHER = Identity("threadtree", "threadtree@localhost")
NOT_ON_GITHUB = ("--not", "--remotes=origin", f"--glob={refs.FETCHED_PREFIX}*", "--not")
_DATES = {f"GIT_{role}_DATE": "1700000000 +0000" for role in ("AUTHOR", "COMMITTER")}


async def last_pushed(clone: Clone, branch: str) -> str | None:
    """Return the remote's newest commit that the branch held; None if the branch was never there."""
    found = await clone.git.configured_as(clone.path, f"branch.{branch}.{_KEY}")
    return found if refs.is_commit(found) else None


async def record_pushed(lock: CloneLock, branch: str, commit: str | None) -> None:
    """Remember the remote's commit, which the branch holds; None: the branch is not there. Raises GitError."""
    key, before = f"branch.{branch}.{_KEY}", await last_pushed(lock.clone, branch)
    if commit is not None and commit != before:
        await lock.clone.run("config", "--local", "--replace-all", key, commit)
    elif commit is None and before is not None:
        await lock.clone.run("config", "--local", "--unset-all", key)


async def is_rewritten(clone: Clone, branch: str) -> bool:
    """Return whether the remote's branch has lost commits that it had: a force push. Raises GitError."""
    before, now = await last_pushed(clone, branch), await clone.commit_at(refs.remote(branch))
    if before is None or now is None or await clone.commit_at(before) is None:
        return False
    return not await clone.is_ancestor(before, now)


async def taken_off(clone: Clone, branch: str, tip: str, bases: Iterable[str] = ()) -> frozenset[str]:
    """Return the commits of `tip` that GitHub had and its branch has no more: somebody took them off by a force push.

    None of a branch that GitHub does not have; no commit that one of the `bases` has. Raises GitError.
    """
    theirs = await clone.commit_at(refs.remote(branch))
    if theirs is None or tip == theirs:
        return frozenset()
    tips = [await clone.commit_at(refs.remote(base)) for base in bases]
    ahead = await clone.listed(tip, f"^{theirs}", *(f"^{one}" for one in tips if one))
    if not ahead:
        return frozenset()
    taken, had = set[str](), await last_pushed(clone, branch)
    if had not in (None, theirs) and await clone.commit_at(had) is not None:
        taken = ahead - await clone.listed(tip, f"^{theirs}", f"^{had}")
    if published := ahead - await _unknown(clone, ahead):
        taken |= published & await clone.listed(tip, *NOT_ON_GITHUB)
    return frozenset(taken)


async def never_published(clone: Clone, branch: str, tip: str) -> set[str]:
    """Return the commits of `tip` that GitHub has not and never had, as far as the clone knows. Raises GitError."""
    had = await last_pushed(clone, branch)
    before = (f"^{had}",) if had is not None and await clone.commit_at(had) is not None else ()
    return await _unknown(clone, await clone.listed(tip, *NOT_ON_GITHUB, *before))


async def _unknown(clone: Clone, commits: Iterable[str]) -> set[str]:
    """Return the commits that are not among the published objects."""
    names = [commit.encode() for commit in commits]
    return {name.decode() for name in await unknown_to_published(clone, names)} if names else set()


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
