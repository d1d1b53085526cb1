"""The simulated models: four APIs, one behaviour."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.models.server import SimulatedModels

Body = Callable[[list[tuple[str, str]], bool], tuple[str, dict[str, Any]]]


def messages(turns: list[tuple[str, str]], stream: bool) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"stream": stream, "messages": [{"role": role, "content": text} for role, text in turns]}


def responses(turns: list[tuple[str, str]], stream: bool) -> tuple[str, dict[str, Any]]:
    items = [{"type": "message", "role": role, "content": text} for role, text in turns]
    return "/v1/responses", {"stream": stream, "input": items}


def chat(turns: list[tuple[str, str]], stream: bool) -> tuple[str, dict[str, Any]]:
    path, body = messages(turns, stream)
    return path.replace("messages", "chat/completions"), body


def gemini(turns: list[tuple[str, str]], stream: bool) -> tuple[str, dict[str, Any]]:
    contents = [{"role": role.replace("assistant", "model"), "parts": [{"text": text}]} for role, text in turns]
    call = "streamGenerateContent" if stream else "generateContent"
    return f"/v1beta/models/gemini-x:{call}", {"contents": contents}


TOOLS: dict[Body, dict[str, Any]] = {
    messages: {"tools": [{"name": "Write"}]},
    responses: {"tools": [{"type": "function", "name": "apply_patch"}]},
    chat: {"tools": [{"type": "function", "function": {"name": "write"}}]},
    gemini: {"tools": [{"functionDeclarations": [{"name": "write_file"}]}]},
}


@pytest.fixture(params=[messages, responses, chat, gemini], ids=lambda body: body.__name__)
def api(request: pytest.FixtureRequest) -> Body:
    body: Body = request.param
    return body


def strings(value: object) -> Iterator[str]:
    """Yield every text in a JSON value."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from strings(item)
        case dict():
            for item in value.values():
                yield from strings(item)
        case _:
            pass


async def answer(models: SimulatedModels, path: str, body: dict[str, Any]) -> tuple[int, list[Any]]:
    """Return the status and the JSON values of an answer, streamed or not."""
    async with httpx.AsyncClient(base_url=models.url) as client:
        response = await client.post(path, json=body)
    if not response.headers["content-type"].startswith("text/event-stream"):
        return response.status_code, [response.json()]
    data = [line[len("data: ") :] for line in response.text.splitlines() if line.startswith("data: ")]
    return response.status_code, [json.loads(item) for item in data if item != "[DONE]"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_it_remembers_what_is_in_the_conversation(models: SimulatedModels, api: Body, stream: bool) -> None:
    turns = [("user", "remember plum"), ("assistant", "I will remember plum."), ("user", "recall")]
    _, values = await answer(models, *api(turns, stream))
    assert "I remember: plum." in set(strings(values))
    _, values = await answer(models, *api(turns[2:], stream))
    assert "I remember: nothing." in set(strings(values))


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_it_calls_the_agents_own_tool(models: SimulatedModels, api: Body, stream: bool) -> None:
    path, body = api([("user", "@bot write notes.txt: hello there")], stream)
    _, values = await answer(models, path, {**body, **TOOLS[api]})
    told = "".join(strings(values))
    assert "notes.txt" in told
    assert "hello there" in told


async def test_it_answers_with_the_requested_status(models: SimulatedModels, api: Body) -> None:
    status, values = await answer(models, *api([("user", "fail 529")], True))
    assert status == 529
    assert "error" in values[0]


async def test_the_token_count_grows_with_the_conversation(models: SimulatedModels) -> None:
    counts = []
    for words in ("one", "one two three four five"):
        _, values = await answer(models, "/v1/messages/count_tokens", messages([("user", words)], False)[1])
        counts.append(values[0]["input_tokens"])
    assert counts == [1, 6]


async def test_a_hang_lasts_until_the_client_disconnects(models: SimulatedModels, api: Body) -> None:
    path, body = api([("user", "hang")], True)
    async with httpx.AsyncClient(base_url=models.url, timeout=0.2) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(path, json=body)
    assert [request.path for request in models.requests] == [path]
