"""Commits are merged into a branch, or taken back from it, in the clone: an agent can write nothing there."""

import os
from collections.abc import Container, Mapping, Sequence
from typing import Literal

from bot.tree.clone.check_out import check_out
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import Clone
from bot.tree.clone.importing import LIMITED, import_commits
from bot.tree.clone.published import lend
from bot.tree.git.runner import Identity, Options, failure

OF_COMMIT = "%P%n%an%n%ae%n%ad%n%cn%n%ce%n%cd%n%B"
_PEOPLE = [f"GIT_{role}_{what}" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL", "DATE")]


async def merged_tree(clone: Clone, ours: str, theirs: str) -> str | tuple[str, ...]:
    """Return the tree of a merge of two commits, or the names of the files that conflict. Raises GitError.

    In the clone: git checks no object that it reads, so a sandbox could show another content under the name of a
    commit.
    """
    # An agent can amend the first commit of all: then the two have nothing in common.
    how = ("--write-tree", "--name-only", "--no-messages", "-z", "--allow-unrelated-histories")
    more: Options = {"environment": {"GIT_ATTR_SOURCE": ours}, "program": LIMITED, "check": False}
    merged = await clone.git.on_clone(clone.path, "merge-tree", *how, ours, theirs, **more)
    if merged.status not in (0, 1):
        raise failure("merge-tree", merged)
    tree, *conflicts = merged.fields
    return tuple(sorted(set(conflicts))) if merged.status else tree


async def commit_tree(checkout: Checkout, tree: str, parents: Sequence[str], message: str, identity: Identity) -> str:
    """Make a commit in the clone, which the worktree's sandbox gets too; return it. Raises GitError, OSError."""
    made = await _commit(checkout.clone, tree, parents, message, identity.environment)
    await lend(checkout.clone, checkout.view, made)
    return made


async def _commit(clone: Clone, tree: str, parents: Sequence[str], message: str, environment: Mapping[str, str]) -> str:
    named = [word for one in parents for word in ("-p", one)]
    more: Options = {"input": os.fsencode(message), "environment": environment}
    return (await clone.git.on_clone(clone.path, "commit-tree", tree, *named, **more)).text


def environment_of(people: Sequence[str]) -> dict[str, str]:
    """Return the environment for name, address and raw date of an author and of a committer."""
    return dict(zip(_PEOPLE, (*people[:2], f"@{people[2]}", *people[3:5], f"@{people[5]}"), strict=True))


async def make_anew(
    checkout: Checkout, onto: str, commits: Sequence[str], kept_parents: Container[str] = ()
) -> str | tuple[str, ...]:
    """Make these commits anew, the oldest first, on top of `onto`: each with what it changed against its first parent,
    its message and its people. Return the last, or the files where that conflicts. Raises GitError, OSError.

    Of a merge only those further parents stay that are in `kept_parents`. The same commits give the same names again.
    """
    clone, last = checkout.clone, onto
    for one in commits:
        (shown,) = await clone.log(OF_COMMIT, "--date=raw", "--max-count=1", one)
        known, *people, message = shown.split("\n", 7)
        if not known:
            return ()  # nothing comes before it
        first, *more = known.split()
        environment = environment_of(people)
        # A merge of these two begins at the first parent.
        beside = await _commit(clone, await clone.tree_of(last), (first,), "As it is\n", environment)
        tree = await merged_tree(clone, beside, one)
        if not isinstance(tree, str):
            return tree
        if tree != await clone.tree_of(last):
            parents = (last, *(parent for parent in more if parent in kept_parents))
            last = await _commit(clone, tree, parents, message, environment)
    await lend(clone, checkout.view, last)
    return last


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
