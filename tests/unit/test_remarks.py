"""What the agent is told about the state of its worktree."""

from bot.prompt import remarks


def test_remarks_name_what_is_odd_about_the_worktree() -> None:
    assert "3 commit(s)" in remarks.fast_forwarded(3)
    assert "behind" not in remarks.dirty(2, 0)
    assert "4 commit(s) behind" in remarks.dirty(2, 4)
    assert "1 commit(s) that GitHub lacks, and lacks 2" in remarks.diverged(1, 2)
    assert "`mine` is" in remarks.off_branch("mine", "theirs")
    assert "detached HEAD" in remarks.off_branch(None, "theirs")
