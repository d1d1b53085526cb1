"""The index of a worktree and each file that differs from HEAD, whatever flags the index carries."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bot.clones.checkout import Checkout, ReadableCheckout
from bot.clones.status import Change, parse_status
from bot.rescue.scratch_git import TIMEOUT_SECONDS, ScratchGit
from bot.sandbox.untrusted_files import leads_out

SUBMODULE = "160000"
_OF_ENTRIES, _OF_HEAD = "of-entries", "of-head"
_LISTED = ("--stage", "-v", "-z")
_UNSEEN = "could not open directory"


class IndexEntry(NamedTuple):
    """A file of an index. There can be very many, and a named tuple is the fastest to make.

    `stage` is 0 unless a merge left it unresolved. `flagged`: git was told not to look at it on disk; `skipped`: nor to
    expect it there (skip-worktree).
    """

    name: str
    mode: str
    sha: str
    stage: int
    skipped: bool
    flagged: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of the index, and what differs from HEAD. `unseen`: git's words on an unreadable directory."""

    entries: Sequence[IndexEntry]
    changes: Sequence[Change]
    unseen: str | None


async def read_state(own: ScratchGit, head: str | None) -> Contents:
    """Compare HEAD, index and disk. An index that cannot be read counts as equal to HEAD. Raises GitError, OSError."""
    entries = await _entries(own.checkout)
    if entries is None:
        await own.run("read-tree", head or "--empty", index=_OF_HEAD)
        entries, index = parse_entries((await own.run("ls-files", *_LISTED, index=_OF_HEAD)).stdout), Path(_OF_HEAD)
    elif any(entry.flagged for entry in entries) or await _is_split(own):
        # The worktree's own index would not tell of all; one of the same files without flags does.
        lines = b"".join(os.fsencode(f"{one.mode} {one.sha} {one.stage}\t{one.name}") + b"\0" for one in entries)
        await own.run("update-index", "-z", "--index-info", index=_OF_ENTRIES, input=lines)
        index = Path(_OF_ENTRIES)
    else:
        index = own.inside.parent / "index"
    flags = ("--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=none", "--no-renames")
    shown = await own.run("status", *flags, index=index)
    absent = {one.name for one in entries if one.skipped and not _exists(own.path / one.name)}
    changes = [
        replace(change, unstaged=".") if change.name in absent else change
        for change in parse_status(shown.stdout)
        if change.name not in absent or change.staged != "."
    ]
    unseen = next((line for line in shown.stderr.splitlines() if _UNSEEN in line), None)
    return Contents(entries, changes, unseen)


async def _entries(checkout: Checkout) -> list[IndexEntry] | None:
    """Read the index with the worktree's own git, which finds the rest of a split index. None if it cannot be read."""
    if not _exists(checkout.state / "index"):
        return None
    listed = await checkout.git("ls-files", *_LISTED, check=False, timeout_seconds=TIMEOUT_SECONDS)
    return parse_entries(listed.stdout) if listed.status == 0 else None


async def flagged_file(checkout: ReadableCheckout) -> str | None:
    """Return a file of which git was told not to see edits, None where there is none. Raises GitError, OSError."""
    listed = await checkout.git("ls-files", *_LISTED)
    return next((entry.name for entry in parse_entries(listed.stdout) if entry.flagged), None)


async def _is_split(own: ScratchGit) -> bool:
    return any(own.folder.parent.glob("sharedindex.*"))


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def parse_entries(listed: bytes) -> list[IndexEntry]:
    """Parse the output of `git ls-files --stage -v -z`: https://git-scm.com/docs/git-ls-files."""
    found: list[IndexEntry] = []
    for line in filter(None, os.fsdecode(listed).split("\0")):
        facts, name = line.split("\t", 1)
        if leads_out(name):
            continue  # no file of the worktree: git itself adds no such name
        tag, mode, sha, stage = facts.split(" ")
        # S is skip-worktree; lower case, assume-unchanged.
        found.append(IndexEntry(name, mode, sha, int(stage), tag in "Ss", tag == "S" or tag.islower()))
    return found
