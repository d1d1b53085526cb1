"""The chat commands that there are."""

from bot.handlers.registry import HANDLERS


def test_help_lists_the_commands_in_this_order() -> None:
    first, then = ["help", "status", "stop", "retry"], ["pr", "reset-context", "reset", "worktree"]
    assert list(HANDLERS) == [*first, "plan", "approve", "review", *then]


def test_these_commands_may_start_a_turn() -> None:
    assert [name for name, handler in HANDLERS.items() if handler.queues_turn] == ["retry", "approve"]
