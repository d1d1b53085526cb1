"""What a worktree has that HEAD has not, as git tells it in one go."""

import os
from dataclasses import dataclass
from pathlib import Path

from bot.clones.clone import Clone
from bot.sandbox.untrusted_files import leads_out

_STAGED_STATES = frozenset("MTAD")


@dataclass(frozen=True, slots=True)
class Change:
    """A file that differs from HEAD: `staged` in the index, `unstaged` on disk, by git's letters; `.` is no change.

    The name of an untracked repository ends in `/`; `inside`: a submodule with changes of its own, some of which are
    `uncommitted`.
    """

    name: str
    staged: str
    unstaged: str
    unresolved: bool = False
    inside: bool = False
    uncommitted: bool = False

    @property
    def is_staged(self) -> bool:
        """Whether the index holds content that HEAD does not."""
        return self.staged in _STAGED_STATES and not self.unresolved


async def changes_in(clone: Clone, path: Path) -> list[Change]:
    """Return the files that differ from HEAD, and untracked ones, but no ignored ones. Raises GitError, OSError."""
    flags = ("--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=none", "--no-renames")
    # No setting names another place: these are the files at this path.
    here = {"GIT_WORK_TREE": str(path)}
    return parse_status((await clone.on_worktree(path, "status", *flags, environment=here)).stdout)


def parse_status(shown: bytes) -> list[Change]:
    """Parse the output of `git status --porcelain=v2 -z --no-renames`: https://git-scm.com/docs/git-status."""
    found: list[Change] = []
    for line in filter(None, os.fsdecode(shown).split("\0")):
        kind, _, rest = line.partition(" ")
        if kind == "?":
            found.append(Change(rest, "?", "?"))
        elif kind in ("1", "u"):
            facts = rest.split(" ", 7 if kind == "1" else 9)
            submodule = facts[1]
            inside = submodule[0] == "S" and submodule != "S..."
            uncommitted = inside and submodule[2:] != ".."
            found.append(Change(facts[-1], facts[0][0], facts[0][1], kind == "u", inside, uncommitted))
    return [change for change in found if not leads_out(change.name)]
