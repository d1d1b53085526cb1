"""The repair for each combination of row, directory, git's entry and metadata. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bot import refs
from bot.care.retention_rules import MetadataState
from bot.model import DetachedHead, HeadBranch, Start
from bot.tree import Metadata

# "unknown": there is no clone, or git cannot read it.
EntryState = Literal["absent", "unlocked", "locked", "unknown"]


class Action(StrEnum):
    """The repair of a place, in words for a log and a table."""

    LOCK = "locked it"
    REBUILD_METADATA = "rebuilt its metadata"
    KEEP_WHOLE = "kept the directory, which is no worktree of this clone"
    ADOPT = "adopted as an orphan"
    DROP_ENTRY = "rescued its HEAD and dropped git's entry"
    DELETE_METADATA = "deleted the metadata left behind"


@dataclass(frozen=True, slots=True)
class Place:
    """The state of a worktree's path. `row`: a live row exists; `busy`: a turn waits or runs there."""

    row: bool
    directory: bool
    entry: EntryState
    metadata: MetadataState
    busy: bool = False


def decide(place: Place) -> tuple[Action, ...]:
    """Return the actions for a place, in order; none where all agree, or where its next turn makes it again."""
    if not place.row:
        if place.directory:
            return (Action.ADOPT,)
        is_entry = place.entry in ("unlocked", "locked")
        leftover = (Action.DELETE_METADATA,) if place.metadata != "missing" and place.entry != "unknown" else ()
        return (Action.DROP_ENTRY, *leftover) if is_entry else leftover
    if place.busy or not place.directory:
        return ()
    if place.entry == "absent":
        return (Action.KEEP_WHOLE,)
    lock = (Action.LOCK,) if place.entry == "unlocked" else ()
    return lock if place.metadata == "ok" else (*lock, Action.REBUILD_METADATA)


def started_from(known: Metadata, head: str | None) -> Start | None:
    """Return what an orphan's checkout started from, by its metadata and its HEAD; None where they do not tell."""
    number = next(iter(known.conversations), None)
    if known.branch is None:
        return DetachedHead(head, f"refs/pull/{number}/head") if number and head else None
    of_issue = refs.issue_of(known.branch, number) if number is not None else None
    return of_issue or HeadBranch(known.branch)
