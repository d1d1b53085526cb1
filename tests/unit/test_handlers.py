"""The chat commands that there are."""

from bot.verbs import VERBS


def test_help_lists_the_commands_in_this_order() -> None:
    assert list(VERBS.commands) == [
        *("help", "status", "stop", "retry", "plan", "approve", "review", "undo", "update", "pr", "agent", "model"),
        *("autofix", "reset-context", "reset", "worktree"),
    ]


def test_only_these_may_start_a_turn() -> None:
    assert [name for name, handler in VERBS.commands.items() if handler.queues_turn] == [
        "retry",
        "approve",
        "undo",
        "update",
    ]
