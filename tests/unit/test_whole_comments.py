"""Whole comments as people see them: a change of wording shows as a change of a file in `snapshots`."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.handlers.registry import HANDLERS
from bot.messages import notices, pull_requests, reasons, replies, sanitize, tracking, worktree_replies
from bot.messages.tracking import Changes, PlanEntry, PullRequestLink, TurnResult
from bot.messages.worktree_replies import OldWork, Saved, WorktreeLine
from bot.model import Repository, Target
from bot.sharing_rules import SharingRefused
from tests.support.rendered import html

SERVER = "https://github.example"
PLAN = (
    PlanEntry("Reproduce the crash", "completed"),
    PlanEntry("Fix the total of an empty cart", "in_progress"),
    PlanEntry("Run the tests", "pending"),
)
REPOSITORY = Repository("github.example", 1, "acme", "shop")
ASKED = tracking.asked("maria", SERVER, REPOSITORY, 7, Target("comment", 1842), 28)
CHANGES = Changes(
    "threadtree/issue-7",
    f"{SERVER}/acme/shop/tree/threadtree/issue-7",
    f"{SERVER}/acme/shop/compare/1f0c2d4...9b3e5a6",
    3,
    41,
    7,
    PullRequestLink(
        f"{SERVER}/acme/shop/compare/main...threadtree/issue-7?quick_pull=1&title=Empty+cart&body=Closes+%237"
    ),
)
RAN = TurnResult(
    "done",
    answer="The total of an empty cart was `None`. It is `0` now, and `cart_test.py` covers it.",
    changes=CHANGES,
    steps=("Read src/cart.py", "Edit src/cart.py", "pytest -q"),
    asked=ASKED,
    duration=timedelta(minutes=2, seconds=31),
    cost_usd=0.1234,
    tokens=48_211,
    model="claude-opus-4-5",
)
STOPPED_WORK = "I changed `src/cart.py`; the tests have not run yet."

COMMENTS: dict[str, str | TurnResult] = {
    "queued": tracking.queued(2),
    "running": tracking.running(PLAN, ["pytest -q"], timedelta(seconds=48)),
    "fetching": tracking.running(
        [], [], timedelta(seconds=9), tracking.fetching("Receiving objects 43%, 1.2 GiB", first=True)
    ),
    "answer-with-changes": RAN,
    "answer-with-one-notice": TurnResult(
        "done",
        answer="Nothing to change here.",
        notices=(notices.CONTEXT_LOST,),
        asked=ASKED,
        duration=timedelta(seconds=12),
        tokens=48_211,
        model="codex",
    ),
    "answer-with-notices": TurnResult(
        "done",
        answer=RAN.answer,
        changes=CHANGES,
        notices=(
            notices.not_shared(SharingRefused(3, "uncommitted"), "farewell"),
            notices.setup_failed(notices.setup_ended_with(1), "npm ERR! code E404\n\nnpm ERR! not found"),
            notices.files_left_out(["video.mp4", "dump.sql"]),
        ),
        asked=ASKED,
        duration=timedelta(seconds=40),
        model="opencode",
    ),
    "answer-with-a-patch": TurnResult(
        "done",
        answer="Fixed the typo.",
        changes="--- a/README.md\n+++ b/README.md\n@@ -1,3 +1,3 @@\n ```\n-teh\n+the\n ```\n",
        duration=timedelta(seconds=5),
    ),
    "failed": TurnResult(
        "failed",
        reasons.agent_error("rate limit: 429 Too Many Requests"),
        last_words="error: rate limit: 429 Too Many Requests\nretry after 3600 s",
        asked=ASKED,
        duration=timedelta(seconds=8),
    ),
    "not-able-to-start": TurnResult(
        "failed",
        reasons.agent_not_started("The Claude Agent SDK is not installed.", "Install it: pip install '.[claude]'"),
        duration=timedelta(seconds=1),
    ),
    "internal-error": TurnResult("failed", reasons.own_error(28), asked=ASKED, duration=timedelta(seconds=1)),
    "refused": TurnResult("refused", reasons.over_daily_limit(50), asked=ASKED),
    "stopped": TurnResult(
        "stopped",
        reasons.stopped_by("maria"),
        answer=STOPPED_WORK,
        asked=ASKED,
        duration=timedelta(minutes=1, seconds=3),
        model="codex",
    ),
    "timed-out": TurnResult("timed-out", reasons.timed_out("total", 1800), asked=ASKED, duration=timedelta(minutes=30)),
    "interrupted": TurnResult("interrupted", reasons.INTERRUPTED_TWICE, asked=ASKED),
    "answer-elsewhere": tracking.moved("done"),
    "help": replies.help_text("threadtree-bot", [(name, handler.summary) for name, handler in HANDLERS.items()]),
    "status-idle": replies.status(None, None, 0, session_active=False),
    "status-running": replies.status("threadtree/issue-7", timedelta(seconds=75), 1, session_active=True),
    "status-not-posted": replies.status("threadtree/issue-7", None, 0, session_active=True, not_posted=28),
    "status-machine-silent": replies.status(
        "threadtree/issue-7",
        None,
        1,
        session_active=True,
        silent=replies.node_silent_since(
            "mill-2", datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 1, 13, tzinfo=UTC)
        ),
    ),
    "status-removal-fails": replies.status(
        "threadtree/issue-7", None, 1, session_active=True, removal_error="[Errno 5] Input/output error"
    ),
    "pull-request-exists": replace(
        RAN, changes=replace(CHANGES, pull_request=PullRequestLink(f"{SERVER}/acme/shop/pull/12", 12))
    ),
    "answer-with-a-fold": TurnResult(
        "done", answer="Two tests fail.\n<details><summary>Their output</summary>\n\n```\nassert 1 == 2\n", asked=ASKED
    ),
    "nothing-to-retry": replies.NOTHING_TO_RETRY,
    "unknown-command": replies.unknown_command("hlep", HANDLERS),
    "delivery-failed": replies.delivery_failed("72d3162e-cc78-11e3-81ab-4c9367dc0958"),
    "removed": worktree_replies.was_removed(Saved(1, 0), ()),
    "restored": worktree_replies.was_restored(Saved(1, 2), "threadtree/issue-7", []),
    "not-restored": worktree_replies.not_restored("changes", ["src/cart.py"]),
    "not-reset": worktree_replies.not_done("reset", "fatal: unable to access 'https://github.example/': 502"),
    "thread-closed": worktree_replies.thread_was_closed("reset"),
    "switched": worktree_replies.was_switched(4, "threadtree/issue-3", "farewell"),
    "worktree-list": worktree_replies.worktree_list(
        WorktreeLine("threadtree/issue-7", detached=False, made=True, others=(9, 12), idle=timedelta(hours=3)),
        [
            OldWork(Saved(2, 1), timedelta(hours=5), 18_432, restored=False),
            OldWork(Saved(0, 0, whole=True), timedelta(days=2), 1_204_000, restored=True),
        ],
    ),
    "worktree-list-empty": worktree_replies.worktree_list(None, []),
    "worktree-usage": worktree_replies.USAGE,
    "pull-request-opened": pull_requests.opened(8, f"{SERVER}/acme/shop/pull/8", draft=False, drafts_refused=True),
    "pull-request-merged": pull_requests.was_merged(8, f"{SERVER}/acme/shop/pull/8", "threadtree/issue-7"),
    "pull-request-refused": pull_requests.refused(
        "Resource not accessible by integration", f"{SERVER}/acme/shop/compare/main...threadtree/issue-7?quick_pull=1"
    ),
    "reset-queued": worktree_replies.in_line("reset", 2),
    "reset-done": worktree_replies.was_reset("threadtree/issue-7", "threadtree/issue-7-2", "main", Saved(1, 2), (9,)),
}


@pytest.mark.parametrize("name", COMMENTS)
def test_a_comment_reads_as_it_is_kept(name: str, matches_snapshot: Callable[[str, str], None]) -> None:
    comment = COMMENTS[name]
    parts = tracking.final(comment, server_url=SERVER) if isinstance(comment, TurnResult) else (comment,)
    assert len(parts) == 1
    matches_snapshot(name, parts[0])


LIVE = "@octocat fixes #1 ![x](https://evil.example/x.png) [y](https://evil.example) <b>"
FOLDS = ["<details>\n", "<details>\n<summary>", "<summary>", "</summary>\n", "</details>\n", "<details open><summary>x"]
FENCES = ["```\n", "   ```\n", " ```` \n", "~~~\n", "\n\n", "> ", "- ", "    ", "\r", "\t", "`", "``", "text\n"]
hostile = st.lists(st.sampled_from([*FENCES, *FOLDS, LIVE, f"\n{LIVE}\n", "[!NOTE]: /evil\n"]), max_size=12).map(
    "".join
)
OWN_TAGS = ("details", "summary", "sub")


def is_inert(comment: str) -> bool:
    """Whether nothing foreign is live in it, beside the bot's own tags."""
    return sanitize.is_inert(comment, "github.example", OWN_TAGS)


@given(hostile, hostile, st.integers(1, 3))
def test_nothing_in_a_whole_comment_is_live(foreign: str, other: str, boxed: int) -> None:
    unusual = (
        notices.setup_failed(notices.setup_ended_with(1), foreign),
        notices.off_branch(foreign, other),
        notices.files_left_out([other, foreign]),
    )
    for result in (
        TurnResult("done", answer=foreign, changes=foreign, notices=unusual[:boxed], steps=(foreign, other)),
        TurnResult("failed", reasons.trouble(foreign), answer=foreign, last_words=other, notices=unusual[-boxed:]),
    ):
        for part in tracking.final(result, server_url=SERVER):
            assert is_inert(part), part


@given(hostile, hostile)
def test_no_reply_to_a_command_lets_foreign_words_live(foreign: str, other: str) -> None:
    saved, age = Saved(1, 2), timedelta(hours=3)
    line = WorktreeLine(foreign, detached=False, made=True, others=(9,), idle=age)
    page = f"{SERVER}/acme/shop/compare/main...threadtree/issue-7"
    for reply in (
        replies.help_text(foreign, [("stop", "ends the request")]),
        replies.unknown_command(foreign, HANDLERS),
        replies.status(foreign, age, 1, session_active=True, wait=reasons.trouble(other), removal_error=foreign),
        worktree_replies.node_silent_for_operator(foreign),
        replies.delivery_failed(foreign),
        replies.delivery_unreadable(foreign),
        worktree_replies.worktree_list(line, [OldWork(saved, age, 1, restored=False)]),
        worktree_replies.worktree_list(replace(line, detached=True), []),
        worktree_replies.was_made(foreign),
        worktree_replies.was_reset(foreign, other, foreign, saved, (9,)),
        worktree_replies.was_restored(saved, foreign, [other, foreign]),
        worktree_replies.kept_whole(foreign),
        worktree_replies.not_restored("changes", [foreign, other]),
        worktree_replies.not_done("reset", foreign),
        worktree_replies.was_switched(4, foreign, other),
        pull_requests.was_merged(8, page, foreign),
        pull_requests.not_on_github(foreign),
        pull_requests.nothing_new(foreign, other),
        pull_requests.refused(foreign, page),
    ):
        assert is_inert(reply), reply


@given(st.lists(st.sampled_from([*FOLDS, *FENCES, "\n\n", "text\n"]), max_size=14).map("".join))
def test_an_answer_with_folds_closes_each_that_it_opens(answer: str) -> None:
    for part in tracking.final(TurnResult("done", answer=f"Words.\n\n{answer}", steps=("one",)), server_url=SERVER):
        depth = 0
        for tag in re.findall(r"<(/?)details>", html(part)):
            depth += -1 if tag else 1
            assert depth >= 0, part
        assert depth == 0, part


@pytest.mark.parametrize("fence", ["```", " ```", "   ````", "> ```"])
def test_a_line_of_backticks_does_not_end_a_patch(fence: str) -> None:
    (comment,) = tracking.final(TurnResult("done", changes=f" {fence}\n {LIVE}\n {fence}\n"))
    assert is_inert(comment)
