"""Which worktree a conversation gets that has none of its own (DESIGN.md §4, the worktree of a conversation)."""

from dataclasses import replace

from bot.decide.placing import Make, PullPlace, Share, place
from bot.model import LiveWorktree

SHA = "a" * 40
PULL = PullPlace(number=9, head_ref="threadtree/issue-1", head_sha=SHA, same_repository=True, head_is_protected=False)
OF_ISSUE_1 = LiveWorktree(1, "here", "/worktrees/octo/hello/issue-1", "threadtree/issue-1", 1)
OF_ISSUE_2 = LiveWorktree(2, "here", "/worktrees/octo/hello/issue-2", "threadtree/issue-2", 2)
OF_PULL_8 = LiveWorktree(3, "there", "/worktrees/octo/hello/pr-8", "feature")


def test_an_issue_gets_a_new_worktree_on_a_branch_of_its_own() -> None:
    assert place(1, None, [], None) == Make("issue-1", ("issue", 1, None, None))


def test_a_pull_request_that_closes_an_issue_shares_its_worktree() -> None:
    assert place(9, PULL, [(1, OF_ISSUE_1)], None) == Share(OF_ISSUE_1, 1)


def test_of_several_closed_issues_the_one_with_the_head_branch_is_shared() -> None:
    assert place(9, PULL, [(2, OF_ISSUE_2), (1, OF_ISSUE_1)], None) == Share(OF_ISSUE_1, 1)


def test_an_issue_that_continues_in_another_issues_worktree_still_shares_it() -> None:
    assert place(9, PULL, [(5, OF_ISSUE_1)], None) == Share(OF_ISSUE_1, 5)


def test_a_reserved_worktree_is_shared_by_the_branch_it_will_have() -> None:
    reserved = replace(OF_ISSUE_1, branch=None)

    assert place(9, PULL, [(1, reserved)], None) == Share(reserved, 1)


def test_a_closed_issue_on_another_branch_is_not_shared() -> None:
    pull = replace(PULL, head_ref="feature")

    assert place(9, pull, [(1, OF_ISSUE_1)], None) == Make("pr-9", ("head", 9, "feature", SHA))


def test_a_worktree_on_the_head_branch_is_shared_without_a_closing_reference() -> None:
    assert place(9, PULL, [], OF_ISSUE_1) == Share(OF_ISSUE_1, 1)
    assert place(9, replace(PULL, head_ref="feature"), [], OF_PULL_8) == Share(OF_PULL_8, None)


def test_the_closed_issue_comes_before_the_branch() -> None:
    assert place(9, PULL, [(1, OF_ISSUE_1)], OF_PULL_8) == Share(OF_ISSUE_1, 1)


def test_otherwise_a_pull_request_gets_its_head_branch() -> None:
    assert place(9, PULL, [], None) == Make("pr-9", ("head", 9, "threadtree/issue-1", SHA))


def test_a_fork_gets_a_detached_worktree_at_the_head_that_was_seen() -> None:
    fork = replace(PULL, same_repository=False)

    assert place(9, fork, [], None) == Make("pr-9", ("detached", 9, "refs/pull/9/head", SHA), SHA)


def test_a_fork_never_shares_a_worktree_however_its_branch_is_called() -> None:
    fork = replace(PULL, same_repository=False)

    assert isinstance(place(9, fork, [(1, OF_ISSUE_1)], OF_ISSUE_1), Make)


def test_a_pull_request_from_a_protected_branch_is_detached_and_never_shares() -> None:
    protected = replace(PULL, head_is_protected=True)

    made = place(9, protected, [(1, OF_ISSUE_1)], OF_ISSUE_1)

    assert made == Make("pr-9", ("detached", 9, "refs/pull/9/head", SHA), None)
