"""A codebase's bare clone on this node: its lock, and what can be asked of it."""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Literal

from bot import refs
from bot.files import real_path
from bot.locks import try_lock
from bot.sandbox.untrusted_files import locks_below, remove_untrusted
from bot.sandbox.view import PUBLISHED, SHALLOW, View
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.objects import Objects
from bot.tree.git.runner import Completed, Git, failure, piped

LOCK_POLL_SECONDS = 0.02
# Without a sandbox an agent's git works in the clone at any time: younger files may be in use.
STALE_LOCK_SECONDS = 60
STALE_PACK_SECONDS = 3600
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The tree without files, which git knows in every repository."""
REGULAR_FILES = frozenset({"100644", "100755"})
AS_IT_IS = ("--no-renames", "--no-ext-diff", "--no-textconv", "--ignore-submodules=none")
_MOST_TOLD_BYTES = 64 << 10
_COUNTS = tuple(re.compile(rf"(\d+) {what}") for what in ("file", "insertion", "deletion"))
PACKED = "threadtree-packed"
"""A file whose time tells when the clone was packed whole."""
ARRIVING = "arriving"
"""The folder in a clone where objects arrive beside its lock; whoever fills it holds its flock."""


@dataclass(frozen=True, slots=True)
class Clone:
    """A bare clone at `path` in DATA_DIR. What goes out of use is renamed into the trash there.

    `objects` answers questions about objects without a new process; `told` has the answers that never change.
    """

    path: Path
    data_dir: Path
    git: Git
    objects: Objects | None = field(default=None, compare=False, repr=False)
    told: dict[tuple[str, ...], Completed] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def at(cls, data_dir: Path, folder: str, git: Git) -> "Clone":
        """Return the clone in DATA_DIR of the repository in the folder `owner/repo`. Raises InvalidNameError."""
        owner, _, name = folder.partition("/")
        return cls(data_dir / "repos" / refs.repository_folder(owner, name), data_dir, git)

    @property
    def is_shallow(self) -> bool:
        """Whether older history is still to arrive. Then every count of commits is a guess, and only its 0 is true."""
        return (self.path / SHALLOW).exists()

    @property
    def is_packed(self) -> bool:
        """Whether it was ever packed whole, or the files of a new one."""
        return (self.path / PACKED).exists()

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator["Clone"]:
        """Yield the clone with a reader of its objects, which ends with the block."""
        if self.objects is not None:
            yield self
            return
        objects = self.git.objects(self.path)
        try:
            yield replace(self, objects=objects, told={})
        finally:
            await asyncio.shield(objects.close())

    async def run(self, *args: str, check: bool = True) -> Completed:
        """Run ref-level git on this clone. Raises GitError."""
        return await self.git.on_clone(self.path, *args, check=check)

    async def constant(
        self, *args: str, check: bool = True, environment: Mapping[str, str] = MappingProxyType({})
    ) -> Completed:
        """Run ref-level git, once while the clone is read: the arguments name objects, never refs, so that the answer
        stays the same. Raises GitError.
        """
        if (known := self.told.get(args)) is not None:
            return known
        answer = await self.git.on_clone(self.path, *args, check=check, environment=environment)
        if len(answer.stdout) <= _MOST_TOLD_BYTES and not self.is_shallow:
            self.told[args] = answer
        return answer

    def view(self, path: Path, admin: Path) -> View:
        """Return what a process in the worktree at `path`, with the folder `admin` here, sees of this clone."""
        return self.git.sandbox.view(self.path.resolve(), real_path(path), real_path(admin))

    async def refs(self, *patterns: str) -> dict[str, str]:
        """Return the refs that match a pattern of `git for-each-ref`, with their objects. Raises GitError."""
        listed = os.fsdecode((await self.run("for-each-ref", "--format=%(refname) %(objectname)", *patterns)).stdout)
        return dict(line.split(" ") for line in listed.split("\n")[:-1])

    async def commit_at(self, revision: str) -> str | None:
        """Return the commit that a full ref or object name stands for; None if the clone has none."""
        return await self.object_at(f"{revision}^{{commit}}")

    async def object_at(self, name: str) -> str | None:
        """Return the object of a full ref with what git lets follow it, such as `:PATH`; None if there is none."""
        if self.objects is not None:
            with contextlib.suppress(GitError):
                return await self.objects.name(name)
        shown = await self.run("rev-parse", "--verify", "--quiet", "--end-of-options", name, check=False)
        return shown.text if shown.status == 0 else None

    async def tip(self, branch: str | None) -> str | None:
        """Return the commit of the remote's branch as it was last fetched; None if there is none. Raises
        InvalidNameError.
        """
        return await self.commit_at(refs.remote(branch)) if branch is not None else None

    async def file_at(self, branch: str, path: str, most_bytes: int) -> bytes | Literal["irregular"] | None:
        """Return what the file at a path of the remote's branch holds, None if there is none. Raises GitError.

        Irregular is what is no regular file of an acceptable size.
        """
        if await self.object_at(f"{refs.remote(branch)}:{path}") is None:  # mostly without a new process
            return None
        listed = (await self.run("ls-tree", "-z", "--long", refs.remote(branch), "--", path)).fields
        mode, kind, blob, size = listed[0].partition("\t")[0].split()
        # A symbolic link is a blob too.
        if kind != "blob" or not mode.startswith("100") or int(size) > most_bytes:
            return "irregular"
        return (await self.run("cat-file", "blob", blob)).stdout

    async def contents(self, blobs: Sequence[str]) -> dict[str, bytes]:
        """Return what these objects hold, together less than 256 MB, by their names. Raises GitError."""
        if not blobs:
            return {}
        given = "".join(f"{one}\n" for one in blobs).encode()
        told = (await self.git.on_clone(self.path, "cat-file", "--batch", input=given)).stdout
        found, at = dict[str, bytes](), 0
        for blob in blobs:
            # `<object> <type> <size>`, the content, a line end: https://git-scm.com/docs/git-cat-file#_batch_output
            begins = told.index(b"\n", at) + 1
            ends = begins + int(told[at:begins].split()[2])
            found[blob], at = told[begins:ends], ends + 1
        return found

    async def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        """Return whether the commit `ancestor` is reachable from `descendant`. Raises GitError if one of them cannot
        be read, or that is a question of history which is still to arrive.
        """
        if ancestor == descendant:
            return True
        is_shallow = self.is_shallow
        answer = await self.run("merge-base", "--is-ancestor", ancestor, descendant, check=False)
        if answer.status not in (0, 1):
            raise failure("merge-base", answer)
        if answer.status and is_shallow:
            raise _history_missing("merge-base")
        return answer.status == 0

    async def merge_base(self, one: str, other: str) -> str | None:
        """Return the newest commit that both have, None without one. Raises GitError if one of them cannot be read, or
        history is still to arrive.
        """
        if self.is_shallow:
            raise _history_missing("merge-base")
        found = await self.run("merge-base", one, other, check=False)
        if found.status not in (0, 1):
            raise failure("merge-base", found)
        return found.text or None

    async def ahead_behind(self, commit: str, other: str) -> tuple[int, int]:
        """Return how many commits only `commit` has, and how many only `other` has. Raises GitError, also while history
        is still to arrive.
        """
        if commit == other:
            return 0, 0
        if self.is_shallow:
            raise _history_missing("rev-list")
        counted = await self.constant("rev-list", "--count", "--left-right", f"{commit}...{other}")
        ahead, behind = map(int, counted.text.split())
        return ahead, behind

    async def count(self, *revisions: str) -> int:
        """Return how many commits `git rev-list` finds for these revisions. Raises GitError."""
        return int((await self.run("rev-list", "--count", *revisions)).text)

    async def listed(self, *revisions: str) -> set[str]:
        """Return the commits that `git rev-list` finds for these revisions. Raises GitError."""
        run = self.constant if all(refs.is_commit(one.removeprefix("^")) for one in revisions) else self.run
        return set((await run("rev-list", *revisions)).text.split())

    async def unpublished(self, revision: str) -> int:
        """Return how many commits of `revision` no fetched ref reaches. Raises GitError."""
        return await self.count(revision, "--not", "--remotes=origin", f"--glob={refs.FETCHED_PREFIX}*")

    async def log(self, line: str, *args: str) -> list[str]:
        """Return what `git log` tells of each commit, in this format. Raises GitError."""
        return (await self.run("log", "-z", f"--format={line}", *args, "--")).fields

    async def tree_of(self, commit: str) -> str:
        """Return the tree of a commit. Raises GitError."""
        return (await self.run("rev-parse", f"{commit}^{{tree}}")).text

    async def count_changes(self, before: str, after: str) -> tuple[int, int, int]:
        """Count the files, and the lines added and removed, that `after` changed since it left `before`, which are
        object names or full refs. Raises GitError.
        """
        shown = (await self._diff(before, after, "--shortstat")).text
        files, added, removed = (int(found[1]) if (found := count.search(shown)) else 0 for count in _COUNTS)
        return files, added, removed

    async def count_files(self, before: str, after: str) -> int:
        """Count the files alone, as above: git reads none of them. Raises GitError."""
        return len((await self._diff(before, after, "--name-only", "-z")).fields)

    async def _diff(self, before: str, after: str, *how: str) -> Completed:
        shown = await self.run("diff", *how, *AS_IT_IS, f"{before}...{after}", "--", check=False)
        if shown.status == 0:
            return shown
        # An amended first commit has no ancestor in common with what it was.
        return await self.run("diff", *how, *AS_IT_IS, before, after, "--")

    async def shown_diff(self, before: str, after: str, most_bytes: int) -> bytes:
        """Return the first bytes of what a person reads of a change, some more where there are more. Raises GitError.

        A file over 1 MiB is told as a binary one: git would hold it in memory.
        """

        def read(pieces: Iterator[bytes]) -> bytes:
            seen = b""
            for piece in pieces:
                seen += piece
                if len(seen) > most_bytes:
                    break
            return seen

        # An amended first commit has no ancestor in common with what it was.
        base = await self.merge_base(before, after) or before
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--patch-with-stat", base, after, "--")
        shown = ("-c", "core.bigFileThreshold=1m", "diff", *options)
        return await piped(read, partial(self.git.on_clone, self.path, *shown))

    async def files_named(self, names: Iterable[str], at: str, since: str | None = None) -> dict[str, str | None]:
        """Return the regular files with one of these names at a commit, by path, with their objects. Raises GitError.

        Where `since` is a commit, only those that changed then; without an object what is no such file any more.
        """
        wanted = [f":(glob)**/{name}" for name in names]
        listing = ("diff-tree", "-r", "-z", "--raw", "--no-renames", since or EMPTY_TREE, at, "--", *wanted)
        shown = await self.git.on_clone(self.path, *listing, environment={"GIT_LITERAL_PATHSPECS": "0"})
        fields, found = iter(shown.fields), dict[str, str | None]()
        # https://git-scm.com/docs/diff-format: `:<mode> <mode> <object> <object> <letter>`, then the name.
        for facts, path in zip(fields, fields, strict=True):
            _, mode, _, blob, _ = facts.split(" ")
            is_file = mode in REGULAR_FILES and path.isprintable()
            found[path] = blob if is_file else None
        return found


def _history_missing(command: str) -> GitError:
    return GitError(GitProblem.OTHER, command, "the repository's older history has not arrived yet")


@dataclass(frozen=True, slots=True)
class DefaultBranch:
    """The branch that the remote's HEAD names, and its commit."""

    name: str
    tip: str


@dataclass(frozen=True, slots=True)
class CheckoutRefused:
    """No worktree was made; `next_step` tells a person what to do. `why` is one of the reasons that callers act on."""

    next_step: str
    why: Literal["no-remote-branch", "branch-in-use"] | None = None


@dataclass(slots=True, eq=False)
class CloneLock:
    """The right to fetch and to change refs and administrative files of `clone`; only `clone_lock` makes one.

    `default` is the remote's default branch, where that is known already. `imported` are the commits that were imported
    under this lock, each with the private folder of its worktree; `packs` has the index of the pack of such a commit,
    if nothing else is in it. `kept` are rescues of what a branch left behind, to be told. `lets_go`: whoever holds it
    has a claim on all that it works on, and needs nothing of what was true before a `released` block.
    """

    clone: Clone
    default: DefaultBranch | None = None
    lets_go: bool = False
    imported: set[tuple[Path, str]] = field(default_factory=set, compare=False, repr=False)
    packs: dict[str, Path] = field(default_factory=dict, compare=False, repr=False)
    kept: list[str] = field(default_factory=list, compare=False, repr=False)
    _held: list[int] = field(default_factory=list, compare=False, repr=False)

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Let others have the lock, if it `lets_go`, while what takes long is done without it. A cancelled block ends
        without the lock. Raises OSError.
        """
        if not self.lets_go:
            yield
            return
        os.close(self._held.pop())
        self.imported.clear()  # what no ref reaches may be deleted
        problem: Exception | None = None
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised below
            problem = error
        self._held.append(await _acquire(self.clone))
        if problem is not None:
            raise problem


class StoppedError(Exception):
    """A turn was stopped while it waited, or before it pushed."""


@contextlib.asynccontextmanager
async def clone_lock(
    clone: Clone, stop: asyncio.Event | None = None, *, early: bool = False
) -> AsyncIterator[CloneLock]:
    """Wait until no other task or process holds this clone, and, if not `early`, until the history that arrives beside
    has arrived. The kernel releases the lock of a killed process.

    What a git that was killed left in the way is cleared. Raises StoppedError once `stop` is set, OSError.
    """
    clone.path.parent.mkdir(parents=True, exist_ok=True)
    if not early and clone.is_shallow and (clone.path / ARRIVING).is_dir():
        os.close(await wait_for_lock(clone.path / ARRIVING, stop, is_directory=True))
    held = [await _acquire(clone, stop)]
    try:
        async with clone.reading() as with_objects:
            yield CloneLock(with_objects, _held=held)
    finally:
        for descriptor in held:
            os.close(descriptor)


async def _acquire(clone: Clone, stop: asyncio.Event | None = None) -> int:
    descriptor = await wait_for_lock(clone.path.with_name(clone.path.name + ".lock"), stop)
    try:
        await asyncio.to_thread(_clear_leftovers, clone)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


async def wait_for_lock(path: Path, stop: asyncio.Event | None = None, *, is_directory: bool = False) -> int:
    """Return the descriptor of `try_lock` once the lock is free. Raises StoppedError once `stop` is set, OSError."""
    # Polled: a thread that waits in flock could not be cancelled.
    while (descriptor := try_lock(path, is_directory=is_directory)) is None:
        if stop is not None and stop.is_set():
            raise StoppedError
        await asyncio.sleep(LOCK_POLL_SECONDS)
    return descriptor


def _clear_leftovers(clone: Clone) -> None:
    """Remove what a killed git left: whatever stands in the place of a lock, and unfinished packs.

    Needs the clone's lock: with it the host's own git writes nothing here.
    """
    stores = (clone.path / "objects", clone.path / PUBLISHED)
    places = (
        *clone.path.glob("*.lock"),
        *(lock for store in stores for lock in store.glob("info/**/*.lock")),
        *(clone.path / "refs" / name for name in locks_below(clone.path / "refs")),
    )
    for place in places:
        _remove_stale(clone, place, STALE_LOCK_SECONDS)
    for file in (file for store in stores for pattern in ("tmp_*", ".tmp-*") for file in store.glob(f"pack/{pattern}")):
        _remove_stale(clone, file, STALE_PACK_SECONDS)


def _remove_stale(clone: Clone, place: Path, stale_seconds: float) -> None:
    with contextlib.suppress(FileNotFoundError):
        if clone.git.sandbox.isolates or time.time() - place.lstat().st_mtime >= stale_seconds:
            remove_untrusted(place.parent, PurePath(place.name))
