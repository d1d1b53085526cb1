"""What a request to a model may not name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.network.stored_objects import _KEYS, _VALUES, BodyScan, RefusedBodyError

PARTS = ['"', "\\", '\\"file_id":', "{", "]", ":", "\\u0066ile_id", "é\U0001f600", "a" * 900]
# Hypothesis also takes words from the code under test, and so the names themselves.
TEXT = (st.text() | st.sampled_from(PARTS)).filter(lambda text: text not in _KEYS | _VALUES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)
ANYWHERE = ("previous_response_id", "file_id", "cachedContent", "cached_content", "fileUri", "vector_store_ids")
OUTER = ("container", "conversation", "prompt")


def feed(body: bytes, cuts: list[int]) -> None:
    scan, begin = BodyScan(), 0
    for end in sorted({cut % (len(body) + 1) for cut in cuts} | {len(body)}):
        scan.feed(body[begin:end])
        begin = end


def is_refused(body: bytes, cuts: list[int]) -> bool:
    try:
        feed(body, cuts)
    except RefusedBodyError:
        return True
    return False


def written(value: object, escaped: bool) -> bytes:
    """Return the JSON; with `escaped`, each letter of it as an escape, also in names."""
    text = json.dumps(value, ensure_ascii=False)
    if not escaped:
        return text.encode("utf-8", "surrogatepass")
    for name in (*ANYWHERE, *OUTER, "item_reference"):
        text = text.replace(f'"{name}"', '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"')
    return text.encode("utf-8", "surrogatepass")


@given(JSON, st.lists(st.integers(0, 10_000), max_size=20), st.booleans())
def test_a_body_without_such_names_passes_in_any_pieces(value: Any, cuts: list[int], indented: bool) -> None:
    body = json.dumps({"messages": value}, ensure_ascii=not indented, indent=2 if indented else None)
    feed(body.encode("utf-8", "surrogatepass"), cuts)


@given(JSON, JSON, st.sampled_from(ANYWHERE), st.lists(st.integers(0, 10_000), max_size=20), st.booleans())
def test_a_name_of_a_stored_object_is_found_anywhere(
    before: Any, after: Any, name: str, cuts: list[int], escaped: bool
) -> None:
    body = {"a": before, "input": [{"type": "x", "b": before, name: "id", "c": after}]}
    assert is_refused(written(body, escaped), cuts)


@given(JSON, st.sampled_from(OUTER), st.lists(st.integers(0, 10_000), max_size=20), st.booleans())
def test_a_word_that_tools_use_too_counts_in_the_request_itself(
    before: Any, name: str, cuts: list[int], escaped: bool
) -> None:
    assert is_refused(written({"a": before, name: "id"}, escaped), cuts)
    assert not is_refused(written({"tools": [{"input": {name: before}}]}, escaped), cuts)


@pytest.mark.parametrize(
    "body",
    [
        b'{"input": [{"type": "item_reference", "id": "msg_1"}]}',
        b'{"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}',
        b'{"file_id"\n :"x"}',
        b"{'cachedContent': 'x'}",
        b"{cachedContent: 'x'}",
        b'{/**/"cachedContent": "x"}',
        '{"cachedContent": "x"}'.encode("utf-16"),
        '{"cachedContent": "x"}'.encode("utf-32-le"),
        b"\x0a\x05model",
        b'{"\\x66ile_id": 1}',
    ],
)
def test_other_ways_to_write_one_are_refused(body: bytes) -> None:
    assert is_refused(body, [])


def test_a_text_that_quotes_such_a_name_passes() -> None:
    code = 'request = {"previous_response_id": last, "file_id": 1, "type": "item_reference"}'
    feed(json.dumps({"input": [{"role": "user", "content": code}], "prompt_cache_key": "x"}).encode(), [])


def test_a_long_body_takes_little_memory() -> None:
    scan = BodyScan()
    scan.feed(b'{"data": "')
    for _ in range(100):
        scan.feed(b"x" * 10_000)
    assert max(len(value) for value in vars(scan).values() if isinstance(value, bytes)) < 1000
