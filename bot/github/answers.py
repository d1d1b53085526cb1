"""What the client hands out: frozen values read from GitHub's answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from bot.model import Actor, ThreadKind

Permission = Literal["admin", "maintain", "write", "triage", "read", "none"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the bot is on GitHub; `mention` is the name people write after the `@` unless BOT_NAME says otherwise."""

    login: str
    id: int
    mention: str


@dataclass(frozen=True, slots=True)
class PullFacts:
    """A pull request as it is now; `head_repository_id` is None when the fork was deleted."""

    number: int
    title: str
    head_ref: str
    head_sha: str
    head_repository_id: int | None
    base_ref: str
    base_repository_id: int
    default_branch: str
    draft: bool
    state: Literal["open", "closed"]
    merged: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ThreadState:
    """Whether an issue or pull request is open now; `closed_at` is None while it is."""

    closed_at: datetime | None


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """An issue or pull request as it is now; `closed_at` is None while it is open."""

    number: int
    kind: ThreadKind
    title: str
    closed_at: datetime | None


@dataclass(frozen=True, slots=True)
class ReviewComment:
    """One inline comment of a review."""

    id: int
    author: Actor | None
    path: str
    line: int | None
    diff_hunk: str
    body: str
    url: str


@dataclass(frozen=True, slots=True)
class Posted:
    """A comment as it stands on GitHub."""

    id: int
    url: str
    body: str


def permission(answer: Any) -> Permission:
    """https://docs.github.com/rest/collaborators/collaborators#get-repository-permissions-for-a-user

    `role_name` tells maintain and triage apart but may name a custom role; `permission` is then its base.
    """
    known: dict[str | None, Permission] = {name: name for name in get_args(Permission)}
    base: Permission = known.get(answer.get("permission"), "none")
    exact: Permission = known.get(answer.get("role_name"), base)
    return exact


def pull_facts(answer: Any) -> PullFacts:
    """https://docs.github.com/rest/pulls/pulls#get-a-pull-request"""
    head, base = answer["head"], answer["base"]
    return PullFacts(
        number=answer["number"],
        title=answer["title"],
        head_ref=head["ref"],
        head_sha=head["sha"],
        head_repository_id=head["repo"]["id"] if head["repo"] else None,
        base_ref=base["ref"],
        base_repository_id=base["repo"]["id"],
        default_branch=base["repo"]["default_branch"],
        draft=answer.get("draft", False),
        state=answer["state"],
        merged=bool(answer.get("merged")),
        created_at=datetime.fromisoformat(answer["created_at"]),
    )


def thread_state(answer: Any) -> ThreadState:
    """https://docs.github.com/rest/issues/issues#get-an-issue, which knows pull requests as well."""
    closed_at = (answer.get("closed_at") or answer["updated_at"]) if answer["state"] == "closed" else None
    return ThreadState(datetime.fromisoformat(closed_at) if closed_at else None)


def thread_facts(answer: Any) -> ThreadFacts:
    """https://docs.github.com/rest/issues/issues#get-an-issue, which knows pull requests as well."""
    kind: ThreadKind = "pull" if answer.get("pull_request") else "issue"
    return ThreadFacts(answer["number"], kind, answer["title"], thread_state(answer).closed_at)


def newest_merged_head(pulls: Sequence[Any]) -> str | None:
    """https://docs.github.com/rest/pulls/pulls#list-pull-requests: the head of the one that was merged last."""
    merged = [pull for pull in pulls if pull.get("merged_at")]
    newest = max(merged, key=lambda pull: datetime.fromisoformat(pull["merged_at"]), default=None)
    return newest["head"]["sha"] if newest else None


def review_comment(answer: Any) -> ReviewComment:
    """https://docs.github.com/rest/pulls/reviews#list-comments-for-a-pull-request-review (`line` is often left out)."""
    user = answer.get("user")
    return ReviewComment(
        id=answer["id"],
        author=Actor(user["login"], user["id"], user["type"] == "Bot") if user else None,
        path=answer["path"],
        line=answer.get("line") or answer.get("original_line"),
        diff_hunk=answer.get("diff_hunk", ""),
        body=answer["body"],
        url=answer["html_url"],
    )


def posted(answer: Any) -> Posted:
    """https://docs.github.com/rest/issues/comments#create-an-issue-comment, and its twin for review comments."""
    return Posted(answer["id"], answer["html_url"], answer["body"] or "")
