"""From the bytes of a delivery to the row that is stored: signed, parsed once, judged without I/O."""

import hmac
import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import parse_qsl

import orjson

from bot.github.payloads import envelope, is_used_event
from bot.json_values import has_many_values, parse
from bot.store.deliveries import NewDelivery
from bot.thread.boxes import may_have_ticks

# The payloads that the bot uses hold up to five texts of 65,536 characters, and little else.
LARGEST_USED_BYTES = 4 * 1024 * 1024
TOO_LARGE = "The body was not parsed: it is larger than any payload of this event."
# A slash at the beginning of a word. Cheaper than a look at every line, which few texts need.
_SLASH_WORD = re.compile(r"/(?<!\S/)[A-Za-z]")
# In raw HTML a number needs no semicolon.
_ENCODED_AT = re.compile(r"&(?:#0*64|#x0*40|commat;)", re.IGNORECASE)


def sign(body: bytes, secret: bytes) -> str:
    """Return the header `X-Hub-Signature-256` for `body`, as GitHub computes it.

    https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
    """
    return "sha256=" + hmac.digest(secret, body, "sha256").hex()


def is_signed(body: bytes, header: str, secrets: Sequence[bytes]) -> bool:
    """Compare with every secret in constant time. Any header is allowed; without a secret nothing is valid."""
    given = header.encode("utf-8", "surrogatepass")
    # A list, not a generator: with a generator `any` would stop at the first match.
    fits = [hmac.compare_digest(sign(body, secret).encode(), given) for secret in secrets]
    return any(fits)


def delivery_of(
    guid: str,
    event: str,
    body: bytes,
    platform: str,
    names: str = "",
    *,
    is_form: bool = False,
    bare_commands: bool = True,
) -> NewDelivery:
    """Return the delivery in `body`: JSON, or a form with the JSON in its field `payload`. Any bytes are allowed.

    `names` are those that the bot answers to, and its login, joined by commas; empty while they are not known. What is
    said on a pull request that an account of such a name opened is decided: it may be the bot's.
    """
    try:
        content = body
        if is_form:
            fields = dict(parse_qsl(body.decode("ascii"), errors="strict", max_num_fields=10))
            if "payload" not in fields:
                raise ValueError("the form has no field 'payload'")
            content = fields["payload"].encode()
        if len(content) > LARGEST_USED_BYTES or has_many_values(content):
            if not is_used_event(event):
                return NewDelivery(guid, event, "ignored")  # such as a push of many commits
            kept = body if len(body) <= LARGEST_USED_BYTES else None
            return NewDelivery(guid, event, "dead", body=kept, error=TOO_LARGE)
        payload = parse(content)
    except ValueError as problem:
        return NewDelivery(guid, event, "dead", body=body, error=f"The body could not be parsed: {problem}"[:500])
    about = envelope(event, payload, platform)
    if not about.used:
        return NewDelivery(guid, event, "ignored", about.action, about.conversation, about.lock_key)
    may_concern = (
        not names
        or about.text is None
        or (about.on_pull_of or "").removesuffix("[bot]").casefold() in names.casefold().split(",")
        or may_address(about.text, names, bare_commands=bare_commands)
        or may_have_ticks(about.text)
    )
    if not may_concern:
        return NewDelivery(guid, event, "ignored", about.action, about.conversation, about.lock_key, searched_for=names)
    return NewDelivery(
        guid,
        event,
        "received",
        about.action,
        about.conversation,
        # A delivery that names no conversation gets a lock of its own; decide finds out what is wrong with it.
        about.lock_key or f"{platform}/{guid}",
        content if about.kept is None else orjson.dumps(about.kept),
        sender=about.sender,
    )


def may_address(text: str, names: str, *, bare_commands: bool = True) -> bool:
    """Return False only for a text in which no reader can find a mention of one of `names`, nor a bare command.

    It is the cheap half of what decide does with the text (bot/turn/parsing.py); what passes is decided there.
    """
    has_slash = bare_commands and "/" in text and _SLASH_WORD.search(text) is not None
    if has_slash and any(line.lstrip()[:1] == "/" for line in text.splitlines()):
        return True  # a command without a mention begins its line in the source too
    return ("@" in text and _mention(names).search(text) is not None) or (
        "&" in text and _ENCODED_AT.search(text) is not None
    )


@lru_cache(maxsize=8)
def _mention(names: str) -> re.Pattern[str]:
    """Return a pattern that finds the beginning of each mention, whole or up to its first interruption.

    What a reader does not see can interrupt a name: a tag, an empty link, an escape, an entity in place of a letter,
    the marks of emphasis.
    """
    wanted = [re.escape(name) for name in names.split(",")]
    return re.compile(rf"@(?:{'|'.join(wanted)}|[{''.join(wanted)}]*[\[<\\&*_~])", re.IGNORECASE)
