"""Names that reach git: never looser than git's own rules."""

import subprocess
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot import refs
from bot.model import IssueBranch

_TROUBLE = st.text(alphabet="a-/.@{}~^: \\*?[\x7flockHEAD\n", max_size=12)


@given(_TROUBLE)
def test_a_branch_name_is_allowed_exactly_when_git_allows_it(name: str) -> None:
    full = f"refs/heads/{name}"
    git_says = not subprocess.run(["git", "check-ref-format", full], check=False, capture_output=True).returncode
    special = name.startswith("-") or name in {"", "HEAD", "@"}
    assert refs.is_branch(name) == (git_says and not special)


@pytest.mark.parametrize("name", ["main", "feature/ü", "threadtree/issue-1", "a@b", "x.y", "refs/heads/x"])
def test_usual_names_are_allowed(name: str) -> None:
    assert refs.remote(name) == f"refs/remotes/origin/{name}"


@pytest.mark.parametrize(
    "name", ["-f", "--upload-pack=x", "a..b", "a b", "x.lock", "a/.b", "", "HEAD", "a\nb", "@{-1}"]
)
def test_names_that_mean_something_else_are_not(name: str) -> None:
    with pytest.raises(refs.InvalidNameError):
        refs.local(name)


@given(
    st.integers(1, 10**9),
    st.integers(1, 1000),
    st.sampled_from(["threadtree/", "bot-", "bot/work/", "x+y.z/a-", ""]),
    st.booleans(),
)
def test_an_issues_branches_are_known_by_their_number(number: int, sequel: int, prefix: str, flat: bool) -> None:
    issue = IssueBranch(number, prefix)
    branch = refs.issue_branch(issue, sequel, flat=flat)
    assert refs.is_branch(branch)
    assert refs.sequel_of(branch, issue) == sequel
    assert refs.sequel_of(branch, IssueBranch(number + 10**10, prefix)) is None
    assert refs.sequel_of(branch, IssueBranch(number, "another/")) is None
    assert (refs.issue_of(branch, number) == issue) == (not flat or "/" not in prefix)


def test_a_prefix_with_folders_is_flat_only_where_it_has_one() -> None:
    deep, plain = IssueBranch(7, "bot/work/"), IssueBranch(7, "bot-")
    assert (refs.folders_of(deep), refs.folders_of(plain)) == (("bot", "bot/work"), ())
    assert refs.issue_branch(deep, 2, flat=True) == "bot-work-issue-7-2"
    assert refs.is_flat("bot-work-issue-7", deep)
    assert not refs.is_flat("bot/work/issue-7", deep)
    assert not refs.is_flat("bot-issue-7", plain), "its name has no folder in any repository"
    assert len(refs.issue_refspecs(plain)) == 2


@pytest.mark.parametrize("name", ["threadtree/issue-1-1", "threadtree/issue-1-turn-2", "threadtree/issue-1-02", "x"])
def test_other_branches_are_not_taken_for_an_issues(name: str) -> None:
    assert refs.sequel_of(name, IssueBranch(1)) is None


def test_a_rescue_is_named_by_worktree_and_time_in_utc() -> None:
    east = datetime(2025, 1, 2, 1, 0, 0, tzinfo=timezone(timedelta(hours=2)))
    assert refs.rescue_ref("w1", east) == "refs/threadtree/rescue/w1/20250101T230000.000000Z"
    with pytest.raises(refs.InvalidNameError):
        refs.rescue_ref("..", datetime(2025, 1, 1, tzinfo=UTC))
