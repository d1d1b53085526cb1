"""A worktree as a person's git on the host sees it, at the worktree's path.

What a sandbox has of HEAD, branch and index is private. The clone has its own, which no agent writes: they are made
from what was imported. A person may commit there too. Then the sandbox follows (see `open_checkout`), or else what the
person made is kept.
"""

import asyncio
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import structlog

from bot import refs
from bot.tree.clone.admin import recorded, write, write_head
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.clone.metadata import Metadata
from bot.tree.git.errors import GitError

OPERATIONS = {
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
    "sequencer": "cherry-pick",
}
# HEAD and its commit, as the sandbox and the host had them when they last were the same.
_SHOWN = "threadtree-shown"
# https://git-scm.com/docs/index-format: the mode of a submodule.
SUBMODULE_ENTRY = b"\x00\x00\xe0\x00"
_log = structlog.get_logger()


def operation_in(folder: Path) -> str | None:
    """Return the unfinished operation of the git that has this folder: rebase, merge, cherry-pick, revert, bisect."""
    return next((name for file, name in OPERATIONS.items() if os.path.lexists(folder / file)), None)


def is_as_shown(admin: Path, head: str, commit: str | None) -> bool:
    """Return whether this is where both sides were when they last were the same."""
    return recorded(admin / _SHOWN) == f"{head} {commit}"


async def moved_by_a_person(clone: Clone, admin: Path) -> tuple[str, str] | None:
    """Return the HEAD, a full ref or a commit, and its commit, where a person has moved them with git at the path of
    the worktree since both sides were the same. What is written in another place (`update-ref`) has no files there.
    """
    head = recorded(admin / "HEAD").removeprefix("ref: ")
    commit = await clone.commit_at(head) if head else None
    if commit is None or not recorded(admin / _SHOWN) or is_as_shown(admin, head, commit) or operation_in(admin):
        return None
    # https://git-scm.com/docs/git-reflog: git at the path writes it, and the bot does not.
    logged = _last_line(admin / "logs" / "HEAD").split(" ")
    return (head, commit) if len(logged) > 1 and logged[1] == commit else None


async def show(lock: CloneLock, path: Path, admin: Path, head: str, commit: str, index: Path | None = None) -> None:
    """Let the host's HEAD be a full ref or a commit, and its index `commit`; a person who rebases there is left alone.

    `index` is one of this commit that no agent could write. Raises GitError, OSError.
    """
    if operation_in(admin) or is_as_shown(admin, head, commit):
        return
    before = recorded(admin / "HEAD").removeprefix("ref: ")
    if head != before:
        if refs.is_commit(before) and await lock.clone.commit_at(before) is not None:
            await _keep_what_only_it_has(lock, path, before, commit)
        write_head(admin, head)
    try:
        if index is not None:
            await asyncio.to_thread(shutil.copyfile, index, admin / "index")
        else:  # what git knows of unchanged files stays, so that it need not read them again
            await lock.clone.git.on_clone(admin, "read-tree", "--reset", "-i", commit)
        await _pass_over_submodules(lock.clone, admin)
    except GitError as error:  # a person's git is at work there
        _log.warning("index-not-written", path=str(path), problem=str(error))
        return
    write(admin / _SHOWN, f"{head} {commit}")


async def _pass_over_submodules(clone: Clone, admin: Path) -> None:
    """Let a person's `git status` take submodules as they should be: it would run what an agent has set up in there."""
    if SUBMODULE_ENTRY not in (admin / "index").read_bytes():
        return
    listed = (await clone.git.on_clone(admin, "ls-files", "--stage", "-z")).fields
    names = [entry.partition("\t")[2] for entry in listed if entry.startswith("160000 ")]
    given = b"".join(os.fsencode(name) + b"\0" for name in names)
    await clone.git.on_clone(admin, "update-index", "--assume-unchanged", "-z", "--stdin", input=given)


async def move_branch(lock: CloneLock, path: Path, ref: str, after: str, before: str | None) -> None:
    """Move a branch of the clone, the one of the worktree at `path`. What only it has is kept. Raises GitError."""
    if before is not None:
        await _keep_what_only_it_has(lock, path, before, after)
    await lock.clone.run("update-ref", "--create-reflog", "-m", "moved", ref, after, before or "0" * len(after))


async def _keep_what_only_it_has(lock: CloneLock, path: Path, commit: str, after: str) -> None:
    """Put a rescue on a commit that neither `after`, nor a branch of GitHub, nor a rescue leads to."""
    globs = (f"--glob={refs.FETCHED_PREFIX}*", f"--glob={refs.RESCUE_PREFIX}*")
    if not await lock.clone.count("--max-count=1", commit, "--not", after, "--remotes=origin", *globs):
        return
    known = Metadata.read(path)
    ref = refs.rescue_ref(known.id if isinstance(known, Metadata) else "0", datetime.now(UTC))
    await lock.clone.run("update-ref", ref, commit, "0" * len(commit))
    _log.warning("commits-kept", path=str(path), commit=commit, ref=ref)
    lock.kept.append(ref)


def _last_line(file: Path) -> str:
    """Return the last line of one of git's logs; a longer one than any is cut off."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 8192))
            return os.fsdecode(log.read()).rstrip("\n").rpartition("\n")[2]
    except OSError:
        return ""
