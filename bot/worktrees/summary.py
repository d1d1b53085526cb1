"""A worktree on disk, summarized for a list. Nothing is fetched or changed."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from bot.clones import entries
from bot.clones.clone import Clone
from bot.git import refs
from bot.git.errors import GitError
from bot.sandbox.disk import used_bytes


@dataclass(frozen=True, slots=True)
class Summary:
    """`bytes` on disk, the `changed_files` that are not committed, and the commits between it and GitHub's branch as
    they were at the last fetch. None: cannot be told, or there is nothing to compare with.
    """

    bytes: int
    changed_files: int | None = None
    ahead: int | None = None
    behind: int | None = None


async def summarize(clone: Clone, path: Path, branch: str | None) -> Summary | None:
    """Summarize the worktree at `path`; None where nothing is there."""
    if not await asyncio.to_thread(path.is_dir):
        return None
    size = await asyncio.to_thread(used_bytes, (path,), sys.maxsize)
    try:
        changed = len(await entries.changed_files(clone, path))
        head = await entries.head_of(clone, path)
        theirs = await clone.commit_at(refs.remote(branch)) if branch else None
        if head is None or theirs is None or await clone.commit_at(head) is None:
            return Summary(size, changed)
        return Summary(size, changed, await clone.count(head, f"^{theirs}"), await clone.count(theirs, f"^{head}"))
    except (GitError, OSError, refs.InvalidNameError):
        return Summary(size)  # a broken worktree is listed like any other
