"""The only place that knows GitHub's webhook JSON: `envelope` for receive, `read` for decide.

Only fields that the bot uses are read: a payload without another field is readable.
https://docs.github.com/en/webhooks/webhook-events-and-payloads
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AliasPath, BeforeValidator, Field, ValidationError

from bot.github import answers
from bot.github.events import (
    Addressed,
    BlockersChanged,
    ChecksEnded,
    ClosedPull,
    Event,
    Gesture,
    PullReady,
    Remark,
    RepositoryDeleted,
    ThreadClosed,
    ThreadReopened,
    Unreadable,
    Written,
)
from bot.model import Actor, Repository, Target, TargetKind, Thread, ThreadKind

T = TypeVar("T")
Json = Mapping[str, Any]

# The account that GitHub shows for deleted ones, which payloads give as null. https://github.com/ghost
GHOST = Actor(login="ghost", id=10137)

CHECKS = ("check_suite", "check_run", "workflow_run")
"""The events that tell that checks of a commit ended; the object with the commit has the event's name. Each set of
checks ends with one of the first.
"""
BLOCKERS = "issue_dependencies"
_USED_ACTIONS = {
    **{event: {"completed"} for event in CHECKS},
    "issue_comment": {"created", "edited"},
    "pull_request_review_comment": {"created", "edited"},
    "pull_request_review": {"submitted", "edited"},
    "issues": {"opened", "edited", "labeled", "assigned", "closed", "reopened", "transferred", "deleted"},
    "pull_request": {
        "opened",
        "edited",
        "labeled",
        "assigned",
        "review_requested",
        "closed",
        "reopened",
        "ready_for_review",
    },
    BLOCKERS: {"blocked_by_added", "blocked_by_removed"},
    "repository": {"deleted"},
}
_TEXTS: Mapping[str, tuple[str, TargetKind]] = {
    "issue_comment": ("comment", "comment"),
    "pull_request_review_comment": ("comment", "review-comment"),
    "pull_request_review": ("review", "review"),
}
"""The object that holds the text of an event, and what kind of text it is; of other events it is the thread's own."""
REMARKS = ("pull_request_review", "pull_request_review_comment")
"""The events of texts that ask the bot also without a mention, on a pull request that it opened."""
# What GitHub writes where somebody reverts a pull request with its button.
_REVERTS = re.compile(r"Reverts (?P<name>[\w.-]{1,100}/[\w.-]{1,100})?#(?P<number>[0-9]{1,9})(?![0-9])")
# A branch that the bot may have made. Whose it is, its rows tell.
_MAY_BE_BOTS = re.compile(r"issue-[0-9]{1,9}(-[0-9]{1,9})?(-turn-[0-9]{1,19})?\Z")
_ACTION = re.compile(r"[ -~]{1,100}")
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class _MalformedError(Exception):
    """A field does not have the documented form; the message names it. Stays inside this module."""


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        if moment is None or moment.tzinfo is None:
            raise ValueError("no time with its zone")
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("no time of these days") from None


def _no_dots(name: str) -> str:
    if name in {".", ".."}:
        raise ValueError("no name that GitHub allows")
    return name


def _within(*path: str, **more: Any) -> Any:
    return Field(validation_alias=AliasPath(*path), **more)


# Postgres text has no NUL. GitHub sends an empty body as null.
Text = Annotated[str, AfterValidator(lambda text: text.replace("\0", ""))]
MaybeText = Annotated[Text, BeforeValidator(lambda text: "" if text is None else text)]
Id = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
Number = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
MaybeMoment = Annotated[datetime | None, BeforeValidator(lambda value: None if value is None else _moment(value))]
# Owner and name become names of folders.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$"), AfterValidator(_no_dots)]
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Account:
    login: Text
    id: Id
    type: Any = None

    @property
    def actor(self) -> Actor:
        return Actor(self.login, self.id, is_bot=self.type == "Bot")


@dataclass(frozen=True, slots=True)
class _Repository:
    id: Id
    owner: Annotated[Name, _within("owner", "login")]
    name: Name
    default_branch: MaybeText = ""


@dataclass(frozen=True, slots=True)
class _Thread:
    number: Number
    title: Text
    closed_at: MaybeMoment = None


@dataclass(frozen=True, slots=True)
class _Pull:
    number: Number
    branch: Annotated[Text, _within("head", "ref")]
    head: Annotated[Text, _within("head", "sha")]
    created_at: Moment
    head_repository: Annotated[Any, _within("head", "repo", "id")] = None  # null: the fork was deleted
    merged_at: MaybeMoment = None
    merged: Any = None
    body: MaybeText = ""


@dataclass(frozen=True, slots=True)
class _Text:
    node_id: Text
    body: MaybeText = ""
    user: _Account | None = None
    updated_at: MaybeMoment = None


@dataclass(frozen=True, slots=True)
class _Place:
    path: Text
    line: Id | None = None
    diff_hunk: MaybeText = ""
    review_id: Annotated[Id | None, _within("pull_request_review_id")] = None

    @property
    def code(self) -> str:
        return f"{self.path}{f':{self.line}' if self.line else ''}\n\n{self.diff_hunk}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """The subject of a delivery. `used` is false if the bot never acts on such a delivery.

    `lock_key` names the conversation for machines (a rename keeps it), `conversation` for people. `text` is what was
    written, where nothing else in the delivery can concern the bot; None where something else can, or cannot be read.
    `sender` is the id of the account that caused it. `on_pull_of` is the login of who opened the pull request on which
    a review, or an inline comment, is new. `kept` is what is read of a check that ended, in the same form: checks are
    many, and their payloads are large.
    """

    action: str | None
    conversation: str | None
    lock_key: str | None
    used: bool
    text: str | None = None
    sender: int | None = None
    on_pull_of: str | None = None
    kept: Json | None = None


def is_used_event(event: str, action: str | None = None) -> bool:
    """Return whether the bot acts on some payloads of this event."""
    return event in _USED_ACTIONS and (action is None or action in _USED_ACTIONS[event])


def envelope(event: str, payload: object, platform: str) -> Envelope:
    """Read any JSON value sent as `event` by the GitHub server with the host `platform`; never raise."""
    fields = payload if isinstance(payload, dict) else {}
    named = _maybe(str, fields, "action")
    action = named if named is not None and _ACTION.fullmatch(named) else None
    is_used = _is_used(event, action, fields)
    has_thread = event not in (*CHECKS, "repository")
    try:
        repository = _repository(fields, platform)
        number = _part(Number, fields, _thread_key(fields), "number") if has_thread else None
    except _MalformedError:
        return Envelope(action, None, None, is_used and event not in CHECKS)
    if event in CHECKS:
        head = _checked_head(event, fields)
        about = {"id": repository.id, "name": repository.name, "owner": {"login": repository.owner}}
        told = {"head_sha": head, "head_repository": {"id": repository.id}}
        kept = {"action": action, "repository": about, event: told}
        # Give checks a lock of their own: they are many, and people do not wait for them.
        lock_key = f"{platform}/{repository.id}@{head}"
        return Envelope(action, None, lock_key, is_used and head is not None, kept=kept)
    if not has_thread:
        return Envelope(action, None, f"{platform}/{repository.id}", is_used)
    text = None
    is_text = event in _TEXTS or action in ("opened", "edited")
    concerns_without_words = _bots_branch(event, action, fields) or _may_be_reviewed(event, action, fields)
    if is_used and is_text and not concerns_without_words:
        body = _at(fields, _TEXTS.get(event, (_thread_key(fields),))[0], "body")
        text = "" if body is None else body if isinstance(body, str) else None
    lock_key = f"{platform}/{repository.id}#{number}"
    sender = _maybe(int, fields, "sender", "id")
    is_new = event in REMARKS and action != "edited"
    opener = _maybe(str, fields, "pull_request", "user", "login") if is_new else None
    return Envelope(action, f"{repository.full_name}#{number}", lock_key, is_used, text, sender, opener)


def read(event: str, payload: object, platform: str) -> Event | Unreadable | None:
    """Return the event in a payload that the GitHub server with the host `platform` sent as `event`; never raise.

    None means that nothing in it concerns the bot.
    """
    fields = payload if isinstance(payload, dict) else {}
    try:
        _part(Object, payload)
        action = _part(MaybeText, fields, "action")
        return _read(event, action, fields, platform) if _is_used(event, action, fields) else None
    except _MalformedError as malformed:
        return Unreadable(str(malformed), _addressed(event, fields, platform))


def _is_used(event: str, action: str | None, fields: Json) -> bool:
    """Return whether the bot can act on this event and action.

    Not on an edit that left the text unchanged, nor on an issue that was asked in another repository and moved here.
    """
    if action not in _USED_ACTIONS.get(event, ()):
        return False
    if action == "edited":
        changes = fields.get("changes")
        return not isinstance(changes, dict) or "body" in changes
    if action == "opened":
        # https://docs.github.com/webhooks/webhook-events-and-payloads?actionType=opened#issues
        return not isinstance(_at(fields, "changes", "old_repository"), dict)
    if event == "pull_request_review" and not _bots_branch(event, action, fields):
        review = fields.get("review")
        return not isinstance(review, dict) or review.get("body") not in (None, "")
    return True


def _bots_branch(event: str, action: str | None, fields: Json) -> str:
    """Return the branch of a pull request that was opened, or reviewed, if the bot may have made it; else nothing."""
    is_news = (event == "pull_request" and action == "opened") or (event in REMARKS and action != "edited")
    head = _at(fields, "pull_request", "head") if is_news else None
    branch = _maybe(str, head, "ref") if isinstance(head, dict) else None
    is_here = branch is not None and _at(head, "repo", "id") == _at(fields, "repository", "id")
    return branch if branch is not None and is_here and _MAY_BE_BOTS.search(branch) else ""


def _may_be_reviewed(event: str, action: str | None, fields: Json) -> bool:
    """Return whether it is a new pull request that the repository's rules may want reviewed: no draft, no bot's."""
    is_ready = event == "pull_request" and action == "opened" and _at(fields, "pull_request", "draft") is False
    return is_ready and _at(fields, "pull_request", "user", "type") != "Bot"


def _checked_head(event: str, fields: Json) -> str | None:
    """Return the commit whose checks ended, None for one of a fork or a malformed one."""
    head, source = _maybe(str, fields, event, "head_sha"), _at(fields, event)
    # It is null for a fork that was deleted.
    named = isinstance(source, dict) and "head_repository" in source
    is_own = not named or _at(source, "head_repository", "id") == _at(fields, "repository", "id")
    return head if head is not None and _SHA.fullmatch(head) and is_own else None


def _read(event: str, action: str, fields: Json, platform: str) -> Event | None:
    if event in CHECKS:
        head = _checked_head(event, fields)
        return None if head is None else ChecksEnded(_repository(fields, platform), head)
    repository = _repository(fields, platform)
    if event == "repository":
        return RepositoryDeleted(repository)
    if event == BLOCKERS:
        return BlockersChanged(repository, _part(Number, fields, "blocked_issue", "number"))
    key, kind = _thread_key(fields), _kind(fields)
    about = _part(_Thread, fields, key)
    thread = Thread(about.number, kind, about.title, about.closed_at, _head_sha(fields))
    if action == "ready_for_review":
        return PullReady(repository, thread)
    if event in _TEXTS or action in ("opened", "edited"):
        return _written(event, action, fields, (repository, _part(_Account, fields, "sender").actor, thread))
    if action in ("labeled", "assigned", "review_requested"):
        where = repository, _part(_Account, fields, "sender").actor, thread
        remark = _remark(fields, key, Target(kind), _part(Moment, fields, key, "updated_at"))
        if action == "labeled":
            return Gesture(*where, remark, label=_part(Text, fields, "label", "name"))
        # A team is asked for a review without a reviewer.
        whom = "assignee" if action == "assigned" else "requested_reviewer"
        who = _part(Id, fields, whom, "id") if fields.get(whom) else None
        if who is None:
            return None
        given = {"assignee_id": who} if action == "assigned" else {"reviewer_id": who}
        return Gesture(*where, remark, **given)
    # GitHub does not date what leaves, and it may have been closed long before: its last change is when.
    at = thread.closed_at if action == "closed" else None
    at = at or _part(Moment, fields, key, "updated_at")
    if action == "reopened":
        return ThreadReopened(repository, thread, at)
    if event != "pull_request" or _at(fields, key, "head") is None:
        return ThreadClosed(repository, thread, at, is_gone=action != "closed")
    try:
        pull = _part(_Pull, fields, key)
    except _MalformedError:
        return ThreadClosed(repository, thread, at)  # what became of it is not counted, and all else is done
    merged_at = pull.merged_at or (at if pull.merged is True else None)
    told = ClosedPull(pull.number, pull.branch, pull.head, pull.created_at, merged_at)
    reverts = reverted_by(pull.body, repository) if merged_at else None
    is_own = pull.head_repository == repository.id
    return ThreadClosed(repository, thread, at, pull=told if is_own else None, reverts=reverts)


def reverted_by(text: str, repository: Repository) -> int | None:
    """Return the pull request of the repository that one with this text takes back, None where it takes none back."""
    found = _REVERTS.match(text)
    is_here = found is not None and (found["name"] or repository.full_name).lower() == repository.full_name.lower()
    return int(found["number"]) if found is not None and is_here else None


def _written(event: str, action: str, fields: Json, where: tuple[Repository, Actor, Thread]) -> Written:
    before = None
    if action == "edited":
        _part(Object, fields, "changes", "body")
        before = _part(MaybeText, fields, "changes", "body", "from")
    if event not in _TEXTS:
        key = _thread_key(fields)
        remark = _remark(fields, key, Target(_kind(fields)), _part(Moment, fields, key, "updated_at"))
        at = _part(Moment, fields, key, "created_at") if before is None else remark.updated_at
        return Written(*where, remark, at, before, branch=_bots_branch(event, action, fields))
    key, kind = _TEXTS[event]
    created = "submitted_at" if event == "pull_request_review" else "created_at"
    at = _part(MaybeMoment, fields, key, "updated_at") or _part(Moment, fields, key, created)
    remark = _remark(fields, key, Target(kind, _part(Id, fields, key, "id")), at)
    place = _part(_Place, fields, key) if event == "pull_request_review_comment" else None
    review_id = place.review_id if place else remark.target.id if kind == "review" else None
    approves = kind == "review" and _maybe(str, fields, key, "state") == "approved"
    code, review_id = place.code if place else "", review_id if before is None else None
    opened = None
    with suppress(_MalformedError):
        opened = _remark(fields, "pull_request", Target("pull"), at) if review_id is not None else None
    branch = _bots_branch(event, action, fields) if kind == "review" else ""
    return Written(*where, remark, at, before, code, review_id, opened, approves, branch)


def _addressed(event: str, fields: Json, platform: str) -> Addressed | None:
    """Return what can still be read of a payload that lacks a field."""
    key = _thread_key(fields)
    try:
        repository, sender = _repository(fields, platform), _part(_Account, fields, "sender").actor
        number = _part(Number, fields, key, "number")
    except _MalformedError:
        return None
    kind = _kind(fields)
    holder, text_kind = _TEXTS.get(event, (key, kind))
    text_id = _maybe(int, fields, holder, "id") if event in _TEXTS else None
    return Addressed(
        repository=repository,
        thread=Thread(number, kind, _maybe(str, fields, key, "title") or "", None),
        author=sender,
        target=Target(text_kind, text_id) if text_id and 0 < text_id < 2**63 else Target(kind),
        body=(_maybe(str, fields, holder, "body") or "").replace("\0", ""),
        label=_maybe(str, fields, "label", "name") or "",
        assignee_id=_maybe(int, fields, "assignee", "id"),
        reviewer_id=_maybe(int, fields, "requested_reviewer", "id"),
    )


def _repository(fields: Json, platform: str) -> Repository:
    """Return the repository of a payload, with the installation it was sent for, if any."""
    found = _part(_Repository, fields, "repository")
    installation = None if fields.get("installation") is None else _part(Id, fields, "installation", "id")
    return Repository(platform, found.id, found.owner, found.name, found.default_branch or None, installation)


def _remark(fields: Json, key: str, target: Target, updated_at: datetime) -> Remark:
    text = _part(_Text, fields, key)
    return Remark(target, text.node_id, text.body, text.user.actor if text.user else GHOST, updated_at)


def _thread_key(fields: Json) -> str:
    return next((key for key in ("pull_request", "blocked_issue") if key in fields), "issue")


def _kind(fields: Json) -> ThreadKind:
    return "pull" if "pull_request" in fields or _at(fields, "issue", "pull_request") is not None else "issue"


def _head_sha(fields: Json) -> str | None:
    sha = _maybe(str, fields, _thread_key(fields), "head", "sha")
    return sha if sha is not None and _SHA.fullmatch(sha) else None


def _at(fields: object, *path: str) -> Any:
    """Return what stands at the path, None where nothing does."""
    for key in path:
        fields = fields.get(key) if isinstance(fields, dict) else None
    return fields


def _maybe(kind: type[T], fields: Json, *path: str) -> T | None:
    """Return what stands at the path if it is of this JSON type, else None."""
    value = _at(fields, *path)
    return value if type(value) is kind else None


def _part(kind: Any, fields: object, *path: str) -> Any:
    """Return what stands at the path as a value of `kind`. Raises _MalformedError."""
    try:
        return answers.read(kind, _at(fields, *path))
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, (*path, *first["loc"])))
        raise _MalformedError(f"{place or 'the payload'}: {first['msg']}") from None
