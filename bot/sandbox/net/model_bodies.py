"""What a request to a model may hold. Pure.

Never what the vendor has stored: answers, files, caches, containers of the key's account. The account is one, and the
ids are in its answers, so they would reach other turns' and other people's data. No preset agent needs them: each sends
its whole conversation, and files as they are.

Offline, nothing that makes the vendor itself fetch an address or run a tool: that would be a way out.
"""

import json
import re
from collections.abc import Iterator

from bot.json_values import has_many_values

MOST_VALUES = 500_000
"""A conversation that fills a model's context has fewer."""

# https://platform.openai.com/docs/api-reference/responses/create · https://docs.claude.com/en/api/messages
# https://ai.google.dev/api/generate-content
_STORED_KEYS = re.compile(
    r"previous_\w+_id|vector_store_ids?|container_ids?|file_ids?|cached_?content|file_?uri|file_?search_?store_?names",
    re.IGNORECASE,
)
# Words that tools use too: they count only in the request itself.
_STORED_OUTER_KEYS = frozenset(("container", "conversation", "prompt"))
_STORING_KEYS = ("background", "store")
# Kinds of items that name a stored object by `id` or `container`.
_STORED_KINDS = ("item_reference", "code_interpreter")
# What an item of such a kind must bring along: the vendor looks for the rest under its `id`.
_OWN_CONTENT = {"reasoning": ("encrypted_content", "content"), "image_generation_call": ("result",)}
_NO_CONTENT = frozenset(("id", "type", "role", "status"))

_ADDRESS_KEYS = re.compile(r"(?:file|image|video|audio|server)_url|connector_id")
_OUTER_ADDRESS_KEYS = frozenset(("mcp_servers", "web_search_options"))
# The kinds of tools that the agent itself runs, or that reach nothing but the request.
_OWN_TOOLS = re.compile(
    r"function|custom|namespace|tool_search|local_shell|apply_patch|(?:bash|text_editor|memory|computer)_\d+"
    r"|tool_search_tool_(?:regex|bm25)_\d+"
)
_GEMINI_TOOLS = frozenset(("functionDeclarations", "function_declarations"))


class RefusedBodyError(Exception):
    """The body is not one that an agent may send; the message says why."""


def check_body(body: bytes, *, offline: bool) -> None:
    """Raise RefusedBodyError for a body that an agent may not send."""
    if has_many_values(body, MOST_VALUES):
        raise RefusedBodyError("It has too many values.")

    def checked(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) < len(pairs):  # which of two the vendor reads is not known
            raise RefusedBodyError("It has an object with two members of one name.")
        for why in (*_stored(members), *(_fetched(members) if offline else ())):
            raise RefusedBodyError(why)
        return members

    try:
        # Only UTF-8: Python would read UTF-16 and UTF-32 too.
        request = json.loads(body.decode(), object_pairs_hook=checked)
    except (ValueError, RecursionError) as error:
        raise RefusedBodyError("It is no JSON in UTF-8.") from error
    if not isinstance(request, dict):
        raise RefusedBodyError("It is no JSON object.")
    for why in (*_stored_outside(request), *(_fetched_outside(request) if offline else ())):
        raise RefusedBodyError(why)


def _stored(members: dict[str, object]) -> Iterator[str]:
    """Yield what is wrong with an object anywhere in a request."""
    for key in filter(_STORED_KEYS.fullmatch, members):
        yield f"It names an object that the vendor has stored: {key}."
    if (kind := members.get("type")) in _STORED_KINDS:
        yield f"It holds an item of the kind {kind}."


def _stored_outside(request: dict[str, object]) -> Iterator[str]:
    """Yield what is wrong with the request's own members."""
    for key in _STORED_OUTER_KEYS & request.keys():
        yield f"It names an object that the vendor has stored: {key}."
    for key in _STORING_KEYS:
        if request.get(key) not in (None, False):
            yield f"It has the answer stored: {key}."
    for item in _objects(request.get("input")):
        if "id" in item and not _brings_content(item):
            yield "It holds an item that the vendor has stored: one with an id alone."
    if any(item.get("audio") is not None for item in _objects(request.get("messages"))):
        yield "It holds a message that the vendor has stored: audio."


def _brings_content(item: dict[str, object]) -> bool:
    kind = item.get("type")
    own = _OWN_CONTENT.get(kind) if isinstance(kind, str) else None
    if own is not None:
        return any(item.get(key) for key in own)
    has_kind = item.get("type") is not None or item.get("role") is not None
    return has_kind and any(value is not None for key, value in item.items() if key not in _NO_CONTENT)


def _fetched(members: dict[str, object]) -> Iterator[str]:
    for key, value in members.items():
        if value is not None and _ADDRESS_KEYS.fullmatch(key):
            address = value.get("url", "data:") if isinstance(value, dict) else value
            if not (isinstance(address, str) and address.startswith("data:")):
                yield f"It names an address that the vendor would fetch: {key}."
    if members.get("type") == "url" and "url" in members:
        yield "It names an address that the vendor would fetch: url."
    for tool in _objects(members.get("tools")):
        if not _is_run_by_agent(tool):
            yield f"It has a tool that the vendor would run: {str(tool.get('type') or ', '.join(tool))[:100]}."


def _fetched_outside(request: dict[str, object]) -> Iterator[str]:
    for key in _OUTER_ADDRESS_KEYS & request.keys():
        yield f"It names an address that the vendor would fetch: {key}."
    if not isinstance(request.get("tools", []), list | None):
        yield "Its tools are no list."
    if "search" in str(request.get("model")):
        yield "Its model searches the web."


def _is_run_by_agent(tool: dict[str, object]) -> bool:
    kind = tool.get("type")
    if kind is None:  # Anthropic's own form of a function has a name only, Gemini's a list of functions
        return "name" in tool or tool.keys() <= _GEMINI_TOOLS
    return isinstance(kind, str) and _OWN_TOOLS.fullmatch(kind) is not None


def _objects(value: object) -> Iterator[dict[str, object]]:
    """Yield the objects of a list; none where it is no list."""
    yield from (one for one in value if isinstance(one, dict)) if isinstance(value, list) else ()
