"""What is never pushed: protected branches, changes of workflows, secrets, submodules that nobody else can check out.

Only objects of the clone are looked at, after they were imported and checked: no file and no index of the worktree.
"""

import asyncio
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bot.clones.checkout import EMPTY_TREE
from bot.clones.clone import Clone
from bot.git import refs
from bot.git.objects import Objects
from bot.git.runner import failure, piped
from bot.messages.notices import PushRule
from bot.redaction import Redactor
from bot.worktrees.commit import has_published
from bot.worktrees.push import AS_IT_IS, DIFFERENCE

MAX_SEARCHED_BYTES = 512 << 20
_MOST_NAME_BYTES = 64 << 10
# What runs with the repository's secrets: https://docs.github.com/actions/reference/workflows-and-actions
# Some file systems ignore case, and GitHub reads only lower case: the folders are guarded in any spelling.
_WORKFLOW_FOLDERS = (".github/workflows", ".github/actions")
_WORKFLOWS = tuple(f":(icase){folder}" for folder in _WORKFLOW_FOLDERS)
# What is more is searched in a stream, by two processes.
_MOST_COMMITS = 16
_MOST_OBJECTS = 200
_MOST_SMALL_BYTES = 4 << 20
_PIECE_BYTES = 1 << 16
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

    async def check(self, clone: Clone, path: Path, branch: str, commit: str, target: str) -> None:
        """Raise PushWithheldError if `commit` of the local `branch` must not go to the branch `target` on GitHub.

        A push that breaks one rule is withheld whole. Raises GitError, OSError.
        """
        if not self.protected.isdisjoint((branch, target)):
            raise PushWithheldError("protected-branch")
        if await _is_harmless(clone, branch, commit, self.bases, self.redactor):
            return
        try:
            if not self.allow_workflow_changes and (
                files := await _changed_workflows(clone, branch, commit, self.bases)
            ):
                raise PushWithheldError("workflow-files", files)
            if missing := await _unpublished_submodules(clone, path, branch, commit, self.bases):
                raise PushWithheldError("submodule", missing)
            if await _holds_secret(clone, commit, self.redactor):
                raise PushWithheldError("secret")
        except _TooMuchError as error:
            raise PushWithheldError("too-much") from error


# The common case


async def _is_harmless(clone: Clone, branch: str, commit: str, bases: Sequence[str], redactor: Redactor) -> bool:
    """Return whether a few commits on top of what GitHub has touch no workflow, no submodule and hold no secret.

    What this does not settle is looked at in full. It takes one process. Raises GitError.
    """
    if clone.objects is None:
        return False
    theirs = await clone.commit_at(refs.remote(branch))
    known = [theirs] if theirs else [await clone.commit_at(refs.remote(base)) for base in bases]
    line = await clone.objects.line(commit, set(filter(None, known)), _MOST_COMMITS)
    if line is None:
        return False
    commits, end = line
    if commits == [commit]:
        # What the answer says of the commit is in it too.
        fields = (await clone.git.settled(clone.path, *DIFFERENCE, end, commit)).fields[:-1]
    else:
        listing = ("diff-tree", "--stdin", "--raw", "-r", "-t", "-z", "--root", "--no-commit-id", *AS_IT_IS)
        given = "".join(f"{one}\n" for one in commits).encode()
        fields = (await clone.git.on_clone(clone.path, *listing, input=given)).fields
    # https://git-scm.com/docs/diff-format: `:<mode> <mode> <object> <object> <letter>`, then the name.
    pairs = iter(fields)
    entries = [(facts.split(" "), name) for facts, name in zip(pairs, pairs, strict=True)]
    if any(facts[1] == _GITLINK.decode() or name.casefold().startswith(_WORKFLOW_FOLDERS) for facts, name in entries):
        return False
    contents = {facts[3] for facts, _ in entries if facts[3].strip("0")}
    roots = {f"{one}^{{tree}}" for one in commits}
    names = [os.fsencode(name) for _, name in entries]
    pieces = await _pieces(clone.objects, [*commits, *roots, *contents])
    return pieces is not None and not await asyncio.to_thread(redactor.holds_secret, [*_lines(names), *pieces])


async def _pieces(objects: Objects, names: Sequence[str]) -> list[bytes] | None:
    """Return the contents of objects in pieces; None if they are too many or too large to be read one by one."""
    found = [await objects.info(name) for name in names[: _MOST_OBJECTS + 1]]
    sizes = [one.size for one in found if one is not None]
    if len(sizes) < len(names) or len(sizes) > _MOST_OBJECTS or sum(sizes) > min(_MOST_SMALL_BYTES, MAX_SEARCHED_BYTES):
        return None
    pieces: list[bytes] = []
    for name in names:
        content = await objects.content(name)
        if content is None:
            return None
        whole = content[1]
        pieces += (whole[start : start + _PIECE_BYTES] for start in range(0, len(whole), _PIECE_BYTES))
        pieces.append(b"\n")
    return pieces


def _lines(names: Iterable[bytes]) -> Iterator[bytes]:
    return (name + b"\n" for name in names)


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
    clone: Clone, path: Path, branch: str, commit: str, bases: Sequence[str]
) -> tuple[str, ...]:
    """Return the submodules at a commit that neither GitHub's branches nor the submodule's remote branches have."""
    theirs, merged = await _published(clone, branch, commit, bases)
    pointers = [await _changed_pointers(clone, known, commit) for known in filter(None, (theirs, *merged))]
    changed = set[tuple[str, str]].intersection(*pointers)
    return tuple(sorted([name for name, sha in changed if not await has_published(clone, path, name, sha)]))


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
