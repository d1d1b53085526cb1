"""The choice of a worktree for a conversation without one (DESIGN.md §4, the worktree of a conversation)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest

from bot.model import DetachedHead, HeadBranch
from bot.sharing_rules import LiveWorktree, Misfit, NodeLoad, SharingRefused, WorktreeUsage, sharing_obstacle
from bot.thread import notices
from bot.turn.choose_worktree import OwnWorktree, PullRequestHead, SharingCandidate, choose_node, choose_worktree

SHA = "a" * 40
PULL = PullRequestHead(head_ref="threadtree/issue-1", head_sha=SHA, same_repository=True, head_is_protected=False)
FEATURE = replace(PULL, head_ref="feature")


def of_issue(number: int, *, closed: int | None = 0, use: WorktreeUsage | None = None) -> SharingCandidate:
    """Return the worktree of an issue that the pull request closes; on its own branch, with no other user."""
    worktree = LiveWorktree(number, "here", number, f"threadtree/issue-{number}", f"worktrees/{number}")
    return SharingCandidate(worktree, use or WorktreeUsage(number, made=True), number if closed == 0 else closed)


FIRST, SECOND = of_issue(1), of_issue(2)
OF_PULL_8 = SharingCandidate(
    LiveWorktree(3, "there", 8, "feature", "worktrees/3"), WorktreeUsage(8, made=True, busy=True)
)
OWN = OwnWorktree("pr-9", HeadBranch("feature", SHA))


def instead_of(reason: SharingRefused) -> OwnWorktree:
    return replace(OWN, instead_of=reason)


BUSY = of_issue(1, use=WorktreeUsage(1, made=True, busy=True))
OF_TWO = of_issue(1, use=WorktreeUsage(1, made=True, other_pulls=(7, 8)))
NOT_MADE = of_issue(1, use=WorktreeUsage(1, made=False))

# (reason, the pull request, worktrees of closed issues, the worktree on the head branch, the choice)
TABLE: list[
    tuple[str, PullRequestHead, Sequence[SharingCandidate], SharingCandidate | None, SharingCandidate | OwnWorktree]
] = [
    # The head branch is the worktree's
    ("on the head branch: shared", PULL, [FIRST], None, FIRST),
    ("however busy it is", PULL, [BUSY], None, BUSY),
    ("and whoever else uses it", PULL, [OF_TWO], None, OF_TWO),
    ("reserved for that branch, or purged", PULL, [NOT_MADE], None, NOT_MADE),
    ("of two the one on the branch", PULL, [SECOND, FIRST], None, FIRST),
    (
        "an issue in another's",
        PULL,
        [of_issue(1, closed=5)],
        None,
        of_issue(1, closed=5),
    ),
    ("a closed issue before others", PULL, [FIRST], OF_PULL_8, FIRST),
    ("without a reference", PULL, [], FIRST, FIRST),
    ("another pull request's", FEATURE, [], OF_PULL_8, OF_PULL_8),
    # The worktree can be switched
    ("switched to the head branch", FEATURE, [FIRST], None, FIRST),
    ("the first of two", FEATURE, [SECOND, FIRST], None, SECOND),
    ("the first that fits", FEATURE, [BUSY, SECOND], None, SECOND),
    ("not while the branch is checked out", FEATURE, [FIRST], OF_PULL_8, OF_PULL_8),
    # The worktree cannot be switched
    ("nothing to share", FEATURE, [], None, OWN),
    ("busy", FEATURE, [BUSY], None, instead_of(SharingRefused(1, "busy"))),
    ("another pull request's too", FEATURE, [OF_TWO], None, instead_of(SharingRefused(1, "other-pull", 7))),
    ("not made", FEATURE, [NOT_MADE], None, instead_of(SharingRefused(1, "not-made"))),
    ("the first reason of two", FEATURE, [OF_TWO, BUSY], None, instead_of(SharingRefused(1, "other-pull", 7))),
]


@pytest.mark.parametrize(
    ("pull", "linked", "on_branch", "expected"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_the_worktree_that_is_chosen(
    pull: PullRequestHead,
    linked: Sequence[SharingCandidate],
    on_branch: SharingCandidate | None,
    expected: SharingCandidate | OwnWorktree,
) -> None:
    assert choose_worktree(9, pull, linked, on_branch) == expected


@pytest.mark.parametrize("pull", [replace(PULL, same_repository=False), replace(PULL, head_is_protected=True)])
@pytest.mark.parametrize(("linked", "on_branch"), [([], None), ([FIRST], None), ([], FIRST), ([FIRST], FIRST)])
def test_a_fork_and_a_protected_head_never_share_and_have_no_branch(
    pull: PullRequestHead, linked: list[SharingCandidate], on_branch: SharingCandidate | None
) -> None:
    why = SharingRefused(1, "fork") if linked and not pull.same_repository else None
    own = OwnWorktree("pr-9", DetachedHead(SHA, "refs/pull/9/head"), why)
    assert choose_worktree(9, pull, linked, on_branch) == own


def test_a_worktree_that_no_other_thread_uses_can_be_shared() -> None:
    assert sharing_obstacle(WorktreeUsage(1, made=True)) is None


@pytest.mark.parametrize("why", [why for literal in get_args(Misfit) for why in get_args(literal) or (literal,)])
def test_every_reason_has_a_sentence(why: Misfit) -> None:
    words = notices.not_shared(SharingRefused(1, why, 7), "a`b")

    assert words.endswith(", so this request worked on files of its own on ``a`b``.")
    assert words.startswith(("The files of #1 ", "``a`b`` "))


@pytest.mark.parametrize(
    ("live", "chosen"),
    [
        ([], "own"),
        ([("own", 1, 1), ("other", 0, 9)], "other"),
        ([("own", 1, 5), ("other", 1, 4)], "other"),
        ([("a", 1, 4), ("own", 1, 4)], "own"),
        ([("b", 0, 0), ("a", 0, 0)], "a"),
    ],
)
def test_a_new_worktree_is_on_the_least_loaded_live_node(live: list[tuple[str, int, int]], chosen: str) -> None:
    assert choose_node("own", [NodeLoad(node, node, turns, worktrees) for node, turns, worktrees in live]) == chosen
