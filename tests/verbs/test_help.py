"""`/help`: all commands."""

from bot.verbs import VERBS


def test_help_lists_the_commands_in_this_order() -> None:
    assert list(VERBS.commands) == [
        *(
            "help",
            "status",
            "stop",
            "start",
            "retry",
            "plan",
            "approve",
            "review",
            "undo",
            "update",
            "pr",
            "agent",
            "model",
        ),
        *("autofix", "reset-context", "reset", "worktree"),
    ]
