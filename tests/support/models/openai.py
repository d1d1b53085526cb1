"""OpenAI's two APIs: https://platform.openai.com/docs/api-reference/responses-streaming and …/chat-streaming"""

import json
from collections.abc import Iterator
from typing import Any

from tests.support.models.script import Role, Text
from tests.support.models.tools import TAKES_TEXT
from tests.support.models.wire import Asked, Told, event, joined, pieces, texts_of

_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


class Responses:
    """See `Api`."""

    def read(self, path: str, body: dict[str, Any]) -> Asked:
        given = body["input"]
        items = [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given
        return Asked(
            tuple(text for item in items for text in self._texts(item)),
            frozenset(self._tools([*(body.get("tools") or ()), *items])),
            str(body.get("model")),
            body.get("stream") is True,
        )

    def whole(self, asked: Asked, told: Told) -> dict[str, Any]:
        return {**self._response(asked, told, "completed"), "output": list(self._items(told))}

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        def send(kind: str, **rest: object) -> bytes:
            return event({"type": kind, **rest}, kind)

        yield send("response.created", response=self._response(asked, told, "in_progress"))
        for index, item in enumerate(self._items(told)):
            place = {"output_index": index, "item_id": item["id"], "content_index": 0}
            started = {**item, "status": "in_progress", **({"content": []} if item["type"] == "message" else {})}
            yield send("response.output_item.added", output_index=index, item=started)
            if item["type"] == "message":
                part = {"type": "output_text", "text": "", "annotations": []}
                yield send("response.content_part.added", part=part, **place)
                for piece in pieces(told.text):
                    yield send("response.output_text.delta", delta=piece, **place)
                yield send("response.output_text.done", text=told.text, **place)
            yield send("response.output_item.done", output_index=index, item=item)
        yield send("response.completed", response=self.whole(asked, told))

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": "server_error", "param": None, "code": None}}

    @classmethod
    def _tools(cls, offered: list[dict[str, Any]]) -> Iterator[str]:
        """Return the names of tools, including those in namespaces and in items of the conversation."""
        for tool in offered:
            if tool.get("type") in ("namespace", "additional_tools"):
                yield from cls._tools(tool["tools"])
            elif tool.get("type") == "custom":
                yield TAKES_TEXT + tool["name"]
            elif tool.get("type") == "function":
                yield tool["name"]

    @staticmethod
    def _texts(item: dict[str, Any]) -> Iterator[Text]:
        if item.get("type") in _OUTPUTS:
            output = item.get("output")
            yield Text("tool", output.get("content", "") if isinstance(output, dict) else joined(output))
        elif item.get("type", "message") == "message" and item["role"] in ("user", "assistant"):
            role: Role = "model" if item["role"] == "assistant" else "user"
            yield from (Text(role, text) for text in texts_of(item["content"]))

    @staticmethod
    def _response(asked: Asked, told: Told, status: str) -> dict[str, Any]:
        usage = {
            "input_tokens": asked.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": told.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": asked.input_tokens + told.output_tokens,
        }
        return {
            "id": f"resp_{told.number}",
            "object": "response",
            "status": status,
            "model": asked.model,
            "output": [],
            "usage": usage if status == "completed" else None,
        }

    @staticmethod
    def _items(told: Told) -> Iterator[dict[str, Any]]:
        if told.text or told.call is None:
            content = [{"type": "output_text", "text": told.text, "annotations": []}]
            item = {"type": "message", "role": "assistant", "status": "completed", "content": content}
            yield {"id": f"msg_{told.number}", **item}
        if told.call is not None:
            call = {"call_id": told.call_id, "name": told.call.name, "status": "completed"}
            if isinstance(told.call.arguments, str):
                yield {"id": f"ctc_{told.number}", "type": "custom_tool_call", "input": told.call.arguments, **call}
            else:
                arguments = json.dumps(told.call.arguments)
                yield {"id": f"fc_{told.number}", "type": "function_call", "arguments": arguments, **call}


class ChatCompletions:
    """See `Api`."""

    def read(self, path: str, body: dict[str, Any]) -> Asked:
        return Asked(
            tuple(text for message in body["messages"] for text in self._texts(message)),
            frozenset(tool["function"]["name"] for tool in body.get("tools") or ()),
            str(body.get("model")),
            body.get("stream") is True,
        )

    def whole(self, asked: Asked, told: Told) -> dict[str, Any]:
        message = {"role": "assistant", "content": told.text or None, "tool_calls": self._calls(told)}
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason(told)}
        return {**self._head(asked, told, "chat.completion"), "choices": [choice], "usage": self._usage(asked, told)}

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        head = self._head(asked, told, "chat.completion.chunk")

        def send(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
            return event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})

        yield send({"role": "assistant", "content": ""})
        for piece in pieces(told.text):
            yield send({"content": piece})
        for call in self._calls(told):
            yield send({"tool_calls": [{"index": 0, **call}]})
        yield send({}, self._finish_reason(told))
        yield event({**head, "choices": [], "usage": self._usage(asked, told)})
        yield b"data: [DONE]\n\n"

    def error(self, status: int, message: str) -> dict[str, Any]:
        return Responses().error(status, message)

    @staticmethod
    def _texts(message: dict[str, Any]) -> Iterator[Text]:
        match message["role"]:
            case "tool":
                yield Text("tool", joined(message["content"]))
            case "user":
                yield from (Text("user", text) for text in texts_of(message["content"]))
            case "assistant":
                yield from (Text("model", text) for text in texts_of(message.get("content")))
            case _:
                pass

    @staticmethod
    def _head(asked: Asked, told: Told, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{told.number}", "object": kind, "created": 0, "model": asked.model}

    @staticmethod
    def _calls(told: Told) -> list[dict[str, Any]]:
        if told.call is None:
            return []
        function = {"name": told.call.name, "arguments": json.dumps(told.call.arguments)}
        return [{"id": told.call_id, "type": "function", "function": function}]

    @staticmethod
    def _finish_reason(told: Told) -> str:
        return "stop" if told.call is None else "tool_calls"

    @staticmethod
    def _usage(asked: Asked, told: Told) -> dict[str, int]:
        return {
            "prompt_tokens": asked.input_tokens,
            "completion_tokens": told.output_tokens,
            "total_tokens": asked.input_tokens + told.output_tokens,
        }
