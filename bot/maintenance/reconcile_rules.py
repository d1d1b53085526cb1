"""What repairs each combination of row, directory, git's entry and metadata. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, assert_never

from bot.clones.metadata import Metadata
from bot.git import refs
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start, WorktreeState

# "unknown": there is no clone, or git cannot read it.
EntryState = Literal["absent", "unlocked", "locked", "unfinished", "unknown"]
MetadataState = Literal["ok", "missing", "corrupt"]


class Action(StrEnum):
    """What is done about a place, in words for a log and a table."""

    LOCK = "locked it"
    REBUILD_METADATA = "rebuilt its metadata"
    LEAVE = "left for its next turn, which makes it again"
    WAIT = "left alone: it is in use"
    FINISH_REMOVAL = "finished its removal"
    KEEP_WHOLE = "kept the directory, which is no worktree of this clone"
    ADOPT = "adopted as an orphan"
    DROP_ENTRY = "rescued its HEAD and dropped git's entry"
    DELETE_METADATA = "deleted the metadata left behind"


@dataclass(frozen=True, slots=True)
class Place:
    """What is at the path of a worktree. `row` is the live one of this path, else the one its metadata names, if any.

    `busy`: a turn or an operation waits or runs there, or its removal is claimed.
    """

    row: WorktreeState | None
    directory: bool
    entry: EntryState
    metadata: MetadataState
    busy: bool = False


def decide(place: Place) -> tuple[Action, ...]:
    """Return the actions for a place, in order; none where all agree."""
    if place.busy:
        return (Action.WAIT,)
    match place.row:
        case "ready":
            return _ready(place)
        case "reserved":
            return _reserved(place)
        case "removing":
            return (Action.FINISH_REMOVAL,)
        case "lost":
            return ()
        case None | "removed":
            return _without_live_row(place)
        case _:
            assert_never(place.row)


def _ready(place: Place) -> tuple[Action, ...]:
    if not place.directory:
        return (Action.LEAVE,)
    match place.entry:
        case "unknown" | "unfinished":
            return (Action.LEAVE,)
        case "absent":
            return (Action.KEEP_WHOLE,)
        case "locked":
            return _metadata_of_ready(place)
        case "unlocked":
            return (Action.LOCK, *_metadata_of_ready(place))
        case _:
            assert_never(place.entry)


def _metadata_of_ready(place: Place) -> tuple[Action, ...]:
    return () if place.metadata == "ok" else (Action.REBUILD_METADATA,)


def _reserved(place: Place) -> tuple[Action, ...]:
    """Nothing is there yet, or an unfinished checkout: the turn that makes the worktree takes it over."""
    if place.directory and place.entry == "absent":
        return (Action.KEEP_WHOLE,)
    return (Action.LEAVE,) if place.directory or place.entry not in ("absent", "unknown") else ()


def _without_live_row(place: Place) -> tuple[Action, ...]:
    if place.directory:
        return (Action.ADOPT,)
    is_entry = place.entry in ("unlocked", "locked", "unfinished")
    leftover = (Action.DELETE_METADATA,) if place.metadata != "missing" and place.entry != "unknown" else ()
    return (Action.DROP_ENTRY, *leftover) if is_entry else leftover


def started_from(known: Metadata, head: str | None) -> Start | None:
    """Return what an orphan's checkout started from, by its metadata and its HEAD; None where they do not tell."""
    number = next(iter(known.conversations), None)
    if known.branch is None:
        return DetachedHead(head, f"refs/pull/{number}/head") if number and head else None
    if number is not None and refs.sequel_of(known.branch, number) is not None:
        return IssueBranch(number)
    return HeadBranch(known.branch)
