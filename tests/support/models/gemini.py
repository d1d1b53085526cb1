"""Google's Gemini API: https://ai.google.dev/api/generate-content"""

import json
from collections.abc import Iterator
from typing import Any

from tests.support.models.script import Text
from tests.support.models.wire import Asked, Told, event, pieces

# Gemini CLI also asks a model, without tools and for JSON, who speaks next and which model is to answer.
_VERDICT = {"reasoning": "simple", "next_speaker": "user", "model_choice": "flash", "complexity_score": 1}


class GenerateContent:
    """See `Api`."""

    def read(self, path: str, body: dict[str, Any]) -> Asked:
        declared = (tool.get("functionDeclarations") or () for tool in body.get("tools") or ())
        return Asked(
            tuple(text for content in body["contents"] for text in _texts(content)),
            frozenset(function["name"] for functions in declared for function in functions),
            path.rpartition("/")[2].partition(":")[0],
            path.endswith(":streamGenerateContent"),
        )

    def whole(self, asked: Asked, told: Told) -> dict[str, Any]:
        return _chunk(asked, told, list(_parts(told)), last=True)

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        for part in _parts(told):
            yield event(_chunk(asked, told, [part], last=False))
        yield event(_chunk(asked, told, [{"text": ""}], last=True))

    def error(self, status: int, message: str) -> dict[str, Any]:
        name = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}.get(status, "INTERNAL")
        return {"error": {"code": status, "message": message, "status": name}}


def wants_json(body: dict[str, Any]) -> bool:
    """Return whether the answer must be the verdict of `as_json`."""
    return (body.get("generationConfig") or {}).get("responseMimeType") == "application/json"


def as_json(told: Told) -> Told:
    """Return the answer to one of the agent's own questions."""
    return Told(told.number, json.dumps(_VERDICT), None)


def _texts(content: dict[str, Any]) -> Iterator[Text]:
    for part in content.get("parts") or ():
        if "functionResponse" in part:
            yield Text("tool", json.dumps(part["functionResponse"].get("response")))
        elif isinstance(part.get("text"), str):
            yield Text("model" if content.get("role") == "model" else "user", part["text"])


def _parts(told: Told) -> Iterator[dict[str, Any]]:
    yield from ({"text": piece} for piece in pieces(told.text))
    if told.call is not None:
        yield {"functionCall": {"id": told.call_id, "name": told.call.name, "args": told.call.arguments}}


def _chunk(asked: Asked, told: Told, parts: list[dict[str, Any]], *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if last:
        candidate["finishReason"] = "STOP"
    usage = {
        "promptTokenCount": asked.input_tokens,
        "candidatesTokenCount": told.output_tokens,
        "totalTokenCount": asked.input_tokens + told.output_tokens,
    }
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": asked.model}
