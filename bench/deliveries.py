"""Signed `issue_comment` deliveries, made from one that GitHub recorded."""

import itertools
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson

from bot.inbox.delivery import sign
from tests.recorded import recorded_payloads

BODY_BYTES = 14_000
MENTION_EVERY = 20
REPOSITORIES, THREADS = 20, 50
SENTENCE = "the turn of a worktree in this branch fails when it is closed before its push, see /usr/lib or `make test`"
WORDS = tuple(SENTENCE.split())


class Deliveries:
    """Generates the HTTP requests of deliveries, each with a new GUID; some mention the bot."""

    def __init__(self, path: str, secret: bytes, bot_name: str) -> None:
        self._path = path
        self._secret = secret
        self._mention = f"@{bot_name} please look at this. "
        self._payload = _recorded_comment()
        self._text = "x" * (BODY_BYTES - len(self._dump(0, "")))

    def request(self, number: int) -> bytes:
        """Return the request with its signature."""
        mention = self._mention if number % MENTION_EVERY == 0 else ""
        body = self._dump(number, mention + self._text[len(mention) :])
        return _head(self._path, body, self._secret, str(uuid4())) + body

    def _dump(self, number: int, text: str) -> bytes:
        changed: dict[str, dict[str, Any]] = {
            "repository": {"id": 1_000_000 + number % REPOSITORIES},
            "issue": {"number": 1_000 + number // REPOSITORIES % THREADS},
            "comment": {"id": 1_000_000_000 + number, "body": text},
        }
        return _changed(self._payload, changed)


class Pool:
    """Comments of `body_bytes` in prose, signed beforehand; `request` gives one after the other, with a new GUID each.

    One in `mention_every` begins with `mention`. `place` has the repository, the sender and comments that exist.
    """

    def __init__(
        self,
        path: str,
        secret: str,
        mention: str,
        mention_every: int,
        *,
        size: int = 500,
        body_bytes: int = 18_000,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        chance, payload = random.Random(7), _recorded_comment()  # noqa: S311 -- the same texts in each run
        spare = body_bytes - len(orjson.dumps(payload))
        requests = []
        for number in range(size):
            text = f"{mention} " if number % mention_every == 0 else ""
            text += " ".join(chance.choices(WORDS, k=spare // 4))[: spare - len(text)]
            comment = {"body": text, "updated_at": datetime.now(UTC).isoformat()}
            changed: dict[str, Any]
            if place is None:
                changed = {
                    "repository": {"id": 1_000_000 + number % REPOSITORIES},
                    "issue": {"number": 1_000 + number // REPOSITORIES % THREADS},
                    "comment": comment | {"id": 1_000_000_000 + number, "node_id": f"IC_{number}"},
                }
            else:
                written = place["comments"][number % len(place["comments"])]
                changed = {
                    "repository": place["repository"],
                    "sender": place["sender"],
                    "issue": {"number": written["issue"]},
                    "comment": comment | {"id": written["id"], "node_id": written["node_id"], "user": place["sender"]},
                }
            body = _changed(payload, changed)
            before, _, after = _head(path, body, secret.encode(), "GUID").partition(b"GUID")
            requests.append((before, after + body))
        self._requests = itertools.cycle(requests)
        self._numbers, self._run = itertools.count(), uuid4().hex[:20]

    def request(self) -> bytes:
        """Return the next request."""
        before, after = next(self._requests)
        return b"%s%s-%012d%s" % (before, self._run.encode(), next(self._numbers), after)


def _recorded_comment() -> dict[str, Any]:
    return next(
        dict(one.payload)
        for one in recorded_payloads()
        if one.event == "issue_comment" and one.payload["action"] == "created" and "installation" in one.payload
    )


def _changed(payload: Mapping[str, Any], changed: Mapping[str, Mapping[str, Any]]) -> bytes:
    return orjson.dumps(dict(payload) | {key: payload[key] | dict(value) for key, value in changed.items()})


def _head(path: str, body: bytes, secret: bytes, guid: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: GitHub-Hookshot/bench\r\nAccept: */*\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-GitHub-Event: issue_comment\r\n"
        f"X-GitHub-Delivery: {guid}\r\nX-Hub-Signature-256: {sign(body, secret)}\r\n\r\n"
    ).encode()
