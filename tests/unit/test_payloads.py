import copy
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.github.events import (
    Addressed,
    BlockersChanged,
    ChecksEnded,
    Event,
    Gesture,
    RepositoryDeleted,
    ThreadClosed,
    ThreadReopened,
    Unreadable,
    Written,
)
from bot.github.payloads import BLOCKERS, CHECKS, envelope, read
from bot.inbox.delivery import delivery_of
from bot.model import Actor, Repository, Target, Thread
from tests.recorded import INSTALL, recorded_payloads

ALICE = {"login": "alice", "id": 7, "type": "User"}
REPOSITORY = {"id": 99, "name": "shop", "owner": {"login": "acme"}, "default_branch": "main"}
ISSUE = {
    "number": 42,
    "node_id": "I_42",
    "title": "Typo",
    "body": "It says *teh*.",
    "user": ALICE,
    "created_at": "2024-05-01T10:00:00Z",
    "updated_at": "2024-05-01T12:30:00+02:00",
    "closed_at": None,
}
COMMENT = {
    "id": 5,
    "node_id": "IC_5",
    "body": "@bot fix it",
    "user": {"login": "helper[bot]", "id": 8, "type": "Bot"},
    "created_at": "2024-05-01T10:05:00Z",
    "updated_at": "2024-05-01T10:06:00Z",
}
REVIEW = {
    "id": 6,
    "node_id": "PRR_6",
    "body": "Please rename",
    "user": ALICE,
    "submitted_at": "2024-05-01T10:07:00Z",
}
CREATED, UPDATED = datetime(2024, 5, 1, 10, tzinfo=UTC), datetime(2024, 5, 1, 10, 30, tzinfo=UTC)
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
    *[
        ("pull_request", action)
        for action in ("opened", "edited", "labeled", "assigned", "review_requested", "closed", "reopened")
    ],
]


def payload(event: str, action: str, **other: object) -> dict[str, Any]:
    values: dict[str, Any] = {
        "action": action,
        "repository": REPOSITORY,
        "sender": ALICE,
        "installation": {"id": 4},
    }
    key = "pull_request" if event.startswith("pull") else "blocked_issue" if event == BLOCKERS else "issue"
    values[key] = ISSUE
    if event.endswith("comment"):
        values["comment"] = COMMENT | {"path": "a.py", "line": 3, "pull_request_review_id": 6}
    if event == "pull_request_review":
        values["review"] = REVIEW
    if action == "edited":
        values["changes"] = {"body": {"from": "before"}}
    if action == "labeled":
        values["label"] = {"name": "threadtree"}
    if action == "assigned":
        values["assignee"] = ALICE
    if action == "review_requested":
        values["requested_reviewer"] = ALICE
    return copy.deepcopy(values | other)


def without(values: dict[str, Any], path: str) -> dict[str, Any]:
    """The payload without the field at `path`."""
    *parents, key = path.split(".")
    node = values
    for parent in parents:
        node = node[parent]
    del node[key]
    return values


def event_in(event: str, values: dict[str, Any]) -> Event:
    found = read(event, values, "github.com")
    assert found is not None
    assert not isinstance(found, Unreadable), found
    return found


def test_a_comment_says_where_it_was_written_and_by_whom() -> None:
    event = event_in("issue_comment", payload("issue_comment", "created"))
    assert isinstance(event, Written)
    assert event.repository == Repository("github.com", 99, "acme", "shop", "main", 4)
    assert event.sender == Actor("alice", 7)
    assert event.thread == Thread(42, "issue", "Typo", None)
    assert event.remark.author == Actor("helper[bot]", 8, is_bot=True)
    assert (event.remark.target, event.remark.body) == (Target("comment", 5), "@bot fix it")
    assert event.remark.updated_at == datetime(2024, 5, 1, 10, 6, tzinfo=UTC)
    assert event.body_before is None


def test_a_comment_on_a_pull_request_knows_the_kind() -> None:
    on_pull = payload("issue_comment", "created", issue=ISSUE | {"pull_request": {"url": "x"}})
    event = event_in("issue_comment", on_pull)
    assert isinstance(event, Written)
    assert event.thread.kind == "pull"


def test_an_edit_brings_the_text_before() -> None:
    comment = event_in("issue_comment", payload("issue_comment", "edited"))
    assert isinstance(comment, Written)
    assert comment.body_before == "before"
    thread = event_in("issues", payload("issues", "edited", changes={"body": {"from": None}}))
    assert isinstance(thread, Written)
    assert (thread.body_before, thread.written_at) == ("", UPDATED)
    review = event_in("pull_request_review", payload("pull_request_review", "edited"))
    assert isinstance(review, Written)
    assert review.body_before == "before"


def test_an_edit_of_the_title_is_nothing_to_the_bot() -> None:
    retitled = payload("issues", "edited", changes={"title": {"from": "Typpo"}})
    assert read("issues", retitled, "github.com") is None
    assert not envelope("issues", retitled, "github.com").used


def test_an_inline_review_comment_has_its_place() -> None:
    event = event_in("pull_request_review_comment", payload("pull_request_review_comment", "created"))
    assert isinstance(event, Written)
    assert (event.review_id, event.code) == (6, "a.py:3\n\n")
    whole_file = payload("pull_request_review_comment", "created")
    whole_file["comment"] |= {"line": None, "diff_hunk": "@@ -1 +1 @@"}
    event = event_in("pull_request_review_comment", whole_file)
    assert isinstance(event, Written)
    assert event.code == "a.py\n\n@@ -1 +1 @@"


@pytest.mark.parametrize("event", ["pull_request_review_comment", "pull_request_review"])
def test_an_edit_is_no_new_part_of_its_review(event: str) -> None:
    created = event_in(event, payload(event, "submitted" if event == "pull_request_review" else "created"))
    edited = event_in(event, payload(event, "edited"))
    assert isinstance(created, Written)
    assert isinstance(edited, Written)
    assert (created.review_id, edited.review_id) == (6, None)


def test_a_review_counts_only_with_a_text_of_its_own() -> None:
    review = event_in("pull_request_review", payload("pull_request_review", "submitted"))
    assert isinstance(review, Written)
    assert review.remark.updated_at == datetime(2024, 5, 1, 10, 7, tzinfo=UTC)
    silent = payload("pull_request_review", "submitted", review=REVIEW | {"body": None})
    assert read("pull_request_review", silent, "github.com") is None
    assert not envelope("pull_request_review", silent, "github.com").used


def test_an_opened_thread_is_written_when_it_was_created() -> None:
    event = event_in("pull_request", payload("pull_request", "opened"))
    assert isinstance(event, Written)
    assert (event.thread.kind, event.written_at, event.remark.updated_at) == ("pull", CREATED, UPDATED)
    assert event.remark.body == "It says *teh*."


def test_labels_assignments_and_reopening() -> None:
    labeled = event_in("issues", payload("issues", "labeled"))
    assert isinstance(labeled, Gesture)
    assert labeled.label == "threadtree"
    assigned = event_in("pull_request", payload("pull_request", "assigned"))
    assert isinstance(assigned, Gesture)
    assert assigned.assignee_id == 7
    requested = event_in("pull_request", payload("pull_request", "review_requested"))
    assert isinstance(requested, Gesture)
    assert (requested.assignee_id, requested.reviewer_id) == (None, 7)
    of_team = payload("pull_request", "review_requested", requested_reviewer=None, requested_team={"id": 7})
    assert read("pull_request", of_team, "github.com") is None
    reopened = event_in("issues", payload("issues", "reopened"))
    assert isinstance(reopened, ThreadReopened)
    assert reopened.at == UPDATED


def test_closing_says_when() -> None:
    closed = payload("pull_request", "closed", pull_request=ISSUE | {"closed_at": "2024-05-02T00:00:00Z"})
    event = event_in("pull_request", closed)
    assert isinstance(event, ThreadClosed)
    assert event.at == datetime(2024, 5, 2, tzinfo=UTC)


def test_a_pull_request_is_closed_also_where_the_payload_tells_less_of_it() -> None:
    head = {"ref": "topic", "sha": "a" * 40, "repo": {"id": REPOSITORY["id"]}}
    pull = ISSUE | {"closed_at": "2024-05-02T00:00:00Z", "merged": True, "head": head}
    merged = event_in("pull_request", payload("pull_request", "closed", pull_request=pull))
    assert isinstance(merged, ThreadClosed)
    assert merged.pull is not None
    assert merged.pull.merged_at == merged.at == datetime(2024, 5, 2, tzinfo=UTC)
    del pull["created_at"]
    closed = event_in("pull_request", payload("pull_request", "closed", pull_request=pull))
    assert isinstance(closed, ThreadClosed)
    assert closed.pull is None


@pytest.mark.parametrize(
    ("event", "action"),
    [
        *(("issues", action) for action in ("closed", "reopened", "transferred", "deleted")),
        *(("pull_request", action) for action in ("closed", "reopened")),
        *((event, "completed") for event in CHECKS),
        ("repository", "deleted"),
        ("issue_dependencies", "blocked_by_added"),
        ("issue_dependencies", "blocked_by_removed"),
    ],
)
def test_what_asks_nothing_needs_no_person(event: str, action: str) -> None:
    about = {"head_sha": "a" * 40, "head_repository": {"id": REPOSITORY["id"]}}
    told = payload(event, action, **({event: about} if event in CHECKS else {}))
    for nobody in (told | {"sender": None}, without(copy.deepcopy(told), "sender")):
        assert event_in(event, nobody) == event_in(event, told)
        assert delivery_of("g", event, orjson.dumps(nobody), "github.com").state == "received"


def test_an_issue_that_was_moved_here_asks_nothing() -> None:
    # GitHub gives no old issue where the sender may not see it.
    moved = payload("issues", "opened", changes={"old_issue": None, "old_repository": REPOSITORY | {"id": 98}})
    assert read("issues", moved, "github.com") is None
    assert delivery_of("g", "issues", orjson.dumps(moved), "github.com").state == "ignored"
    for changes in ({}, None, {"old_repository": None}):
        assert isinstance(event_in("issues", payload("issues", "opened", changes=changes)), Written)


@pytest.mark.parametrize("action", ["transferred", "deleted"])
def test_an_issue_that_leaves_is_closed_at_its_last_change(action: str) -> None:
    left = payload("issues", action, issue=ISSUE | {"closed_at": "2020-01-01T00:00:00Z"})
    event = event_in("issues", left)
    assert isinstance(event, ThreadClosed)
    assert event.at == UPDATED


# What the bot does not use is not demanded


def test_a_payload_without_what_nothing_uses_is_readable() -> None:
    for event, action, path in [
        *(("issue_comment", "created", "issue.node_id"), ("issue_comment", "created", "issue.body")),
        *(("issue_comment", "created", "issue.user"), ("issue_comment", "created", "issue.created_at")),
        *(("issue_comment", "created", "issue.updated_at"), ("issue_comment", "created", "comment.created_at")),
        *(("issue_comment", "created", "comment.updated_at"), ("issue_comment", "created", "comment.user")),
        *(("issue_comment", "created", "installation"), ("issue_comment", "created", "repository.default_branch")),
        *(("pull_request_review", "submitted", "pull_request.updated_at"),),
        *(("pull_request_review_comment", "created", "comment.line"), ("issues", "labeled", "issue.created_at")),
        *(("issues", "closed", "issue.node_id"), ("pull_request", "reopened", "pull_request.created_at")),
    ]:
        event_in(event, without(payload(event, action), path))


@pytest.mark.parametrize(
    ("event", "action", "path", "target"),
    [
        ("issue_comment", "created", "comment.node_id", Target("comment", 5)),
        ("issue_comment", "created", "comment.id", Target("issue")),
        ("pull_request_review_comment", "created", "comment.path", Target("review-comment", 5)),
        ("pull_request_review", "submitted", "review.submitted_at", Target("review", 6)),
        ("issues", "opened", "issue.node_id", Target("issue")),
        ("pull_request", "edited", "changes", Target("pull")),
        ("issues", "labeled", "issue.updated_at", Target("issue")),
    ],
)
def test_an_unreadable_payload_says_where_and_to_what_it_belongs(
    event: str, action: str, path: str, target: Target
) -> None:
    found = read(event, without(payload(event, action), path), "github.com")
    assert isinstance(found, Unreadable)
    assert found.why.startswith(path)
    assert isinstance(found.addressed, Addressed)
    assert found.addressed.target == target
    assert found.addressed.thread.number == 42
    assert found.addressed.author == Actor("alice", 7)
    assert found.addressed.body in ("@bot fix it", "Please rename", "It says *teh*.")
    assert found.addressed.label == ("threadtree" if action == "labeled" else "")


def test_a_payload_that_names_no_thread_or_no_sender_belongs_to_nobody() -> None:
    for path in ["repository", "repository.id", "sender", "issue", "issue.number"]:
        found = read("issue_comment", without(payload("issue_comment", "created"), path), "github.com")
        assert isinstance(found, Unreadable)
        assert found.addressed is None


def test_a_deleted_account_is_shown_as_the_ghost() -> None:
    event = read("issue_comment", payload("issue_comment", "created", comment=COMMENT | {"user": None}), "github.com")
    assert isinstance(event, Written)
    assert event.remark.author.login == "ghost"


def test_texts_hold_no_nul_since_postgres_has_none() -> None:
    event = read("issue_comment", payload("issue_comment", "created", comment=COMMENT | {"body": "a\0b"}), "github.com")
    assert isinstance(event, Written)
    assert event.remark.body == "ab"


def test_the_lock_follows_the_id_and_the_conversation_the_name() -> None:
    about = envelope("issue_comment", payload("issue_comment", "created"), "ghe.acme.test")
    assert (about.conversation, about.lock_key) == ("acme/shop#42", "ghe.acme.test/99#42")
    assert about.used


def test_other_events_and_actions_are_not_used() -> None:
    for event, action in [
        ("ping", None),
        ("push", None),
        ("issue_comment", "deleted"),
        ("pull_request", "synchronize"),
        ("issues", "pinned"),
    ]:
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


def test_every_recorded_payload_is_readable() -> None:
    for recorded in recorded_payloads():
        event = read(recorded.event, recorded.payload, "github.com")
        about = envelope(recorded.event, recorded.payload, "github.com")
        assert not isinstance(event, Unreadable)
        assert about.used == (event is not None)
        if isinstance(event, ChecksEnded):
            assert about.lock_key == f"github.com/{event.repository.id}@{event.head}"
        elif isinstance(event, RepositoryDeleted):
            assert (about.lock_key, about.conversation) == (f"github.com/{event.repository.id}", None)
        elif event:
            number = event.number if isinstance(event, BlockersChanged) else event.thread.number
            assert about.lock_key == f"github.com/{event.repository.id}#{number}"


@pytest.mark.parametrize("event", ["check_run", "check_suite", "workflow_run"])
def test_checks_that_ended_ring_for_their_commit_and_say_nothing_else(event: str) -> None:
    about = {"head_sha": "a" * 40, "head_repository": {"id": 99}, "conclusion": "failure", "pull_requests": [{}]}
    ended = {"action": "completed", "repository": REPOSITORY, "sender": ALICE, event: about}
    assert read(event, ended, "github.com") == ChecksEnded(
        Repository("github.com", 99, "acme", "shop", "main"), "a" * 40
    )
    told = envelope(event, ended, "github.com")
    assert (told.used, told.lock_key, told.sender) == (True, f"github.com/99@{'a' * 40}", None)
    kept = delivery_of("g-1", event, orjson.dumps(ended | {"large": "x" * 9000}), "github.com").body or b""
    assert len(kept) < 300
    assert read(event, orjson.loads(kept), "github.com") == ChecksEnded(
        Repository("github.com", 99, "acme", "shop"), "a" * 40
    )

    others = [ended | {"action": "created"}, ended | {event: about | {"head_sha": "../main"}}, {"action": "completed"}]
    if event == "workflow_run":
        others += [ended | {event: about | {"head_repository": one}} for one in (None, {"id": 98})]
    assert [other for other in others if envelope(event, other, "github.com").used] == []

    del about["head_repository"]
    assert envelope(event, ended, "github.com").used, "a doorbell: GitHub is asked whose head it is"
