"""The chat commands that there are."""

from bot.verbs import VERBS


def test_only_these_may_start_a_turn() -> None:
    assert [name for name, handler in VERBS.commands.items() if handler.queues_turn] == [
        "retry",
        "approve",
        "undo",
        "update",
    ]
