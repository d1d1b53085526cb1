"""What git has on record of a clone's worktrees: a folder for each in `<clone>/worktrees`, which no sandboxed agent
writes.

Nothing here lists all worktrees with git: that takes 150 ms where there are 2,000.
https://git-scm.com/docs/git-worktree#_details
"""

import itertools
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from bot import refs
from bot.files import real_path
from bot.sandbox.untrusted_files import FLAGS, UntrustedFileError, read_untrusted

LIVE = "threadtree: in use"
# Lock reasons. While an operator's `git worktree add` runs, git's own is "initializing".
UNFINISHED = ("threadtree: being made", "initializing")
# More than the longest path takes.
_MOST_BYTES = 8192
# Where a rebase or bisect notes the branch that it left; HEAD is detached until it ends. BISECT_START has a short name.
_LEFT_BRANCH = {"rebase-merge/head-name": "refs/heads/", "rebase-apply/head-name": "refs/heads/", "BISECT_START": ""}


@dataclass(frozen=True, slots=True)
class Missing:
    """No usable worktree of this clone is at the path. `corrupt`: git met damage, there or in the clone."""

    why: str
    corrupt: bool = False


def admin_directory(clone: Path, path: Path) -> Path | Missing:
    """Return the real path of the folder in the clone that has the directory at `path` on record.

    Of the directory's link only the name counts. Whether it leads here, git is asked (see `bot.tree.clone.checkout`).
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return Missing("it is not a directory")
        name = PurePath(_read(path / ".git")).name
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return Missing("the directory is gone" if not path.exists() else "its link to the clone is broken")
    except UntrustedFileError:
        return Missing("its .git is not a file")
    admin = clone.resolve() / "worktrees" / name
    if recorded(admin / "gitdir") != str(real_path(path) / ".git"):
        return Missing("git has no record of it")
    return admin


def recorded_branch(admin: Path) -> str | None:
    """Return the branch that is checked out by a worktree's folder in the clone; None when HEAD is detached."""
    prefix, head = "ref: refs/heads/", recorded(admin / "HEAD")
    branch = head.removeprefix(prefix)
    return branch if head.startswith(prefix) and refs.is_branch(branch) else None


def recorded(file: Path) -> str:
    """Return the text of one of git's own files; it is empty where the file cannot be read."""
    try:
        return _read(file)
    except OSError:
        return ""


def write_head(admin: Path, head: str) -> None:
    """Let a worktree's folder in the clone name a full ref or a commit. Raises OSError."""
    write(admin / "HEAD", f"ref: {head}" if head.startswith("refs/") else head)


def write(file: Path, text: str) -> None:
    """Replace one of git's own files at once. Raises OSError."""
    making = file.with_name(f"{file.name}.{secrets.token_hex(8)}.lock")  # what a killed process leaves goes with locks
    try:
        making.write_text(f"{text}\n")
        making.rename(file)
    finally:
        making.unlink(missing_ok=True)


def _read(file: Path) -> str:
    return os.fsdecode(read_untrusted(file.parent, PurePath(file.name), _MOST_BYTES)).strip()


def is_unfinished(admin: Path) -> bool:
    """Return whether the creation of this worktree was cut off."""
    return recorded(admin / "locked") in UNFINISHED


def mark_live(admin: Path) -> None:
    """Lock a finished worktree: a plain `git worktree prune` removes any whose directory is away for a moment."""
    (admin / "locked").write_text(f"{LIVE}\n")


def register(clone: Path, path: Path, head: str) -> None:
    """Make the free `path` an unfinished worktree without files, whose HEAD is a full ref or a commit. Raises OSError.

    `git worktree add` reads all worktrees first. Where this is cut off, the clone has an unfinished worktree whose
    directory is gone or empty. Needs the clone's lock.
    """
    place = real_path(path)
    names = (f"{path.name}{number or ''}" for number in itertools.count())
    name = next(name for name in names if not os.path.lexists(clone / "worktrees" / name))
    admin = add_record(clone, name, path, head, UNFINISHED[0])
    place.mkdir()
    (place / ".git").write_text(f"gitdir: {admin}\n")


def add_record(clone: Path, name: str, path: Path, head: str, locked: str) -> Path:
    """Add a folder for the worktree at `path`, which appears at once; return its real path. Raises OSError."""
    making = clone / f"worktree.{secrets.token_hex(8)}.lock"  # what a killed process leaves goes with git's locks
    making.mkdir()
    try:
        content = {"commondir": "../..", "gitdir": f"{real_path(path)}/.git", "locked": locked}
        for file, text in content.items():
            (making / file).write_text(f"{text}\n")
        write_head(making, head)
        (clone / "worktrees").mkdir(exist_ok=True)
        return making.rename(clone / "worktrees" / name).resolve()
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def admin_directories(clone: Path) -> list[Path]:
    """Return the clone's folders for all its worktrees. git's own listing takes much longer."""
    try:
        return list((clone / "worktrees").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def holder(clone: Path, branch: str, besides: Path | None = None) -> Path | None:
    """Return the clone's folder for a worktree, other than the one at `besides`, that has this branch checked out.

    One that rebases or bisects it counts too, as for git: it goes back to the branch.
    """
    ref, found = refs.local(branch), list[Path]()
    for admin, head in _files(clone, "HEAD"):
        left = {} if head.startswith("ref: ") else _LEFT_BRANCH
        if head == f"ref: {ref}" or any(recorded(admin / file) == prefix + branch for file, prefix in left.items()):
            found.append(admin)
    own = folders_of(clone, besides) if found and besides else []
    return next((admin for admin in found if admin not in own), None)


def find_admin_directory(clone: Path, path: Path) -> Path | None:
    """Return the clone's folder for the worktree at `path`, which may be gone. The time grows with their number."""
    return next((admin for admin in folders_of(clone, path) if recorded(admin / "gitdir")), None)


def folders_of(clone: Path, path: Path) -> list[Path]:
    """Return the clone's folders that name the worktree at `path`, and broken ones that name none and may be its own:
    its link names them, or their worktree was never finished.
    """
    wanted, link = f"{real_path(path)}/.git", recorded(path / ".git")
    return [
        admin
        for admin, pointer in _files(clone, "gitdir")
        if pointer == wanted or (not pointer and (link == f"gitdir: {admin}" or is_unfinished(admin)))
    ]


def _files(clone: Path, name: str) -> Iterator[tuple[Path, str]]:
    """Yield each of the clone's folders for worktrees with the text of a file in it; empty where it cannot be read.

    There may be thousands: three calls to the system for each.
    """
    for admin in admin_directories(clone.resolve()):
        text = b""
        with suppress(OSError):
            descriptor = os.open(f"{admin}/{name}", FLAGS)
            try:
                text = os.read(descriptor, _MOST_BYTES)
            finally:
                os.close(descriptor)
        yield admin, os.fsdecode(text).strip()
