"""Remove secrets from everything that leaves the machine: known ones in any usual encoding, and common formats."""

import base64
import itertools
import re
from collections.abc import Callable, Iterable, Sequence, Set
from urllib.parse import unquote_to_bytes

REDACTED = "[redacted]"
SHORTEST_SECRET = 8
"""Shorter known secrets are left alone: they cannot be told from words."""

# https://docs.github.com/authentication/keeping-your-account-and-data-secure/about-authentication-to-github#githubs-token-formats
# https://docs.github.com/code-security/secret-scanning/introduction/supported-secret-scanning-patterns for the others
_FORMATS = re.compile(
    r"""
    \b gh[pousr]_ [A-Za-z0-9_.-]{16,}                  # GitHub
  | \b github_pat_ [A-Za-z0-9_]{20,}
  | \b sk-ant- [A-Za-z0-9_-]{16,}                      # Anthropic
  | \b sk- (?:[a-z]+-){0,2} [A-Za-z0-9_-]{20,}         # OpenAI and those that copied its form
  | \b A(?:KIA|SIA) [A-Z0-9]{16} \b                    # Amazon Web Services
  | \b AIza [A-Za-z0-9_-]{35}                          # Google
  | \b xox[a-z]- [A-Za-z0-9-]{10,}                     # Slack
  | \b eyJ [A-Za-z0-9_-]{8,} \. eyJ [A-Za-z0-9_-]{8,} \. [A-Za-z0-9_-]*   # JSON web tokens
  | -----BEGIN\ (?P<label>[A-Z0-9\ ]*PRIVATE\ KEY(?:\ BLOCK)?)-----
    (?: .*? -----END\ (?P=label)----- | [A-Za-z0-9+/=\s\\]* )
    """,
    re.VERBOSE | re.DOTALL,
)
# One word of base64, also where it was wrapped into lines: then nothing else stands on the lines that follow.
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/_=-]{8,}(?:\s*\n[ \t>]*[A-Za-z0-9+/_=-]+(?=[ \t]*(?:\r?\n|\Z)))*")
_LINE_BREAKS = re.compile(r"[\s>]+")
_MOST_PASSES = 5
_CUT_OFF_ESCAPE = re.compile(rb"(?:%[0-9a-fA-F]?|\\)\Z")


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret replaced by `[redacted]`; doing it twice changes nothing more."""
    known = sorted({s for s in secrets if len(s) >= SHORTEST_SECRET and s not in REDACTED}, key=len, reverse=True)
    # A replacement may complete another pattern, so go on until nothing changes.
    for _ in range(_MOST_PASSES):
        cleaned = _once(text, known)
        if cleaned == text:
            break
        text = cleaned
    return text


def holds_secret(pieces: Iterable[bytes], secrets: Iterable[str]) -> bool:
    """Return whether a stream holds one of these secrets, in any encoding that `redact` knows, and in UTF-16.

    Only one piece is in memory at a time, and each is searched within about a millisecond.
    """
    known = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET]
    cores = [core for secret in known for core in _base64_cores(secret)]
    # Whoever indents a key of several lines, or wraps it otherwise, changes its white space.
    cores += [secret for secret in known if "\n" in secret]
    plain = _Search(_plain, {_plain(secret.encode()) for secret in known})
    encoded = _Search(_without_breaks, {_without_breaks(_plain(core.encode())) for core in cores})
    rest = b""
    for piece in itertools.chain(pieces, [b"  "]):
        text = (rest + piece).replace(b"\0", b"")
        cut = _CUT_OFF_ESCAPE.search(text, max(0, len(text) - 2))
        text, rest = (text[: cut.start()], cut[0]) if cut else (text, b"")
        text = _plain(text)
        if plain.finds(text) or encoded.finds(text):
            return True
    return False


class _Search:
    """A search in a stream of which only the last bytes are kept. `normalised` makes all spellings one."""

    def __init__(self, normalised: Callable[[bytes], bytes], wanted: Set[bytes]) -> None:
        self._normalised = normalised
        self._wanted = wanted
        self._overlap = max(map(len, wanted), default=1) - 1
        self._seen = b""

    def finds(self, piece: bytes) -> bool:
        """Return whether a wanted text ends in this piece."""
        self._seen = self._seen[max(0, len(self._seen) - self._overlap) :] + self._normalised(piece)
        return any(one in self._seen for one in self._wanted)


def _plain(text: bytes) -> bytes:
    """Return the text with percent-encoded bytes decoded, and one spelling of spaces and line breaks."""
    decoded = unquote_to_bytes(text) if b"%" in text else text
    return decoded.replace(b"+", b" ").replace(b"\\n", b"\n").replace(b"\r", b"")


def _without_breaks(text: bytes) -> bytes:
    """Return base64 text, after `_plain`, in one line, and without the characters that its alphabets do not share."""
    return text.translate(None, b" \t\n\v\f>-_/")


def _once(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = _spelled(secret).sub(REDACTED, text)
    cores = [core for secret in secrets for core in _base64_cores(secret)]
    if cores:
        text = _BASE64_RUN.sub(lambda run: REDACTED if _holds(run[0], cores) else run[0], text)
    return _FORMATS.sub(REDACTED, text)


def _spelled(secret: str) -> re.Pattern[str]:
    """Return a pattern of the secret with any of its characters percent-encoded, its line breaks also as `\\n`."""
    return re.compile("".join(_spellings(character) for character in secret))


def _spellings(character: str) -> str:
    encoded = "".join(f"%(?i:{byte:02x})" for byte in character.encode())
    others = {"\n": r"|\\n", " ": r"|\+"}.get(character, "")
    return f"(?:{re.escape(character)}|{encoded}{others})"


def _base64_cores(secret: str) -> Iterable[str]:
    """Return what base64 text holds wherever the secret is in the encoded bytes: one text for each alignment."""
    raw = secret.encode()
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        # The first and last characters also hold bits of the neighbours.
        first = (0, 2, 3)[offset]
        last = len(encoded) - ((offset + len(raw)) % 3 != 0)
        yield encoded[first:last]


def _holds(run: str, cores: Iterable[str]) -> bool:
    joined = _LINE_BREAKS.sub("", run).replace("-", "+").replace("_", "/")
    return any(core in joined for core in cores)
