"""Commits are merged into a branch, or taken back from it, in the clone: an agent can write nothing there."""

from collections.abc import Sequence
from typing import Literal

from bot.tree.clone.check_out import check_out
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import Clone
from bot.tree.clone.importing import LIMITED, import_commits, lend
from bot.tree.git.runner import Identity, Options, failure


async def merged_tree(clone: Clone, ours: str, theirs: str) -> str | tuple[str, ...]:
    """Return the tree of a merge of two commits, or the names of the files that conflict. Raises GitError.

    In the clone: git checks no object that it reads, so a sandbox could show another content under the name of a
    commit.
    """
    how = ("--write-tree", "--name-only", "--no-messages", "-z")
    more: Options = {"environment": {"GIT_ATTR_SOURCE": ours}, "program": LIMITED, "check": False}
    merged = await clone.git.on_clone(clone.path, "merge-tree", *how, ours, theirs, **more)
    if merged.status not in (0, 1):
        raise failure("merge-tree", merged)
    tree, *conflicts = merged.fields
    return tuple(sorted(set(conflicts))) if merged.status else tree


async def commit_tree(checkout: Checkout, tree: str, parents: Sequence[str], message: str, identity: Identity) -> str:
    """Make a commit in the clone, which the worktree's sandbox gets too; return it. Raises GitError, OSError."""
    clone, named = checkout.clone, [word for one in parents for word in ("-p", one)]
    more: Options = {"input": message.encode(), "environment": identity.environment}
    made = (await clone.git.on_clone(clone.path, "commit-tree", tree, *named, **more)).text
    await lend(clone, checkout.view, made)
    return made


async def merge(
    checkout: Checkout, branch: str, theirs: str, message: str, identity: Identity
) -> Literal["merged", "up-to-date", "not-clean", "in-the-way"] | tuple[str, ...]:
    """Merge a commit into the branch; return the files where that conflicts. Raises GitError, OSError.

    Nothing is done where another branch is checked out or files are uncommitted, and where an ignored file is in the
    way.
    """
    clone, head = checkout.clone, checkout.commit or theirs
    await import_commits(checkout, branch)
    if await clone.is_ancestor(theirs, head):
        return "up-to-date"
    tree = await merged_tree(clone, head, theirs)
    if not isinstance(tree, str):
        return tree
    if checkout.branch != branch or await checkout.work():
        return "not-clean"
    made = await commit_tree(checkout, tree, (head, theirs), message, identity)
    return "merged" if await check_out(checkout, branch, made) else "in-the-way"


async def revert(
    checkout: Checkout, onto: str, before: str, last: str, message: str, identity: Identity
) -> str | tuple[str, ...] | None:
    """Make a commit on `onto` without what changed from the commit `before` to `last`; return it, or the files where
    that conflicts, or None where nothing of it is there any more. Raises GitError, OSError.
    """
    clone = checkout.clone
    opposite = await commit_tree(checkout, f"{before}^{{tree}}", (last,), "As before\n", identity)
    tree = await merged_tree(clone, onto, opposite)
    if not isinstance(tree, str):
        return tree
    return None if tree == await clone.tree_of(onto) else await commit_tree(checkout, tree, (onto,), message, identity)
