"""The budget for JSON of strangers and agents."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.json_values import MOST_VALUES, UNCOUNTED_BYTES, has_many_values, parse, storable

PUNCTUATION = '[{,"\\:}]'
LONG = 2 * UNCOUNTED_BYTES


@pytest.mark.parametrize("one", ["[],", "{},", '"",', "1,", '"\\"",', '{"a":[1]},', "null ,"])
def test_many_small_values_are_too_many(one: str) -> None:
    assert has_many_values(f"[{one * (2 * MOST_VALUES)}0]".encode())


@given(st.text(PUNCTUATION + "ax\n", min_size=1), st.text(PUNCTUATION + "n", max_size=20))
def test_a_long_text_is_one_value_whatever_it_says(piece: str, key: str) -> None:
    value = {key: [piece * LONG, 1, {"b": piece * LONG}]}
    assert not has_many_values(json.dumps(value).encode())


@pytest.mark.parametrize(
    "text", [b'"' + b"\\" * LONG, b'["' + b"[," * LONG, b"1" * LONG, b" " * LONG, b'"\\' + b"," * LONG]
)
def test_what_is_no_json_is_counted_too(text: bytes) -> None:
    assert not has_many_values(text)


@given(st.lists(st.sampled_from(["\ud83d", "\ude00", "\\", '"', "u", "d83d", "\ud83d\ude00", "é", "😀"])).map("".join))
def test_a_lone_surrogate_costs_one_character(text: str) -> None:
    written = json.dumps({"title": text})
    # What Python takes for a pair in its own text is one in JSON.
    whole = json.loads(written)["title"]
    expected = "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in whole)
    assert parse(written.encode()) == {"title": expected}
    assert storable(whole) == expected
