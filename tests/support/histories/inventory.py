"""All data that exists: every commit reachable from a ref, and every file content. Read without the bot's code."""

import hashlib
import os
import re
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_COMMIT = re.compile(r"[0-9a-f]{40}")
# Copies of what the remote has or had: the bot keeps nothing there.
_FETCHED = ("refs/remotes/", "refs/threadtree/fetched/")
_RESCUES = ("refs/threadtree/rescue/",)
_INDEX_ENTRY_BYTES = 62
_EXTENDED = 0x4000


def content_id(content: bytes) -> str:
    """Return git's name for a file of this content."""
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()  # noqa: S324 - git's own


def refs_of(repository: Path) -> dict[str, str]:
    """Return all refs of a repository, or of a folder that acts as one, and the objects they name."""
    found = {}
    packed = repository / "packed-refs"
    if packed.is_file():
        for line in packed.read_text().splitlines():
            if _COMMIT.match(line):
                found[line[41:]] = line[:40]
    for folder, _, names in os.walk(repository / "refs"):
        for name in names:
            file = Path(folder, name)
            value = file.read_text().strip()
            if _COMMIT.fullmatch(value):
                found[str(file.relative_to(repository))] = value
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """The data at one moment. `staged` are contents that only an index names."""

    commits: frozenset[str]
    contents: frozenset[str]
    staged: frozenset[str]
    remote: dict[str, str]


@dataclass(slots=True)
class Inventory:
    """A collection of all contents ever written, by git's name for them.

    `left`: the clone's refs and HEADs that an agent took elsewhere in its sandbox, as long as the clone has them.
    """

    remote: Path
    clone: Path
    data: Path
    written: dict[str, str]
    reached: dict[frozenset[str], tuple[frozenset[str], frozenset[str]]] = field(default_factory=dict)
    left: set[tuple[str, str]] = field(default_factory=set)

    @contextmanager
    def at_work(self, state: Path | None, admin: Path | None) -> Iterator[None]:
        """Let an agent work in the sandbox with this `state`. What it takes off its branch it drops itself, as without
        a sandbox: the clone's copy, which follows later, does not count.
        """
        if state is None or admin is None or not _is_private(state.parent):
            yield
            return
        head = f"worktrees/{admin.name}/HEAD"
        before = _own_tips(state.parent, head)
        yield
        now = _own_tips(state.parent, head)
        self.left |= {(name, tip) for name, tip in before.items() if name in now}
        self.left -= now.items()

    def look(self, *, rescues: bool = True) -> Found:
        """Return everything that exists now: on the remote, in the clone, in sandboxes, in worktrees, in kept
        directories.

        Without `rescues`: everything except rescues.
        """
        kept = self.data / ("kept" if rescues else "none")
        privates = [one for one in [*self.data.glob("private/*"), *kept.glob("*.git/private")] if _is_private(one)]
        remote = refs_of(self.remote)
        tips = {*remote.values(), *_heads(kept.glob("*.git/worktrees/*/HEAD")).values()}
        for private in privates:
            tips.update(_tips_of_private(private))
        own = {*_tips_of_clone(self.clone, rescues=rescues)}
        self.left &= own
        tips.update(tip for _, tip in own - self.left)
        objects = [self.clone / "objects", *(one / "common" / "objects" for one in privates)]
        commits, named = self._reached(tips, [str(one) for one in objects if one.is_dir()])
        contents = set(named)
        for place in (self.data / "worktrees", kept):
            contents.update(name for name in _contents(place) if name in self.written)
        indexes = [*self.clone.glob("worktrees/*/index"), *kept.glob("*.git/worktrees/*/index")]
        indexes += [private / "state" / "index" for private in privates]
        staged = {name for index in indexes for name in staged_in(index).values() if name in self.written}
        return Found(commits, frozenset(contents), frozenset(staged), remote)

    def _reached(self, tips: set[str], objects: list[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Return the commits and the written contents that these tips reach; the same places know the same objects."""
        key = frozenset((*tips, *objects))
        if key not in self.reached:
            listed = subprocess.run(
                ["git", "rev-list", "--objects", "--ignore-missing", "--stdin"],
                cwd=self.remote,
                env={"PATH": os.environ["PATH"], "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.pathsep.join(objects)},
                input="".join(f"{tip}\n" for tip in sorted(tips)),
                capture_output=True,
                text=True,
                check=False,
            )
            assert listed.returncode == 0, listed.stderr
            lines = [line.partition(" ") for line in listed.stdout.splitlines()]
            commits = frozenset(sha for sha, space, _ in lines if not space)
            self.reached[key] = commits, frozenset(sha for sha, space, _ in lines if space and sha in self.written)
        return self.reached[key]

    def lost(self, before: Found, after: Found, *, index_too: bool) -> list[str]:
        """Describe what was there before and is missing now."""
        gone = [f"commit {name}" for name in sorted(before.commits - after.commits)]
        wanted = before.contents | before.staged if index_too else before.contents
        kept = after.contents | after.staged if index_too else after.contents
        return gone + [f"content of {self.written[name]}" for name in sorted(wanted - kept)]


def _is_private(folder: Path) -> bool:
    return (folder / "common").is_dir()


def _tips_of_clone(clone: Path, *, rescues: bool) -> Iterator[tuple[str, str]]:
    left_out = _FETCHED if rescues else (*_FETCHED, *_RESCUES)
    yield from ((name, sha) for name, sha in refs_of(clone).items() if not name.startswith(left_out))
    yield from (("refs/stash", sha) for sha in _stashes(clone))
    yield from ((str(file.relative_to(clone)), sha) for file, sha in _heads(clone.glob("worktrees/*/HEAD")).items())


def _tips_of_private(private: Path) -> Iterator[str]:
    # `refs` beside `common`: the clone's folder of refs in the sandbox.
    yield from (sha for name, sha in refs_of(private).items() if not name.startswith(_FETCHED))
    yield from (sha for name, sha in refs_of(private / "common").items() if not name.startswith(_FETCHED))
    yield from _stashes(private / "common")
    yield from _heads([private / "state" / "HEAD"]).values()


def _own_tips(private: Path, head: str) -> dict[str, str]:
    """Return the branches of a sandbox, and the commit of its HEAD under the name `head`."""
    known = refs_of(private / "common") | refs_of(private)
    found = {name: sha for name, sha in known.items() if name.startswith("refs/heads/")}
    at = (private / "state" / "HEAD").read_text().strip().removeprefix("ref: ")
    return found | ({head: found.get(at, at)} if at in found or _COMMIT.fullmatch(at) else {})


def _heads(files: Iterable[Path]) -> dict[Path, str]:
    texts = {file: file.read_text().strip() for file in files if file.is_file()}
    return {file: text for file, text in texts.items() if _COMMIT.fullmatch(text)}


def _stashes(repository: Path) -> Iterator[str]:
    """Yield the stashes; all but the latest are in a reflog only."""
    log = repository / "logs" / "refs" / "stash"
    if log.is_file():
        yield from (line.split(" ", 2)[1] for line in log.read_text().splitlines())


def _contents(directory: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name != ".git"]
        for name in (*names, *(one for one in folders if Path(folder, one).is_symlink())):
            file = Path(folder, name)
            if file.is_symlink():
                yield content_id(os.fsencode(file.readlink()))
            elif file.is_file():
                yield content_id(file.read_bytes())


def staged_in(index: Path) -> dict[str, str]:
    """Return the paths in an index, and their contents: https://git-scm.com/docs/index-format, versions 2 and 3."""
    data = index.read_bytes() if index.is_file() else b""
    if len(data) < 12 or not data.startswith(b"DIRC"):
        return {}
    found: dict[str, str] = {}
    (entries,), at = struct.unpack(">I", data[8:12]), 12
    for _ in range(entries):
        (flags,) = struct.unpack(">H", data[at + 60 : at + 62])
        name = at + _INDEX_ENTRY_BYTES + (2 if flags & _EXTENDED else 0)
        end = data.index(b"\0", name)
        found[os.fsdecode(data[name:end])] = data[at + 40 : at + 60].hex()
        at += (end - at + 8) // 8 * 8
    return found
