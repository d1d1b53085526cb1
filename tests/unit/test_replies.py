"""What people read."""

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.ask import Ask, UnfinishedTurn
from bot.model import Actor, Overview, Repository, Target
from bot.thread import notices, reasons, replies, tracking, worktree_replies
from bot.thread.formatting import inline_code, inline_text
from bot.thread.tracking import Changes, PlanEntry, TurnResult
from bot.thread.worktree_replies import WorktreeVerb
from bot.verbs.registry import HANDLERS
from tests.support.rendered import html

SERVER, NOON = "https://github.example", datetime(2026, 5, 1, 12, tzinfo=UTC)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def test_an_answer_stands_first_and_as_it_is() -> None:
    (body,) = tracking.final(
        TurnResult("done", answer="It was a *typo*.", duration=timedelta(seconds=125), cost_usd=0.126)
    )
    assert body == "It was a *typo*.\n\n<sub>2 min 5 s · $0.13</sub>"


def test_an_answer_says_what_changed_and_folds_the_rest_away() -> None:
    page = "https://github.example/o/r"
    changes = Changes("threadtree/issue-1", f"{page}/tree/threadtree/issue-1", f"{page}/compare/a...b", 2, 10, 3)
    (body,) = tracking.final(
        TurnResult("done", answer="Fixed.", changes=changes, notices=(notices.CONTEXT_LOST,), steps=("Run `make`",))
    )
    assert body == (
        "Fixed.\n\n---\n\n"
        f"**Changed** [`threadtree/issue-1`]({page}/tree/threadtree/issue-1) · [diff]({page}/compare/a...b) · "
        "2 files +10 −3\n\n"
        "> [!NOTE]\n> The agent could not resume its earlier conversation and started without that context.\n\n"
        "<details>\n<summary>1 step of the agent</summary>\n\n- `` Run `make` ``\n\n</details>"
    )


@pytest.mark.parametrize("state", ["failed", "stopped", "timed-out", "interrupted"])
def test_a_turn_that_did_not_end_well_says_why_and_what_to_do(state: tracking.EndState) -> None:
    (body,) = tracking.final(TurnResult(state, reason="The agent exited with 1."))
    assert "The agent exited with 1." in body
    assert "`/retry`" in body


def test_a_refusal_names_the_limit_and_starts_nothing() -> None:
    (body,) = tracking.final(TurnResult("refused", reason=reasons.over_daily_limit(50)))
    assert body.startswith("**Not started:** You have used your 50 requests")


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


def test_progress_shows_the_plan_as_a_checklist() -> None:
    plan = [PlanEntry("Read", "completed"), PlanEntry("Edit", "in_progress"), PlanEntry("Test", "pending")]
    assert tracking.running(plan, ["ls"], timedelta(minutes=1)) == (
        "Working on it, for 1 min 0 s so far.\n\n- [x] Read\n- [ ] **Edit**\n- [ ] Test\n\nLast step: `ls`"
    )


def test_the_place_in_line_is_told() -> None:
    assert [tracking.queued(ahead) for ahead in (0, 1, 2)] == [
        "Queued. This starts in a moment.",
        "Queued. One request is ahead of this one.",
        "Queued. 2 requests are ahead of this one.",
    ]
    assert tracking.queued(1, "GitHub does not answer.") == (
        "Queued. One request is ahead of this one. The first one waits. GitHub does not answer."
    )


def test_the_reset_sentences_are_the_promised_ones() -> None:
    assert replies.CONTEXT_RESET == (
        "AI context reset. Your next message will start a fresh conversation while keeping your current "
        "working directory."
    )
    assert replies.NO_SESSION_TO_RESET == "No active session to reset."


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
    assert f"Did you mean `{meant}`?" in replies.unknown_command(written, HANDLERS)


def test_a_command_like_no_other_is_answered_with_where_the_list_is() -> None:
    assert "`/help`" in replies.unknown_command("xyzzy", HANDLERS)


def test_help_shows_the_summary_of_each_command() -> None:
    words = replies.help_text("tree-bot", [("one", "does this"), ("two", "does that")])

    assert "`@tree-bot`" in words
    assert words.endswith("\n\n- `/one` does this\n- `/two` does that")


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


@pytest.mark.parametrize("verb", get_args(WorktreeVerb))
def test_every_operation_has_words_for_its_failure(verb: WorktreeVerb) -> None:
    assert worktree_replies.not_done(verb, "it broke").endswith(": it broke. Nothing was lost. Try again later.")
