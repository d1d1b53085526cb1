"""What the agent is told about the state of its worktree."""

from bot.prompt import remarks
from bot.prompt.foreign import Fence, Told


def told(remark: Told) -> str:
    return Fence("0a1b").told(remark)


def test_remarks_name_what_is_odd_about_the_worktree() -> None:
    assert "3 commit(s)" in told(remarks.fast_forwarded(3))
    assert "behind" not in told(remarks.dirty(2, 0))
    assert "4 commit(s) behind" in told(remarks.dirty(2, 4))
    assert "1 commit(s) that GitHub lacks, and lacks 2" in told(remarks.diverged(1, 2))
    assert '<data-0a1b from="git">mine</data-0a1b> is checked out' in told(remarks.off_branch("mine", "theirs"))
    assert "a detached HEAD is" in told(remarks.off_branch(None, "theirs"))
