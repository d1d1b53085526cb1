"""Common parts of the four APIs: a parsed request, and an answer in the API's own form."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tests.support.models.script import Answer, Text, tokens
from tests.support.models.tools import Call, call_for


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a model, independent of the API."""

    conversation: tuple[Text, ...]
    tools: frozenset[str]
    model: str
    streams: bool

    @property
    def input_tokens(self) -> int:
        return sum(tokens(text.text) for text in self.conversation)


@dataclass(frozen=True, slots=True)
class Told:
    """The answer with its concrete call; `number` distinguishes the answers of a server."""

    number: int
    text: str
    call: Call | None

    @property
    def call_id(self) -> str:
        return f"call_{self.number}"

    @property
    def output_tokens(self) -> int:
        return tokens(self.text) + (tokens(json.dumps(self.call.arguments)) if self.call else 0)


class Api(Protocol):
    """One vendor's API."""

    def read(self, path: str, body: dict[str, Any]) -> Asked:
        """Parse a request."""
        ...

    def whole(self, asked: Asked, told: Told) -> dict[str, Any]:
        """Return the answer in one piece."""
        ...

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        """Yield the answer as server-sent events."""
        ...

    def error(self, status: int, message: str) -> dict[str, Any]:
        """Return the body of an HTTP error."""
        ...


def told(number: int, answer: Answer, asked: Asked) -> Told:
    """Make the answer's call concrete. Raises LookupError, see `call_for`."""
    return Told(number, answer.text, None if answer.act is None else call_for(answer.act, asked.tools))


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """Return one server-sent event: https://html.spec.whatwg.org/multipage/server-sent-events.html"""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def texts_of(content: object) -> Iterator[str]:
    """Yield the texts in content that is a string or a list of parts with a `text`."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))


def joined(content: object) -> str:
    """Return all texts of content as one."""
    return "\n".join(texts_of(content))


def pieces(text: str, characters: int = 4000) -> Iterable[str]:
    """Yield a text in the pieces of a stream."""
    return (text[start : start + characters] for start in range(0, len(text), characters))
