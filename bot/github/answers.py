"""Results of the client: frozen values, whose fields say where they stand in GitHub's answers."""

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AliasPath, BeforeValidator, Field, TypeAdapter

from bot.model import Actor, Thread, ThreadKind

Side = Literal["LEFT", "RIGHT"]
"""A side of a diff: the old file, or the new one."""


@dataclass(frozen=True, slots=True)
class LineRemark:
    """A remark on lines of a diff, with GitHub's names; a single line has no `start_line`.

    https://docs.github.com/rest/pulls/reviews#create-a-review-for-a-pull-request
    """

    path: str
    line: int
    side: Side
    body: str
    start_line: int | None = None


@dataclass(frozen=True, slots=True)
class OwnReview:
    """The remarks of a review of the commit `head`; None is the head that there is by now.

    `whole` is its text with all remarks in it, for a GitHub that does not find their lines.
    """

    head: str | None
    remarks: tuple[LineRemark, ...] = ()
    whole: str = ""


T = TypeVar("T")
Permission = Literal["admin", "maintain", "write", "triage", "read", "none"]


def read(kind: type[T], answer: object) -> T:
    """Return the value that GitHub's answer holds."""
    value: T = _reader(kind).validate_python(answer)
    return value


_reader: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _at(*path: str, **more: Any) -> Any:
    """Return where a field stands. With a default, it and each object before it may be absent or null."""
    return Field(validation_alias=AliasPath(*path), **more)


def _actor(user: Any) -> Actor | None:
    return Actor(user["login"], user["id"], user.get("type") == "Bot") if user else None


Author = Annotated[Actor | None, BeforeValidator(_actor), _at("user", default=None)]
# Postgres text has no NUL.
Body = Annotated[str, BeforeValidator(lambda body: (body or "").replace("\0", ""))]


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """The bot's account on GitHub; `mention` is the name after the `@` unless BOT_NAME is set."""

    login: str
    id: int
    mention: str


@dataclass(frozen=True, slots=True)
class Content:
    """A file of a repository: git's name of it and its text, which is None of what is no ordinary file."""

    blob: str
    text: bytes | None


def content(answer: Any) -> Content:
    """Read GitHub's answer about a path, which is a list for a folder. What is larger than 1 MB has no text in it."""
    if isinstance(answer, list) or answer["type"] != "file" or answer.get("encoding") != "base64":
        return Content("" if isinstance(answer, list) else answer["sha"], None)
    return Content(answer["sha"], b64decode(answer["content"]))


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Requests of the current hour: how many are left, and the limit.

    https://docs.github.com/rest/rate-limit/rate-limit#get-rate-limit-status-for-the-authenticated-user
    """

    remaining: Annotated[int, _at("resources", "core", "remaining")]
    limit: Annotated[int, _at("resources", "core", "limit")]


@dataclass(frozen=True, slots=True)
class Mergeable:
    """Whether a pull request can be merged: https://docs.github.com/graphql/reference/objects#pullrequest"""

    title: Body
    head: Annotated[str, _at("headRefOid")]
    base: Annotated[str, _at("baseRefName")]
    state: Literal["OPEN", "CLOSED", "MERGED"]
    mergeable: Literal["CONFLICTING", "MERGEABLE", "UNKNOWN"]


@dataclass(frozen=True, slots=True)
class Blocker:
    """An issue that blocks another one: https://docs.github.com/rest/issues/issue-dependencies"""

    number: int
    repository: Annotated[str, BeforeValidator(lambda url: "/".join(url.split("/")[-2:])), _at("repository_url")]
    is_open: Annotated[bool, BeforeValidator(lambda state: state == "open"), _at("state")]
    reason: Annotated[str | None, _at("state_reason", default=None)]
    """Why it was closed: `completed`, `not_planned`, `duplicate`."""

    @property
    def name(self) -> str:
        """`owner/name#number`, in lower case: GitHub's names differ in no case."""
        return f"{self.repository}#{self.number}".lower()


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull request as it is now: https://docs.github.com/rest/pulls/pulls#get-a-pull-request

    `head_repository_id` is None when the fork was deleted; `default_branch` is the base repository's. No branch of the
    head's repository was pushed after `head_pushed_at`.
    """

    number: int
    url: Annotated[str, _at("html_url")]
    author_id: Annotated[int | None, _at("user", "id", default=None)]
    created_at: datetime
    merged_at: Annotated[datetime | None, Field(default=None)]
    closed_at: Annotated[datetime | None, Field(default=None)]
    is_open: Annotated[bool, BeforeValidator(lambda state: state == "open"), _at("state")]
    is_draft: Annotated[bool, BeforeValidator(bool), _at("draft", default=False)]
    title: str
    body: Body
    head_ref: Annotated[str, _at("head", "ref")]
    head_sha: Annotated[str, _at("head", "sha")]
    head_repository_id: Annotated[int | None, _at("head", "repo", "id", default=None)]
    head_pushed_at: Annotated[datetime | None, _at("head", "repo", "pushed_at", default=None)]
    base: Annotated[str, _at("base", "ref")]
    default_branch: Annotated[str, _at("base", "repo", "default_branch")]
    mergeable: bool | None = None
    is_bots: Annotated[bool, BeforeValidator(lambda kind: kind == "Bot"), _at("user", "type", default=None)] = False

    @property
    def as_mergeable(self) -> Mergeable:
        """Whether it can be merged; a list does not tell that."""
        known: dict[bool | None, Literal["CONFLICTING", "MERGEABLE"]] = {True: "MERGEABLE", False: "CONFLICTING"}
        state: Literal["OPEN", "CLOSED"] = "OPEN" if self.is_open else "CLOSED"
        return Mergeable(self.title, self.head_sha, self.base, state, known.get(self.mergeable, "UNKNOWN"))


@dataclass(frozen=True, slots=True)
class Review:
    """A review's own text, empty where it has none.

    https://docs.github.com/rest/pulls/reviews#get-a-review-for-a-pull-request
    """

    author: Author
    body: Annotated[Body, Field(default="")]


@dataclass(frozen=True, slots=True)
class ReviewComment:
    """One inline comment of a review; `line` is often absent, and null where the line is gone.

    One of https://docs.github.com/rest/pulls/reviews#list-comments-for-a-pull-request-review
    """

    id: int
    author: Author
    path: str
    line: Annotated[int | None, Field(default=None)]
    diff_hunk: Annotated[str, Field(default="")]
    body: Body


@dataclass(frozen=True, slots=True)
class Posted:
    """A comment as it stands on GitHub: https://docs.github.com/rest/issues/comments#create-an-issue-comment"""

    id: int
    url: Annotated[str, _at("html_url")]
    body: Annotated[str, BeforeValidator(lambda body: body or "")]


@dataclass(frozen=True, slots=True)
class LoggedDelivery:
    """A delivery in GitHub's own log of a webhook.

    https://docs.github.com/rest/repos/webhooks#list-deliveries-for-a-repository-webhook
    """

    id: int
    guid: str
    event: str
    at: Annotated[datetime, _at("delivered_at")]
    status: str
    status_code: int
    """0, or on github.com also 502 or 504, without an answer."""
    redelivery: bool = False
    action: str | None = None


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of such a log, the newest first. `following` is the cursor of the next one, None where there is none.

    `is_unchanged`: it is as this process saw it last. `left`: the part of the hour's requests that is left, None where
    GitHub tells of no limit.
    """

    deliveries: Sequence[LoggedDelivery]
    following: str | None
    is_unchanged: bool
    left: float | None


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook of a repository: https://docs.github.com/rest/repos/webhooks#list-repository-webhooks"""

    id: int
    at: Annotated[datetime, _at("created_at")]
    active: bool
    events: tuple[str, ...]
    """`*` stands for all."""
    url: Annotated[str, _at("config", "url")]


@dataclass(frozen=True, slots=True)
class BranchRule:
    """A rule of a ruleset: https://docs.github.com/rest/repos/rules#get-rules-for-a-branch"""

    type: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def permission(answer: Any) -> Permission:
    """Read https://docs.github.com/rest/collaborators/collaborators#get-repository-permissions-for-a-user

    `role_name` tells maintain and triage apart but may name a custom role; `permission` is then its base.
    """
    known: dict[str | None, Permission] = {name: name for name in get_args(Permission)}
    base: Permission = known.get(answer.get("permission"), "none")
    exact: Permission = known.get(answer.get("role_name"), base)
    return exact


def thread(answer: Any) -> Thread:
    """Read https://docs.github.com/rest/issues/issues#get-an-issue, which also serves pull requests."""
    kind: ThreadKind = "pull" if answer.get("pull_request") else "issue"
    closed_at = (answer.get("closed_at") or answer["updated_at"]) if answer["state"] == "closed" else None
    closed = datetime.fromisoformat(closed_at) if closed_at else None
    return Thread(answer["number"], kind, answer["title"], closed)


def nodes(connection: Any) -> list[Any]:
    """Return the nodes of a GraphQL connection. What is null, such as what the credentials may not see, is nothing."""
    return [node for node in (connection or {}).get("nodes") or () if node is not None]
