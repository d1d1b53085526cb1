"""What is never pushed: protected branches, changes of workflows, secrets, submodules that nobody else can check out.

Only objects of the clone are looked at, after they were imported and checked: no file and no index of the worktree.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bot.clones.check_out import EMPTY_TREE
from bot.clones.checkout import Checkout
from bot.clones.clone import Clone
from bot.git import refs
from bot.git.runner import failure, piped
from bot.messages.notices import PushRule
from bot.redaction import Redactor
from bot.worktrees.commit import has_published
from bot.worktrees.push import AS_IT_IS

MAX_SEARCHED_BYTES = 512 << 20
_MOST_NAME_BYTES = 64 << 10
# What runs with the repository's secrets: https://docs.github.com/actions/reference/workflows-and-actions
# Some file systems ignore case, and GitHub reads only lower case: the folders are guarded in any spelling.
_WORKFLOWS = (":(icase).github/workflows", ":(icase).github/actions")
_MAGIC_PATHS = {"GIT_LITERAL_PATHSPECS": "0"}
_MOST_MERGES = 100
_MOST_POINTERS = 100
_GITLINK = b"160000"


class PushWithheldError(Exception):
    """A rule forbids a push, because of the files or submodules in `names`. The work stays in the worktree."""

    def __init__(self, rule: PushRule, names: tuple[str, ...] = ()) -> None:
        super().__init__(rule)
        self.rule: PushRule = rule
        self.names = names


class _TooMuchError(Exception):
    """There is more to search than MAX_SEARCHED_BYTES, or more merges or submodules than anybody has."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The rules of this bot: the `protected` branches that it never pushes to; `redactor` knows the secrets.

    `bases` are the branches on GitHub whose workflows a branch may have.
    """

    protected: frozenset[str]
    redactor: Redactor
    bases: tuple[str, ...]
    allow_workflow_changes: bool

    async def check(self, checkout: Checkout, branch: str, commit: str, target: str) -> None:
        """Raise PushWithheldError if `commit` of the local `branch` must not go to the branch `target` on GitHub.

        A push that breaks one rule is withheld whole. Raises GitError, OSError.
        """
        clone = checkout.clone
        if not self.protected.isdisjoint((branch, target)):
            raise PushWithheldError("protected-branch")
        try:
            if not self.allow_workflow_changes and (
                files := await _changed_workflows(clone, branch, commit, self.bases)
            ):
                raise PushWithheldError("workflow-files", files)
            if missing := await _unpublished_submodules(checkout, branch, commit, self.bases):
                raise PushWithheldError("submodule", missing)
            if await _holds_secret(clone, commit, self.redactor):
                raise PushWithheldError("secret")
        except _TooMuchError as error:
            raise PushWithheldError("too-much") from error


# Workflows


async def _changed_workflows(clone: Clone, branch: str, commit: str, bases: Sequence[str]) -> tuple[str, ...]:
    """Return the workflow files of a commit, or of an unpublished one below it, that are not as GitHub has them.

    Raises _TooMuchError.
    """
    unpublished = (commit, "--not", "--remotes=origin")
    written = await _on_workflows(
        clone, "log", "--format=", "--name-only", "-z", "--root", "--no-merges", "--full-history", *unpublished
    )
    # What a merge takes from one of its parents is written by no commit.
    merges = await clone.run("rev-list", "--min-parents=2", f"--max-count={_MOST_MERGES}", *unpublished)
    if len(joined := merges.text.split()) == _MOST_MERGES:
        raise _TooMuchError
    changed = written | await _differing_workflows(clone, branch, commit, bases)
    for merge in joined:
        changed |= await _differing_workflows(clone, branch, merge, bases)
    return tuple(sorted(changed))


async def _differing_workflows(clone: Clone, branch: str, commit: str, bases: Sequence[str]) -> set[str]:
    """Return the workflow files of a commit that are neither as in GitHub's branch nor as in a base that was merged."""
    theirs, merged = await _published(clone, branch, commit, bases)
    if theirs is None:
        return set[str].intersection(*[await _names(clone, base, commit) for base in merged])
    differing = await _names(clone, theirs, commit)
    for base in merged:
        if differing:
            # A file that GitHub's branch has left as it was may come from the base.
            before = await _merge_base(clone, theirs, base)
            differing &= await _names(clone, base, commit) | await _names(clone, before, theirs)
    return differing


async def _published(clone: Clone, branch: str, commit: str, bases: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return GitHub's commit of the branch, and of each base the newest commit that `commit` contains."""
    merged = [await _merge_base(clone, commit, refs.remote(base)) for base in bases]
    return await clone.commit_at(refs.remote(branch)), merged or [EMPTY_TREE]


async def _merge_base(clone: Clone, one: str, other: str) -> str:
    """Return the newest commit that both have; without one, the empty tree."""
    if await clone.commit_at(other) is None:
        return EMPTY_TREE
    found = await clone.run("merge-base", one, other, check=False)
    if found.status not in (0, 1):
        raise failure("merge-base", found)
    return found.text or EMPTY_TREE


async def _names(clone: Clone, before: str, after: str) -> set[str]:
    """Return the workflow files that differ between two trees."""
    return await _on_workflows(clone, "diff", "--name-only", "-z", before, after)


async def _on_workflows(clone: Clone, *command: str) -> set[str]:
    arguments = (*command[:1], *AS_IT_IS, *command[1:], "--", *_WORKFLOWS)
    return set((await clone.git.on_clone(clone.path, *arguments, environment=_MAGIC_PATHS)).fields)


# Submodules


async def _unpublished_submodules(
    checkout: Checkout, branch: str, commit: str, bases: Sequence[str]
) -> tuple[str, ...]:
    """Return the submodules at a commit that neither GitHub's branches nor the submodule's remote branches have."""
    clone = checkout.clone
    theirs, merged = await _published(clone, branch, commit, bases)
    pointers = [await _changed_pointers(clone, known, commit) for known in filter(None, (theirs, *merged))]
    changed = set[tuple[str, str]].intersection(*pointers)
    return tuple(sorted([name for name, sha in changed if not await has_published(checkout, name, sha)]))


async def _changed_pointers(clone: Clone, before: str, after: str) -> set[tuple[str, str]]:
    """Return the submodules, with their commits, that `after` has and `before` has not."""

    def read(pieces: Iterator[bytes]) -> set[tuple[str, str]]:
        fields = _split(pieces)
        # https://git-scm.com/docs/diff-format: `:<mode> <mode> <object> <object> <letter>`, then the name.
        entries = ((facts.split(b" "), name) for facts, name in zip(fields, fields, strict=True))
        found = ((os.fsdecode(name), facts[3].decode()) for facts, name in entries if facts[1] == _GITLINK)
        pointers = set(itertools.islice(found, _MOST_POINTERS + 1))
        if len(pointers) > _MOST_POINTERS:
            raise _TooMuchError
        return pointers

    raw = ("diff-tree", "-r", "-z", "--no-renames", "--ignore-submodules=none", before, after)
    return await piped(read, partial(clone.git.on_clone, clone.path, *raw))


# Secrets


async def _holds_secret(clone: Clone, commit: str, redactor: Redactor) -> bool:
    """Search all that a push of `commit` sends: files whole, names, messages and authors. Raises _TooMuchError."""

    def search(pieces: Iterator[bytes]) -> bool:
        return redactor.holds_secret(_limited(pieces))

    objects = ("rev-list", "--objects", commit, "--not", "--remotes=origin")
    contents = ("cat-file", "--batch=%(objectname) %(objecttype) %(objectsize) %(rest)")
    return await piped(search, *(partial(clone.git.on_clone, clone.path, *command) for command in (objects, contents)))


def _limited(pieces: Iterable[bytes]) -> Iterator[bytes]:
    left = MAX_SEARCHED_BYTES
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise _TooMuchError
        yield piece


def _split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the fields of output in the `-z` format. Raises _TooMuchError for one that is no path."""
    rest = b""
    for piece in pieces:
        *fields, rest = (rest + piece).split(b"\0")
        yield from fields
        if len(rest) > _MOST_NAME_BYTES:
            raise _TooMuchError
