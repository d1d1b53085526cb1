"""Repositories inside a worktree: what no commit of the worktree can hold."""

import os
from pathlib import Path

from bot.git.errors import GitError, GitProblem
from bot.rescue.contents import SUBMODULE, Contents
from bot.rescue.scratch_git import ScratchGit


async def reason_to_keep_whole(own: ScratchGit, seen: Contents) -> str | None:
    """Why a commit would not hold all of it, or None. Ignored directories are not looked into.

    Raises GitError, OSError.
    """
    if seen.unseen is not None:
        return seen.unseen
    nested = next((change.name for change in seen.changes if change.name.endswith("/")), None)
    nested = nested or _hidden_repository(own, seen)
    if nested is not None:
        return f"{nested!r} is a repository of its own"
    dirty = next((change.name for change in seen.changes if change.inside), None)
    if dirty is not None:
        return f"the submodule {dirty!r} has changes of its own"
    for entry in seen.entries:
        if entry.mode == SUBMODULE and not await _is_expendable(own, entry.name):
            return f"the submodule {entry.name!r} has commits of its own"
    return None


def _hidden_repository(own: ScratchGit, seen: Contents) -> str | None:
    """A directory with tracked files in it that was made a repository: git's status says nothing of it."""
    directories: set[str] = set()
    for entry in seen.entries:
        directory = entry.name.rpartition("/")[0]
        while directory and directory not in directories:
            directories.add(directory)
            directory = directory.rpartition("/")[0]
    return next((f"{one}/" for one in sorted(directories) if _is_repository(own.path / one)), None)


def _is_repository(directory: Path) -> bool:
    return os.path.lexists(directory / ".git")


async def _is_expendable(own: ScratchGit, submodule: str) -> bool:
    """Whether a submodule is empty, or has nothing that was not fetched."""
    place = own.path / submodule
    if not _is_repository(place):
        return not place.is_dir() or place.is_symlink() or not any(place.iterdir())
    try:
        listed = await own.clone.on_worktree(
            own.path, *("-C", submodule, "rev-list", "--max-count=1", "--all", "HEAD", "--not", "--remotes", "--tags")
        )
    except GitError as error:
        if error.problem is GitProblem.TIMEOUT:
            raise
        return False
    return not listed.stdout
