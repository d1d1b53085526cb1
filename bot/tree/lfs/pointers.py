"""Files under a filter (Git LFS, git-crypt), and the pointers that git stores in place of the files of Git LFS.

https://git-scm.com/docs/gitattributes#_filter
"""

import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Self

from bot.tree.clone.clone import Clone
from bot.tree.git.runner import Completed, failure

LFS = "lfs"
_NO_FILTER = frozenset({"unspecified", "unset", "set", ""})
# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
MAX_POINTER_BYTES = 1024
_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/v1\noid sha256:(?P<oid>[0-9a-f]{64})\nsize (?P<size>[0-9]{1,15})\n"
)
_MAGIC_PATHS = {"GIT_LITERAL_PATHSPECS": "0"}


@dataclass(frozen=True, slots=True)
class Pointer:
    """The content of a file under Git LFS has this sha256 and this size. `blob` is the pointer's own object in git."""

    blob: str
    oid: str
    size: int
    text: bytes

    @classmethod
    def parse(cls, blob: str, text: bytes) -> Self | None:
        """Return None for what is no pointer."""
        found = _POINTER.fullmatch(text)
        return cls(blob, found["oid"].decode(), int(found["size"]), text) if found is not None else None

    @property
    def path(self) -> PurePath:
        """The object's place below a folder of git-lfs."""
        return PurePath("objects", self.oid[:2], self.oid[2:4], self.oid)


async def filter_lines(clone: Clone, *commits: str) -> tuple[str, ...]:
    """Return the lines of these commits' `.gitattributes` that give files a filter. Raises GitError."""
    asked = ("grep", "-h", "-I", "--no-color", "-E", r"^[^#]*\bfilter=", *commits, "--", ":(glob)**/.gitattributes")
    found = await clone.constant(*asked, check=False, environment=_MAGIC_PATHS)
    if found.status not in (0, 1):
        raise failure("grep", found)
    return tuple(found.text.splitlines())


def filters_of(checked: Completed) -> dict[str, str]:
    """Return the files that have a filter, with its name, from the output of `git check-attr -z filter`."""
    fields = os.fsdecode(checked.stdout).split("\0")[:-1]  # a value can be empty
    return {name: value for name, value in zip(fields[::3], fields[2::3], strict=True) if value not in _NO_FILTER}


async def filters_in(clone: Clone, tree: str, names: Iterable[str]) -> dict[str, str]:
    """Return those of these names to which the attributes in a tree give a filter, with its name."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"GIT_INDEX_FILE": f"{folder}/index"}
        await clone.git.on_clone(clone.path, "read-tree", tree, environment=environment)
        asked = b"".join(os.fsencode(name) + b"\0" for name in names)
        command = ("check-attr", "--cached", "--stdin", "-z", "filter")
        return filters_of(await clone.git.on_clone(clone.path, *command, input=asked, environment=environment))


async def pointers_in(clone: Clone, commit: str) -> dict[str, Pointer]:
    """Return the files of a commit that are pointers of Git LFS. Raises GitError."""
    listing = ("ls-tree", "-r", "-z", "--full-tree", "--format=%(objectname) %(path)", commit)
    blobs = {name: blob for blob, _, name in (entry.partition(" ") for entry in (await clone.run(*listing)).fields)}
    filters = await filters_in(clone, commit, blobs)
    under = {name: blobs[name] for name, value in filters.items() if value == LFS}
    known = await read_pointers(clone, under.values())
    return {name: known[blob] for name, blob in under.items() if blob in known}


async def read_pointers(clone: Clone, blobs: Iterable[str]) -> dict[str, Pointer]:
    """Return those of these objects that are pointers. Raises GitError."""
    sizes = await _cat_file(clone, "--batch-check=%(objectname) %(objectsize)", set(blobs))
    facts = (line.split(" ") for line in sizes.decode().splitlines())
    small = {blob: int(size) for blob, size in facts if size.isdigit() and int(size) <= MAX_POINTER_BYTES}
    # Each content comes after an empty line and before a line end.
    told, found = await _cat_file(clone, "--batch=", small), dict[str, Pointer]()
    for blob, size in small.items():
        if (pointer := Pointer.parse(blob, told[1 : size + 1])) is not None:
            found[blob] = pointer
        told = told[size + 2 :]
    return found


async def _cat_file(clone: Clone, how: str, blobs: Iterable[str]) -> bytes:
    asked = "".join(f"{blob}\n" for blob in blobs).encode()
    return (await clone.git.on_clone(clone.path, "cat-file", how, input=asked)).stdout
