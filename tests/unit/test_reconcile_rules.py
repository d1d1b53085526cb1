"""What is done about every combination of row, directory, git's entry and metadata."""

from datetime import UTC, datetime
from itertools import product
from typing import get_args

import pytest

from bot.clones.metadata import Metadata
from bot.maintenance.reconcile_rules import Action, EntryState, MetadataState, Place, decide, started_from
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start, WorktreeState

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ROWS: tuple[WorktreeState | None, ...] = (None, "reserved", "ready")
ENTRIES: tuple[EntryState, ...] = get_args(EntryState)
METADATA: tuple[MetadataState, ...] = get_args(MetadataState)
ALL = [
    Place(row, directory, entry, metadata, busy)
    for row, directory, entry, metadata, busy in product(ROWS, (True, False), ENTRIES, METADATA, (True, False))
]
A = Action


def place(*, row: WorktreeState | None, directory: bool, entry: bool, metadata: MetadataState = "ok") -> Place:
    return Place(row, directory, "locked" if entry else "absent", metadata)


# The eight combinations of (row, directory, entry), for a row that is ready and metadata that is there.
EIGHT: list[tuple[bool, bool, bool, tuple[Action, ...]]] = [
    (True, True, True, ()),
    (True, True, False, (A.KEEP_WHOLE,)),
    (True, False, True, ()),
    (True, False, False, ()),
    (False, True, True, (A.ADOPT,)),
    (False, True, False, (A.ADOPT,)),
    (False, False, True, (A.DROP_ENTRY, A.DELETE_METADATA)),
    (False, False, False, (A.DELETE_METADATA,)),
]


@pytest.mark.parametrize(("row", "directory", "entry", "actions"), EIGHT)
def test_the_eight_combinations(*, row: bool, directory: bool, entry: bool, actions: tuple[Action, ...]) -> None:
    assert decide(place(row="ready" if row else None, directory=directory, entry=entry)) == actions


@pytest.mark.parametrize(
    ("case", "actions"),
    [
        # A worktree in use.
        (Place("ready", True, "locked", "missing"), (A.REBUILD_METADATA,)),
        (Place("ready", True, "locked", "corrupt"), (A.REBUILD_METADATA,)),
        (Place("ready", True, "unlocked", "ok"), (A.LOCK,)),
        (Place("ready", True, "unlocked", "corrupt"), (A.LOCK, A.REBUILD_METADATA)),
        (Place("ready", True, "unfinished", "ok"), ()),
        (Place("ready", True, "unknown", "missing"), (A.REBUILD_METADATA,)),
        (Place("ready", False, "unknown", "ok"), ()),
        # One that was asked for and not made.
        (Place("reserved", False, "absent", "missing"), ()),
        (Place("reserved", False, "absent", "ok"), ()),
        (Place("reserved", True, "unfinished", "missing"), ()),
        (Place("reserved", True, "locked", "ok"), ()),
        (Place("reserved", False, "locked", "missing"), ()),
        (Place("reserved", True, "absent", "missing"), (A.KEEP_WHOLE,)),
        # One whose row is gone.
        (Place(None, True, "locked", "missing"), (A.ADOPT,)),
        (Place(None, True, "locked", "corrupt"), (A.ADOPT,)),
        (Place(None, True, "unfinished", "ok"), (A.ADOPT,)),
        (Place(None, True, "unknown", "ok"), (A.ADOPT,)),
        (Place(None, False, "locked", "missing"), (A.DROP_ENTRY,)),
        (Place(None, False, "absent", "corrupt"), (A.DELETE_METADATA,)),
        (Place(None, False, "unknown", "ok"), ()),
        (Place(None, False, "absent", "missing"), ()),
    ],
)
def test_the_odd_ones(case: Place, actions: tuple[Action, ...]) -> None:
    assert decide(case) == actions


def test_no_combination_falls_through() -> None:
    assert len(ALL) == 3 * 2 * 5 * 3 * 2
    for case in ALL:
        assert all(isinstance(action, Action) for action in decide(case)), case


@pytest.mark.parametrize("case", ALL)
def test_the_rules_that_hold_for_all(case: Place) -> None:
    actions = decide(case)
    if case.busy and case.row is not None:
        assert actions == ()
    if case.directory:
        # Nothing that may hold work is ever given up: it stays, is kept whole, or is known as a stranger.
        assert A.DROP_ENTRY not in actions
        assert A.DELETE_METADATA not in actions
    if case.entry == "unknown":
        # Without its clone nothing is known to be wrong with a worktree.
        assert not set(actions) & {A.KEEP_WHOLE, A.DROP_ENTRY, A.DELETE_METADATA, A.LOCK}
    if case.row is not None:
        assert not set(actions) & {A.ADOPT, A.DROP_ENTRY, A.DELETE_METADATA}


def known(branch: str | None, *conversations: int) -> Metadata:
    return Metadata(
        id="7",
        platform="github.com",
        repository_id=1,
        full_name="octo/hello",
        conversations=conversations,
        branch=branch,
        base="main",
        node="here",
        created_at=NOON,
        updated_at=NOON,
    )


@pytest.mark.parametrize(
    ("metadata", "start"),
    [
        (known("threadtree/issue-4", 4, 9), IssueBranch(4)),
        (known("threadtree/issue-4-2", 4), IssueBranch(4)),
        (known("threadtree/issue-4-2"), HeadBranch("threadtree/issue-4-2")),
        (known("feature", 9), HeadBranch("feature")),
        (known(None, 9), DetachedHead("a" * 40, "refs/pull/9/head")),
        (known(None), None),
    ],
)
def test_metadata_tells_what_the_checkout_of_an_orphan_started_from(metadata: Metadata, start: Start | None) -> None:
    assert started_from(metadata, "a" * 40) == start


def test_a_detached_orphan_with_an_unknown_head_tells_nothing() -> None:
    assert started_from(known(None, 9), None) is None
