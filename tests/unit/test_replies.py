"""What people read."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.ask import Ask, UnfinishedTurn
from bot.model import Actor, Repository, Target
from bot.thread import notices, reasons, replies, tracking, worktree_replies
from bot.thread.formatting import inline_code, inline_text
from bot.thread.replies import Overview
from bot.thread.tracking import PlanEntry, TurnResult
from bot.verbs import VERBS
from tests.support.rendered import html

SERVER, NOON = "https://github.example", datetime(2026, 5, 1, 12, tzinfo=UTC)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def test_a_long_answer_fills_several_comments_and_only_the_last_has_the_facts() -> None:
    answer = "a" * 400 + "\n\n" + "b" * 400
    parts = tracking.final(TurnResult("failed", reason="No.", answer=answer, duration=timedelta(seconds=1)), limit=430)
    assert [len(part) <= 430 for part in parts] == [True] * len(parts)
    assert parts[-1].startswith("---\n\n**Failed:** No.")
    assert parts[-1].endswith("<sub>1 s</sub>")


@given(st.lists(st.text(max_size=400), max_size=90))
def test_no_comment_is_too_long_however_much_the_agent_did(texts: list[str]) -> None:
    outcome = TurnResult("done", steps=tuple(texts), changes="x" * 20_000, notices=("n",) * 5)
    plan = [PlanEntry(text, "in_progress") for text in texts]
    for part in [*tracking.final(outcome), tracking.running(plan, texts, timedelta(0))]:
        assert len(part) <= 65_536


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("stopp", "/stop"),
        ("statsu", "/status"),
        ("reset-contxt", "/reset-context"),
        ("reset context", "/reset-context"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(written: str, meant: str) -> None:
    assert f"Did you mean `{meant}`?" in replies.unknown_command(written, VERBS.commands)


def test_a_long_queue_is_cut() -> None:
    turns = [
        UnfinishedTurn(n, "queued", Ask("do it", Actor("ada", 7), NOON, Target("issue")), 1, None, None)
        for n in range(1, 14)
    ]
    words = replies.status(Overview(), turns, SERVER, Repository("github.example", 1, "o", "r"), 1, NOON)
    assert "\n10. [ada's request]" in words
    assert "\n\nAnd 3 more.\n\n" in words


@given(names)
def test_a_name_can_hold_no_markup(name: str) -> None:
    for shown in (html(f"x {inline_text(name)} x"), html(f"x {inline_code(name)} x")):
        inside = shown.replace("<p>", "").replace("</p>", "").replace("<code>", "").replace("</code>", "")
        assert "<" not in inside
        assert "\n" not in shown.strip()


def test_a_branch_named_like_markup_stays_a_name() -> None:
    assert notices.diverged("`@octocat](x)").startswith("`` `@octocat](x) ``")
    assert reasons.agent_not_started("@octocat <b>", "Install it.") == (
        "The agent could not start. `@octocat <b>`. Install it."
    )


@pytest.mark.parametrize("verb", [kind.name for kind in VERBS.kinds.values() if kind.carry_out])
def test_every_verb_without_an_agent_has_words_for_its_failure(verb: str) -> None:
    assert worktree_replies.not_done(verb, "it broke").endswith(": it broke. Nothing was lost. Try again later.")
