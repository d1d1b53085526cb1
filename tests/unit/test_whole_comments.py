"""Whole comments as people see them: a change of wording shows as a change of a file in `snapshots`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.ask import Ask, UnfinishedTurn
from bot.care.conflicts import conflicts
from bot.model import Actor, Repository, Rescue, Saved, Target
from bot.sharing_rules import SharingRefused
from bot.store.states import WorktreeOfThread
from bot.thread import (
    agent_choice,
    checks,
    links,
    notices,
    pull_requests,
    reasons,
    replies,
    sanitize,
    tracking,
    worktree_replies,
)
from bot.thread.checks import Base, Ran
from bot.thread.formatting import clause
from bot.thread.outcome import NO_CHANGE
from bot.thread.reasons import CapReached
from bot.thread.replies import Overview
from bot.thread.tracking import Changes, PlanEntry, PullRequestLink, Reviewed, TurnResult
from bot.thread.waits import Waiting
from bot.verbs import VERBS, remove, reset, restore
from bot.verbs.fix import words as fixes
from bot.verbs.review import words as reviews
from tests.support.rendered import html

SERVER = "https://github.example"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
PLAN = (
    PlanEntry("Reproduce the crash", "completed"),
    PlanEntry("Fix the total of an empty cart", "in_progress"),
    PlanEntry("Run the tests", "pending"),
)
REPOSITORY = Repository("github.example", 1, "acme", "shop")


def by(login: str, target: Target) -> Ask:
    """Return a request of this person."""
    return Ask("do it", Actor(login, 3), NOON, target)


ASKED = tracking.asked(by("maria", Target("comment", 1842)), SERVER, REPOSITORY, 7, 28)
FOR_CHECKS = replace(ASKED, is_fix=True)
MESSAGE = tracking.asked(by("tom", Target("comment", 1850)), SERVER, REPOSITORY, 7, 29)
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
    read=("the description", "2 comments", "AGENTS.md"),
    asked=ASKED,
    duration=timedelta(minutes=2, seconds=31),
    cost_usd=0.1234,
    tokens=48_211,
    model="claude-opus-4-5",
)
TESTS = frozenset(f"cart_test.test_{n}" for n in range(36))
ON_MAIN = Base("main", Ran("ended with exit status 1", TESTS | {"cart_test.test_total"}, {"shop_test.test_mail"}))
REVIEW = Reviewed("1f0c2d4", f"{SERVER}/acme/shop/commit/1f0c2d4", 2)
REVIEWED = replace(
    RAN,
    answer="Carts with items have no total any more: `None` cannot be added to. Tests for that are missing.",
    changes=None,
    review=REVIEW,
)
ATTEMPT = fixes.attempt("9b3e5a6", f"{SERVER}/acme/shop/commit/9b3e5a6", {"tests (3.12)", "lint"}, 1, 3)
SECOND_ATTEMPT = fixes.attempt("4c1d7e9", f"{SERVER}/acme/shop/commit/4c1d7e9", {"tests (3.12)"}, 2, 3)
STOPPED_WORK = "I changed `src/cart.py`; the tests have not run yet."

WORKTREE = WorktreeOfThread(3, "ready", "threadtree/issue-7", False, (9, 12), NOON - timedelta(hours=3))
RESCUE = Rescue(
    id=4,
    worktree_id=3,
    ref="refs/threadtree/rescue/3/x",
    kept=None,
    removal="command",
    conversations=(7,),
    branch="threadtree/issue-7",
    files=2,
    commits=1,
    bytes=18_432,
    created_at=NOON - timedelta(hours=5),
    restored_at=None,
    node="1",
    codebase="acme/shop",
    folder="acme/shop",
    node_name="mill",
)
WORKED = Overview(
    branch="threadtree/issue-7",
    pushed_to="threadtree/issue-7",
    base_branch="main",
    net=(3, 2, 1),
    agent="claude",
    session_since=NOON - timedelta(hours=3),
    session_turns=4,
    model="claude-opus-4-5",
    turns=4,
    cost_usd=0.84,
)


def status(
    now: Overview,
    *unfinished: UnfinishedTurn,
    wait: str | None = None,
    chosen: tuple[str, str] | None = None,
    waits: Sequence[Waiting] = (),
) -> str:
    at = NOON + timedelta(seconds=75)
    return replies.status(now, unfinished, SERVER, REPOSITORY, 7, at, wait, chosen, waits=waits)


SECRET_REFUSED = """\
[remote rejected] (push declined due to repository rule violations)
remote: error: GH013: Repository rule violations found for refs/heads/threadtree/issue-7.
remote:
remote: - GITHUB PUSH PROTECTION
remote:   —————————————————————————————————————————
remote:     Resolve the following violations before pushing again
remote:
remote:     - Push cannot contain secrets
remote:
remote:      (?) Learn how to resolve a blocked push
remote:      https://docs.github.com/code-security/secret-scanning/pushing-a-branch-blocked-by-push-protection
remote:
remote:       —— GitHub Personal Access Token ——————————————————————
remote:        locations:
remote:          - commit: 5477a7dd26384ed3c8b3814ee677f755ad27a597
remote:            path: .env:34
remote:
remote:        (?) To push, remove secret from commit(s) or follow this URL to allow the secret.
remote:        https://github.com/acme/shop/security/secret-scanning/unblock-secret/2gakJrAududURpxlhIZdNlX14ZZ
remote:"""
"""What GitHub says of a push with a secret: the file and the address that unblocks come last."""
COMMENTS: dict[str, str | TurnResult] = {
    "agent-shown": agent_choice.agent_shown(("claude", None), ("claude", "codex", "gemini"), is_chosen=False),
    "agent-chosen": agent_choice.agent_chosen(("claude", "claude-opus-4-5"), ("codex", None), "claude-opus-4-5"),
    "model-shown": agent_choice.model_shown(("codex", "gpt-5"), is_chosen=True, offered=("gpt-5", "gpt-5-mini")),
    "model-chosen": agent_choice.model_chosen(("codex", "gpt-5")),
    "no-such-agent": agent_choice.no_such_agent("hal", ("claude", "codex")),
    "no-name-of-a-model": agent_choice.no_name_of_model("a{b}"),
    "status-of-another-agent-next": status(WORKED, chosen=("codex", "gpt-5")),
    "answer-instead-of-an-agent-that-is-gone": TurnResult(
        "done",
        answer="Renamed both.",
        notices=(notices.agent_gone("gemini", "codex"), notices.agent_changed("codex")),
        asked=ASKED,
        model="codex",
    ),
    "queued": tracking.queued(2),
    "running": tracking.running(PLAN, ["pytest -q"], timedelta(seconds=48)),
    "fetching": tracking.running(
        [], [], timedelta(seconds=9), tracking.fetching("Receiving objects 43%, 1.2 GiB", first=True)
    ),
    "running-with-a-message": tracking.running(
        PLAN,
        ["Edit src/cart.py"],
        timedelta(seconds=75),
        added=[tracking.added(MESSAGE, "@threadtree-bot please use `Decimal`, and fix #9 too.\n\nThe rest.")],
    ),
    "message-given": tracking.given_to(ASKED),
    "answer-with-changes": RAN,
    "answer-to-a-request-with-a-message": replace(RAN, added=(MESSAGE, replace(MESSAGE, login="ann", turn=30))),
    "message-left-out": TurnResult(
        "done",
        answer=RAN.answer,
        notices=(
            notices.message_left_out("tom", MESSAGE.url, reasons.may_not_ask_any_more("tom", "the permission is read")),
        ),
        asked=ASKED,
        model="codex",
    ),
    "check-passed": replace(
        RAN,
        check=checks.told(
            Ran(None, TESTS | {"cart_test.test_total", "cart_test.test_empty", "shop_test.test_mail"}, skipped=2),
            38,
            ON_MAIN,
            Ran("ended with exit status 1", TESTS, {"cart_test.test_empty"}),
        )
        + "\n\n"
        + checks.pictures({"1-cart.png": links.raw_file(f"{SERVER}/acme/shop", "9b3e5a6", "1-cart.png")}),
    ),
    "check-failed": replace(
        RAN,
        check=checks.told(
            Ran("ended with exit status 1", TESTS | {"shop_test.test_mail"}, {"cart_test.test_total"}, unread=1),
            75,
            Base("main", Ran(None, TESTS | {"cart_test.test_total"}, frozenset())),
            Ran("ended with exit status 1"),
        ),
        check_output="FAILED cart_test.py::test_total - assert None == 0",
        notices=(checks.changed_in_branch("main"),),
    ),
    "check-failed-on-the-base-too": replace(
        RAN,
        check=checks.told(
            Ran("ended with exit status 1", TESTS | {"cart_test.test_total"}, {"shop_test.test_mail"}), 75, ON_MAIN
        ),
        check_output="FAILED shop_test.py::test_mail - ConnectionError",
    ),
    "check-without-reports": replace(
        RAN, check=checks.told(Ran("was stopped after 10 min 0 s"), 600, None), check_output="waiting for the database"
    ),
    "check-not-run": replace(RAN, check=checks.not_run(f"`{checks.SCRIPT}` {notices.setup_unusable('main', 1 << 20)}")),
    "answer-at-the-cost-limit": replace(
        RAN,
        answer="The total of an empty cart is `0` now. Left: a test for it.",
        notices=(notices.cost_limit_reached(CapReached("turn", 5.117, 5)),),
        cost_usd=5.117,
    ),
    "answer-at-the-cost-limit-of-the-day": replace(
        RAN,
        answer=notices.STOPPED_AT_COST_LIMIT,
        notices=(notices.cost_limit_reached(CapReached("repository", 10.02, 10)),),
        cost_usd=0.81,
    ),
    "refused-at-the-cost-limit": TurnResult(
        "refused", reasons.cost_limit(CapReached("day", 50.31, 50)), asked=ASKED, duration=timedelta(seconds=1)
    ),
    "answer-to-a-question": TurnResult(
        "done",
        answer="The total is counted in `src/cart.py`.",
        steps=("Read src/cart.py", "grep -r total"),
        read=("the description", "3 comments", "AGENTS.md"),
        asked=ASKED,
        duration=timedelta(seconds=9),
        cost_usd=0.02,
        model="claude-opus-4-5",
    ),
    "answer-with-a-page-on-the-dashboard": TurnResult(
        "done",
        answer="It is `0`.",
        asked=replace(ASKED, page="https://bot.example/turns/28"),
        duration=timedelta(seconds=9),
        model="claude-opus-4-5",
    ),
    "answer-to-a-question-not-all-read": TurnResult(
        "done",
        answer="The tests fail at `test_total`.",
        steps=("pytest -q (failed)",),
        read=("the description", "1 comment (1 by people without write access left out)", "AGENTS.md"),
        asked=ASKED,
        duration=timedelta(seconds=9),
        model="claude-opus-4-5",
    ),
    "pull-request-conflicts": conflicts("main"),
    "remark-waits": tracking.waiting(reasons.collects(NOON + timedelta(seconds=60), NOON)),
    "answer-that-claims-a-change": TurnResult(
        "done",
        answer="Changed to `SameSite=Lax`.",
        notices=(NO_CHANGE.why,),
        read=("nothing new",),
        asked=ASKED,
        duration=timedelta(seconds=9),
        model="claude-opus-4-5",
    ),
    "answer-of-another-agent": TurnResult(
        "done",
        answer="Changed to `SameSite=Lax`.",
        notices=(notices.agent_changed("codex"),),
        asked=ASKED,
        duration=timedelta(seconds=7),
        tokens=220,
        model="codex",
    ),
    "answer-in-threads-left-out": TurnResult(
        "done",
        answer="Renamed both.",
        notices=(notices.threads_left_out(2, 30, 4000), notices.THREADS_UNREADABLE),
        asked=ASKED,
        model="codex",
    ),
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
            notices.setup_failed(reasons.program_ended(1), "npm ERR! code E404\n\nnpm ERR! not found"),
            notices.files_left_out("large", ["video.mp4", "dump.sql"]),
        ),
        asked=ASKED,
        duration=timedelta(seconds=40),
        model="opencode",
    ),
    "answer-that-github-refused": TurnResult(
        "done",
        answer="The key is in the settings now.",
        changes="diff --git a/.env b/.env\n",
        notices=(notices.push_refused("threadtree/issue-7", SECRET_REFUSED, signs=False, signs_off=False),),
        asked=ASKED,
    ),
    "answer-on-a-rewritten-branch": TurnResult(
        "done",
        answer="It reads a file.",
        notices=(notices.followed("threadtree/issue-7", 2, "refs/threadtree/rescue/1/20250102T030405.000000Z"),),
        asked=ASKED,
    ),
    "answer-that-needs-what-was-taken-off": TurnResult(
        "done",
        answer="The key is another one now.",
        notices=(notices.needs_taken("threadtree/issue-7", ["src/key.py"]),),
        asked=ASKED,
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
    "help": replies.help_text("threadtree-bot", [(name, handler.summary) for name, handler in VERBS.commands.items()]),
    "silent": replies.silent(30, datetime(2026, 5, 1, 14, 4, 30, tzinfo=UTC), datetime(2026, 5, 1, 13, 20, tzinfo=UTC)),
    "help-mentioned": replies.help_text("threadtree-bot", [("stop", replies.STOP_SUMMARY)], bare=False),
    "status-idle": status(Overview()),
    "status-after-work": status(WORKED),
    "status-running-with-a-queue": status(
        replace(WORKED, pull_request=12, rescues=2, untold=1),
        UnfinishedTurn(28, "running", by("maria", Target("comment", 1842)), 7, NOON, "pytest -q"),
        UnfinishedTurn(29, "queued", by("tom", Target("comment", 1850)), 7, None, None),
        UnfinishedTurn(30, "queued", by("ann", Target("review", 77)), 9, None, None),
    ),
    "status-shared": status(
        replace(WORKED, others=(9, 12)),
        UnfinishedTurn(30, "running", by("ann", Target("review", 77)), 9, NOON, None),
        UnfinishedTurn(31, "queued", by("maria", Target("comment", 1860)), 7, None, None),
    ),
    "status-waiting": status(
        WORKED,
        UnfinishedTurn(29, "queued", by("tom", Target("comment", 1850)), 7, None, None),
        wait=reasons.waits("github-away", NOON + timedelta(minutes=8), NOON),
    ),
    "status-after-reopening": status(
        Overview(pushed_to="threadtree/issue-7", base_branch="main", net=(3, 2, 0), rescues=1, turns=4, cost_usd=0.84)
    ),
    "status-not-posted": status(replace(WORKED, not_posted=28)),
    "status-machine-silent": status(
        replace(WORKED, silent_node="mill-2", silent_since=NOON - timedelta(hours=1)),
        UnfinishedTurn(29, "queued", by("tom", Target("comment", 1850)), 7, None, None),
    ),
    "status-removal-fails": status(replace(WORKED, removal_error="[Errno 5] Input/output error")),
    "pull-request-exists": replace(
        RAN, changes=replace(CHANGES, pull_request=PullRequestLink(f"{SERVER}/acme/shop/pull/12", 12))
    ),
    "answer-with-a-fold": TurnResult(
        "done", answer="Two tests fail.\n<details><summary>Their output</summary>\n\n```\nassert 1 == 2\n", asked=ASKED
    ),
    "review": REVIEWED,
    "review-again": replace(
        REVIEWED,
        answer="The total of an empty cart is right now.",
        review=Reviewed("9b3e5a6", f"{SERVER}/acme/shop/commit/9b3e5a6", 1, 2, f"{SERVER}/acme/shop/compare/1f...9b"),
        notices=(reviews.repeated(1),),
    ),
    "review-without-lines": replace(
        REVIEWED,
        answer=reviews.add_remarks(
            "Carts with items have no total any more.",
            [
                (
                    reviews.place("src/cart.py", 12, 10),
                    "`None` cannot be added to.\n\n```suggestion\n    total = 0\n```",
                ),
                (reviews.place("README.md", None), "It still tells of `None`."),
            ],
        ),
        review=replace(REVIEW, remarks=0),
        notices=(reviews.left_out(3, 30, 4_000),),
    ),
    "review-without-remarks": replace(REVIEWED, answer=reviews.NO_REMARKS, review=replace(REVIEW, remarks=0)),
    "review-not-left": replace(
        REVIEWED, answer="I looked at `src/cart.py`.", review=replace(REVIEW, remarks=0), notices=(reviews.NOT_LEFT,)
    ),
    "failing-checks-queued": f"{tracking.queued(0)}\n\n{ATTEMPT}",
    "failing-checks-mended": replace(RAN, notices=(ATTEMPT,), asked=FOR_CHECKS),
    "failing-checks-pass": "\n\n".join(
        (*tracking.final(replace(RAN, notices=(SECOND_ATTEMPT,), asked=FOR_CHECKS)), fixes.passing())
    ),
    "failing-checks-not-mended": replace(
        RAN,
        answer="The server of the packages is away.",
        changes=None,
        notices=(ATTEMPT, fixes.NOTHING_PUSHED),
        asked=FOR_CHECKS,
    ),
    "failing-checks-given-up": fixes.gave_up("9b3e5a6", f"{SERVER}/acme/shop/commit/9b3e5a6", ["tests"], 3, "main"),
    "failing-checks-over-the-limit": TurnResult(
        "refused", reasons.over_daily_limit(50), notices=(ATTEMPT,), asked=FOR_CHECKS
    ),
    "autofix-on": fixes.switched(on=True, most=3),
    "autofix-off": fixes.switched(on=False, most=3),
    "autofix-shown": fixes.shown(on=True, is_chosen=False, most=3),
    "nothing-to-review": replies.NOTHING_TO_REVIEW,
    "nothing-to-retry": replies.NOTHING_TO_RETRY,
    "unknown-command": replies.unknown_command("hlep", VERBS.commands),
    "delivery-failed": replies.delivery_failed("72d3162e-cc78-11e3-81ab-4c9367dc0958"),
    "delivery-waited": replies.delivery_failed("72d3162e-cc78-11e3-81ab-4c9367dc0958", waited=True),
    "removed": remove.was_removed(Saved(1, 0), ()),
    "restored": restore.was_restored(Saved(1, 2), "threadtree/issue-7", []),
    "not-restored": worktree_replies.not_restored("changes", ["src/cart.py"]),
    "not-reset": worktree_replies.not_done("reset", "fatal: unable to access 'https://github.example/': 502"),
    "switched": worktree_replies.was_switched(4, "threadtree/issue-3", "farewell"),
    "worktree-list": worktree_replies.worktree_list(
        WORKTREE,
        [
            RESCUE,
            replace(RESCUE, kept="3-x", bytes=1_204_000, created_at=NOON - timedelta(days=2), restored_at=NOON),
        ],
        NOON,
    ),
    "worktree-list-empty": worktree_replies.worktree_list(None, [], NOON),
    "worktree-usage": worktree_replies.USAGE,
    "pull-request-opened": pull_requests.opened(8, f"{SERVER}/acme/shop/pull/8", draft=False, drafts_refused=True),
    "pull-request-merged": pull_requests.was_merged(8, f"{SERVER}/acme/shop/pull/8", "threadtree/issue-7"),
    "pull-request-refused": pull_requests.refused(
        "Resource not accessible by integration", f"{SERVER}/acme/shop/compare/main...threadtree/issue-7?quick_pull=1"
    ),
    "reset-done": reset.was_reset("threadtree/issue-7", "threadtree/issue-7-2", "main", Saved(1, 2), (9,)),
}


@pytest.mark.parametrize("name", COMMENTS)
def test_a_comment_reads_as_it_is_kept(name: str, matches_snapshot: Callable[[str, str], None]) -> None:
    matches_snapshot(name, as_posted(COMMENTS[name]))


def as_posted(comment: str | TurnResult) -> str:
    """Return a comment as it is posted, in one part."""
    parts = tracking.final(comment, server_url=SERVER) if isinstance(comment, TurnResult) else (comment,)
    assert len(parts) == 1
    return parts[0]


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
        notices.setup_failed(reasons.program_ended(1), foreign),
        notices.off_branch(foreign, other),
        notices.files_left_out("large", [other, foreign]),
    )
    base = Base(other, Ran("x", {foreign}, {other}))
    checked = checks.told(Ran("x", {other}, {foreign, "new"}), 3, base, Ran("x", failed={foreign}), same_commit=True)
    for result in (
        TurnResult("done", answer=foreign, changes=foreign, notices=unusual[:boxed], steps=(foreign, other)),
        TurnResult("failed", reasons.trouble(foreign), answer=foreign, last_words=other, notices=unusual[-boxed:]),
        TurnResult("done", answer=foreign, check=checked, check_output=other),
        TurnResult("done", answer=foreign, check=checks.not_run(clause(foreign))),
        TurnResult("done", answer=reviews.add_remarks(foreign, [(other, foreign)]), review=REVIEW),
    ):
        for part in tracking.final(result, server_url=SERVER):
            assert is_inert(part), part
    shown = tracking.running((), (), timedelta(), added=[tracking.added(MESSAGE, foreign)])
    assert is_inert(shown), shown


@given(hostile, hostile)
def test_no_reply_to_a_command_lets_foreign_words_live(foreign: str, other: str) -> None:
    saved = Saved(1, 2)
    line = replace(WORKTREE, branch=foreign)
    page = f"{SERVER}/acme/shop/compare/main...threadtree/issue-7"
    for reply in (
        fixes.attempt("9b3e5a6", page, {foreign, other}, 1, 3),
        fixes.gave_up("9b3e5a6", page, {foreign}, 1, other),
        replies.help_text(foreign, [("stop", "ends the request")]),
        replies.unknown_command(foreign, VERBS.commands),
        status(
            replace(WORKED, branch=foreign, pushed_to=foreign, base_branch=other, agent=foreign, model=other),
            UnfinishedTurn(28, "running", by(other, Target("comment", 1)), 7, NOON, foreign),
            UnfinishedTurn(29, "queued", by(foreign, Target("comment", 1)), 9, None, None),
        ),
        status(Overview(pushed_to=foreign, removal_error=foreign), wait=reasons.trouble(other)),
        replies.delivery_failed(foreign),
        replies.delivery_unreadable(foreign),
        worktree_replies.worktree_list(line, [RESCUE], NOON),
        worktree_replies.worktree_list(replace(line, detached=True), [], NOON),
        reset.was_reset(foreign, other, foreign, saved, (9,)),
        restore.was_restored(saved, foreign, [other, foreign]),
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
