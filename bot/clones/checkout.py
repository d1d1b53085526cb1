"""Another commit is checked out, and no ignored file is overwritten: git overwrites them unless it is told not to."""

from collections.abc import Iterable, Set
from pathlib import Path

from bot.clones.clone import Clone
from bot.git.runner import failure

# The tree without files, which git knows in every repository.
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
# What git says of files that only the worktree has: https://git-scm.com/docs/git-checkout, --no-overwrite-ignore.
_IN_THE_WAY = ("would be overwritten by checkout", "would lose untracked files")


async def check_out(clone: Clone, path: Path, branch: str | None, commit: str) -> bool:
    """Check out `commit` in a worktree without changes, on `branch` (None: detached), which is made or moved there.

    Return False, with everything as it was, where an ignored file is in the way. Raises GitError, OSError.
    """
    where = ("--no-track", "-B", branch) if branch is not None else ("--detach",)
    done = await clone.on_worktree(path, "checkout", "--quiet", "--no-overwrite-ignore", *where, commit, check=False)
    if done.status and not any(words in done.stderr for words in _IN_THE_WAY):
        raise failure("checkout", done)
    return done.status == 0


async def ignored_in_the_way(clone: Clone, path: Path, head: str | None, target: str) -> list[str]:
    """Return the ignored files that git would overwrite or delete to write the files that only `target` has.

    Raises GitError, OSError.
    """
    before = f"{head}^{{tree}}" if head is not None else EMPTY_TREE
    listed = await clone.run("diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=d", before, target)
    ignored = await clone.on_worktree(path, "ls-files", "--others", "--ignored", "--exclude-standard", "-z")
    return in_the_way(set(listed.fields), ignored.fields)


def in_the_way(written: Set[str], ignored: Iterable[str]) -> list[str]:
    """Return the ignored files that are at, below or above a path to be written. A repository's name ends in `/`."""
    above = _directories_above(written)
    names = (name.rstrip("/") for name in ignored)
    return [name for name in names if name in written or name in above or _directories_above([name]) & written]


def _directories_above(names: Iterable[str]) -> set[str]:
    """Return the directories above these names."""
    return {name[:end] for name in names for end in range(len(name)) if name[end] == "/"}
