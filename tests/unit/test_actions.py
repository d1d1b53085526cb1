"""The request in each event, before permissions are looked up."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.github.events import (
    Addressed,
    ChecksEnded,
    Event,
    Gesture,
    Remark,
    ThreadClosed,
    ThreadReopened,
    Unreadable,
    Written,
)
from bot.inbox.actions import Action, Ignore, action_of, failure_of
from bot.model import Actor, Repository, Target, Thread
from bot.thread.authority import Policy
from bot.turn.parsing import Command, CommentParser, Request
from bot.verbs import VERBS

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)
REPOSITORY = Repository("github.com", 1, "octo", "hello", "main")
ADA = Actor("ada", 7)
BOT = Actor("tree-bot[bot]", 99, is_bot=True)
POLICY = Policy(bot_id=99, bot_login="tree-bot[bot]", bot_name="tree-bot", label="threadtree")
# A person's token with BOT_NAME: the bot writes as Ada, and answers to @helper.
AS_ADA = Policy(bot_id=7, bot_login="ada", bot_name="helper", label="threadtree")
ASK = "@tree-bot fix it"
ISSUE, PULL = Thread(4, "issue", "A title", None), Thread(4, "pull", "A title", None)


def remark(body: str = ASK, author: Actor = ADA, updated_at: datetime = NOON) -> Remark:
    return Remark(Target("comment", 11), "IC_11", body, author, updated_at)


def comment(body: str = ASK, author: Actor = ADA, updated_at: datetime = NOON) -> Written:
    return Written(REPOSITORY, author, ISSUE, remark(body, author, updated_at), updated_at)


def part_of_review(body: str = ASK, before: str | None = None) -> Written:
    return Written(REPOSITORY, ADA, PULL, remark(body), NOON, before, "app.py:3", None if before else 500)


def own_text(body: str, author: Actor = ADA, thread: Thread = ISSUE) -> Remark:
    return Remark(Target(thread.kind), "I_4", body, author, LATER)


def opened(body: str, sender: Actor = ADA, thread: Thread = ISSUE) -> Written:
    return Written(REPOSITORY, sender, thread, own_text(body, sender, thread), NOON)


def edited(body: str, before: str) -> Written:
    return Written(REPOSITORY, ADA, ISSUE, own_text(body), LATER, before)


def labeled(body: str, label: str = "threadtree", sender: Actor = ADA, author: Actor = ADA) -> Gesture:
    return Gesture(REPOSITORY, sender, ISSUE, own_text(body, author), label)


def assigned(body: str, assignee: Actor) -> Gesture:
    return Gesture(REPOSITORY, ADA, ISSUE, own_text(body), assignee_id=assignee.id)


def asked_to_review(reviewer: Actor, sender: Actor = ADA) -> Gesture:
    return Gesture(REPOSITORY, sender, PULL, own_text(ASK, thread=PULL), reviewer_id=reviewer.id)


def parser_of(policy: Policy) -> CommentParser:
    return CommentParser(policy.bot_name, VERBS.commands.values())


def decide(event: Event, policy: Policy = POLICY) -> Action | ChecksEnded:
    return action_of(event, policy, parser_of(policy))


def what(request: Request) -> tuple[str | None, str]:
    """Return the words of a request for a turn, and its verb."""
    return request.ask.text if request.asks else None, request.ask.verb


def request_of(event: Event, policy: Policy = POLICY) -> Request:
    action = decide(event, policy)
    assert isinstance(action, Request), action
    return action


# Kinds of events


@pytest.mark.parametrize(
    ("event", "target", "review_id"),
    [
        (comment(), Target("comment", 11), None),
        (replace(comment(), body_before="before"), Target("comment", 11), None),
        (part_of_review(), Target("comment", 11), 500),
        (part_of_review(before="before"), Target("comment", 11), None),
        (opened(ASK), Target("issue"), None),
        (opened(ASK, thread=PULL), Target("pull"), None),
        (edited(ASK, "before"), Target("issue"), None),
        (labeled(ASK), Target("issue"), None),
        (assigned(ASK, BOT), Target("issue"), None),
    ],
)
def test_a_mention_is_answered_where_it_was_written(
    event: Written | Gesture, target: Target, review_id: int | None
) -> None:
    request = request_of(event)

    assert request.target == target
    assert request.review_id == review_id
    assert what(request) == (ASK, "work")
    assert request.author == ADA
    assert request.repository == REPOSITORY
    assert request.thread == event.thread


@pytest.mark.parametrize(
    "event",
    [
        comment("nothing for you"),
        replace(comment(), body_before=f"{ASK}!"),
        part_of_review("nit"),
        part_of_review(before=ASK),
        opened(""),
        edited(f"{ASK} soon", ASK),
        labeled(ASK, "bug"),
        assigned(ASK, ADA),
        asked_to_review(ADA),
        asked_to_review(BOT, sender=BOT),
    ],
)
def test_what_asks_nothing_is_ignored(event: Event) -> None:
    assert isinstance(decide(event), Ignore)


def test_the_author_of_an_opened_thread_asks_even_if_another_opened_it() -> None:
    outsider = Actor("outsider", 8)

    # An issue that a maintainer makes of a discussion.
    made_anew = Written(REPOSITORY, ADA, ISSUE, own_text(ASK, outsider), NOON)
    assert request_of(made_anew).author == outsider
    assert isinstance(decide(replace(made_anew, remark=own_text(ASK, BOT))), Ignore)
    # An edit speaks for its editor.
    assert request_of(replace(made_anew, body_before="before")).author == ADA


def test_commands_are_read_in_every_place() -> None:
    assert request_of(comment("/stop")).commands == (Command("stop"),)
    assert request_of(opened("/status")).commands == (Command("status"),)


def test_the_time_of_a_request_is_githubs_time_of_its_text() -> None:
    assert request_of(comment(updated_at=LATER)).ask.at == LATER
    assert request_of(opened(ASK)).ask.at == NOON
    assert request_of(edited(ASK, "")).ask.at == LATER
    assert request_of(labeled(ASK)).ask.at == LATER


def test_a_review_comment_brings_the_code_it_is_about() -> None:
    assert request_of(part_of_review()).ask.context == "app.py:3"


def test_the_label_is_compared_without_case() -> None:
    assert what(request_of(labeled("do this", "ThreadTree"))) == ("do this", "work")


def test_a_label_and_a_request_for_a_review_stand_for_the_command() -> None:
    label, request = request_of(labeled(ASK, "ThreadTree-Review")), request_of(asked_to_review(BOT))
    for one in (label, request):
        assert what(one) == ("/review", "review")
        assert (one.author, one.ask.at) == (ADA, LATER)


def test_closing_and_reopening_need_no_mention() -> None:
    closed, reopened = ThreadClosed(REPOSITORY, ISSUE, LATER), ThreadReopened(REPOSITORY, ISSUE, LATER)

    assert decide(closed) == closed
    assert decide(reopened) == reopened


# The bot's own texts


def test_the_bot_never_asks_itself() -> None:
    assert isinstance(decide(comment(author=BOT)), Ignore)
    assert isinstance(decide(opened(ASK, BOT)), Ignore)


def test_the_bot_is_known_by_its_number_not_by_its_login() -> None:
    renamed, namesake = Actor("renamed[bot]", 99, is_bot=True), Actor("tree-bot[bot]", 1234)

    assert isinstance(decide(comment(author=renamed)), Ignore)
    assert request_of(comment(author=namesake)).author == namesake


def test_a_comment_of_the_bot_that_somebody_edits_stays_the_bots() -> None:
    event = Written(REPOSITORY, ADA, ISSUE, remark(author=BOT), NOON, "before")

    assert isinstance(decide(event), Ignore)


def test_the_owner_of_the_token_may_ask_where_the_bot_has_a_name_of_its_own() -> None:
    assert what(request_of(comment("@helper fix it"), AS_ADA)) == ("@helper fix it", "work")


def test_what_the_bot_wrote_with_a_persons_token_is_known_by_its_marker() -> None:
    said = "@helper is done\n\n<!-- threadtree:turn=1 part=1 -->"

    assert isinstance(decide(comment(said), AS_ADA), Ignore)


def test_a_marker_in_another_persons_comment_means_nothing() -> None:
    said = "@helper fix it\n\n<!-- threadtree:turn=1 part=1 -->"

    assert isinstance(decide(comment(said, Actor("eve", 8)), AS_ADA), Request)
    assert isinstance(decide(comment(f"{ASK} <!-- threadtree:reply=1 -->")), Request)


def test_a_person_whose_name_is_the_bots_is_always_the_bot() -> None:
    policy = replace(AS_ADA, bot_name="Ada")

    assert isinstance(decide(comment("@ada fix it"), policy), Ignore)


def test_the_bots_own_label_asks_nothing() -> None:
    assert isinstance(decide(labeled("do this", sender=BOT)), Ignore)


def test_the_owner_of_the_token_may_ask_by_label() -> None:
    request = request_of(labeled("do this"), AS_ADA)

    assert what(request) == ("do this", "work")


def test_a_person_may_label_what_the_bot_wrote() -> None:
    assert what(request_of(labeled("Found while working", author=BOT))) == ("Found while working", "work")


# Identities


@given(
    st.lists(st.sampled_from(["/status", "/stop", "@tree-bot do it", "some words"]), min_size=1, max_size=6), st.data()
)
def test_what_a_text_asks_counts_once_whatever_a_payload_says_of_its_time_and_its_words_before(
    lines: list[str], data: st.DataObject
) -> None:
    text, at = "\n\n".join(lines), data.draw(st.datetimes(NOON.replace(tzinfo=None), timezones=st.just(UTC)))
    before = "\n\n".join(data.draw(st.lists(st.sampled_from(lines), max_size=6)))
    first, again = decide(comment(text)), decide(replace(comment(text, updated_at=at), body_before=before))
    if isinstance(again, Request):
        assert isinstance(first, Request)
        assert set(again.effects) <= set(first.effects)
        assert not again.asks or again.asking[-1] in first.asking


def test_what_an_edit_adds_is_new() -> None:
    first = request_of(comment(f"/status\n\n{ASK}"))
    added = request_of(replace(comment(f"/status\n\n/status\n\n{ASK}\n\n{ASK}"), body_before=first.ask.text))
    assert added.asks
    assert not {*added.effects[1:], added.asking[-1]} & {*first.effects, *first.asking}


def test_another_comment_and_another_gesture_are_another_identity() -> None:
    one, other = request_of(comment()), request_of(replace(comment(), remark=replace(remark(), node_id="IC_12")))
    assert not {*one.asking} & {*other.asking}
    gestures = [request_of(replace(labeled("do this"), event_id=name)) for name in ("LE_1", "LE_1", "LE_2")]
    assert gestures[0].asking == gestures[1].asking != gestures[2].asking


def test_a_text_with_half_a_surrogate_pair_has_an_identity() -> None:
    assert request_of(comment(f"{ASK} \ud83d")).asking


# Malformed payloads


def unreadable(
    body: str = ASK, label: str = "", assignee_id: int | None = None, sender: Actor = ADA, policy: Policy = POLICY
) -> Unreadable:
    addressed = Addressed(REPOSITORY, ISSUE, sender, Target("comment", 11), body, label, assignee_id)
    return failure_of(Unreadable("comment.node_id is not a string", addressed), policy, parser_of(policy))


@pytest.mark.parametrize(
    "failure",
    [
        unreadable(),
        unreadable("/status"),
        unreadable("do this", label="ThreadTree"),
        unreadable("do this", assignee_id=99),
    ],
)
def test_what_addressed_the_bot_and_cannot_be_read_is_told_on_the_thread(failure: Unreadable) -> None:
    assert failure.why == "comment.node_id is not a string"
    assert failure.addressed is not None


@pytest.mark.parametrize(
    "failure",
    [
        unreadable("nothing for you"),
        unreadable("", label="bug"),
        unreadable("", assignee_id=7),
        unreadable(ASK, sender=BOT),
        unreadable("@helper is done <!-- threadtree:turn=1 part=1 -->", policy=AS_ADA),
        failure_of(Unreadable("repository is not an object", None), POLICY, parser_of(POLICY)),
    ],
)
def test_what_did_not_address_the_bot_only_fails(failure: Unreadable) -> None:
    assert failure.addressed is None


def test_a_text_that_no_parser_reads_is_told_on_the_thread_if_it_names_the_bot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bot.markdown.to_html", Mock(side_effect=IndexError))

    unread = decide(comment(ASK))
    assert isinstance(unread, Unreadable)
    assert unread.addressed is not None
    assert (unread.addressed.author, unread.addressed.target) == (ADA, Target("comment", 11))
    assert decide(comment("/lgtm")) == replace(unread, addressed=None)
    assert isinstance(of_label := decide(labeled("fix it")), Unreadable)
    assert of_label.addressed is not None
