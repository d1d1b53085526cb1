"""Connect the worktrees of a DATA_DIR that was moved with their clones: each names the other by its absolute path.

`git worktree repair` gives a link to the clone to an emptied directory too, whose files would count as deleted by an
agent. Where DATA_DIR was copied, it changes the clone at the old place.
"""

import asyncio
import os
import secrets
from pathlib import Path

import structlog

from bot.failpoints import reached
from bot.tree.clone.admin import admin_directories, recorded, write
from bot.tree.clone.clone import Clone, clone_lock
from bot.tree.git.runner import Git

_log = structlog.get_logger()


async def move_in(data_dir: Path, git: Git) -> None:
    """Let git find the worktrees where DATA_DIR is now.

    What fails is logged: such a worktree is made again by its next turn.
    """
    here = await asyncio.to_thread(data_dir.resolve)
    for path in await asyncio.to_thread(lambda: sorted(here.glob("repos/*/*.git"))):
        if moved := await asyncio.to_thread(_moved, path, here):
            async with clone_lock(Clone.at(data_dir, f"{path.parent.name}/{path.stem}", git)):
                await asyncio.to_thread(_connect, moved)


def _moved(clone: Path, here: Path) -> list[tuple[Path, Path, Path]]:
    """Return git's folders for the clone's worktrees that are on record elsewhere, their links there and here."""
    found: list[tuple[Path, Path, Path]] = []
    for admin in admin_directories(clone):
        old = Path(recorded(admin / "gitdir"))
        new = here.joinpath(*old.parts[-5:])
        if new != old and new.parts[-5:-2] == ("worktrees", clone.parent.name, clone.stem):
            found.append((admin, old, new))
    return found


def _connect(moved: list[tuple[Path, Path, Path]]) -> None:
    """Connect the worktrees of one clone, each of which may be gone or replaced. Every step can be repeated."""
    for admin, old, new in moved:
        try:
            if recorded(new).endswith(f"/worktrees/{admin.name}"):
                # Beside the worktree, so that nothing is left in it.
                making = new.parent.with_name(f".{new.parent.name}.{secrets.token_hex(4)}")
                making.write_text(f"gitdir: {admin}\n")
                making.rename(new)
            write(admin / "gitdir", str(new))
            _log.info("worktree-moved", old=os.fspath(old.parent), new=os.fspath(new.parent))
            reached("worktree-moved")
        except OSError as problem:
            _log.warning("worktree-not-moved", path=os.fspath(new.parent), problem=str(problem))
