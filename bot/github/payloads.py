"""The only place that knows GitHub's webhook JSON: `envelope` for receive, `read` for decide.

Only fields that the bot uses are read: a payload without another field is readable.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from bot.github.events import (
    Addressed,
    CodePlace,
    CommentWritten,
    Event,
    Remark,
    ReviewCommentWritten,
    ReviewWritten,
    Thread,
    ThreadAssigned,
    ThreadClosed,
    ThreadLabeled,
    ThreadReopened,
    ThreadWritten,
    Unreadable,
)
from bot.model import Actor, Repository, Target, TargetKind, ThreadKind

# The account that GitHub shows for deleted ones, which payloads give as null. https://github.com/ghost
GHOST = Actor(login="ghost", id=10137)
UNPROVEN = {"unproven": True}
"""In a payload that was rebuilt from a thread: its text was edited since, so nobody knows who asked for what."""

_USED_ACTIONS = {
    "issue_comment": {"created", "edited"},
    "pull_request_review_comment": {"created", "edited"},
    "pull_request_review": {"submitted", "edited"},
    "issues": {"opened", "edited", "labeled", "assigned", "closed", "reopened", "transferred", "deleted"},
    "pull_request": {"opened", "edited", "labeled", "assigned", "closed", "reopened"},
}
_ACTION = re.compile(r"[ -~]{1,100}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LARGEST_ID = 2**63 - 1
_LARGEST_NUMBER = 2**31 - 1


class _MalformedError(Exception):
    """A field does not have the documented form; the message names it. Stays inside this module."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """One JSON object, and its path in the payload."""

    values: Mapping[str, object]
    path: str = ""

    @classmethod
    def of(cls, value: object, path: str) -> Self:
        """Raise _MalformedError unless `value` is an object."""
        if not isinstance(value, dict):
            raise _MalformedError(f"{path or 'the payload'} is not an object")
        return cls(value, path)

    def child(self, key: str) -> Self:
        """Return the object under `key`, which must be there."""
        return self.of(self.values.get(key), self._name(key))

    def maybe_child(self, key: str) -> Self | None:
        """Return the object under `key`, or None where it is absent or null."""
        return None if self.values.get(key) is None else self.child(key)

    def text(self, key: str) -> str:
        """Return a string, without NUL characters: Postgres text has none."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise _MalformedError(f"{self._name(key)} is not a string")
        return value.replace("\0", "") if "\0" in value else value  # a search costs a tenth of a replacement

    def maybe_text(self, key: str) -> str:
        """Return a string, empty where it is absent or null: GitHub sends an empty body as null."""
        return "" if self.values.get(key) is None else self.text(key)

    def integer(self, key: str, largest: int = _LARGEST_ID) -> int:
        """Return an integer from 1 to `largest`."""
        value = self.values.get(key)
        if type(value) is not int or not 0 < value <= largest:
            raise _MalformedError(f"{self._name(key)} is not an integer from 1 to {largest}")
        return value

    def maybe_integer(self, key: str, largest: int = _LARGEST_ID) -> int | None:
        """Return an integer from 1 to `largest`, or None where it is absent or null."""
        return None if self.values.get(key) is None else self.integer(key, largest)

    def moment(self, key: str) -> datetime:
        """Return an ISO-8601 time with its offset, as UTC."""
        value = self.text(key)
        try:
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                raise _MalformedError(f"{self._name(key)} has no time zone")
            return moment.astimezone(UTC)
        except (ValueError, OverflowError):
            raise _MalformedError(f"{self._name(key)} is not a time") from None

    def maybe_moment(self, key: str) -> datetime | None:
        """Return an ISO-8601 time as UTC, or None where it is absent or null."""
        return None if self.values.get(key) is None else self.moment(key)

    def lenient_child(self, key: str) -> Self:
        """Return the object under `key`, an empty one where there is anything else."""
        value = self.values.get(key)
        return type(self)(value if isinstance(value, dict) else {}, self._name(key))

    def lenient_text(self, key: str) -> str:
        """Return a string, empty where there is anything else."""
        return self.text(key) if isinstance(self.values.get(key), str) else ""

    def lenient_integer(self, key: str) -> int | None:
        """Return an integer that can be an id, or None where there is anything else."""
        try:
            return self.maybe_integer(key)
        except _MalformedError:
            return None

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


@dataclass(frozen=True, slots=True)
class Envelope:
    """The subject of a delivery. `used` is false if the bot never acts on such a delivery.

    `lock_key` names the conversation for machines (a rename keeps it), `conversation` for people. `text` is what was
    written, where nothing else in the delivery can concern the bot; None where something else can, or cannot be read.
    `sender` is the id of the account that caused it.
    """

    action: str | None
    conversation: str | None
    lock_key: str | None
    used: bool
    text: str | None = None
    sender: int | None = None


def is_used_event(event: str) -> bool:
    """Return whether the bot acts on some payloads of this event."""
    return event in _USED_ACTIONS


def envelope(event: str, payload: object, platform: str) -> Envelope:
    """Read any JSON value sent as `event` by the GitHub server with the host `platform`; never raise."""
    fields = _Fields(payload) if isinstance(payload, dict) else _Fields({})
    named = fields.values.get("action")
    action = named if isinstance(named, str) and _ACTION.fullmatch(named) else None
    is_used = _is_used(event, action, fields)
    try:
        repository = _read_repository(fields, platform)
        number = _thread_fields(fields).integer("number", _LARGEST_NUMBER)
    except _MalformedError:
        return Envelope(action, None, None, is_used)
    conversation = f"{repository.full_name}#{number}"
    text = _written_text(event, action, fields) if is_used else None
    sender = fields.values.get("sender")
    sender_id = sender.get("id") if isinstance(sender, dict) else None
    lock_key = f"{platform}/{repository.id}#{number}"
    return Envelope(action, conversation, lock_key, is_used, text, sender_id if type(sender_id) is int else None)


def read(event: str, payload: object, platform: str) -> Event | Unreadable | None:
    """Return the event in a payload that the GitHub server with the host `platform` sent as `event`; never raise.

    None means that nothing in it concerns the bot.
    """
    fields = _Fields(payload) if isinstance(payload, dict) else _Fields({})
    try:
        _Fields.of(payload, "")
        action = fields.maybe_text("action")
        if fields.values.get("unproven"):
            why = "The text was edited since, and GitHub does not tell how."
            return Unreadable(why, _read_addressed(event, fields, platform), is_unproven=True)
        return _read(event, action, fields, platform) if _is_used(event, action, fields) else None
    except _MalformedError as malformed:
        return Unreadable(str(malformed), _read_addressed(event, fields, platform))


def _is_used(event: str, action: str | None, fields: _Fields) -> bool:
    """Return whether the bot can act on this event and action; not on an edit that left the text unchanged."""
    if action not in _USED_ACTIONS.get(event, ()):
        return False
    if action == "edited":
        changes = fields.values.get("changes")
        return not isinstance(changes, dict) or "body" in changes
    if event == "pull_request_review":
        review = fields.values.get("review")
        return not isinstance(review, dict) or review.get("body") not in (None, "")
    return True


def _written_text(event: str, action: str | None, fields: _Fields) -> str | None:
    """Return the text of a comment, a review or a thread's own that was written or edited; None for other events."""
    try:
        match event, action:
            case (("issue_comment" | "pull_request_review_comment"), _):
                return fields.child("comment").maybe_text("body")
            case "pull_request_review", _:
                return fields.child("review").maybe_text("body")
            case _, "opened" | "edited":
                return _thread_fields(fields).maybe_text("body")
            case _:
                return None
    except _MalformedError:
        return None


def _read(event: str, action: str, fields: _Fields, platform: str) -> Event | None:
    where = (_read_repository(fields, platform), _read_actor(fields.child("sender")), _read_thread(fields))
    before = fields.child("changes").child("body").maybe_text("from") if action == "edited" else None
    thread = _thread_fields(fields)
    match event, action:
        case "issue_comment", _:
            return CommentWritten(*where, _read_written(fields.child("comment")), before)
        case "pull_request_review_comment", _:
            comment = fields.child("comment")
            return ReviewCommentWritten(*where, _read_written(comment), _read_place(comment), before)
        case "pull_request_review", _:
            return ReviewWritten(*where, _read_written(fields.child("review"), created="submitted_at"), before)
        case _, "opened" | "edited":
            written_at = thread.moment("created_at" if action == "opened" else "updated_at")
            return ThreadWritten(*where, _read_own_text(thread), written_at, before)
        case _, "labeled":
            return ThreadLabeled(*where, _read_own_text(thread), fields.child("label").text("name"))
        case _, "assigned":
            assignee = fields.maybe_child("assignee")
            return ThreadAssigned(*where, _read_own_text(thread), _read_actor(assignee)) if assignee else None
        case _, "closed":
            return ThreadClosed(*where, thread.maybe_moment("closed_at") or thread.moment("updated_at"))
        case _, "transferred" | "deleted":
            # GitHub does not date these, and the issue may have been closed long before: its last change is when.
            return ThreadClosed(*where, thread.moment("updated_at"))
        case _, "reopened":
            return ThreadReopened(*where, thread.moment("updated_at"))
        case _:
            return None


def _read_addressed(event: str, fields: _Fields, platform: str) -> Addressed | None:
    """Return what can still be read of a payload that lacks a field."""
    try:
        repository, sender = _read_repository(fields, platform), _read_actor(fields.child("sender"))
        thread = _thread_fields(fields)
        number = thread.integer("number", _LARGEST_NUMBER)
    except _MalformedError:
        return None
    kind = _kind(thread, fields)
    kinds: dict[str, TargetKind] = {
        "issue_comment": "comment",
        "pull_request_review_comment": "review-comment",
        "pull_request_review": "review",
    }
    written = fields.lenient_child("review" if event == "pull_request_review" else "comment")
    written_id = written.lenient_integer("id")
    return Addressed(
        repository=repository,
        thread=Thread(number, kind, thread.lenient_text("title"), None),
        sender=sender,
        target=Target(kinds[event], written_id) if event in kinds and written_id else Target(kind),
        body=(written if event in kinds else thread).lenient_text("body"),
        label=fields.lenient_child("label").lenient_text("name"),
        assignee_id=fields.lenient_child("assignee").lenient_integer("id"),
    )


def _read_repository(payload: _Fields, platform: str) -> Repository:
    """Return the repository of a payload, with the installation it was sent for, if any."""
    repository = payload.child("repository")
    owner = repository.child("owner").text("login")
    name = repository.text("name")
    # Both become names of folders.
    if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name)) or {owner, name} & {".", ".."}:
        raise _MalformedError("the repository's owner or name is not one that GitHub allows")
    installation = payload.maybe_child("installation")
    return Repository(
        platform=platform,
        id=repository.integer("id"),
        owner=owner,
        name=name,
        default_branch=repository.maybe_text("default_branch") or None,
        installation_id=installation.integer("id") if installation else None,
    )


def _read_actor(actor: _Fields) -> Actor:
    """Return a user, an organisation or a bot."""
    return Actor(login=actor.text("login"), id=actor.integer("id"), is_bot=actor.values.get("type") == "Bot")


def _thread_fields(payload: _Fields) -> _Fields:
    return payload.child("pull_request" if "pull_request" in payload.values else "issue")


def _kind(thread: _Fields, payload: _Fields) -> ThreadKind:
    is_pull = "pull_request" in payload.values or thread.values.get("pull_request") is not None
    return "pull" if is_pull else "issue"


def _read_thread(payload: _Fields) -> Thread:
    thread = _thread_fields(payload)
    return Thread(
        number=thread.integer("number", _LARGEST_NUMBER),
        kind=_kind(thread, payload),
        title=thread.text("title"),
        closed_at=thread.maybe_moment("closed_at"),
        head_sha=sha if _SHA.fullmatch(sha := thread.lenient_child("head").lenient_text("sha")) else None,
    )


def _read_written(written: _Fields, created: str = "created_at") -> Remark:
    """Return a comment or review; `created` names the time of its creation."""
    updated_at = written.maybe_moment("updated_at") or written.moment(created)
    return _read_remark(written, written.integer("id"), updated_at)


def _read_place(comment: _Fields) -> CodePlace:
    return CodePlace(
        review_id=comment.maybe_integer("pull_request_review_id"),
        path=comment.text("path"),
        line=comment.maybe_integer("line"),
        diff_hunk=comment.maybe_text("diff_hunk"),
    )


def _read_own_text(thread: _Fields) -> Remark:
    return _read_remark(thread, None, thread.moment("updated_at"))


def _read_remark(written: _Fields, remark_id: int | None, updated_at: datetime) -> Remark:
    user = written.maybe_child("user")
    return Remark(
        id=remark_id,
        node_id=written.text("node_id"),
        body=written.maybe_text("body"),
        author=_read_actor(user) if user else GHOST,
        updated_at=updated_at,
    )
