import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bot.github.payloads import (
    CodePlace,
    CommentCreated,
    CommentEdited,
    PullHead,
    ReviewCommentCreated,
    ReviewEdited,
    ReviewSubmitted,
    ThreadAssigned,
    ThreadClosed,
    ThreadEdited,
    ThreadLabeled,
    ThreadOpened,
    ThreadReopened,
    Unreadable,
    envelope,
    read,
)
from bot.model import Actor, Repository
from tests.recorded import INSTALL, Recorded, recorded_payloads

ALICE = {"login": "alice", "id": 7, "type": "User"}
REPOSITORY = {"id": 99, "name": "shop", "owner": {"login": "acme"}, "default_branch": "main"}
ISSUE = {
    "number": 42,
    "node_id": "I_42",
    "title": "Typo",
    "body": "It says *teh*.",
    "state": "open",
    "user": ALICE,
    "html_url": "https://github.com/acme/shop/issues/42",
    "created_at": "2024-05-01T10:00:00Z",
    "updated_at": "2024-05-01T12:00:00+02:00",
    "closed_at": None,
}
PULL = ISSUE | {
    "draft": True,
    "merged": False,
    "head": {"ref": "fix", "sha": "a" * 40, "repo": {"id": 99}},
    "base": {"ref": "main", "sha": "b" * 40},
}
COMMENT = {
    "id": 5,
    "node_id": "IC_5",
    "body": "@bot fix it",
    "user": {"login": "helper[bot]", "id": 8, "type": "Bot"},
    "created_at": "2024-05-01T10:05:00Z",
    "updated_at": "2024-05-01T10:06:00Z",
    "html_url": "https://github.com/acme/shop/issues/42#issuecomment-5",
    "performed_via_github_app": {"id": 3},
}
REVIEW = {
    "id": 6,
    "node_id": "PRR_6",
    "body": "Please rename",
    "user": ALICE,
    "submitted_at": "2024-05-01T10:07:00Z",
    "html_url": "https://github.com/acme/shop/pull/42#pullrequestreview-6",
    "state": "commented",
}
USED = [
    ("issue_comment", "created"),
    ("issue_comment", "edited"),
    ("pull_request_review_comment", "created"),
    ("pull_request_review_comment", "edited"),
    ("pull_request_review", "submitted"),
    ("pull_request_review", "edited"),
    *[
        ("issues", action)
        for action in ("opened", "edited", "labeled", "assigned", "closed", "reopened", "transferred")
    ],
    *[("pull_request", action) for action in ("opened", "edited", "labeled", "assigned", "closed", "reopened")],
]


def payload(event: str, action: str, **other: object) -> dict[str, Any]:
    values: dict[str, Any] = {
        "action": action,
        "repository": REPOSITORY,
        "sender": ALICE,
        "installation": {"id": 4},
    }
    values |= {"pull_request": PULL} if event.startswith("pull") else {"issue": ISSUE}
    if event.endswith("comment"):
        values["comment"] = COMMENT | {"path": "a.py", "line": 3, "pull_request_review_id": 6, "in_reply_to_id": 1}
    if event == "pull_request_review":
        values["review"] = REVIEW
    if action == "edited":
        values["changes"] = {"body": {"from": "before"}}
    if action == "labeled":
        values["label"] = {"name": "threadtree"}
    if action == "assigned":
        values["assignee"] = ALICE
    return copy.deepcopy(values | other)


def test_a_comment_says_where_it_stands_and_who_wrote_it() -> None:
    event = read("issue_comment", payload("issue_comment", "created"), "github.com")
    assert isinstance(event, CommentCreated)
    assert event.repository == Repository("github.com", 99, "acme", "shop", "main", 4)
    assert event.sender == Actor("alice", 7)
    assert event.remark.author == Actor("helper[bot]", 8, is_bot=True)
    assert (event.remark.body, event.remark.via_app_id) == ("@bot fix it", 3)
    assert event.remark.updated_at - event.remark.created_at == timedelta(minutes=1)
    assert (event.thread.kind, event.thread.number, event.thread.head) == ("issue", 42, None)
    assert event.thread.updated_at == event.thread.created_at == datetime(2024, 5, 1, 10, tzinfo=UTC)


def test_a_comment_on_a_pull_request_knows_the_kind_but_not_the_head() -> None:
    event = read(
        "issue_comment", payload("issue_comment", "created", issue=ISSUE | {"pull_request": {"url": "x"}}), "github.com"
    )
    assert isinstance(event, CommentCreated)
    assert (event.thread.kind, event.thread.head) == ("pull", None)


def test_an_edit_brings_the_text_before() -> None:
    event = read("issue_comment", payload("issue_comment", "edited"), "github.com")
    assert isinstance(event, CommentEdited)
    assert event.body_before == "before"
    thread = read("issues", payload("issues", "edited", changes={"body": {"from": None}}), "github.com")
    assert isinstance(thread, ThreadEdited)
    assert thread.body_before == ""
    review = read("pull_request_review", payload("pull_request_review", "edited"), "github.com")
    assert isinstance(review, ReviewEdited)
    assert review.remark.updated_at == review.remark.created_at


def test_an_edit_of_the_title_is_nothing_to_the_bot() -> None:
    retitled = payload("issues", "edited", changes={"title": {"from": "Typpo"}})
    assert read("issues", retitled, "github.com") is None
    assert not envelope("issues", retitled, "github.com").used


def test_an_inline_review_comment_has_its_place_and_the_pull_requests_head() -> None:
    event = read("pull_request_review_comment", payload("pull_request_review_comment", "created"), "github.com")
    assert isinstance(event, ReviewCommentCreated)
    assert event.place == CodePlace(6, "a.py", 3, "", 1)
    assert event.thread.head == PullHead("fix", "a" * 40, 99, "main", draft=True)


def test_the_head_of_a_deleted_fork_has_no_repository() -> None:
    gone = payload("pull_request", "opened", pull_request=PULL | {"head": PULL["head"] | {"repo": None}})  # type: ignore[operator]
    event = read("pull_request", gone, "github.com")
    assert isinstance(event, ThreadOpened)
    assert event.thread.head
    assert event.thread.head.repository_id is None


def test_a_review_counts_only_with_a_text_of_its_own() -> None:
    spoken = payload("pull_request_review", "submitted")
    assert isinstance(read("pull_request_review", spoken, "github.com"), ReviewSubmitted)
    silent = payload("pull_request_review", "submitted", review=REVIEW | {"body": None})
    assert read("pull_request_review", silent, "github.com") is None
    assert not envelope("pull_request_review", silent, "github.com").used


def test_labels_assignments_and_reopening() -> None:
    labeled = read("issues", payload("issues", "labeled"), "github.com")
    assert isinstance(labeled, ThreadLabeled)
    assert labeled.label == "threadtree"
    assigned = read("pull_request", payload("pull_request", "assigned"), "github.com")
    assert isinstance(assigned, ThreadAssigned)
    assert assigned.assignee == Actor("alice", 7)
    assert isinstance(read("issues", payload("issues", "reopened"), "github.com"), ThreadReopened)


def test_closing_says_when_and_whether_it_was_merged() -> None:
    merged = payload(
        "pull_request", "closed", pull_request=PULL | {"merged": True, "closed_at": "2024-05-02T00:00:00Z"}
    )
    event = read("pull_request", merged, "github.com")
    assert isinstance(event, ThreadClosed)
    assert (event.merged, event.closed_at) == (True, datetime(2024, 5, 2, tzinfo=UTC))


@pytest.mark.parametrize("action", ["transferred", "deleted"])
def test_an_issue_that_leaves_is_closed_at_no_known_time(action: str) -> None:
    left = payload("issues", action, issue=ISSUE | {"closed_at": "2020-01-01T00:00:00Z"})
    event = read("issues", left, "github.com")
    assert isinstance(event, ThreadClosed)
    assert event.closed_at is None


def test_a_deleted_account_is_shown_as_the_ghost() -> None:
    event = read("issue_comment", payload("issue_comment", "created", comment=COMMENT | {"user": None}), "github.com")
    assert isinstance(event, CommentCreated)
    assert event.remark.author.login == "ghost"


def test_texts_hold_no_nul_since_postgres_has_none() -> None:
    event = read("issue_comment", payload("issue_comment", "created", comment=COMMENT | {"body": "a\0b"}), "github.com")
    assert isinstance(event, CommentCreated)
    assert event.remark.body == "ab"


def test_the_lock_follows_the_id_and_the_conversation_the_name() -> None:
    about = envelope("issue_comment", payload("issue_comment", "created"), "ghe.acme.test")
    assert (about.conversation, about.lock_key) == ("acme/shop#42", "ghe.acme.test/99#42")
    assert about.used


@pytest.mark.parametrize(
    ("event", "action"),
    [
        ("ping", None),
        ("push", None),
        ("issue_comment", "deleted"),
        ("pull_request", "synchronize"),
        ("issues", "pinned"),
    ],
)
def test_other_events_and_actions_are_not_used(event: str, action: str | None) -> None:
    other = payload("issue_comment", "created") | {"action": action}
    assert not envelope(event, other, "github.com").used
    assert read(event, other, "github.com") is None


@pytest.mark.parametrize("name", ["..", "a/b", "", "ä"])
def test_a_repository_name_that_is_no_name_is_refused(name: str) -> None:
    forged = payload("issue_comment", "created", repository=REPOSITORY | {"name": name})
    assert isinstance(read("issue_comment", forged, "github.com"), Unreadable)
    assert envelope("issue_comment", forged, "github.com").lock_key is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("2024-05-01T10:00:00Z"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(USED), st.data(), JSON)
@settings(max_examples=400)
def test_any_field_may_be_anything(kind: tuple[str, str], data: st.DataObject, junk: object) -> None:
    event, action = kind
    whole = payload(event, action)
    assert not isinstance(read(event, whole, "github.com"), Unreadable | None)
    node = whole
    while True:
        key = data.draw(st.sampled_from(sorted(node)))
        if not isinstance(node[key], dict) or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = junk
    read(event, whole, "github.com")
    about = envelope(event, whole, "github.com")
    assert about.lock_key is None or "\0" not in about.lock_key + (about.conversation or "")


@given(st.sampled_from(USED), JSON)
def test_any_json_is_readable_or_named_unreadable(kind: tuple[str, str], junk: object) -> None:
    event, action = kind
    envelope(event, junk, "github.com")
    assert read(event, junk, "github.com") is None or isinstance(read(event, junk, "github.com"), Unreadable)
    assert isinstance(read(event, {"action": action, "changes": junk}, "github.com"), Unreadable | None)


def test_the_recorded_payloads_are_installed() -> None:
    assert recorded_payloads(), f"GitHub's recorded payloads are missing: run `{INSTALL}`"


@pytest.mark.parametrize("recorded", recorded_payloads(), ids=str)
def test_every_recorded_payload_is_readable(recorded: Recorded) -> None:
    event = read(recorded.event, recorded.payload, "github.com")
    about = envelope(recorded.event, recorded.payload, "github.com")
    assert not isinstance(event, Unreadable)
    assert about.used == (event is not None)
    if event:
        assert about.lock_key == f"github.com/{event.repository.id}#{event.thread.number}"
        assert about.repository == event.repository
