"""Which event asks for what, before anybody's permission is looked up."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bot.authority import Policy
from bot.decide.actions import Action, Close, Ignore, Reopen, Request, action_of
from bot.decide.parsing import CommentParser, ParsedComment
from bot.github.payloads import (
    CodePlace,
    CommentCreated,
    CommentEdited,
    Event,
    Remark,
    ReviewCommentCreated,
    ReviewCommentEdited,
    ReviewEdited,
    ReviewSubmitted,
    Thread,
    ThreadAssigned,
    ThreadClosed,
    ThreadEdited,
    ThreadLabeled,
    ThreadOpened,
    ThreadReopened,
)
from bot.handlers.command import Command
from bot.handlers.registry import HANDLERS
from bot.model import Actor, Repository, Target

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)
REPOSITORY = Repository("github.com", 1, "octo", "hello", "main")
ADA = Actor("ada", 7)
BOT = Actor("tree-bot[bot]", 99, is_bot=True)
POLICY = Policy(bot_id=99, bot_login="tree-bot[bot]", bot_name="tree-bot", label="threadtree")
# A person's token under a name of its own: the bot speaks as Ada, and answers to @helper.
AS_ADA = Policy(bot_id=7, bot_login="ada", bot_name="helper", label="threadtree")
ASK = "@tree-bot fix it"
PLACE = CodePlace(review_id=500, path="app.py", line=3, diff_hunk="@@ -1 +1 @@\n+a", in_reply_to=None)


def thread(body: str = "", kind: str = "issue") -> Thread:
    return Thread(
        number=4,
        kind="pull" if kind == "pull" else "issue",
        node_id="I_4",
        title="A title",
        body=body,
        state="open",
        author=ADA,
        url="https://github.com/octo/hello/issues/4",
        created_at=NOON,
        updated_at=LATER,
        closed_at=None,
        head=None,
    )


def remark(body: str = ASK, author: Actor = ADA, updated_at: datetime = NOON) -> Remark:
    return Remark(11, "IC_11", body, NOON, updated_at, author, "https://github.com/octo/hello/issues/4#c11", None)


def comment(body: str = ASK, author: Actor = ADA, updated_at: datetime = NOON) -> CommentCreated:
    return CommentCreated(REPOSITORY, author, thread(), remark(body, author, updated_at))


def decide(event: Event, policy: Policy = POLICY) -> Action:
    return action_of(event, policy, CommentParser(policy.bot_name, [one.syntax for one in HANDLERS.values()]))


def hear(event: Event, policy: Policy = POLICY) -> Request:
    action = decide(event, policy)
    assert isinstance(action, Request), action
    return action


# What each event is


@pytest.mark.parametrize(
    ("event", "target", "review_id"),
    [
        (comment(), Target("comment", 11), None),
        (CommentEdited(REPOSITORY, ADA, thread(), remark(), "before"), Target("comment", 11), None),
        (ReviewCommentCreated(REPOSITORY, ADA, thread(), remark(), PLACE), Target("review-comment", 11), 500),
        (ReviewCommentEdited(REPOSITORY, ADA, thread(), remark(), PLACE, "b"), Target("review-comment", 11), None),
        (ReviewSubmitted(REPOSITORY, ADA, thread(), remark()), Target("review", 11), 11),
        (ReviewEdited(REPOSITORY, ADA, thread(), remark(), "before"), Target("review", 11), None),
        (ThreadOpened(REPOSITORY, ADA, thread(ASK)), Target("issue"), None),
        (ThreadOpened(REPOSITORY, ADA, thread(ASK, "pull")), Target("pull"), None),
        (ThreadEdited(REPOSITORY, ADA, thread(ASK), "before"), Target("issue"), None),
        (ThreadLabeled(REPOSITORY, ADA, thread(ASK), "threadtree"), Target("issue"), None),
        (ThreadAssigned(REPOSITORY, ADA, thread(ASK), BOT), Target("issue"), None),
    ],
)
def test_a_mention_is_heard_where_it_was_said(event: Event, target: Target, review_id: int | None) -> None:
    heard = hear(event)

    assert heard.target == target
    assert heard.review_id == review_id
    assert heard.asks == ParsedComment(request=ASK)
    assert heard.speaker == ADA
    assert heard.repository == REPOSITORY
    assert heard.thread == event.thread


@pytest.mark.parametrize(
    "event",
    [
        comment("nothing for you"),
        CommentEdited(REPOSITORY, ADA, thread(), remark(), f"{ASK}!"),
        ReviewCommentCreated(REPOSITORY, ADA, thread(ASK), remark("nit"), PLACE),
        ReviewSubmitted(REPOSITORY, ADA, thread(ASK), remark("")),
        ReviewEdited(REPOSITORY, ADA, thread(), remark(), ASK),
        ThreadOpened(REPOSITORY, ADA, thread("")),
        ThreadEdited(REPOSITORY, ADA, thread(f"{ASK} soon"), ASK),
        ThreadLabeled(REPOSITORY, ADA, thread(ASK), "bug"),
        ThreadAssigned(REPOSITORY, ADA, thread(ASK), ADA),
    ],
)
def test_what_asks_nothing_is_ignored(event: Event) -> None:
    assert isinstance(decide(event), Ignore)


def test_commands_are_heard_from_every_place() -> None:
    assert hear(comment("/stop")).asks == ParsedComment((Command("stop"),))
    assert hear(ThreadOpened(REPOSITORY, ADA, thread("/status"))).asks == ParsedComment((Command("status"),))


def test_the_time_of_a_request_is_githubs_time_of_its_text() -> None:
    assert hear(comment(updated_at=LATER)).asked_at == LATER
    assert hear(ThreadOpened(REPOSITORY, ADA, thread(ASK))).asked_at == NOON
    assert hear(ThreadEdited(REPOSITORY, ADA, thread(ASK), "")).asked_at == LATER
    assert hear(ThreadLabeled(REPOSITORY, ADA, thread(ASK), "threadtree")).asked_at == LATER


def test_a_review_comment_brings_the_code_it_is_about() -> None:
    context = hear(ReviewCommentCreated(REPOSITORY, ADA, thread(), remark(), PLACE)).context

    assert "`app.py`, line 3" in context
    assert context.endswith("\n\n@@ -1 +1 @@\n+a")


def test_a_review_comment_on_a_whole_file_names_no_line() -> None:
    event = ReviewCommentCreated(REPOSITORY, ADA, thread(), remark(), replace(PLACE, line=None))

    assert "`app.py`:" in hear(event).context


def test_the_label_is_compared_without_case() -> None:
    assert hear(ThreadLabeled(REPOSITORY, ADA, thread("do this"), "ThreadTree")).asks == ParsedComment(
        request="do this"
    )


def test_closing_and_reopening_need_no_words() -> None:
    closed = ThreadClosed(REPOSITORY, ADA, thread(), LATER, merged=False)

    assert decide(closed) == Close(REPOSITORY, 4, LATER)
    assert decide(replace(closed, sender=BOT)) == Close(REPOSITORY, 4, LATER)
    assert decide(ThreadReopened(REPOSITORY, ADA, thread())) == Reopen(REPOSITORY, 4, thread().updated_at)


def test_a_transferred_thread_closes_at_its_last_change() -> None:
    assert decide(ThreadClosed(REPOSITORY, ADA, thread(), None, merged=False)) == Close(REPOSITORY, 4, LATER)


# The bot's own words


def test_the_bot_never_hears_itself() -> None:
    assert isinstance(decide(comment(author=BOT)), Ignore)
    assert isinstance(decide(ThreadOpened(REPOSITORY, BOT, thread(ASK))), Ignore)
    assert isinstance(decide(ReviewSubmitted(REPOSITORY, BOT, thread(), remark(author=BOT))), Ignore)


def test_the_bot_is_known_by_its_number_not_by_its_login() -> None:
    renamed, namesake = Actor("renamed[bot]", 99, is_bot=True), Actor("tree-bot[bot]", 1234)

    assert isinstance(decide(comment(author=renamed)), Ignore)
    assert hear(comment(author=namesake)).speaker == namesake


def test_a_comment_of_the_bot_that_somebody_edits_stays_the_bots() -> None:
    event = CommentEdited(REPOSITORY, ADA, thread(), remark(author=BOT), "before")

    assert isinstance(decide(event), Ignore)


def test_the_owner_of_the_token_may_ask_where_the_bot_has_a_name_of_its_own() -> None:
    assert hear(comment("@helper fix it"), AS_ADA).asks == ParsedComment(request="@helper fix it")


def test_what_the_bot_wrote_with_a_persons_token_is_known_by_its_marker() -> None:
    said = "@helper is done\n\n<!-- threadtree:turn=1 part=1 -->"

    assert isinstance(decide(comment(said), AS_ADA), Ignore)


def test_a_marker_in_anybody_elses_comment_means_nothing() -> None:
    said = "@helper fix it\n\n<!-- threadtree:turn=1 part=1 -->"

    assert isinstance(decide(comment(said, Actor("eve", 8)), AS_ADA), Request)
    assert isinstance(decide(comment(f"{ASK} <!-- threadtree:reply=1 -->")), Request)


def test_a_person_whose_name_is_the_bots_is_always_the_bot() -> None:
    policy = replace(AS_ADA, bot_name="Ada")

    assert isinstance(decide(comment("@ada fix it"), policy), Ignore)


def test_the_bots_own_gesture_asks_nothing() -> None:
    assert isinstance(decide(ThreadLabeled(REPOSITORY, BOT, thread("do this"), "threadtree")), Ignore)


def test_the_owner_of_the_token_may_ask_by_label() -> None:
    heard = hear(ThreadLabeled(REPOSITORY, ADA, thread("do this"), "threadtree"), AS_ADA)

    assert heard.asks == ParsedComment(request="do this")


def test_a_person_may_label_what_the_bot_wrote() -> None:
    written = replace(thread("Found while working"), author=BOT)

    assert hear(ThreadLabeled(REPOSITORY, ADA, written, "threadtree")).asks == ParsedComment(
        request="Found while working"
    )


# What is acted on only once


def test_one_comment_under_two_deliveries_has_one_identity() -> None:
    assert hear(comment()).effect(0) == hear(comment()).effect(0)


def test_every_command_of_a_comment_has_an_effect_of_its_own() -> None:
    heard = hear(comment("/status\n/status"))

    assert heard.effect(0) != heard.effect(1)


def test_another_text_time_or_comment_is_another_identity() -> None:
    first = hear(comment())
    others = [
        hear(comment(f"{ASK} now")),
        hear(comment(updated_at=LATER)),
        hear(CommentCreated(REPOSITORY, ADA, thread(), replace(remark(), node_id="IC_12"))),
    ]

    assert len({heard.effect(0) for heard in (first, *others)}) == 4


def test_opening_labelling_and_assigning_are_told_apart() -> None:
    events: list[Event] = [
        ThreadOpened(REPOSITORY, ADA, thread(ASK)),
        ThreadLabeled(REPOSITORY, ADA, thread(ASK), "threadtree"),
        ThreadAssigned(REPOSITORY, ADA, thread(ASK), BOT),
    ]

    assert len({hear(event).effect(0) for event in events}) == 3


def test_a_text_with_half_a_surrogate_pair_has_an_identity() -> None:
    assert hear(comment(f"{ASK} \ud83d")).effect(0)
