"""A worktree's directory and its administrative folder in the clone: how each names the other.

https://git-scm.com/docs/git-worktree#_details
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from bot.git import refs
from bot.sandbox.untrusted_files import FLAGS, UntrustedFileError, open_untrusted, read_untrusted

# More than the longest path, or the last line of a log, takes.
_MOST_BYTES = 8192
# Where a rebase or bisect notes the branch that it left; HEAD is detached until it ends. BISECT_START has a short name.
_LEFT_BRANCH = {"rebase-merge/head-name": "refs/heads/", "rebase-apply/head-name": "refs/heads/", "BISECT_START": ""}


@dataclass(frozen=True, slots=True)
class Missing:
    """No usable worktree of this clone is at the path. `corrupt`: git met damage, there or in the clone."""

    why: str
    corrupt: bool = False


def real_path(path: Path) -> Path:
    """Return `path` as git records it: symbolic links are resolved in its parents only."""
    return path.parent.resolve() / path.name


def admin_directory(clone: Path, path: Path) -> Path | Missing:
    """Return the folder in the clone that the worktree at `path` names and that names this path."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            return Missing("it is not a directory")
        admin = Path(_read(path / ".git").removeprefix("gitdir:").strip())
        # Most name each other as git wrote them: to resolve each path would take ten times as long.
        plain = admin.parent == clone / "worktrees" and not (admin.is_symlink() or admin.parent.is_symlink())
        if not plain and admin.parent.resolve() != (clone / "worktrees").resolve():
            return Missing("it belongs to another repository")
        if Path(_read(admin / "gitdir")) != real_path(path) / ".git":
            return Missing("git knows it under another path")
        common = _read(admin / "commondir")
        if not (plain and common == "../..") and (admin / common).resolve() != clone.resolve():
            return Missing("it belongs to another repository")
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        return Missing("the directory is gone" if not path.exists() else f"its link to the clone is broken: {error}")
    except UntrustedFileError:
        return Missing("its .git is not a file")
    return admin


def recorded_branch(admin: Path) -> str | None:
    """Return the branch that is checked out by a worktree's folder in the clone; None when HEAD is detached."""
    prefix, head = "ref: refs/heads/", recorded(admin / "HEAD")
    branch = head.removeprefix(prefix)
    return branch if head.startswith(prefix) and refs.is_branch(branch) else None


def head_in(state: Path) -> str | None:
    """Return what the HEAD in a folder names, a full ref or a commit; None where only git can tell.

    An agent can write anything there: the commit may not exist.
    """
    head = recorded(state / "HEAD")
    name = head.removeprefix("ref: ")
    return name if (refs.is_ref(name) if head.startswith("ref: ") else refs.is_commit(head)) else None


def loose_commit(folder: Path, ref: str) -> str | None:
    """Return the commit in the file of a ref below a folder of refs; None where git has to be asked.

    An agent can write anything there: the commit may not exist.
    """
    try:
        text = os.fsdecode(read_untrusted(folder, PurePath(ref.removeprefix("refs/")), _MOST_BYTES)).strip()
    except OSError:
        return None
    return text if refs.is_commit(text) else None


def last_reflog_commit(log: Path) -> str | None:
    """Return the commit that a ref went to last, by its log; None where the log does not say.

    An agent can put anything there: links, pipes and long lines. https://git-scm.com/docs/git-update-ref#_logging_updates
    """
    try:
        with open_untrusted(log.parent, PurePath(log.name)) as descriptor:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode):
                return None
            end = os.pread(descriptor, _MOST_BYTES, max(0, state.st_size - _MOST_BYTES))
    except OSError:
        return None
    words = next(reversed(end.splitlines()), b"").split(b" ", 2)
    commit = os.fsdecode(words[1]) if len(words) > 1 else ""
    return commit if refs.is_commit(commit) else None


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


def admin_directories(clone: Path) -> list[Path]:
    """Return the clone's folders for all its worktrees. git's own listing takes much longer."""
    try:
        return list((clone / "worktrees").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def has_worktrees(clone: Path) -> bool:
    """Return whether the clone has a folder for any worktree."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(clone / "worktrees") as found:
        return any(True for _ in found)
    return False


def holders(clone: Path, branch: str) -> list[Path]:
    """Return the clone's folders for the worktrees that have this branch checked out.

    One that rebases or bisects it counts too, as for git: it goes back to the branch.
    """
    wanted, folder = os.fsencode(f"ref: {refs.local(branch)}"), clone / "worktrees"
    return [
        folder / name
        for name, head in _beginnings(clone, "HEAD", len(wanted))
        if head == wanted or (not head.startswith(b"ref: ") and _goes_back_to(folder / name, branch))
    ]


def _goes_back_to(admin: Path, branch: str) -> bool:
    wanted = ((PurePath(file), os.fsencode(prefix + branch)) for file, prefix in _LEFT_BRANCH.items())
    for file, text in wanted:
        with suppress(OSError):
            if read_untrusted(admin, file, _MOST_BYTES).strip() == text:
                return True
    return False


def other_holder(clone: Path, path: Path, branch: str) -> Path | None:
    """Return the path of a worktree other than the one at `path` that has this branch checked out."""
    own, found = real_path(path), (Path(recorded(admin / "gitdir")).parent for admin in holders(clone, branch))
    return next((holder for holder in found if holder != own), None)


def find_admin_directory(clone: Path, path: Path) -> Path | None:
    """Return the clone's folder for the worktree at `path`, which may be gone. The time grows with their number."""
    return next(_naming(clone, "gitdir", str(real_path(path) / ".git")), None)


def pointing_to(clone: Path, path: Path) -> list[Path]:
    """Return the clone's folders for worktrees that name the one at `path`, and those that name no place any more."""
    wanted = os.fsencode(str(real_path(path) / ".git"))
    found = _beginnings(clone, "gitdir", len(wanted))
    return [clone / "worktrees" / name for name, text in found if text in (wanted, b"")]


def _naming(clone: Path, file: str, text: str) -> Iterator[Path]:
    """Yield the clone's folders for worktrees whose `file` has this text."""
    wanted = os.fsencode(text)
    found = _beginnings(clone, file, len(wanted))
    return (clone / "worktrees" / name for name, text in found if text == wanted)


def _beginnings(clone: Path, file: str, size: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each of the clone's folders for worktrees, and a little more than `size` bytes of its `file`.

    There may be thousands: three calls to the system for each. A file that cannot be read counts as empty.
    """
    with suppress(FileNotFoundError, NotADirectoryError), open_untrusted(clone, PurePath("worktrees")) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - of a descriptor
            found = b""
            with suppress(OSError):
                descriptor = os.open(f"{name}/{file}", FLAGS, dir_fd=folder)
                try:
                    found = os.read(descriptor, size + 2).strip()
                finally:
                    os.close(descriptor)
            yield name, found
