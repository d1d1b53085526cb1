"""The messages of an agent, and the argv and environment of its command."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError
from hypothesis import given
from hypothesis import strategies as st

from bot.agents import process
from bot.agents.acp_link import error_text, is_message
from bot.agents.driver import Launch
from bot.agents.process import AgentProcess, parse_object
from bot.sandbox.bwrap import agent_argv, agent_environment, command_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["id", "method", "error"]), inner),
)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"npm warn deprecated", b"42", b"[]", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000),
        *(
            b'{"id": []}',
            b'{"id": {}}',
            b'{"method": 1}',
            b'{"id": 1, "error": "x"}',
            b'{"id": 1, "error": {"code": "x"}}',
            b'{"id": 1, "result": [' + b"[]," * 100_000 + b"0]}",
        ),
    ],
)
def test_other_lines_are_skipped(line: bytes) -> None:
    value = parse_object(line)
    assert value is None or not is_message(value)


@given(JSON)
def test_an_object_is_a_message_only_with_an_id_or_a_method(value: Any) -> None:
    parsed = parse_object(json.dumps(value).encode())
    assert parsed is None or not is_message(parsed) or {"id", "method"} & parsed.keys()


@given(st.text(st.characters()), st.booleans())
def test_the_texts_of_an_object_can_be_stored(text: str, escaped: bool) -> None:
    value = {"type": "m", "params": {"list": [text], text: None}}
    parsed = parse_object(json.dumps(value, ensure_ascii=escaped).encode(errors="surrogatepass"))
    assert parsed is not None
    assert "\\u0000" not in json.dumps(parsed).replace("\\\\", "")
    json.dumps(parsed, ensure_ascii=False).encode()


@given(st.lists(st.text(), min_size=1))
def test_the_command_stands_whole_at_the_end_of_the_argv(command: list[str]) -> None:
    argv = agent_argv(command)
    assert list(argv[-len(command) :]) == command
    if len(argv) > len(command):
        assert list(command_of(argv)) == command


def test_the_environment_is_built_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "GITHUB_TOKEN", "secret")
    extra = {"MODEL_KEY": "dummy", "HOME": "/elsewhere"}
    assert agent_environment(Path("/home/agent"), "/bin", "C.UTF-8", extra) == {
        "HOME": "/home/agent",
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "MODEL_KEY": "dummy",
    }


async def test_an_agent_that_floods_its_output_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(process, "MAX_BYTES_PER_SECOND", 25)
    program = "for _ in range(4): print('{\"ten\": 10}')"
    agent = await AgentProcess.start(Launch((sys.executable, "-c", program), {}, tmp_path))
    monkeypatch.setattr(asyncio, "sleep", noted)
    try:
        assert [await agent.read_object() for _ in range(4)] == [{"ten": 10}] * 4
    finally:
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await agent.end()
    assert [wait for wait in waits if wait > 0]
    assert max(waits) <= 1


@pytest.mark.parametrize(
    ("message", "data", "told"),
    [
        ("429: slow_down", {"details": "429: slow_down"}, "429: slow_down"),
        ("Internal error", {"details": "429: slow_down"}, "Internal error (429: slow_down)"),
        ("slow_down", {"message": "429: slow_down"}, "429: slow_down"),
        ("Internal error", None, "Internal error"),
        ("Internal error", "", "Internal error"),
    ],
)
def test_what_an_error_says_twice_is_told_once(message: str, data: object, told: str) -> None:
    assert error_text(RequestError(-32603, message, data)) == told
