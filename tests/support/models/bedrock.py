"""Claude on Amazon Bedrock: the Messages API in another frame.

https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModelWithResponseStream.html and, for the
frame, https://smithy.io/2.0/aws/amazon-eventstream.html
"""

import base64
import json
import struct
from binascii import crc32
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from tests.support.models.anthropic import Messages
from tests.support.models.wire import Asked, Told

_STRING = 7
_HEADERS = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}


class Invoke(Messages):
    """See `Api`. The path names the model, and whether the answer is a stream."""

    media_type = "application/vnd.amazon.eventstream"

    def read(self, path: str, body: dict[str, Any]) -> Asked:
        _, model, act = path.rsplit("/", 2)
        return replace(super().read(path, body), model=unquote(model), streams=act == "invoke-with-response-stream")

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        for sent in super().events(asked, told):
            data = sent.partition(b"data: ")[2].strip()
            yield _framed(json.dumps({"bytes": base64.b64encode(data).decode()}).encode())


def _framed(payload: bytes) -> bytes:
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", _STRING, len(value)) + value.encode()
        for name, value in _HEADERS.items()
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + headers + payload
    return message + struct.pack("!I", crc32(message))
