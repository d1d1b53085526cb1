"""What is done about every combination of row, directory, git's entry and metadata."""

from datetime import UTC, datetime
from itertools import product
from typing import get_args

from bot.care.reconcile_rules import Action, EntryState, Place, decide, started_from
from bot.care.retention_rules import MetadataState
from bot.model import DetachedHead, HeadBranch, IssueBranch
from bot.tree.clone.metadata import Metadata

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ENTRIES: tuple[EntryState, ...] = get_args(EntryState)
METADATA: tuple[MetadataState, ...] = get_args(MetadataState)
ALL = [
    Place(row, directory, entry, metadata, busy)
    for row, directory, entry, metadata, busy in product((True, False), (True, False), ENTRIES, METADATA, (True, False))
]
A = Action


def place(*, row: bool, directory: bool, entry: bool, metadata: MetadataState = "ok") -> Place:
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


def test_each_of_the_eight_combinations_has_its_repair() -> None:
    for row, directory, entry, actions in EIGHT:
        assert decide(place(row=row, directory=directory, entry=entry)) == actions


def test_unusual_combinations_have_their_repair() -> None:
    for case, actions in [
        # A worktree in use.
        (Place(True, True, "locked", "missing"), (A.REBUILD_METADATA,)),
        (Place(True, True, "locked", "corrupt"), (A.REBUILD_METADATA,)),
        (Place(True, True, "unlocked", "ok"), (A.LOCK,)),
        (Place(True, True, "unlocked", "corrupt"), (A.LOCK, A.REBUILD_METADATA)),
        (Place(True, True, "unknown", "missing"), (A.REBUILD_METADATA,)),
        (Place(True, False, "unknown", "ok"), ()),
        # One whose row is gone.
        (Place(False, True, "locked", "missing"), (A.ADOPT,)),
        (Place(False, True, "locked", "corrupt"), (A.ADOPT,)),
        (Place(False, True, "unknown", "ok"), (A.ADOPT,)),
        (Place(False, False, "locked", "missing"), (A.DROP_ENTRY,)),
        (Place(False, False, "absent", "corrupt"), (A.DELETE_METADATA,)),
        (Place(False, False, "unknown", "ok"), ()),
        (Place(False, False, "absent", "missing"), ()),
    ]:
        assert decide(case) == actions


def test_the_rules_that_hold_for_all() -> None:
    for case in ALL:
        actions = decide(case)
        assert all(isinstance(action, Action) for action in actions), case
        if case.busy and case.row:
            assert actions == ()
        if case.directory:
            # A directory that may have work is never given up: it stays, is kept whole, or is recorded as an orphan.
            assert A.DROP_ENTRY not in actions
            assert A.DELETE_METADATA not in actions
        if case.entry == "unknown":
            # Without its clone nothing is known to be wrong with a worktree.
            assert not set(actions) & {A.KEEP_WHOLE, A.DROP_ENTRY, A.DELETE_METADATA, A.LOCK}
        if case.row:
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


def test_metadata_tells_what_the_checkout_of_an_orphan_started_from() -> None:
    for metadata, start in [
        (known("threadtree/issue-4", 4, 9), IssueBranch(4)),
        (known("threadtree/issue-4-2", 4), IssueBranch(4)),
        (known("bot-issue-4", 4), IssueBranch(4, "bot-")),
        (known("threadtree/issue-4-2"), HeadBranch("threadtree/issue-4-2")),
        (known("feature", 9), HeadBranch("feature")),
        (known(None, 9), DetachedHead("a" * 40, "refs/pull/9/head")),
        (known(None), None),
    ]:
        assert started_from(metadata, "a" * 40) == start


def test_a_detached_orphan_with_an_unknown_head_tells_nothing() -> None:
    assert started_from(known(None, 9), None) is None
