"""`worktrees create`: what the answer says of a branch."""

from hypothesis import given

from bot.verbs import create
from tests.unit.test_whole_comments import hostile, is_inert


@given(hostile)
def test_the_name_of_a_branch_is_inert(branch: str) -> None:
    assert is_inert(create.was_made(branch))
