"""What the checks of a head that the bot pushed ask for."""

from datetime import UTC, datetime
from typing import Literal

import pytest

from bot.ask import Ask
from bot.github.thread import Checks
from bot.model import Actor, Repository, Target, ThreadRef
from bot.verbs.fix.ci import MOST_A_DAY, Failing, Passing, Push, judge
from bot.verbs.fix.rows import OwnHead

THREAD = ThreadRef(Repository("github.example", 1, "acme", "shop"), 5)
RED = Checks(failed=frozenset({"tests", "lint"}), green=True)
UNKNOWN = Checks(failed=RED.failed)
GREEN = Checks(green=True)


def pushed(attempts: int, of_day: int = 0) -> OwnHead:
    """A head that the bot pushed after so many attempts to mend the ones before: the heads "0", "1", and so on."""
    ask = Ask("do it", Actor("maria", 3), datetime(2026, 5, 1, tzinfo=UTC), Target("comment", 9))
    branch, is_fix = "threadtree/issue-7", attempts > 0
    heads = tuple(map(str, range(attempts)))
    return OwnHead(THREAD, 7, "issue", "Empty carts", "acme/shop", None, 28, branch, ask, is_fix, heads, False, of_day)


@pytest.mark.parametrize(
    ("attempts", "head", "on_base", "asked"),
    [
        (0, Checks(running=True), set(), str),
        (0, Checks(), set(), str),
        (0, GREEN, set(), str),
        (1, Checks(), set(), str),
        (1, GREEN, set(), Passing(on_base_too=False)),
        (0, RED, {"tests", "lint"}, str),
        (1, RED, {"tests", "lint", "other"}, Passing(on_base_too=True)),
        (1, UNKNOWN, {"tests", "lint"}, str),
        (0, RED, set(), Failing(("lint", "tests"), "main", 0)),
        (0, RED, {"lint"}, Failing(("tests",), "main", 0)),
        (1, RED, {"lint"}, Failing(("tests",), "main", 1)),
        (2, RED, set(), Failing(("lint", "tests"), "main", 2, "attempts")),
        (9, RED, set(), Failing(("lint", "tests"), "main", 9, "attempts")),
    ],
)
def test_checks_ask_for_an_attempt_an_end_or_nothing(
    attempts: int, head: Checks, on_base: set[str], asked: object
) -> None:
    found = judge(pushed(attempts), 2, head, frozenset(on_base), "main")
    assert isinstance(found, str) if asked is str else found == asked


@pytest.mark.parametrize(
    ("pushes", "of_day", "attempts", "enough"),
    [
        ("3 2 1 0", 0, 3, "attempts"),
        ("3 formatter 2 formatter 1 0 maria", 0, 3, "attempts"),
        ("3 2 1 maria 0", 0, 2, "attempts"),
        ("3 2 maria 1 maria 0", 0, 1, None),
        ("3 2 maria 1 0", MOST_A_DAY - 1, 1, None),
        ("3 maria 2 1 0", MOST_A_DAY, 0, "day"),
    ],
)
def test_attempts_count_since_a_person_pushed_and_within_a_day(
    pushes: str, of_day: int, attempts: int, enough: Literal["attempts", "day"] | None
) -> None:
    newest_first = [Push(one, one == "maria") for one in pushes.split()]
    found = judge(pushed(3, of_day), 2, RED, frozenset({"lint"}), "main", newest_first)
    assert found == Failing(("tests",), "main", attempts, enough)
