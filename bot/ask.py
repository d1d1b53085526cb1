"""What was asked: one value from the reading of a comment to the telling of its answer, stored as it is. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

import orjson
from pydantic import TypeAdapter

from bot.json_values import storable
from bot.model import Actor, Target


@dataclass(frozen=True, slots=True)
class Review:
    """What is asked of a review: inline comments by id, its own text by the review's id, negated.

    `collects`: a single remark, which further ones of the person join while it waits. Without an `id` the part is asked
    apart: the review's turn had begun without it.
    """

    parts: tuple[int, ...]
    id: int | None = None
    collects: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a review by itself, with the code that it is about; ids as in `Review`."""

    id: int
    text: str
    context: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: the words for the agent, who asked and when, where, and for which verb.

    Retry, approval, label, assignment, remark, message and an operator's command make one too. An operator is no person
    of GitHub's and on no thread: the id is 0, the login says who and by which channel, and `target` means nothing.
    """

    text: str
    by: Actor
    at: datetime
    """By GitHub's clock, where it was asked there."""
    target: Target
    """The text that asks, which the answer answers."""
    verb: str = "work"
    title: str | None = None
    """What people see of it, as plain text, where that is not `text`."""
    agent: str | None = None
    """The one that the request names."""
    context: str = ""
    """The code that it is about."""
    review: Review | None = None
    pinned_sha: str | None = None
    """The head of a fork when it was asked: nothing else may run."""
    gesture: str | None = None
    """GitHub's id of the label, the assignment or the request for a review by which the text was made one."""
    seen: str | None = None
    """SHA-256 of a thread's own text as a person sees it: the same within a minute is one request."""
    as_of: datetime | None = None
    """The thread is read as it was then, where that is not `at`."""
    retry_of: int | None = None
    """The turn whose request this repeats, on the word of who asked for that."""
    starts: bool = False
    """It does not wait for the issues that block its own."""
    of: Mapping[str, Any] = field(default_factory=dict)
    """What only the verb knows, as JSON."""

    def joined_by(self, part: Part) -> "Ask":
        """Return the request with one more part of its review."""
        if self.review is None:
            raise ValueError("no review asks")
        # Several remarks get one answer, which is in no thread of theirs.
        return replace(
            self,
            text=f"{self.text}\n\n{part.text}",
            context=f"{self.context}\n\n{part.context}".lstrip("\n"),
            review=replace(self.review, parts=(*self.review.parts, part.id)),
            target=Target("review", self.review.id) if self.review.collects else self.target,
        )


@dataclass(frozen=True, slots=True)
class UnfinishedTurn:
    """A turn that runs or waits. `step` is what was done last for it. Without a `number` an operator asked."""

    id: int
    state: Literal["queued", "running"]
    ask: Ask
    number: int | None
    started_at: datetime | None
    step: str | None
    messages: int = 0
    """Those that its agent was told while it worked."""


def seen(text: str) -> str:
    """Return what `Ask.seen` says of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_JSON = TypeAdapter(Ask)


def to_json(ask: Ask) -> str:
    """Return the request as it is stored."""
    return orjson.dumps(storable(_JSON.dump_python(ask, mode="json", exclude_none=True))).decode()


def of_json(stored: str) -> Ask:
    """Return a stored request."""
    return _JSON.validate_json(stored)
