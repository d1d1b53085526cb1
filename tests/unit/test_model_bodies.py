"""What a request to a model may hold."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.sandbox.net import model_bodies
from bot.sandbox.net.model_bodies import RefusedBodyError, check_body

PARTS = ['"', "\\", '\\"file_id":', "{", "]", ":", "é\U0001f600", "a" * 900]
LETTERS = 'abc"\\{}[]:, é\U0001f600'
TEXT = st.text(LETTERS) | st.sampled_from(PARTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(LETTERS), inner),
)
ANYWHERE = (
    *("previous_response_id", "previous_interaction_id", "vector_store_ids", "container_id", "file_id", "file_ids"),
    *("cachedContent", "cached_content", "fileUri", "file_uri", "fileSearchStoreNames"),
)
OUTER = ("container", "conversation", "prompt")
DATA = "data:image/png;base64,AAAA"
EVIL = "https://evil.example/?d=SECRET"


def is_refused(body: object, *, offline: bool = False) -> bool:
    whole = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        check_body(whole, offline=offline)
    except RefusedBodyError:
        return True
    return False


def written(value: object, escaped: bool) -> bytes:
    """Return the JSON; with `escaped`, each letter of the names as an escape."""
    text = json.dumps(value, ensure_ascii=False)
    for name in (*ANYWHERE, *OUTER) if escaped else ():
        text = text.replace(f'"{name}"', '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"')
    return text.encode()


@given(JSON, st.booleans(), st.booleans())
def test_a_body_without_such_names_passes(value: Any, indented: bool, offline: bool) -> None:
    body = json.dumps({"messages": value}, ensure_ascii=not indented, indent=2 if indented else None)
    check_body(body.encode(), offline=offline)


@given(JSON, JSON, st.sampled_from(ANYWHERE), st.booleans())
def test_a_name_of_a_stored_object_is_found_anywhere(before: Any, after: Any, name: str, escaped: bool) -> None:
    assert is_refused(written({"a": before, "input": [{"type": "x", "b": before, name: "id", "c": after}]}, escaped))


@given(JSON, st.sampled_from(OUTER), st.booleans())
def test_a_word_that_tools_use_too_counts_in_the_request_itself(before: Any, name: str, escaped: bool) -> None:
    assert is_refused(written({"a": before, name: "id"}, escaped))
    assert not is_refused(written({"messages": [{"input": {name: before}}]}, escaped))


@pytest.mark.parametrize(
    "item",
    [
        {"id": "msg_1"},
        {"id": "msg_1", "type": None, "status": "completed"},
        {"id": "msg_1", "type": "item_reference"},
        {"id": "msg_1", "type": "message", "role": "assistant"},
        {"id": "rs_1", "type": "reasoning", "summary": []},
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": None},
        {"id": "ig_1", "type": "image_generation_call", "status": "completed"},
    ],
)
def test_an_item_without_content_of_its_own_is_refused(item: dict[str, Any]) -> None:
    assert is_refused({"model": "m", "input": [{"role": "user", "content": "x"}, item]})


@pytest.mark.parametrize(
    "members",
    [
        {"background": True},
        {"store": True},
        {"store": 1},
        {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]},
        {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]},
    ],
)
def test_nothing_is_stored_or_read_from_what_was(members: dict[str, Any]) -> None:
    assert is_refused({"model": "m", "input": "x", **members})


@pytest.mark.parametrize(
    "body",
    [
        b'{"file_id"\n :"x"}',
        b"{'cachedContent': 'x'}",
        b"{cachedContent: 'x'}",
        b'{/**/"cachedContent": "x"}',
        '{"cachedContent": "x"}'.encode("utf-16"),
        '{"model": "x"}'.encode("utf-32-le"),
        b"\x0a\x05model",
        b'{"\\x66ile_id": 1}',
        b'{"type": "function", "type": "mcp"}',
        b'["model"]',
        b"[" * 100_000,
        b'{"a": "\xed\xa0\x80"}',
    ],
)
def test_what_a_vendor_might_read_otherwise_is_refused(body: bytes) -> None:
    assert is_refused(body)


def test_a_text_that_quotes_such_a_name_passes() -> None:
    code = 'request = {"previous_response_id": last, "file_id": 1, "type": "item_reference", "file_url": "http://a"}'
    check_body(
        json.dumps({"input": [{"role": "user", "content": code}], "prompt_cache_key": "x"}).encode(), offline=True
    )


def test_a_body_with_more_values_than_a_conversation_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_bodies, "MOST_VALUES", 1000)
    assert is_refused({"messages": [{}] * 20_000})


WAYS_OUT: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": EVIL}}]}]},
    {"messages": [{"content": [{"content": [{"type": "document", "source": {"type": "url", "url": EVIL}}]}]}]},
    {"mcp_servers": [{"type": "url", "url": EVIL, "name": "e"}], "messages": []},
    {"mcp_servers": [], "messages": []},
    {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
    {"tools": [{"type": "mcp_toolset", "mcp_server_name": "e"}]},
    {"tools": [{"type": "mcp", "server_label": "e", "server_url": EVIL}]},
    {"tools": [{"type": "mcp", "server_label": "e", "connector_id": "connector_gmail"}]},
    {"tools": [{"type": "web_search"}]},
    {"tools": [{"type": "web_search_preview"}]},
    {"tools": [{"type": "image_generation"}]},
    {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
    {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]},
    {"tools": [{"type": ["function"]}]},
    {"tools": {"type": "web_search"}},
    {"input": [{"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}]}]},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": EVIL}]}]},
    {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": EVIL}]}]},
    {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "image_url": EVIL}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": EVIL}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": " " + DATA}}]}]},
    {"web_search_options": {}, "messages": []},
    {"model": "gpt-5-search-api", "messages": []},
    {"tools": [{"googleSearch": {}}]},
    {"tools": [{"functionDeclarations": [], "url_context": {}}]},
    {"tools": [{"google_search_retrieval": {}}]},
]


@pytest.mark.parametrize("body", WAYS_OUT, ids=range(len(WAYS_OUT)))
def test_offline_the_vendor_fetches_nothing_and_runs_no_tool(body: dict[str, Any]) -> None:
    assert is_refused(body, offline=True)
    assert not is_refused(body)


# What the preset agents send, by its shape: Claude Code 2.1.329, codex 0.166.0, opencode and Gemini CLI.
SCHEMA = {"type": "object", "properties": {"url": {"type": "string"}, "image_url": {"type": "string"}}}
REAL: dict[str, dict[str, Any]] = {
    "claude": {
        "model": "claude-opus-5-5",
        "max_tokens": 128000,
        "stream": True,
        "metadata": {"user_id": "x"},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "system": [{"type": "text", "text": "You", "cache_control": {"type": "ephemeral"}}],
        "tools": [
            {"name": "Bash", "description": "d", "input_schema": SCHEMA},
            {"name": "WebFetch", "defer_loading": True, "description": "d", "input_schema": SCHEMA},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "AAAA"}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t_1", "name": "W", "input": {"url": EVIL}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t_1", "content": "x"}]},
            {"role": "system", "content": "x", "output_config": {"effort": "high"}},
        ],
    },
    "codex": {
        "model": "gpt-6.1-sol",
        "stream": True,
        "store": False,
        "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a20d17",
        "client_metadata": {"session_id": "01a20d17", "thread_id": "01a20d17"},
        "input": [
            {
                "type": "additional_tools",
                "role": "developer",
                "id": "at_1",
                "tools": [
                    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "strict": False}]},
                    {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
                ],
            },
            {"type": "configuration_update", "id": "msg_0", "reasoning": {"effort": "low"}},
            {"type": "message", "role": "user", "id": "msg_1", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": DATA}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
            {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "exec", "input": "x", "status": "done"},
            {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "c", "output": [{"type": "input_text"}]},
        ],
    },
    "opencode": {
        "model": "gpt-5",
        "store": False,
        "input": [
            {"role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "x"}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
    },
    "gemini": {
        "contents": [{"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}],
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": SCHEMA}]}],
        "generationConfig": {"temperature": 1},
    },
}


@pytest.mark.parametrize("agent", REAL)
def test_what_the_agents_send_passes(agent: str) -> None:
    check_body(json.dumps(REAL[agent]).encode(), offline=True)
