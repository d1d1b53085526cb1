"""Signed `issue_comment` deliveries of 14 KB, made from one that GitHub recorded."""

from uuid import uuid4

import orjson

from bot.receive.delivery import sign
from tests.recorded import recorded_payloads

BODY_BYTES = 14_000
MENTION_EVERY = 20
REPOSITORIES, THREADS = 20, 50


class Deliveries:
    """Generates the HTTP requests of deliveries, each with a new GUID; some mention the bot."""

    def __init__(self, path: str, secret: bytes, bot_name: str) -> None:
        self._path = path
        self._secret = secret
        self._mention = f"@{bot_name} please look at this. "
        self._payload = next(
            dict(one.payload)
            for one in recorded_payloads()
            if one.event == "issue_comment" and one.payload["action"] == "created" and "installation" in one.payload
        )
        self._text = "x" * (BODY_BYTES - len(self._dump(0, "")))

    def request(self, number: int) -> bytes:
        """Return the request with its signature."""
        mention = self._mention if number % MENTION_EVERY == 0 else ""
        body = self._dump(number, mention + self._text[len(mention) :])
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: GitHub-Hookshot/bench\r\nAccept: */*\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-GitHub-Event: issue_comment\r\n"
            f"X-GitHub-Delivery: {uuid4()}\r\nX-Hub-Signature-256: {sign(body, self._secret)}\r\n\r\n"
        )
        return head.encode() + body

    def _dump(self, number: int, text: str) -> bytes:
        changed = {
            "repository": {"id": 1_000_000 + number % REPOSITORIES},
            "issue": {"number": 1_000 + number // REPOSITORIES % THREADS},
            "comment": {"id": 1_000_000_000 + number, "body": text},
        }
        return orjson.dumps(
            self._payload | {key: self._payload[key] | value for key, value in changed.items()}  # type: ignore[operator]
        )
