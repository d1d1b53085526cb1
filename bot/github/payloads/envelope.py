"""The little that is read of a delivery before it is stored: where it belongs and whether it can matter."""

import re
from dataclasses import dataclass

from bot.github.payloads.fields import LARGEST_NUMBER, Fields, MalformedError
from bot.github.payloads.parts import read_repository
from bot.model import Repository

_USED_ACTIONS = {
    "issue_comment": {"created", "edited"},
    "pull_request_review_comment": {"created", "edited"},
    "pull_request_review": {"submitted", "edited"},
    "issues": {"opened", "edited", "labeled", "assigned", "closed", "reopened", "transferred", "deleted"},
    "pull_request": {"opened", "edited", "labeled", "assigned", "closed", "reopened"},
}
_ACTION = re.compile(r"[ -~]{1,100}")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a delivery is about. `used` is false where nothing it can say would make the bot do anything.

    `lock_key` names the conversation for machines (a rename keeps it), `conversation` for people.
    """

    event: str
    action: str | None
    repository: Repository | None
    number: int | None
    conversation: str | None
    lock_key: str | None
    used: bool


def envelope(event: str, payload: object, platform: str) -> Envelope:
    """Reads any JSON value sent as `event` by the GitHub server with the host `platform`; never raises."""
    fields = Fields(payload) if isinstance(payload, dict) else Fields({})
    action = _action(fields)
    repository = _repository(fields, platform)
    number = _number(fields)
    conversation = lock_key = None
    if repository and number:
        conversation = f"{repository.full_name}#{number}"
        lock_key = f"{platform}/{repository.id}#{number}"
    return Envelope(event, action, repository, number, conversation, lock_key, is_used(event, action, fields))


def is_used(event: str, action: str | None, fields: Fields) -> bool:
    """Whether this event and action can mean anything; an edit that left the text alone cannot."""
    if action not in _USED_ACTIONS.get(event, ()):
        return False
    if action == "edited":
        changes = fields.values.get("changes")
        return not isinstance(changes, dict) or "body" in changes
    if event == "pull_request_review":
        review = fields.values.get("review")
        return not isinstance(review, dict) or review.get("body") not in (None, "")
    return True


def _action(fields: Fields) -> str | None:
    action = fields.values.get("action")
    return action if isinstance(action, str) and _ACTION.fullmatch(action) else None


def _repository(fields: Fields, platform: str) -> Repository | None:
    try:
        return read_repository(fields, platform)
    except MalformedError:
        return None


def _number(fields: Fields) -> int | None:
    for thread in ("issue", "pull_request"):
        if thread in fields.values:
            try:
                return fields.child(thread).integer("number", LARGEST_NUMBER)
            except MalformedError:
                return None
    return None
