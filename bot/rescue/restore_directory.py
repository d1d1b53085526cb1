"""A directory that was kept whole goes back to its worktree's path: ignored files and repositories inside too.

It moves by rename. No file in it is opened, and no name in it is used: an agent wrote them.
"""

import asyncio
import os
import stat
from pathlib import Path

from bot.clones import trash
from bot.clones.checkout import Checkout, Valid, inspect
from bot.failpoints import reached
from bot.git.errors import GitError, GitProblem

# Where submodules have their commits, in what git knew of a kept directory: with a cage, and without.
_MODULES = ("private/state/modules", "worktrees/*/modules")
_FOREIGN_LINK = "replaced-link"


async def put_directory_back(checkout: Checkout, kept: Path) -> None:
    """Put the directory `kept` in the place of the worktree's, which goes to the trash.

    git's entry, HEAD and index stay those of the worktree. Can be repeated. What git knew of `kept` stays in
    `<kept>.git`, but for the commits of submodules. Raises GitError, OSError.
    """
    clone, path = checkout.clone, checkout.path
    await asyncio.to_thread(_exchange, clone.data_dir, checkout.admin, path, kept)
    await asyncio.to_thread(_put_modules_back, kept, checkout.state / "modules")
    found = await inspect(clone, path)
    if not isinstance(found, Valid):
        raise GitError(GitProblem.OTHER, "worktree", f"the directory is back, but it is no worktree: {found.why}")


def is_directory(path: Path) -> bool:
    """Return whether `path` itself is a directory, and no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _exchange(data_dir: Path, admin: Path, path: Path, kept: Path) -> None:
    if not is_directory(kept):  # it was put back before this was cut off
        return
    # Linked first: as soon as it is at `path`, git and the next attempt know it as the worktree.
    _link(kept, admin)
    trash.move_to_trash(data_dir, path)
    reached("worktree-set-aside")
    trash.move(kept, path)


def _put_modules_back(kept: Path, place: Path) -> None:
    git_state = kept.with_name(kept.name + trash.GIT_STATE)
    modules = next((found for pattern in _MODULES for found in git_state.glob(pattern)), None)
    if modules is not None and not os.path.lexists(place):
        trash.move(modules, place)


def _link(kept: Path, admin: Path) -> None:
    """Make `kept/.git` name git's folder of the worktree. A repository in its place goes to `<kept>.git`."""
    kept.chmod(stat.S_IMODE(kept.lstat().st_mode) | stat.S_IRWXU)
    link = kept / ".git"
    if is_directory(link):
        trash.move(link, kept.with_name(kept.name + trash.GIT_STATE) / _FOREIGN_LINK)
    link.unlink(missing_ok=True)
    descriptor = os.open(link, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"gitdir: {admin}\n")
