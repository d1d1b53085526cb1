"""From a delivery's payload to an event."""

from datetime import datetime

from bot.github.payloads.envelope import is_used
from bot.github.payloads.events import (
    CommentCreated,
    CommentEdited,
    Event,
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
    Unreadable,
)
from bot.github.payloads.fields import Fields, MalformedError
from bot.github.payloads.parts import read_actor, read_place, read_remark, read_repository, read_thread


def read(event: str, payload: object, platform: str) -> Event | Unreadable | None:
    """The event in a payload that the GitHub server with the host `platform` sent as `event`; never raises.

    None means that it is nothing to the bot.
    """
    try:
        fields = Fields.of(payload, "")
        action = fields.maybe_text("action")
        return _read(event, action, fields, platform) if is_used(event, action, fields) else None
    except MalformedError as malformed:
        return Unreadable(str(malformed))


def _read(event: str, action: str, fields: Fields, platform: str) -> Event | None:
    repository = read_repository(fields, platform)
    sender = read_actor(fields.child("sender"))
    thread = read_thread(fields)
    match event, action:
        case "issue_comment", "created":
            return CommentCreated(repository, sender, thread, read_remark(fields, "comment"))
        case "issue_comment", "edited":
            return CommentEdited(repository, sender, thread, read_remark(fields, "comment"), _body_before(fields))
        case "pull_request_review_comment", "created":
            remark = read_remark(fields, "comment")
            return ReviewCommentCreated(repository, sender, thread, remark, read_place(fields))
        case "pull_request_review_comment", "edited":
            remark = read_remark(fields, "comment")
            return ReviewCommentEdited(repository, sender, thread, remark, read_place(fields), _body_before(fields))
        case "pull_request_review", "submitted":
            return ReviewSubmitted(repository, sender, thread, read_remark(fields, "review"))
        case "pull_request_review", "edited":
            return ReviewEdited(repository, sender, thread, read_remark(fields, "review"), _body_before(fields))
        case "issues" | "pull_request", "opened":
            return ThreadOpened(repository, sender, thread)
        case "issues" | "pull_request", "edited":
            return ThreadEdited(repository, sender, thread, _body_before(fields))
        case "issues" | "pull_request", "labeled":
            return ThreadLabeled(repository, sender, thread, fields.child("label").text("name"))
        case "issues" | "pull_request", "assigned":
            assignee = fields.maybe_child("assignee")
            return ThreadAssigned(repository, sender, thread, read_actor(assignee)) if assignee else None
        case "issues" | "pull_request", "reopened":
            return ThreadReopened(repository, sender, thread)
        case "issues" | "pull_request", "closed" | "transferred" | "deleted":
            merged = event == "pull_request" and fields.child("pull_request").values.get("merged") is True
            return ThreadClosed(repository, sender, thread, _closed_at(action, thread), merged)
        case _:
            return None


def _body_before(fields: Fields) -> str:
    return fields.child("changes").child("body").maybe_text("from")


def _closed_at(action: str, thread: Thread) -> datetime | None:
    # A deleted or transferred issue may have been closed long before: that date is not of this event.
    return (thread.closed_at or thread.updated_at) if action == "closed" else None
