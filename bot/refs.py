"""Names in git: the rules of git, and the names of Threadtree's own branches and refs. Pure."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePath

from bot.model import HeadBranch, IssueBranch, Start, WorktreeRow

RESCUE_PREFIX = "refs/threadtree/rescue/"
# Heads of pull requests, kept outside refs/remotes/origin/*, where `fetch --prune` would delete them again.
FETCHED_PREFIX = "refs/threadtree/fetched/"
# The host's merges with what others pushed, each by its own name: an agent can make one that looks like it.
MERGED_PREFIX = "refs/threadtree/merged/"
# On GitHub, for as long as it makes the commits anew whose files came there.
UPLOADED_PREFIX = "refs/threadtree/uploaded/"

_FORBIDDEN_IN_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//")
_RESCUE_TIME = "%Y%m%dT%H%M%S.%fZ"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_FOLDER = re.compile(r"[A-Za-z0-9._-]{1,140}")


class InvalidNameError(ValueError):
    """The name must not reach git or the file system."""


def is_ref(name: str) -> bool:
    """Return whether `name` is a full ref by the rules of https://git-scm.com/docs/git-check-ref-format."""
    if not name.startswith("refs/") or name.endswith(("/", ".")) or _FORBIDDEN_IN_REF.search(name):
        return False
    return all(not part.startswith(".") and not part.endswith(".lock") for part in name.split("/"))


def is_branch(name: str) -> bool:
    """Return whether `name` may be a branch, as `git check-ref-format --branch` decides."""
    return bool(name) and not name.startswith("-") and name not in {"HEAD", "@"} and is_ref(f"refs/heads/{name}")


def is_commit(text: str) -> bool:
    """Return whether `text` is a full object name, SHA-1 or SHA-256."""
    return _COMMIT.fullmatch(text) is not None


def local(branch: str) -> str:
    """Return the full ref of a branch in the clone. Raises InvalidNameError."""
    return f"refs/heads/{_checked_branch(branch)}"


def remote(branch: str) -> str:
    """Return the full ref of the remote's branch in the clone. Raises InvalidNameError."""
    return f"refs/remotes/origin/{_checked_branch(branch)}"


def refspec(branch: str) -> str:
    """Return what fetches a branch, and is no error where the remote has no such branch. Raises InvalidNameError.

    git allows only a pattern to match nothing; hardly any other branch matches this one.
    """
    middle = len(_checked_branch(branch)) // 2
    return _to_origin(f"{branch[:middle]}*{branch[middle:]}")


def _to_origin(pattern: str) -> str:
    return f"+refs/heads/{pattern}:refs/remotes/origin/{pattern}"


def _checked_branch(name: str) -> str:
    if not is_branch(name):
        raise InvalidNameError(f"not a branch name: {name!r}")
    return name


def fetched(remote_ref: str) -> str:
    """Return the ref in the clone for a fetched ref such as `refs/pull/7/head`. Raises InvalidNameError."""
    if not is_ref(remote_ref):
        raise InvalidNameError(f"not a ref: {remote_ref!r}")
    return FETCHED_PREFIX + remote_ref.removeprefix("refs/")


def rescue_ref(worktree_id: str, at: datetime) -> str:
    """Return `refs/threadtree/rescue/<worktree id>/<time in UTC>`. Raises InvalidNameError."""
    ref = f"{RESCUE_PREFIX}{worktree_id}/{at.astimezone(UTC):{_RESCUE_TIME}}"
    if not is_ref(ref):
        raise InvalidNameError(f"not part of a ref: {worktree_id!r}")
    return ref


def rescue_time(ref: str) -> datetime:
    """Return the time of the decision to rescue, from `ref`. Raises InvalidNameError."""
    try:
        return datetime.strptime(ref.rpartition("/")[2], _RESCUE_TIME).replace(tzinfo=UTC)
    except ValueError as error:
        raise InvalidNameError(f"not a rescue: {ref!r}") from error


# No branch can have the name of the folder of another one: https://git-scm.com/docs/git-check-ref-format
def folders_of(issue: IssueBranch) -> tuple[str, ...]:
    """Return the folders in the names of an issue's branches, outermost first."""
    return tuple(issue.prefix[:end] for end, letter in enumerate(issue.prefix) if letter == "/")


def issue_branch(issue: IssueBranch, sequel: int = 1, *, flat: bool = False) -> str:
    """Return `threadtree/issue-N`, or `threadtree/issue-N-k` for the k-th branch of an issue.

    `flat`: `threadtree-issue-N`, for repositories that have a branch named like the folder.
    """
    first = issue.first.replace("/", "-") if flat else issue.first
    return first + (f"-{sequel}" if sequel > 1 else "")


def issue_refspecs(issue: IssueBranch) -> tuple[str, ...]:
    """Return what fetches the branches of an issue, and those that exclude their names, as far as there are any."""
    names = dict.fromkeys((issue_branch(issue), issue_branch(issue, flat=True)))
    return (*map(refspec, (*folders_of(issue), *names)), *(_to_origin(f"{name}-*") for name in names))


def sequel_of(branch: str, issue: IssueBranch) -> int | None:
    """Return the number of `branch` among the branches of this issue, from 1; None if it is none of them."""
    for flat in (False, True):
        match = re.fullmatch(rf"{re.escape(issue_branch(issue, flat=flat))}(?:-([2-9]|[1-9]\d+))?", branch)
        if match:
            return int(match[1] or 1)
    return None


def start_again(worktree: WorktreeRow) -> Start:
    """Return what a worktree that is made again starts from.

    An issue's worktree that was switched to the branch of a pull request stays on it, and a pull request's on the
    branch as it is called now.
    """
    branch, start = worktree.branch, worktree.start
    if isinstance(start, HeadBranch) and branch is not None:
        return replace(start, branch=branch)
    if isinstance(start, IssueBranch) and branch is not None and sequel_of(branch, start) is None:
        return HeadBranch(branch)
    return start


def head_branch(worktree: WorktreeRow) -> str | None:
    """Return the branch of the pull request that a worktree was made for, as it is called now; None for others."""
    start = worktree.start
    return (worktree.branch or start.branch) if isinstance(start, HeadBranch) else None


def issue_of(branch: str, number: int) -> IssueBranch | None:
    """Return the issue `number` whose branch this is, with its prefix; None where the name does not tell."""
    match = re.fullmatch(rf"(.*)issue-{number}(?:-\d+)?", branch)
    return IssueBranch(number, match[1]) if match else None


def is_flat(branch: str, issue: IssueBranch) -> bool:
    """Return whether the branch of an issue has its name because another branch is named like a folder of it."""
    return bool(folders_of(issue)) and branch.startswith(issue_branch(issue, flat=True))


def repository_folder(owner: str, folder: str) -> PurePath:
    """Return `<owner>/<folder>.git`. `folder` is the repository's name, or another if that is taken.

    Raises InvalidNameError.
    """
    if not _OWNER.fullmatch(owner) or not _FOLDER.fullmatch(folder) or folder in {".", ".."}:
        raise InvalidNameError(f"not a repository's name: {owner!r}/{folder!r}")
    return PurePath(owner, f"{folder}.git")
