"""What came of a turn, as a value: from how it ended, and from the words of its answer."""

import orjson
import pytest

from bot.thread.checks import Base, Ran, result
from bot.thread.outcome import NO_CHANGE, Check, ComesTo, Nothing, came_of
from bot.thread.questions import TO_ANSWER, ends_with_question

HELD = Nothing("GitHub refused the push to `x`.")
CHANGES = object()


@pytest.mark.parametrize(
    ("comes_to", "answer", "changes", "nothing", "claims", "came", "asked"),
    [
        ("changes", "Done.", CHANGES, None, True, "changed", False),
        ("changes", "Done. Shall I do the rest?", CHANGES, None, True, "changed", True),
        ("changes", "Done.", "a patch", None, True, "patch", False),
        ("changes", "Done.", "a patch", HELD, True, "withheld", False),
        ("changes", "Done.", None, HELD, True, "withheld", False),
        ("changes", "Done.", None, NO_CHANGE, True, "nothing-changed", False),
        ("changes", "It is 42.", None, NO_CHANGE, False, "answered", False),
        ("changes", "Which one?\n\n- red\n- blue", None, NO_CHANGE, False, "question", True),
        ("plan", "1. Do it.\n\nShall I?", None, None, False, "plan", False),
        ("plan", f"**Which?**\n\n{TO_ANSWER}", None, None, False, "question", True),
        ("review", "Why is this here?", None, None, False, "review", False),
        ("done", "Removed.", None, None, True, "done", False),
    ],
)
def test_what_came_of_a_turn_is_one_value(
    comes_to: ComesTo, answer: str, changes: object, nothing: Nothing | None, claims: bool, came: str, asked: bool
) -> None:
    found = came_of(comes_to, answer, changes, nothing, None, is_done=True, claims=claims)
    assert (found.came, found.asked) == (came, asked)
    # Why nothing was pushed is plain text.
    assert found.nothing == (None if nothing is None else nothing.why.replace("`", ""))


def test_a_turn_that_is_not_done_keeps_its_check_and_its_state_says_the_rest() -> None:
    found = came_of("changes", "Which?", None, None, Check("failed", 3, 1), is_done=False, claims=True)
    assert orjson.loads(found.to_json()) == {
        "asked": False,
        "check": {"state": "failed", "tests": 3, "failed": 1, "new": 0, "skipped": 0, "seconds": 0},
    }


@pytest.mark.parametrize(
    ("ran", "base", "state"),
    [
        (Ran(None, {"a"}), None, "passed"),
        (Ran("ended with 1", {"a"}, {"b"}), None, "failed"),
        (Ran("ended with 1", {"a"}, {"b"}), Base("main", Ran(None, {"a"})), "failed"),
        (Ran("ended with 1", {"a"}, {"b"}), Base("main", Ran("ended with 1", {"a"}, {"b"})), "failed-on-base-too"),
        (Ran("ended with 1", {"a"}, {"b"}), Base("main", Ran("ended with 1", {"b"}, {"a"})), "failed"),
        # An earlier commit of the base tells nothing of that.
        (Ran("ended with 1"), Base("main", Ran("ended with 1"), now=False), "failed"),
    ],
)
def test_a_check_fails_on_the_base_too_where_nothing_failed_that_passes_there(
    ran: Ran, base: Base | None, state: str
) -> None:
    assert result(ran, 1.5, base).state == state


@pytest.mark.parametrize(
    "answer",
    [
        "Which one?",
        "I looked.\n\n**Shall I go on?**",
        "Which one do you want?\n\n1. the red\n2. the blue\n   with dots",
        "本当に？",
        "Do you want it (really?)",
    ],
)
def test_an_answer_that_ends_with_a_question_asks(answer: str) -> None:
    assert ends_with_question(answer)


@pytest.mark.parametrize(
    "answer",
    ["", "Done.", "Why? Because.", "> Why?", "```\nx ? y : z?\n```", "I did:\n\n- one\n- two", "Why?\n\nIt broke."],
)
def test_any_other_answer_asks_nothing(answer: str) -> None:
    assert not ends_with_question(answer)
