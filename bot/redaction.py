"""Secrets in text: the known ones in any usual encoding, and tokens of common formats. No I/O.

One `Redactor` of a process serves what goes to GitHub, into rows and files, to the agent and into the log. Its time
grows linearly with the text, also where the text was written to make it slow.
"""

import base64
import html
import re
import sys
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from urllib.parse import unquote_to_bytes

REDACTED = "[redacted]"
SHORTEST_SECRET = 8
"""Shorter known secrets are left alone: they cannot be told from words. White space does not count."""
MINTED_SECONDS = 2 * 3600.0
"""GitHub's installation tokens live an hour; they are known for another one."""

_MOST_PASSES = 5
_SHORTEST_LINE = 16
# What may stand between any two characters of a secret: white space, quote signs, NUL (UTF-16), invisible characters.
_GAP = r"\s>\0\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_GAPS = re.compile(f"[{_GAP}]+")
# Percent-encoding, escapes of JSON, of programming languages and of Markdown, references of HTML.
_ESCAPE = (
    r"(?:%[0-9A-Fa-f]{2})+|\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[nrtbf0]|\r?\n|[!-/:-@\[-`{-~])"
    r"|&(?:\#[0-9]{1,7}|\#[xX][0-9A-Fa-f]{1,6}|amp|lt|gt|quot|apos|num|commat|nbsp);"
)
_ESCAPES = re.compile(_ESCAPE)
_ESCAPES_AND_GAPS = re.compile(f"{_ESCAPE}|[{_GAP}]+")
_CUT_OFF_ESCAPE = re.compile(rb"(?:\\{1,64}(?:u[0-9A-Fa-f]{0,3})?|\\{0,64}(?:%[0-9A-Fa-f]{0,4}){1,4})\Z")
_JSON_ASCII = re.compile(rb"\\u00([0-7][0-9A-Fa-f])")
_BASE64_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_=-")
_BASE64_WORD = re.compile(r"(?:[A-Za-z0-9+/_=-]|%2[BbFf]|%3[Dd]|\\/)*")

# https://docs.github.com/authentication/keeping-your-account-and-data-secure/about-authentication-to-github#githubs-token-formats
# https://docs.github.com/code-security/secret-scanning/introduction/supported-secret-scanning-patterns for the others.
# Each begins with a literal of `_FORMAT_STARTS`. Digits and capitals tell a key from words that are joined by hyphens.
_FORMATS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
    gh[pousr]_ (?=[A-Za-z_.-]{0,60}[0-9]) [A-Za-z0-9_.-]{16,}   # GitHub
  | github_pat_ [A-Za-z0-9_]{20,}
  | sk-ant- (?=[A-Za-z_-]{0,60}[0-9]) [A-Za-z0-9_-]{16,}        # Anthropic
  # OpenAI and those that copied its form
  | sk- (?=[A-Za-z_-]{0,60}[0-9]) (?=[a-z0-9_-]{0,60}[A-Z]) [A-Za-z0-9_-]{20,}
  # Groq, xAI, Replicate, Perplexity, Hugging Face
  | (?:gsk_|xai-|r8_|pplx-|hf_) (?=[A-Za-z]{0,60}[0-9A-Z]) [A-Za-z0-9]{30,}
  | A(?:KIA|SIA) [A-Z0-9]{16} (?![A-Za-z0-9])          # Amazon Web Services
  | AIza [A-Za-z0-9_-]{35}                             # Google
  | ya29\. [A-Za-z0-9_-]{20,}
  | xox[a-z]- (?=[A-Za-z-]{0,60}[0-9]) [A-Za-z0-9-]{10,}        # Slack
  | xapp-[0-9]- [A-Za-z0-9-]{20,}
  | hooks\.slack\.com/services/ [A-Za-z0-9]{8,}/[A-Za-z0-9]{8,}/[A-Za-z0-9]{16,}
  # GitLab
  | gl(?:pat|dt|rt|ptt|cbt|ft|imt|agent|oas|soat)- (?=[A-Za-z_-]{0,60}[0-9A-Z]) [A-Za-z0-9_-]{20,}
  | npm_ [A-Za-z0-9]{36}
  | pypi-Ag [A-Za-z0-9_-]{50,}
  | (?:sk|rk)_(?:live|test)_ [A-Za-z0-9]{16,}          # Stripe
  | whsec_ [A-Za-z0-9]{24,}
  | SG\. [A-Za-z0-9_-]{22} \. [A-Za-z0-9_-]{43}        # SendGrid
  | do[opr]_v1_ [a-f0-9]{64}                           # DigitalOcean
  | dckr_pat_ [A-Za-z0-9_-]{20,}
  | dapi [a-f0-9]{32} (?![A-Za-z0-9])                  # Databricks
  | hv[sb]\. [A-Za-z0-9_-]{24,}                        # Vault
  | lin_api_ [A-Za-z0-9]{32,}
  | AGE-SECRET-KEY-1 [A-Z0-9]{58}
  # JSON web tokens
  | (?<![A-Za-z0-9_.-]) eyJ [A-Za-z0-9_-]{8,} \. eyJ [A-Za-z0-9_-]{8,} \. [A-Za-z0-9_-]*
    )""",
    re.VERBOSE,
)
_FORMAT_STARTS = re.compile(
    r"gh[pousr]_|github_pat_|sk-|gsk_|xai-|r8_|pplx-|hf_|AKIA|ASIA|AIza|ya29\.|xox|xapp-|hooks\.slack|gl[a-z]{2,5}-|npm_"
    r"|pypi-Ag|[sr]k_|whsec_|SG\.|do[opr]_v1_|dckr_pat_|dapi|hv[sb]\.|lin_api_|AGE-S|eyJ"
)
# https://www.rfc-editor.org/rfc/rfc7468; also in one line with `\n`, and cut off.
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_WITHOUT_END = re.compile(
    r"""
    (?: [\s>\\|*#-]* (?: (?:Proc-Type|DEK-Info|Version|Comment|Hash):[^\n\\]{0,200} | [A-Za-z0-9+/]{12,}={0,2} ) )*
    (?: [\s>\\|*#-]* [A-Za-z0-9+/]{1,11}={1,2} )?
    """,
    re.VERBOSE,
)
_KEY_LETTERS = re.compile(r"[A-Za-z0-9+/]")
_SHORTEST_KEY = 40
_LONGEST_KEY = 32 * 1024


class Redactor:
    """What knows the secrets of a process. Its methods may be called from any thread."""

    def __init__(self, secrets: Iterable[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lasting = tuple(dict.fromkeys(chain.from_iterable(map(_with_lines, secrets))))
        self._minted: dict[str, float] = {}
        self._known = _Needles.of(self._lasting)

    def learn(self, token: str) -> None:
        """Know a token that was made just now, until nobody can use it any more."""
        now = self._clock()
        minted = {known: until for known, until in self._minted.items() if until > now}
        self._minted = {**minted, token: now + MINTED_SECONDS}
        self._known = _Needles.of((*self._lasting, *self._minted))

    def redact(self, text: str) -> str:
        """Return the text with `[redacted]` for each known secret and each token of a common format.

        Doing it twice changes nothing more.
        """
        # A replacement may complete another pattern, so go on until nothing changes.
        for _ in range(_MOST_PASSES):
            cleaned = _without_formats(self.redact_known(text))
            if cleaned == text:
                break
            text = cleaned
        return text

    def redact_known(self, text: str) -> str:
        """Return the text with `[redacted]` for each known secret, in any encoding."""
        if self.knows_nothing_of(text):
            return text  # nearly always
        known = self._known
        for _ in range(_MOST_PASSES):
            spans = sorted(chain.from_iterable(known.spans(reading, text) for reading in _readings(text)))
            if not spans:
                break
            text = _cut(text, spans)
        return text

    def knows_nothing_of(self, text: str) -> bool:
        """Return True only where `redact_known` would leave the text, and any part of it, as it is."""
        known = self._known
        if len(text) < known.shortest or not known.plain:
            return True
        return not _ESCAPES.search(text) and not known.found_in(_GAPS.sub("", text))

    def holds_secret(self, pieces: Iterable[bytes]) -> bool:
        """Return whether a stream holds a known secret, in any encoding but that of HTML.

        Only one piece is in memory at a time, and each is searched within about a millisecond.
        """
        known = self._known
        plain = {_stream_text(one.encode(errors="surrogatepass")) for one in known.plain}
        encoded = {_base64_bytes(_stream_text(one.encode())) for one in known.base64}
        seen = rest = b""
        for piece in chain(pieces, [b"  "]):
            text = rest + piece
            cut = _CUT_OFF_ESCAPE.search(text, max(0, len(text) - 80))
            text, rest = (text[: cut.start()], cut[0]) if cut else (text, b"")
            seen = seen[max(0, len(seen) - known.longest) :] + _stream_text(text)
            as_base64 = _base64_bytes(seen)
            # Once more, for a `%` of the secret that was cut off from what follows it.
            readings = (seen, _stream_text(seen)) if b"%" in seen else (seen,)
            if any(one in reading for reading in readings for one in plain) or any(one in as_base64 for one in encoded):
                return True
        return False


@dataclass(frozen=True, slots=True)
class _Needles:
    """What to look for in a text without gaps: the secrets, also in hexadecimal, and what base64 text holds of them."""

    plain: tuple[str, ...]
    base64: tuple[str, ...]
    shortest: int
    longest: int

    @classmethod
    def of(cls, secrets: Iterable[str]) -> "_Needles":
        plain: dict[str, None] = {}
        encoded: dict[str, None] = {}
        for secret in secrets:
            squeezed = _GAPS.sub("", secret)
            if len(squeezed) < SHORTEST_SECRET or squeezed in REDACTED:
                continue
            raw = secret.encode(errors="surrogatepass")
            plain |= dict.fromkeys((squeezed, _GAPS.sub("", secret.replace(" ", "+")), raw.hex(), raw.hex().upper()))
            encoded |= dict.fromkeys(_base64_cores(raw))
        lengths = [len(one) for one in (*plain, *encoded)]
        return cls(tuple(plain), tuple(encoded), min(lengths, default=0), max(lengths, default=0))

    def found_in(self, text: str) -> bool:
        """Return whether one of them is in a text without gaps."""
        encoded = _base64_text(text)
        return any(one in text for one in self.plain) or any(one in encoded for one in self.base64)

    def spans(self, reading: "_Reading", original: str) -> Iterator[tuple[int, int]]:
        """Yield where they stand in the original text, of which `reading` is a reading."""
        for one in self.plain:
            yield from (reading.span(*found) for found in _all(one, reading.text))
        text = _base64_text(reading.text)
        found = sorted(chain.from_iterable(_all(one, text) for one in self.base64))
        done = 0
        for start, end in (reading.span(*span) for span in found):
            if end > done:
                # What is left of a word of base64 holds some bits of the secret, and is of no use to anybody.
                while start > done and original[start - 1] in _BASE64_LETTERS:
                    start -= 1
                match = _BASE64_WORD.match(original, end)
                done = match.end() if match else end
                yield start, done


class _Reading:
    """A text without gaps, with its escapes decoded, or both, and the place of each part in the original."""

    def __init__(self, source: str, pattern: re.Pattern[str], inner: "_Reading | None") -> None:
        self.text = pattern.sub("" if pattern is _GAPS else _decoded, source)
        self.inner = inner
        self._source = source
        self._pattern = pattern
        self._places: tuple[array[int], array[int], array[int]] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the place of `text[start:end]` in the original."""
        if self._places is None:
            self._places = self._located()
        here, source, source_end = self._places
        first, last = bisect_right(here, start) - 1, bisect_right(here, end - 1) - 1
        begin = source[first] + (0 if source_end[first] else start - here[first])
        finish = source_end[last] or source[last] + end - here[last]
        return (begin, finish) if self.inner is None else self.inner.span(begin, finish)

    def _located(self) -> tuple["array[int]", "array[int]", "array[int]"]:
        """Return where the parts of the text begin, here and in the source, and the end there of a decoded part."""
        here, source, source_end = array("q", [0]), array("q", [0]), array("q", [0])
        length = end = 0
        for match in self._pattern.finditer(self._source):
            length += match.start() - end
            end = match.end()
            decoded = "" if self._pattern is _GAPS else _decoded(match)
            if decoded:
                here.append(length)
                source.append(match.start())
                source_end.append(end)
                length += len(decoded)
            here.append(length)
            source.append(end)
            source_end.append(0)
        return here, source, source_end


def _readings(text: str) -> Iterator[_Reading]:
    """Yield the text as it is, and where it has escapes decoded once and twice; all without gaps.

    A gap may be within an escape, or end what would be one without it (`% 00`): the second time both is tried.
    """
    yield _Reading(text, _GAPS, None)
    if _ESCAPES.search(text):
        once = _Reading(text, _ESCAPES_AND_GAPS, None)
        yield once
        if _ESCAPES.search(once.text):
            yield _Reading(once.text, _ESCAPES_AND_GAPS, once)
        apart = _Reading(text, _ESCAPES, None)
        if len(apart.text) > len(once.text) and _ESCAPES.search(apart.text):
            yield _Reading(apart.text, _ESCAPES_AND_GAPS, apart)


def _decoded(match: re.Match[str]) -> str:
    """Return what an escape stands for; nothing for a gap."""
    escape = match[0]
    if escape[0] == "%":
        decoded = bytes.fromhex(escape.replace("%", "")).decode(errors="replace")
    elif escape[:2] == "&#" and len(escape) > 2:
        code = int(escape[3:-1], 16) if escape[2] in "xX" else int(escape[2:-1])
        decoded = chr(code) if code <= sys.maxunicode else ""
    elif escape[0] == "&":
        decoded = html.unescape(escape)
    elif escape[0] != "\\":
        return ""
    elif escape[1] in "ux":
        decoded = chr(int(escape[2:], 16))
    else:
        decoded = "" if escape[1] in "nrtbf0\r\n" else escape[1:]
    return _GAPS.sub("", decoded)


def _with_lines(secret: str) -> Iterator[str]:
    """Yield a secret and, of one with several lines such as a private key, each long line."""
    yield secret
    lines = secret.replace("\\n", "\n").split("\n")
    if len(lines) > 1:
        yield from (line for line in map(str.strip, lines) if len(line) >= _SHORTEST_LINE and line[:5] != "-----")


def _base64_cores(raw: bytes) -> Iterator[str]:
    """Yield what base64 text holds wherever the bytes are among the encoded ones: one text for each alignment."""
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        # The first and last characters also hold bits of the neighbours.
        first = (0, 2, 3)[offset]
        last = len(encoded) - ((offset + len(raw)) % 3 != 0)
        yield encoded[first:last]


def _base64_text(text: str) -> str:
    """Return the text with the characters of URL-safe base64 replaced by those of plain base64."""
    return text.replace("-", "+").replace("_", "/")


def _stream_text(piece: bytes) -> bytes:
    """Return a piece of a stream without gaps and with its escapes decoded, by what is fast."""
    if b"\\u00" in piece:
        piece = _JSON_ASCII.sub(lambda match: bytes.fromhex(match[1].decode()), piece)
    for _ in range(2):
        if b"%" in piece:
            piece = unquote_to_bytes(piece)
    if b"\\" in piece:
        piece = piece.replace(b"\\n", b"").replace(b"\\r", b"").replace(b"\\t", b"")
    return piece.translate(None, b" \t\n\v\f\r>\\\0")


def _base64_bytes(text: bytes) -> bytes:
    return text.replace(b"-", b"+").replace(b"_", b"/")


def _all(needle: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield where the needle stands in the text."""
    at = text.find(needle)
    while at >= 0:
        yield at, at + len(needle)
        at = text.find(needle, at + len(needle))


def _without_formats(text: str) -> str:
    if _FORMAT_STARTS.search(text):
        text = _FORMATS.sub(REDACTED, text)
    if "PRIVATE KEY" in text:
        text = _cut(text, list(_private_keys(text)))
    return text


def _private_keys(text: str) -> Iterator[tuple[int, int]]:
    """Yield where private keys stand, complete or cut off. The line that begins a key is none."""
    done, ending = 0, None
    for begin in _KEY_BEGINS.finditer(text):
        if begin.start() < done:
            continue
        if ending is None or ending[0] < begin.end():
            found = _KEY_ENDS.search(text, begin.end())
            ending = found.span() if found else (len(text) + _LONGEST_KEY, 0)
        body = _KEY_WITHOUT_END.match(text, begin.end())
        body_ends = body.end() if body else begin.end()
        if ending[0] - begin.end() <= _LONGEST_KEY and not _KEY_BEGINS.search(text, begin.end(), ending[0]):
            if body_ends > begin.end() or len(_KEY_LETTERS.findall(text, begin.end(), ending[0])) >= _SHORTEST_KEY:
                done = ending[1]
        else:
            done = body_ends
        if done > begin.end():
            yield begin.start(), done


def _cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the text with one `[redacted]` for each group of overlapping spans; they are sorted by their start."""
    parts: list[str] = []
    kept = 0
    for start, end in spans:
        if start >= kept:
            parts += [text[kept:start], REDACTED]
        kept = max(kept, end)
    return "".join((*parts, text[kept:]))
