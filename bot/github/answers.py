"""Results of the client: frozen values from GitHub's answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from bot.github.errors import NotFound
from bot.model import Actor, ThreadKind

Permission = Literal["admin", "maintain", "write", "triage", "read", "none"]


@dataclass(frozen=True, slots=True)
class Identity:
    """The bot's account on GitHub; `mention` is the name after the `@` unless BOT_NAME is set."""

    login: str
    id: int
    mention: str


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Requests of the current hour: how many are left, and the limit."""

    remaining: int
    limit: int


@dataclass(frozen=True, slots=True)
class PullFacts:
    """A pull request as it is now.

    `head_repository_id` is None when the fork was deleted; `default_branch` is the base repository's. No branch of the
    head's repository was pushed after `head_pushed_at`.
    """

    head_ref: str
    head_sha: str
    head_repository_id: int | None
    head_pushed_at: datetime | None
    default_branch: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class BranchPull:
    """A pull request from a branch of the repository itself."""

    number: int
    url: str
    author_id: int | None
    created_at: datetime
    head_sha: str
    is_open: bool
    is_merged: bool
    is_draft: bool


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """An issue or pull request as it is now; `closed_at` is None while it is open."""

    kind: ThreadKind
    title: str
    closed_at: datetime | None


@dataclass(frozen=True, slots=True)
class IssueRef:
    """An issue, perhaps of another repository."""

    repository_id: int
    number: int


@dataclass(frozen=True, slots=True)
class Review:
    """A review's own text, empty where it has none."""

    author: Actor | None
    body: str


@dataclass(frozen=True, slots=True)
class ReviewComment:
    """One inline comment of a review."""

    id: int
    author: Actor | None
    path: str
    line: int | None
    diff_hunk: str
    body: str


@dataclass(frozen=True, slots=True)
class Posted:
    """A comment as it stands on GitHub."""

    id: int
    url: str
    body: str


@dataclass(frozen=True, slots=True)
class LoggedDelivery:
    """A delivery in GitHub's own log of a webhook."""

    id: int
    guid: str
    event: str
    at: datetime


def logged_delivery(answer: Any) -> LoggedDelivery:
    """https://docs.github.com/rest/repos/webhooks#list-deliveries-for-a-repository-webhook"""
    return LoggedDelivery(answer["id"], answer["guid"], answer["event"], datetime.fromisoformat(answer["delivered_at"]))


def permission(answer: Any) -> Permission:
    """Read https://docs.github.com/rest/collaborators/collaborators#get-repository-permissions-for-a-user

    `role_name` tells maintain and triage apart but may name a custom role; `permission` is then its base.
    """
    known: dict[str | None, Permission] = {name: name for name in get_args(Permission)}
    base: Permission = known.get(answer.get("permission"), "none")
    exact: Permission = known.get(answer.get("role_name"), base)
    return exact


def pull_facts(answer: Any) -> PullFacts:
    """Read https://docs.github.com/rest/pulls/pulls#get-a-pull-request"""
    head = answer["head"]
    return PullFacts(
        head_ref=head["ref"],
        head_sha=head["sha"],
        head_repository_id=head["repo"]["id"] if head["repo"] else None,
        head_pushed_at=datetime.fromisoformat(pushed) if (pushed := (head["repo"] or {}).get("pushed_at")) else None,
        default_branch=answer["base"]["repo"]["default_branch"],
        created_at=datetime.fromisoformat(answer["created_at"]),
    )


def branch_pull(answer: Any) -> BranchPull:
    """Read one of https://docs.github.com/rest/pulls/pulls#list-pull-requests"""
    author = answer.get("user")
    return BranchPull(
        number=answer["number"],
        url=answer["html_url"],
        author_id=author["id"] if author else None,
        created_at=datetime.fromisoformat(answer["created_at"]),
        head_sha=answer["head"]["sha"],
        is_open=answer["state"] == "open",
        is_merged=answer.get("merged_at") is not None,
        is_draft=bool(answer.get("draft")),
    )


def branch_pulls(found: Sequence[Any], repository_id: int) -> tuple[BranchPull, ...]:
    """Return the pull requests whose head is in the repository itself: a fork of the same owner has the same label."""
    own = [one for one in found if (one["head"].get("repo") or {}).get("id") == repository_id]
    return tuple(branch_pull(one) for one in own)


def thread_facts(answer: Any) -> ThreadFacts:
    """Read https://docs.github.com/rest/issues/issues#get-an-issue, which also serves pull requests."""
    kind: ThreadKind = "pull" if answer.get("pull_request") else "issue"
    closed_at = (answer.get("closed_at") or answer["updated_at"]) if answer["state"] == "closed" else None
    return ThreadFacts(kind, answer["title"], datetime.fromisoformat(closed_at) if closed_at else None)


def closing_issues(data: Any) -> tuple[list[IssueRef], str | None]:
    """Return the issues on one page of `client.CLOSING_ISSUES`, and the cursor of the next page. Raises NotFound.

    An issue that the credentials may not see is null.
    """
    pull = ((data or {}).get("repository") or {}).get("pullRequest")
    if pull is None:
        raise NotFound("the pull request is gone")
    page = pull["closingIssuesReferences"]
    if page is None:
        return [], None
    nodes = [node for node in page["nodes"] or () if node is not None]
    found = [IssueRef(node["repository"]["databaseId"], node["number"]) for node in nodes]
    return found, page["pageInfo"]["endCursor"] if page["pageInfo"]["hasNextPage"] else None


def newest_merged_head(pulls: Sequence[Any]) -> str | None:
    """Return the head of the pull request that was merged last, None where none was.

    https://docs.github.com/rest/pulls/pulls#list-pull-requests
    """
    merged = [pull for pull in pulls if pull.get("merged_at")]
    newest = max(merged, key=lambda pull: datetime.fromisoformat(pull["merged_at"]), default=None)
    return newest["head"]["sha"] if newest else None


def review(answer: Any) -> Review:
    """Read https://docs.github.com/rest/pulls/reviews#get-a-review-for-a-pull-request"""
    return Review(_author(answer), (answer.get("body") or "").replace("\0", ""))


def review_comment(answer: Any) -> ReviewComment:
    """Read one of https://docs.github.com/rest/pulls/reviews#list-comments-for-a-pull-request-review.

    `line` is often absent.
    """
    return ReviewComment(
        id=answer["id"],
        author=_author(answer),
        path=answer["path"],
        line=answer.get("line") or answer.get("original_line"),
        diff_hunk=answer.get("diff_hunk", ""),
        body=(answer["body"] or "").replace("\0", ""),
    )


def _author(answer: Any) -> Actor | None:
    user = answer.get("user")
    return Actor(user["login"], user["id"], user["type"] == "Bot") if user else None


def posted(answer: Any) -> Posted:
    """Read https://docs.github.com/rest/issues/comments#create-an-issue-comment, or the same for a review comment."""
    return Posted(answer["id"], answer["html_url"], answer["body"] or "")
