"""JSON of strangers and agents. Many small values take long to parse, and nothing else runs meanwhile."""

import re
from itertools import islice
from typing import Any

import orjson

# Payloads and agents' messages have some hundreds. Long ones have long texts, which are one value each.
MOST_VALUES = 20_000
# Shorter text has not many more values than that.
UNCOUNTED_BYTES = 32 * 1024
# What separates or begins values, or a string as a whole; one without an end reaches to the end of the text. Written
# with one set of first characters, so that all else is skipped fast.
_VALUE = re.compile(rb'[\[{,"](?:(?<=")[^"\\]*+(?:\\.[^"\\]*+)*+"?+)?+', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
# Each escape of a JSON text; the group is half of a surrogate pair without the other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def parse(text: bytes) -> Any:
    """Return the value of a JSON text. A lone surrogate costs one character. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return orjson.loads(without_halves(text))


def without_halves(text: bytes) -> bytes:
    """Return the JSON text with U+FFFD in place of each lone surrogate, which orjson does not read."""
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], text)


def has_many_values(text: bytes, most: int = MOST_VALUES) -> bool:
    """Return whether the JSON has more values than anything that the bot reads. Takes no longer for more values."""
    if len(text) <= UNCOUNTED_BYTES:
        return False
    return next(islice(_VALUE.finditer(text), 2 * most, None), None) is not None


def storable(value: Any) -> Any:
    """Return the value with texts that can be stored: Postgres stores no NUL, and UTF-8 has no lone surrogates."""
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value).replace("\0", "")
        case list():
            return [storable(item) for item in value]
        case dict():
            return {storable(key): storable(item) for key, item in value.items()}
        case _:
            return value
