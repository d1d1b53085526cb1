"""What is never pushed: protected branches, changes of workflows, secrets, submodules that nobody else can check out,
raw content under a filter.

Only objects of the clone are looked at, after they were imported and checked: no file and no index of the worktree.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bot import refs
from bot.redaction import Redactor
from bot.thread.notices import PushRule
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import AS_IT_IS, EMPTY_TREE, Clone
from bot.tree.commit import has_published
from bot.tree.git.runner import piped
from bot.tree.lfs.objects import contents, push_objects, staging
from bot.tree.lfs.pointers import LFS, Pointer, filter_lines, filters_in, read_pointers

MAX_SEARCHED_BYTES = 512 << 20
_MOST_NAME_BYTES = 64 << 10
# What runs with the repository's secrets: https://docs.github.com/actions/reference/workflows-and-actions
# Some file systems ignore case, and GitHub reads only lower case: the folders are guarded in any spelling.
_FOLDERS = (".github/workflows", ".github/actions")
_WORKFLOWS = tuple(f":(icase){folder}" for folder in _FOLDERS)
_MAGIC_PATHS = {"GIT_LITERAL_PATHSPECS": "0"}
_MOST_MERGES = 100
_MOST_POINTERS = 100
_GITLINK = b"160000"
_REGULAR = "100"
_FORBID: tuple[PushRule, ...] = ("pull_request", "merge_queue")
_FORBID_CREATION: tuple[PushRule, ...] = ("creation",)
_FORBID_UPDATES: tuple[PushRule, ...] = ("update",)
_EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


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

    `bases` are the branches on GitHub whose workflows a branch may have. `rules` are the types of GitHub's own for the
    branch that is pushed.
    """

    protected: frozenset[str]
    redactor: Redactor
    bases: tuple[str, ...]
    allow_workflow_changes: bool
    rules: frozenset[str] = frozenset()

    @property
    def is_linear(self) -> bool:
        """Whether the branch takes no merges."""
        return "required_linear_history" in self.rules

    async def check(self, checkout: Checkout, branch: str, commit: str, target: str) -> None:
        """Raise PushWithheldError if `commit` of the local `branch` must not go to the branch `target` on GitHub.

        A push that breaks one rule is withheld whole. For one that breaks none the objects of Git LFS are uploaded,
        without which its commits must not be there. Raises GitError, OSError.
        """
        clone = checkout.clone
        if not self.protected.isdisjoint((branch, target)):
            raise PushWithheldError("protected-branch")
        if target == branch and (rule := await self._forbidding(clone, branch, commit)) is not None:
            raise PushWithheldError(rule)
        published, differing = partial(_published, clone, branch, self.bases), _Differing(clone)
        try:
            known = await published(commit)
            if not self.allow_workflow_changes and (
                files := await _changed_workflows(clone, commit, known, published, differing)
            ):
                raise PushWithheldError("workflow-files", files)
            if missing := await _unpublished_submodules(checkout, commit, known, differing):
                raise PushWithheldError("submodule", missing)
            pointers, raw = await _under_filters(clone, commit, known)
            if raw:
                raise PushWithheldError("filter", raw)
            if await _holds_secret(clone, commit, self.redactor):
                raise PushWithheldError("secret")
            await _send_objects(checkout, pointers, self.redactor)
        except _TooMuchError as error:
            raise PushWithheldError("too-much") from error

    async def _forbidding(self, clone: Clone, branch: str, commit: str) -> PushRule | None:
        """Return the rule of GitHub under which the branch does not take the commit; all others it judges itself."""
        of_its_state = _FORBID_UPDATES if await clone.tip(branch) is not None else _FORBID_CREATION
        if (rule := next((one for one in (*of_its_state, *_FORBID) if one in self.rules), None)) is not None:
            return rule
        new = (commit, "--not", "--remotes=origin")
        if self.is_linear and await clone.listed("--min-parents=2", *new):
            return "required_linear_history"
        if "required_signatures" in self.rules and await _has_unsigned(clone, new):
            return "required_signatures"
        return None


async def _has_unsigned(clone: Clone, commits: Sequence[str]) -> bool:
    shown = (await clone.run("rev-list", "--header", *commits)).fields
    return any("\ngpgsig" not in one.partition("\n\n")[0] for one in shown)


@dataclass(frozen=True, slots=True)
class _Published:
    """What GitHub has of a commit: its branch `theirs`, and of each base the newest commit that the commit contains."""

    theirs: str | None
    merged: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*filter(None, (self.theirs,)), *self.merged)


async def _published(clone: Clone, branch: str, bases: Sequence[str], commit: str) -> _Published:
    merged = [await _merge_base(clone, commit, refs.remote(base)) for base in bases]
    return _Published(await clone.commit_at(refs.remote(branch)), tuple(merged) or (EMPTY_TREE,))


class _Differing:
    """What differs between two trees: each pair is compared once."""

    def __init__(self, clone: Clone) -> None:
        self._clone = clone
        self._known = dict[tuple[str, str], tuple[set[str], set[tuple[str, str]]]]()

    async def workflows(self, before: str, after: str) -> set[str]:
        """Return the workflow files that differ."""
        return (await self._between(before, after))[0]

    async def pointers(self, before: str, after: str) -> set[tuple[str, str]]:
        """Return the submodules, with their commits, that `after` has and `before` has not. Raises _TooMuchError."""
        pointers = (await self._between(before, after))[1]
        if len(pointers) > _MOST_POINTERS:
            raise _TooMuchError
        return pointers

    async def _between(self, before: str, after: str) -> tuple[set[str], set[tuple[str, str]]]:
        if (known := self._known.get((before, after))) is None:
            raw = ("diff-tree", "-r", "-z", "--no-renames", "--ignore-submodules=none", before, after)
            known = await piped(_read_differing, partial(self._clone.git.on_clone, self._clone.path, *raw))
            self._known[before, after] = known
        return known


def _read_differing(pieces: Iterator[bytes]) -> tuple[set[str], set[tuple[str, str]]]:
    fields, workflows, pointers = _split(pieces), set[str](), set[tuple[str, str]]()
    # https://git-scm.com/docs/diff-format: `:<mode> <mode> <object> <object> <letter>`, then the name.
    for facts, name in zip(fields, fields, strict=True):
        if any(f"{os.fsdecode(name.lower())}/".startswith(f"{folder}/") for folder in _FOLDERS):
            workflows.add(os.fsdecode(name))
        _, mode, _, sha, _ = facts.split(b" ")
        if mode == _GITLINK and len(pointers) <= _MOST_POINTERS:
            pointers.add((os.fsdecode(name), sha.decode()))
    return workflows, pointers


# Workflows


async def _changed_workflows(
    clone: Clone,
    commit: str,
    known: _Published,
    published: Callable[[str], Awaitable[_Published]],
    differing: _Differing,
) -> tuple[str, ...]:
    """Return the workflow files of a commit, or of an unpublished one below it, that are not as GitHub has them.

    Raises _TooMuchError.
    """
    unpublished = (commit, "--not", "--remotes=origin")
    named = ("log", *AS_IT_IS, "--format=", "--name-only", "-z", "--root", "--no-merges", "--full-history")
    shown = (*named, *unpublished, "--", *_WORKFLOWS)
    written = set((await clone.git.on_clone(clone.path, *shown, environment=_MAGIC_PATHS)).fields)
    # What a merge takes from one of its parents is written by no commit.
    merges = await clone.run("rev-list", "--min-parents=2", f"--max-count={_MOST_MERGES}", *unpublished)
    if len(joined := merges.text.split()) == _MOST_MERGES:
        raise _TooMuchError
    changed = written | await _differing_workflows(clone, commit, known, differing)
    for merge in joined:
        changed |= await _differing_workflows(clone, merge, await published(merge), differing)
    return tuple(sorted(changed))


async def _differing_workflows(clone: Clone, commit: str, known: _Published, differing: _Differing) -> set[str]:
    """Return the workflow files of a commit that are neither as in GitHub's branch nor as in a base that was merged."""
    if (theirs := known.theirs) is None:
        return set[str].intersection(*[await differing.workflows(base, commit) for base in known.merged])
    files = await differing.workflows(theirs, commit)
    for base in known.merged:
        if files:
            # A file that GitHub's branch has left as it was may come from the base.
            before = await _merge_base(clone, theirs, base)
            files = files & (await differing.workflows(base, commit) | await differing.workflows(before, theirs))
    return files


async def _merge_base(clone: Clone, one: str, other: str) -> str:
    """Return the newest commit that both have; without one, the empty tree."""
    if await clone.commit_at(other) is None:
        return EMPTY_TREE
    return await clone.merge_base(one, other) or EMPTY_TREE


# Submodules


async def _unpublished_submodules(
    checkout: Checkout, commit: str, known: _Published, differing: _Differing
) -> tuple[str, ...]:
    """Return the submodules at a commit that neither GitHub's branches nor the submodule's remote branches have."""
    pointers = [await differing.pointers(before, commit) for before in known.all]
    changed = set[tuple[str, str]].intersection(*pointers)
    return tuple(sorted([name for name, sha in changed if not await has_published(checkout, name, sha)]))


# Files under a filter (Git LFS, git-crypt)


async def _under_filters(
    clone: Clone, commit: str, known: _Published
) -> tuple[list[tuple[str, Pointer]], tuple[str, ...]]:
    """Return the files in any unpublished commit that are pointers of Git LFS, and those with raw content under a
    filter, where that is nowhere on GitHub.

    The attributes of GitHub's branch and its bases count too: a commit may have changed them.
    """
    sources = (commit, *known.all)
    if not await filter_lines(clone, *sources):
        return [], ()
    unpublished = (commit, "--not", "--remotes=origin")
    objects = await clone.run("rev-list", "--objects", "--no-object-names", *unpublished)
    new = set(objects.text.split())
    shown = ("log", "--format=", "--raw", "-z", "-m", "--root", "--no-abbrev", "--no-renames", *unpublished, "--")
    fields = iter((await clone.run(*shown)).fields)
    blobs: dict[str, set[str]] = {}
    for facts, name in zip(fields, fields, strict=True):
        _, mode, _, blob, _ = facts.split(" ")
        # git gives no link to a filter, and git-lfs leaves an empty file as it is.
        if blob in new and mode.startswith(_REGULAR) and blob != _EMPTY_BLOB:
            blobs.setdefault(name, set()).add(blob)
    found = [one for source in sources for one in (await filters_in(clone, source, blobs)).items()]
    of_lfs = {name for name, value in found if value == LFS and clone.git.lfs}
    pointers = await read_pointers(clone, {blob for name in of_lfs for blob in blobs[name]})
    raw = {name for name, value in found if value != LFS or not blobs[name] <= pointers.keys()}
    return [(name, pointers[blob]) for name in of_lfs - raw for blob in blobs[name]], tuple(sorted(raw))


async def _send_objects(checkout: Checkout, pointers: Sequence[tuple[str, Pointer]], redactor: Redactor) -> None:
    """Upload the objects that the commits need. Raises _TooMuchError, PushWithheldError, GitError, OSError."""
    if not pointers:
        return
    async with staging(checkout, pointers) as (folder, missing):
        if missing:
            raise PushWithheldError("lfs-object", missing)
        if await asyncio.to_thread(redactor.holds_secret, _limited(contents(folder))):
            raise PushWithheldError("secret")
        await push_objects(checkout.clone, folder)


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
