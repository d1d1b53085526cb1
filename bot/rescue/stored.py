"""The rescues of a clone, read from its refs. The table `rescues` is their index."""

import os
from dataclasses import dataclass

from bot.clones.clone import Clone, CloneLock
from bot.git import refs
from bot.rescue import message as rescue_message
from bot.rescue.message import RescuedCommits, RescueLabel

# Nothing in a message can be a NUL.
_FORMAT = "%(refname)%00%(objectname)%00%(parent)%00%(contents)%00"


@dataclass(frozen=True, slots=True)
class KnownRescue:
    """A rescue and its ref. Where the directory was gone and only commits were rescued, it has only a head."""

    ref: str
    sha: str
    label: RescueLabel
    kept: RescuedCommits


async def list_rescues(clone: Clone) -> list[KnownRescue]:
    """Return all rescues in a clone, by worktree and time. Raises GitError."""
    listed = await clone.run("for-each-ref", f"--format={_FORMAT}", refs.RESCUE_PREFIX)
    fields = os.fsdecode(listed.stdout).split("\0")
    found: list[KnownRescue] = []
    for ref, sha, parents, message in zip(*(fields[start::4] for start in range(4)), strict=False):
        place = rescue_message.place_of(ref.strip())
        if place is None or not place[0].isdecimal():
            continue
        told = rescue_message.read(message, parents.split())
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
    told = rescue_message.read(message, parents.split())
    return told[1] if told else RescuedCommits(head=sha)


async def rescue_bytes(clone: Clone, ref: str) -> int:
    """Return the bytes on disk that only this rescue holds. Raises GitError, InvalidNameError."""
    arguments = ("--objects", "--disk-usage", _checked(ref), "--not", f"--exclude={ref}", *refs.ALL_BUT_HELD)
    return int((await clone.run("rev-list", *arguments)).text)


async def drop_rescue(lock: CloneLock, ref: str) -> None:
    """Delete the ref; git's housekeeping deletes the objects. A ref that is gone is no error.

    Raises GitError, InvalidNameError.
    """
    await lock.clone.run("update-ref", "-d", _checked(ref))


def _checked(ref: str) -> str:
    if rescue_message.place_of(ref) is None:
        raise refs.InvalidNameError(f"not a rescue: {ref!r}")
    return ref
