"""A rescue is made: one commit in the clone holds the whole working state of a worktree."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from typing import TypeAlias

import structlog

from bot import refs
from bot.failpoints import reached
from bot.refs import is_commit
from bot.sandbox.untrusted_files import read_untrusted
from bot.thread import reasons
from bot.tree.clone.admin import Missing, is_unfinished
from bot.tree.clone.check_out import put_back
from bot.tree.clone.checkout import Checkout, on_record, open_checkout
from bot.tree.clone.clone import EMPTY_TREE, Clone, CloneLock
from bot.tree.clone.importing import import_commit, import_commits, private_commits
from bot.tree.clone.status import Change
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import Identity
from bot.tree.lfs.objects import save_objects
from bot.tree.rescue import message as rescue_message
from bot.tree.rescue.message import RescuedCommits, RescueLabel
from bot.tree.rescue.snapshot import (
    SUBMODULE,
    Contents,
    ScratchGit,
    Snapshot,
    UnreadableError,
    read_state,
    scratch_git_dir,
    snapshot,
)
from bot.tree.submodules import with_commits_of_its_own

AUTHOR = Identity("Threadtree", "threadtree@localhost")
_COMMITS_IN_PROGRESS = (
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD"),
    *("rebase-merge/orig-head", "rebase-apply/orig-head"),
)
_AUTOSTASHES = ("MERGE_AUTOSTASH", "rebase-merge/autostash", "rebase-apply/autostash")
_MOST_BYTES = 100_000
_MOST_PARENTS = 1000

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Rescued:
    """The commit `sha` under `ref` holds `files` that were not committed and `commits` that were not pushed."""

    ref: str
    sha: str
    files: int
    commits: int


Secured: TypeAlias = tuple[Rescued | None, str | None]
"""The rescue of what a commit can hold, None where nothing needs one; and why the directory and git's own folders for
it must be kept too: a nested repository, a dirty submodule, no clone.
"""


async def save_rescue(lock: CloneLock, path: Path, label: RescueLabel, *, published: bool = True) -> Secured:
    """Save what exists only in this worktree under a ref of the clone; it stays as it is.

    That is every file that git would show, as it is on disk: ignored files only where they are tracked, and no empty
    directories; what is staged; and the commits of HEAD, the branch, stashes and of what is in progress. Without
    `published` what was fetched counts for nothing: all commits exist only here.
    """
    clone = lock.clone
    if not (clone.path / "HEAD").is_file() or not (clone.path / "objects").is_dir():
        return None, "its clone is gone" if os.path.lexists(path) else None  # noqa: ASYNC240
    try:
        checkout = await open_checkout(lock, path)
        if isinstance(checkout, Missing):
            if (lost := await on_record(lock, path)) is not None:
                await import_commits(lost, label.branch)
            rescued = await _without_files(lock, path, label, published)
            return rescued, checkout.why if os.path.lexists(path) else None  # noqa: ASYNC240
        await checkout.unblock()
        await put_back(checkout)
        await import_commits(checkout, label.branch)
        if is_unfinished(checkout.admin):
            return await _without_files(lock, path, label, published), None
        return await rescue_checkout(checkout, label, published=published)
    except UnreadableError as error:
        return await _without_files(lock, path, label, published), str(error)
    except GitError as error:
        if error.problem in (GitProblem.CORRUPT, GitProblem.NOT_FOUND):
            return None, f"git cannot read it: {error}"
        raise


async def work_only_here(checkout: Checkout, label: RescueLabel) -> str | None:
    """Return what a rescue of a finished worktree would save, as a clause; None where nothing needs one.

    Nothing is saved. Raises GitError, OSError.
    """
    await checkout.unblock()
    await put_back(checkout)
    await import_commits(checkout, label.branch)
    now = await checkout.now()
    with scratch_git_dir(now, now.commit) as own:
        kept, _, why = await _look(own, label, published=True)
    return why or (reasons.only_here(kept.files, kept.commits) if kept.is_needed else None)


async def rescue_checkout(checkout: Checkout, label: RescueLabel, *, published: bool = True) -> Secured:
    """Rescue what a finished worktree has, as `save_rescue`. Raises GitError, OSError."""
    now = await checkout.now()
    with scratch_git_dir(now, now.commit) as own:
        kept, seen, why = await _look(own, label, published)
        # The commit that a kept directory was at is on record, so that it comes back to no other.
        if not kept.is_needed and why is None:
            return None, None
        kept = await _with_objects(checkout, label, kept)
        sha = await _commit(own, label, await snapshot(own, now.commit, seen), kept)
    ref = await _publish(checkout.lock, label, sha)
    return Rescued(ref, sha, kept.files, kept.commits), why


async def _look(own: ScratchGit, label: RescueLabel, published: bool) -> tuple[RescuedCommits, Contents, str | None]:
    """Return what there is to rescue, with all files that differ, and why a commit cannot hold everything."""
    kept = await _commits(own.checkout.clone, own.checkout, label.branch, published)
    seen = await read_state(own, own.checkout.commit)
    return replace(kept, files=_files(seen.changes)), seen, await _reason_to_keep_directory(own, seen)


async def _without_files(lock: CloneLock, path: Path, label: RescueLabel, published: bool) -> Rescued | None:
    """Rescue the commits of a worktree whose files are gone or cannot be read. Raises GitError, OSError."""
    clone, lost = lock.clone, await on_record(lock, path)
    kept = await _commits(clone, lost, label.branch, published)
    if not kept.is_needed:
        return None
    if lost is not None:
        kept = await _with_objects(lost, label, kept)
    tree = f"{kept.head or kept.tip}^{{tree}}" if kept.head or kept.tip else EMPTY_TREE
    message, signed = rescue_message.write(label, kept), _signed(label.at)
    arguments = ("commit-tree", tree, *_parents(kept), "-F", "-")
    made = await clone.git.on_clone(clone.path, *arguments, input=message, environment=signed)
    return Rescued(await _publish(lock, label, made.text), made.text, 0, kept.commits)


async def _with_objects(checkout: Checkout, label: RescueLabel, kept: RescuedCommits) -> RescuedCommits:
    """Import the objects of Git LFS that the commits need, as a commit of their own."""
    if (commit := await save_objects(checkout, kept.parents, _signed(label.at))) is not None:
        await import_commit(checkout, commit)
    return replace(kept, lfs=commit)


def _parents(kept: RescuedCommits) -> list[str]:
    return [word for parent in kept.parents for word in ("-p", parent)]


def _files(changes: Sequence[Change]) -> int:
    """Count the changes that a commit can hold: it holds no repository inside and no change in one."""
    return sum(not change.name.endswith("/") and not (change.inside and change.staged == ".") for change in changes)


async def _commits(clone: Clone, checkout: Checkout | None, branch: str | None, published: bool) -> RescuedCommits:
    """Import the commits to rescue into the clone and return them. `checkout` is the worktree as it is now, None where
    git has no record of it any more.
    """
    head, on = (checkout.commit, checkout.branch) if checkout else (None, branch)
    tip = await clone.commit_at(refs.local(branch)) if branch else None
    in_progress = list(_named_in(checkout.state, _COMMITS_IN_PROGRESS)) if checkout else []
    set_aside = list(_named_in(checkout.state, _AUTOSTASHES)) if checkout else []
    if checkout is not None and checkout.isolated:
        private = await private_commits(checkout, (*in_progress, *set_aside))
        stashes, others = [*private.stashes, *(one for one in set_aside if one in private.tips)], private.tips
    else:
        stashes = await stashes_not_rescued(clone, {branch, on})
        stashes += [one for one in set_aside if await clone.commit_at(one)]
        others = tuple([one for one in in_progress if await _only_here(clone, [one], published)])
    others = tuple(one for one in others if one not in {head, tip, *stashes})
    if len(stashes) + len(others) > _MOST_PARENTS:
        raise UnreadableError(f"it has {len(stashes) + len(others)} branches and stashes of its own")
    if checkout is not None:
        for commit in (*stashes, *others):
            await import_commit(checkout, commit)
    commits = await _only_here(clone, [head, tip, *others], published)
    operation, own_tip = checkout.operation_in_progress() if checkout else None, tip if tip != head else None
    return RescuedCommits(head, None, own_tip, tuple(stashes), others, operation, 0, commits)


async def _only_here(clone: Clone, commits: Sequence[str | None], published: bool = True) -> int:
    named = dict.fromkeys(commit for commit in commits if commit is not None)
    known = [commit for commit in named if await clone.commit_at(commit) is not None]
    elsewhere = ("--not", "--remotes=origin", f"--glob={refs.FETCHED_PREFIX}*") if published else ()
    return await clone.count(*known, *elsewhere) if known else 0


def _named_in(state: Path, files: Sequence[str]) -> Iterator[str]:
    """Read the object names in these files of git. An agent can write anything there."""
    for name in files:
        with contextlib.suppress(OSError):
            text = read_untrusted(state, PurePath(name), _MOST_BYTES).decode(errors="replace")
            yield from filter(is_commit, text.split())


async def _commit(own: ScratchGit, label: RescueLabel, taken: Snapshot, kept: RescuedCommits) -> str:
    """Make the rescue commit and import it into the clone. No ref names it yet."""
    signed = _signed(label.at)
    if taken.staged is not None:
        on_head = ("-p", kept.head) if kept.head else ()
        made = await own.run("commit-tree", taken.staged, *on_head, "-m", "What was staged", environment=signed)
        kept = replace(kept, staged=made.text)
    arguments = ("commit-tree", taken.tree, *_parents(kept), "-F", "-")
    made = await own.run(*arguments, input=rescue_message.write(label, kept), environment=signed)
    await import_commit(own.checkout, made.text)
    reached("rescue-committed")
    return made.text


async def _publish(lock: CloneLock, label: RescueLabel, sha: str) -> str:
    """Put the commit under a new ref; where another rescue has that time, under the next microsecond."""
    worktree, at = str(label.worktree_id), label.at
    while (found := await lock.clone.commit_at(ref := refs.rescue_ref(worktree, at))) not in (None, sha):
        at += timedelta(microseconds=1)
    if found is None:
        await lock.clone.run("update-ref", ref, sha, "0" * len(sha))
    reached("rescued")
    _log.info("rescued", worktree=worktree, ref=ref, sha=sha)
    return ref


def _signed(at: datetime) -> dict[str, str]:
    time = f"{int(at.timestamp())} +0000"
    return AUTHOR.environment | {"GIT_AUTHOR_DATE": time, "GIT_COMMITTER_DATE": time}


# What no commit can hold


async def _reason_to_keep_directory(own: ScratchGit, seen: Contents) -> str | None:
    """Return why a commit cannot hold everything, or None. Ignored directories are not searched.

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
    if (own_commits := await with_commits_of_its_own(own.checkout)) is not None:
        return f"the submodule {own_commits!r} has commits of its own"
    return None


def _hidden_repository(own: ScratchGit, seen: Contents) -> str | None:
    """Find a directory of tracked files that was made a repository: `git status` does not show it."""
    directories: set[str] = set()
    for entry in seen.entries:
        directory = entry.name.rpartition("/")[0]
        while directory and directory not in directories:
            directories.add(directory)
            directory = directory.rpartition("/")[0]
    return next((f"{one}/" for one in sorted(directories) if os.path.lexists(own.path / one / ".git")), None)


async def _is_expendable(own: ScratchGit, submodule: str) -> bool:
    """Return whether a submodule is empty, or has no commit that was made here."""
    place = own.path / submodule
    if not os.path.lexists(place / ".git"):  # noqa: ASYNC240
        return not place.is_dir() or place.is_symlink() or not any(place.iterdir())
    try:
        listed = await own.checkout.git(
            *("-C", submodule, "rev-list", "--max-count=1", "--all", "HEAD", "--not", "--remotes", "--tags")
        )
    except GitError as error:
        if error.problem is GitProblem.TIMEOUT:
            raise
        return False
    return not listed.stdout


# Stashes


async def stashes_not_rescued(clone: Clone, branches: Set[str | None]) -> list[str]:
    """Return the stashes of these branches (None: a detached HEAD) that no rescue has, newest first. Raises GitError.

    All worktrees of a clone share the list, and an agent can stash at any time: it is not changed. In a sandbox each
    worktree has a list of its own, see `importing`.
    """
    if await clone.commit_at("refs/stash") is None:
        return []
    names = "|".join(re.escape(branch or "(no branch)") for branch in branches)
    on_these = re.compile(rf"(\w+) (?:WIP on|On) (?:{names}): ")
    listed = (await clone.run("reflog", "show", "--format=%H %gs", "refs/stash")).text.splitlines()
    found = [matched[1] for line in listed if (matched := on_these.match(line))]
    return [stash for stash in found if await clone.count(stash, "--not", f"--glob={refs.RESCUE_PREFIX}*")]
