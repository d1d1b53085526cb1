"""The rescues of a clone: their refs, and the messages of their commits, from which a person and a program can tell
what each holds. The table `rescues` is their index.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from bot import refs
from bot.tree.clone.clone import Clone, CloneLock

# Nothing in a message can be a NUL.
_FORMAT = "%(refname)%00%(objectname)%00%(parent)%00%(contents)%00"
_CONTENTS = "\nThreadtree: "


@dataclass(frozen=True, slots=True)
class RescueLabel:
    """Whose work a rescue commit holds, and from when. It is in the message, so no database is needed to read it."""

    worktree_id: int
    branch: str | None
    conversations: tuple[int, ...]
    at: AwareDatetime


@dataclass(frozen=True, slots=True)
class RescuedCommits:
    """The contents of a rescue commit besides its tree. The commits named here are among its parents.

    `staged` is the index where that differed from `head`; `tip` the branch's where `head` was not on it; `stashes` are
    the newest first; `others` were reached by nothing else; the files of `lfs` are the objects of Git LFS that commits
    need and GitHub does not have. `files` were uncommitted, `commits` unpublished.
    """

    head: str | None = None
    staged: str | None = None
    tip: str | None = None
    stashes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    operation: str | None = None
    files: int = 0
    commits: int = 0
    lfs: str | None = None

    @property
    def parents(self) -> tuple[str, ...]:
        """All commits, each once."""
        known = (self.head, self.staged, self.tip, *self.stashes, *self.others, self.lfs)
        return tuple(dict.fromkeys(commit for commit in known if commit is not None))

    @property
    def is_needed(self) -> bool:
        """Whether it has anything that is nowhere else."""
        return bool(self.files or self.commits or self.stashes or self.others or self.operation)


_LABEL, _KEPT = TypeAdapter(RescueLabel), TypeAdapter(RescuedCommits)


@dataclass(frozen=True, slots=True)
class KnownRescue:
    """A rescue and its ref. Where the directory was gone and only commits were rescued, it has only a head."""

    ref: str
    sha: str
    label: RescueLabel
    kept: RescuedCommits


def write(label: RescueLabel, kept: RescuedCommits) -> bytes:
    """Return the message of a rescue commit; its last line is for programs."""
    place = f"on {label.branch}" if label.branch else "without a branch"
    threads = ", ".join(f"#{number}" for number in label.conversations) or "no thread"
    told = {"label": {**asdict(label), "at": label.at.astimezone(UTC).isoformat()}, "kept": asdict(kept)}
    text = f"""Rescue of worktree {label.worktree_id} {place}

Kept before the worktree of {threads} was removed or reset. The files are those that lay
there, byte for byte, without the ignored ones. The parents named below are the commit checked out
(head), what was staged (staged), the branch (tip), stashes, commits that nothing else reached, and
objects of Git LFS (lfs).
`threadtree worktrees restore {label.worktree_id}` brings the latest rescue back.
{_CONTENTS}{json.dumps(told)}
"""
    return os.fsencode(text)


def read(message: str, parents: Sequence[str]) -> tuple[RescueLabel, RescuedCommits] | None:
    """Parse what `write` wrote; None for any other message. A commit that is not one of the `parents` is ignored."""
    try:
        told = json.loads(message.rpartition(_CONTENTS)[2])
        label, kept = _LABEL.validate_python(told["label"]), _KEPT.validate_python(told["kept"])
    except (ValueError, KeyError, TypeError, ValidationError):
        return None
    if label.branch is not None and not refs.is_branch(label.branch):
        return None

    def known(commit: str | None) -> str | None:
        return commit if commit in parents else None

    return label, replace(
        kept,
        head=known(kept.head),
        staged=known(kept.staged),
        tip=known(kept.tip),
        stashes=tuple(filter(known, kept.stashes)),
        others=tuple(filter(known, kept.others)),
        lfs=known(kept.lfs),
    )


def place_of(ref: str) -> tuple[str, datetime] | None:
    """Return the worktree and the time that a rescue's ref names; None for another ref."""
    worktree = ref.removeprefix(refs.RESCUE_PREFIX).partition("/")[0]
    try:
        at = refs.rescue_time(ref)
    except refs.InvalidNameError:
        return None
    return (worktree, at) if refs.rescue_ref(worktree, at) == ref else None


async def list_rescues(clone: Clone) -> list[KnownRescue]:
    """Return all rescues in a clone, by worktree and time. Raises GitError."""
    listed = await clone.run("for-each-ref", f"--format={_FORMAT}", refs.RESCUE_PREFIX)
    fields = os.fsdecode(listed.stdout).split("\0")
    found: list[KnownRescue] = []
    for ref, sha, parents, message in zip(*(fields[start::4] for start in range(4)), strict=False):
        place = place_of(ref.strip())
        if place is None or not place[0].isdecimal():
            continue
        told = read(message, parents.split())
        worktree_id, at = int(place[0]), place[1]
        label, kept = told or (RescueLabel(worktree_id, None, (), at), RescuedCommits(head=sha))
        found.append(KnownRescue(ref.strip(), sha, label, kept))
    return found


async def read_rescue(clone: Clone, sha: str) -> RescuedCommits | None:
    """Return what a rescue's commit holds beside its tree; None if there is no such commit. Raises GitError."""
    if not refs.is_commit(sha) or await clone.commit_at(sha) is None:
        return None
    shown = os.fsdecode((await clone.run("show", "--no-patch", "--format=%P%x00%B", sha)).stdout)
    parents, _, message = shown.partition("\0")
    told = read(message, parents.split())
    return told[1] if told else RescuedCommits(head=sha)


async def rescued_tip(lock: CloneLock, sha: str) -> str | None:
    """Return the commit that was checked out, or the branch's, in the rescue of this commit. Raises GitError."""
    kept = await read_rescue(lock.clone, sha)
    return (kept.head or kept.tip) if kept is not None else None


async def rescue_bytes(clone: Clone, ref: str) -> int:
    """Return the bytes on disk that only this rescue holds. Raises GitError, InvalidNameError."""
    arguments = ("--objects", "--disk-usage", _checked(ref), "--not", f"--exclude={ref}", "--all")
    return int((await clone.run("rev-list", *arguments)).text)


async def drop_rescue(lock: CloneLock, ref: str) -> None:
    """Delete the ref; git's housekeeping deletes the objects. A ref that is gone is no error.

    Raises GitError, InvalidNameError.
    """
    await lock.clone.run("update-ref", "-d", _checked(ref))


def _checked(ref: str) -> str:
    if place_of(ref) is None:
        raise refs.InvalidNameError(f"not a rescue: {ref!r}")
    return ref
