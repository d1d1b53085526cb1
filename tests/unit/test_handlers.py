"""The chat commands that there are."""

from bot.verbs.registry import HANDLERS


def test_help_lists_the_commands_in_this_order() -> None:
    assert list(HANDLERS) == [
        *("help", "status", "stop", "retry", "plan", "approve", "review", "undo", "update", "pr", "agent", "model"),
        *("autofix", "reset-context", "reset", "worktree"),
    ]


def test_only_these_may_start_a_turn() -> None:
    assert [name for name, handler in HANDLERS.items() if handler.queues_turn] == ["retry", "approve", "undo", "update"]
