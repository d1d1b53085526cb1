"""Requests to a model that name what its vendor has stored: answers, files, caches, containers of the key's account.

They would reach other turns' and other people's data: the account is one, and the ids are in its answers. No preset
agent needs them: each sends its whole conversation, and files as they are.
"""

import json
import re

# https://platform.openai.com/docs/api-reference/responses/create · https://docs.claude.com/en/api/messages
# https://ai.google.dev/api/generate-content
_KEYS = frozenset(
    (
        *("previous_response_id", "vector_store_ids", "container_id", "file_id", "file_ids"),
        *("cachedContent", "cached_content", "fileUri", "file_uri"),
    )
)
# Words that tools use too: they count only in the request itself.
_OUTER_KEYS = frozenset(("container", "conversation", "prompt"))
# Kinds of items that name a stored object by `id` or `container`.
_VALUES = frozenset(("item_reference", "code_interpreter"))
_LONGEST = 4 * max(map(len, _KEYS | _OUTER_KEYS | _VALUES)) * len("\\u0000")

_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
# Google's servers also read single quotes and names without quotes.
_OUTSIDE = re.compile(rb"[\s{}\[\]:,0-9+\-.eEtrufalsn]*+")


class RefusedBodyError(Exception):
    """The body is not one that an agent may send; the message says why."""


class BodyScan:
    """Reads a JSON body as it passes, in pieces of any size. Takes memory for one key, whatever the body holds."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._string = b""
        self._word: str | None = None

    def feed(self, piece: bytes) -> None:
        """Take the next piece. Raises RefusedBodyError before the name of a stored object is passed on as a whole."""
        at = 0
        while at < len(piece):
            at = self._read_string(piece, at) if self._in_string else self._read_outside(piece, at)

    def _read_string(self, piece: bytes, at: int) -> int:
        end = at
        if self._is_escaped:
            end, self._is_escaped = at + 1, False
        found = _IN_STRING.match(piece, end)
        end = found.end() if found else end
        self._string = (self._string + piece[at:end])[:_LONGEST]
        if end == len(piece):
            return end
        if piece[end] == ord("\\"):  # the last byte: what it escapes is in the next piece
            self._string, self._is_escaped = (self._string + b"\\")[:_LONGEST], True
            return end + 1
        self._in_string = False
        self._word = _decoded(self._string)
        if self._word in _VALUES:
            raise RefusedBodyError(f"It holds an item of the kind {self._word}.")
        return end + 1

    def _read_outside(self, piece: bytes, at: int) -> int:
        found = _OUTSIDE.match(piece, at)
        end = found.end() if found else at
        between = piece[at:end]
        if self._word is not None and (following := between.lstrip()):
            if following.startswith(b":") and (self._word in _KEYS or (self._depth == 1 and self._word in _OUTER_KEYS)):
                raise RefusedBodyError(f"It names an object that the vendor has stored: {self._word}.")
            self._word = None
        self._depth += between.count(b"{") + between.count(b"[") - between.count(b"}") - between.count(b"]")
        if end == len(piece):
            return end
        if piece[end] != ord('"'):
            raise RefusedBodyError("It is no JSON in UTF-8.")
        self._in_string, self._string = True, b""
        return end + 1


def _decoded(string: bytes) -> str | None:
    """Return what a short string says; None for one that is longer than all names."""
    if len(string) >= _LONGEST:
        return None
    try:
        return str(json.loads(b'"' + string + b'"', strict=False))
    except ValueError:
        raise RefusedBodyError("It is no JSON in UTF-8.") from None
