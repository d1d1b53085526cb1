"""What the checks of a head that the bot pushed ask for."""

from datetime import UTC, datetime

import pytest

from bot.ask import Ask
from bot.github.thread import Checks
from bot.model import Actor, Repository, Target, ThreadRef
from bot.verbs.fix.ci import Failing, Passing, judge
from bot.verbs.fix.rows import OwnHead

THREAD = ThreadRef(Repository("github.example", 1, "acme", "shop"), 5)
RED = Checks(failed=frozenset({"tests", "lint"}), green=True)
UNKNOWN = Checks(failed=RED.failed)
GREEN = Checks(green=True)


def pushed(attempts: int) -> OwnHead:
    """A head that the bot pushed after so many attempts to mend the ones before."""
    ask = Ask("do it", Actor("maria", 3), datetime(2026, 5, 1, tzinfo=UTC), Target("comment", 9))
    branch, is_fix = "threadtree/issue-7", attempts > 0
    return OwnHead(THREAD, 7, "issue", "Empty carts", "acme/shop", None, 28, branch, ask, is_fix, attempts)


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
        (0, RED, set(), Failing(("lint", "tests"), "main", 1)),
        (0, RED, {"lint"}, Failing(("tests",), "main", 1)),
        (1, RED, {"lint"}, Failing(("tests",), "main", 2)),
        (2, RED, set(), Failing(("lint", "tests"), "main", None)),
        (9, RED, set(), Failing(("lint", "tests"), "main", None)),
    ],
)
def test_checks_ask_for_an_attempt_an_end_or_nothing(
    attempts: int, head: Checks, on_base: set[str], asked: object
) -> None:
    found = judge(pushed(attempts), 2, head, frozenset(on_base), "main")
    assert isinstance(found, str) if asked is str else found == asked
