"""Anthropic's Messages API: https://docs.claude.com/en/api/messages and …/messages-streaming"""

import json
from collections.abc import Iterator
from typing import Any

from tests.support.models.script import Text
from tests.support.models.wire import Asked, Told, event, joined, pieces


class Messages:
    """See `Api`."""

    def read(self, path: str, body: dict[str, Any]) -> Asked:
        return Asked(
            tuple(text for message in body["messages"] for text in _texts(message)),
            frozenset(tool["name"] for tool in body.get("tools") or ()),
            str(body.get("model")),
            body.get("stream") is True,
        )

    def whole(self, asked: Asked, told: Told) -> dict[str, Any]:
        message = _message(asked, told)
        message["content"] = [block for block, _ in _blocks(told)]
        message["stop_reason"] = _stop_reason(told)
        message["usage"]["output_tokens"] = told.output_tokens
        return message

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        def send(kind: str, **rest: object) -> bytes:
            return event({"type": kind, **rest}, kind)

        yield send("message_start", message=_message(asked, told))
        for index, (block, deltas) in enumerate(_blocks(told)):
            empty: dict[str, Any] = {"text": ""} if block["type"] == "text" else {"input": {}}
            yield send("content_block_start", index=index, content_block={**block, **empty})
            for delta in deltas:
                yield send("content_block_delta", index=index, delta=delta)
            yield send("content_block_stop", index=index)
        delta = {"stop_reason": _stop_reason(told), "stop_sequence": None}
        yield send("message_delta", delta=delta, usage={"output_tokens": told.output_tokens})
        yield send("message_stop")

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}


def _texts(message: dict[str, Any]) -> Iterator[Text]:
    role, content = message["role"], message["content"]
    for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if block["type"] == "tool_result":
            yield Text("tool", joined(block.get("content")))
        elif block["type"] == "text":
            yield Text("model" if role == "assistant" else "user", block["text"])


def _message(asked: Asked, told: Told) -> dict[str, Any]:
    return {
        "id": f"msg_{told.number}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": asked.input_tokens, "output_tokens": 1},
    }


def _blocks(told: Told) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each block of the content with the deltas that build it."""
    if told.text or told.call is None:
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(told.text)]
        yield {"type": "text", "text": told.text}, deltas
    if told.call is not None:
        block = {"type": "tool_use", "id": f"toolu_{told.number}", "name": told.call.name, "input": told.call.arguments}
        yield block, [{"type": "input_json_delta", "partial_json": json.dumps(told.call.arguments)}]


def _stop_reason(told: Told) -> str:
    return "end_turn" if told.call is None else "tool_use"
