"""What chaos checks of verbs says to rows and comments that hold, and to those that break a promise."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from bot.simulated.github.model import Pull
from bot.verbs import undo
from tests.chaos.checks import APPROVED_TWICE, DOUBLED, LOST, Evidence, Violation
from tests.chaos.stream import Asked
from tests.chaos.verbs import approvals, commands, reviews, told

BOT = SimpleNamespace(id=1)
ANSWER = "R-1 is done. [request](https://github.test/o/r/issues/1#issuecomment-7)"
READ = "R-1 is read. <!-- threadtree:turn-3 -->"


def _evidence(
    said: list[str], verb: str = "work", *, turns: list[dict[str, Any]] | None = None, left: list[str] | None = None
) -> Evidence:
    """One thread with one request, comment 7, and what the bot said and left as reviews there."""
    thread = Mock(spec=Pull, reviews=[SimpleNamespace(author=BOT, body=body) for body in left or []])
    asked = Asked("R-1", cast("Any", SimpleNamespace(id=7, thread=thread)), verb)
    stream = SimpleNamespace(
        here=SimpleNamespace(github=SimpleNamespace(bot=BOT)),
        threads=[thread],
        requests=[asked] if verb == "work" else [],
        commands=[] if verb == "work" else [asked],
    )
    turns = [{"source_id": 7, "state": "done", "approves": None}] if turns is None else turns
    thread.comments_by.return_value = [SimpleNamespace(body=body) for body in said]
    return Evidence(cast("Any", stream), cast("Any", turns), cast("Any", turns), [], [], {})


def _kinds(found: Any) -> list[str]:
    return [cast("Violation", one).kind for one in found]


@pytest.mark.parametrize(("said", "kinds"), [([ANSWER], []), ([], [LOST]), ([ANSWER] * 2, [DOUBLED])])
def test_what_is_done_is_in_one_answer(said: list[str], kinds: list[str]) -> None:
    assert _kinds(told(_evidence(said))) == kinds


@pytest.mark.parametrize(("times", "kinds"), [(1, []), (2, [APPROVED_TWICE])])
def test_a_plan_is_carried_out_once(times: int, kinds: list[str]) -> None:
    done = {"source_id": 7, "state": "done", "approves": 2}
    failed = {**done, "state": "failed"}
    assert _kinds(approvals(_evidence([], turns=[failed, *[done] * times]))) == kinds


@pytest.mark.parametrize(("left", "kinds"), [([READ], []), ([], [LOST]), ([READ] * 2, [DOUBLED, DOUBLED])])
def test_a_review_is_left_once(left: list[str], kinds: list[str]) -> None:
    assert _kinds(reviews(_evidence([], "review", left=left))) == kinds


@pytest.mark.parametrize(("said", "kinds"), [([ANSWER], []), ([], [LOST]), ([ANSWER] * 2, [DOUBLED])])
def test_a_command_with_a_turn_has_one_answer(said: list[str], kinds: list[str]) -> None:
    assert _kinds(commands(_evidence(said, "undo"))) == kinds


@pytest.mark.parametrize(("said", "kinds"), [([undo.NOTHING], []), ([], [LOST]), ([undo.NOTHING] * 2, [DOUBLED])])
def test_a_command_without_a_turn_is_answered_at_once(said: list[str], kinds: list[str]) -> None:
    assert _kinds(commands(_evidence(said, "undo", turns=[]))) == kinds
