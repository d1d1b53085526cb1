"""The parts that GitHub's payloads share, read one by one. All raise MalformedError."""

import re

from bot.github.payloads.events import CodePlace, PullHead, Remark, Thread
from bot.github.payloads.fields import LARGEST_NUMBER, Fields, MalformedError
from bot.model import Actor, Repository

# The account that GitHub shows for deleted ones, which payloads give as null. https://github.com/ghost
GHOST = Actor(login="ghost", id=10137)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def read_repository(payload: Fields, platform: str) -> Repository:
    """The repository of a payload, with the installation it was sent for, if any."""
    repository = payload.child("repository")
    owner = repository.child("owner").text("login")
    name = repository.text("name")
    # Both become names of folders.
    if not (_NAME.fullmatch(owner) and _NAME.fullmatch(name)) or {owner, name} & {".", ".."}:
        raise MalformedError("the repository's owner or name is not one that GitHub allows")
    installation = payload.maybe_child("installation")
    return Repository(
        platform=platform,
        id=repository.integer("id"),
        owner=owner,
        name=name,
        default_branch=repository.maybe_text("default_branch") or None,
        installation_id=installation.integer("id") if installation else None,
    )


def read_actor(actor: Fields) -> Actor:
    """A user, an organisation or a bot."""
    return Actor(login=actor.text("login"), id=actor.integer("id"), is_bot=actor.values.get("type") == "Bot")


def read_author(written: Fields) -> Actor:
    """Who wrote a comment, review or thread."""
    user = written.maybe_child("user")
    return read_actor(user) if user else GHOST


def read_thread(payload: Fields) -> Thread:
    """The issue or pull request of a payload."""
    if "pull_request" in payload.values:
        thread = payload.child("pull_request")
        return _read_thread(thread, is_pull=True, head=_read_head(thread))
    thread = payload.child("issue")
    return _read_thread(thread, is_pull=thread.values.get("pull_request") is not None, head=None)


def _read_thread(thread: Fields, *, is_pull: bool, head: PullHead | None) -> Thread:
    return Thread(
        number=thread.integer("number", LARGEST_NUMBER),
        kind="pull" if is_pull else "issue",
        node_id=thread.text("node_id"),
        title=thread.text("title"),
        body=thread.maybe_text("body"),
        state="closed" if thread.text("state") == "closed" else "open",
        author=read_author(thread),
        url=thread.text("html_url"),
        created_at=thread.moment("created_at"),
        updated_at=thread.moment("updated_at"),
        closed_at=thread.maybe_moment("closed_at"),
        head=head,
    )


def _read_head(pull: Fields) -> PullHead:
    head = pull.child("head")
    repository = head.maybe_child("repo")
    return PullHead(
        ref=head.text("ref"),
        sha=head.text("sha"),
        repository_id=repository.integer("id") if repository else None,
        base_ref=pull.child("base").text("ref"),
        draft=pull.values.get("draft") is True,
    )


def read_remark(payload: Fields, key: str) -> Remark:
    """The comment or review under `key`."""
    remark = payload.child(key)
    created_at = remark.moment("submitted_at" if key == "review" else "created_at")
    app = remark.maybe_child("performed_via_github_app")
    return Remark(
        id=remark.integer("id"),
        node_id=remark.text("node_id"),
        body=remark.maybe_text("body"),
        created_at=created_at,
        updated_at=remark.maybe_moment("updated_at") or created_at,
        author=read_author(remark),
        url=remark.text("html_url"),
        via_app_id=app.integer("id") if app else None,
    )


def read_place(payload: Fields) -> CodePlace:
    """Where the inline review comment of a payload stands."""
    comment = payload.child("comment")
    return CodePlace(
        review_id=comment.maybe_integer("pull_request_review_id"),
        path=comment.text("path"),
        line=comment.maybe_integer("line"),
        diff_hunk=comment.maybe_text("diff_hunk"),
        in_reply_to=comment.maybe_integer("in_reply_to_id"),
    )
