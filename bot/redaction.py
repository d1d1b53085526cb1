"""Secrets in text: the known ones, also in base64 and URL-encoded, and tokens of common formats. No I/O.

One `Redactor` of a process knows the bot's own secrets. What is written of a repository, or said to its agents, has one
with that as its parent, which knows the repository's variables too: another's are no secret there, so that nobody can
guess them. The log has one that knows all. The time grows linearly with the text, also where the text was written to
make it slow.
"""

import base64
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

REDACTED = "[redacted]"
SHORTEST_SECRET = 8
"""Shorter known secrets are left alone: they cannot be told from words. White space does not count."""
MINTED_SECONDS = 2 * 3600.0
"""GitHub's installation tokens live an hour; they are known for another one."""

_MOST_PASSES = 5
_CODES = ("utf-8", "latin-1")
_SHORTEST_LINE = 16
# What may stand between any two characters of a secret: text is wrapped and quoted.
_GAPS = re.compile(r"[\s>]+")
# The same among bytes, where patterns take a second for each 50 MB.
_LATIN_GAPS = bytes(code for code in range(256) if _GAPS.match(chr(code)))
_AS_SPACES = bytes.maketrans(_LATIN_GAPS, b" " * len(_LATIN_GAPS))
_SPACES = re.compile("   *")
_QUOTED = re.compile("%([0-9A-Fa-f]{2})")
_QUOTED_WITH_SPACES = re.compile("% ?[0-9A-Fa-f] ?[0-9A-Fa-f]")
# No other text begins with so many characters of a secret, but for a key's first line.
_BEGINNING = 24
_BASE64_WORD = re.compile(r"(?:[A-Za-z0-9+/_=-]|%2[BbFf]|%3[Dd])*")
_BASE64_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_=-")

# https://docs.github.com/authentication/keeping-your-account-and-data-secure/about-authentication-to-github#githubs-token-formats
# https://docs.github.com/code-security/secret-scanning/introduction/supported-secret-scanning-patterns for the others.
# Digits and capitals tell a key from words that are joined by hyphens.
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
# https://www.rfc-editor.org/rfc/rfc7468; also with line numbers, in one line with `\n`, and cut off.
_KEY_BEGINS, _KEY_ENDS = (
    rf"-----{word}[ ][A-Z0-9 ]{{0,40}}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----" for word in ("BEGIN", "END")
)
_KEY = re.compile(rf"{_KEY_BEGINS}((?:(?!-----BEGIN)[\s\S]){{0,32768}}?){_KEY_ENDS}")
_KEY_WITHOUT_END = re.compile(
    rf"""
    {_KEY_BEGINS}
    (?: [\s>\\|*\#-]*+
        (?: (?:Proc-Type|DEK-Info|Version|Comment|Hash):[^\n\\]{{0,200}}
          | [A-Za-z0-9+/]{{12,}}+={{0,2}} | [A-Za-z0-9+/]{{1,11}}={{1,2}} )
    )+
    """,
    re.VERBOSE,
)
_KEY_LETTERS = re.compile(r"[A-Za-z0-9+/]")
_SHORTEST_KEY = 40


class Redactor:
    """What knows secrets, and those that its parent knows by then. Its methods may be called from any thread.

    `places` are the paths of DATA_DIR, which nobody is shown.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        parent: "Redactor | None" = None,
        places: Iterable[str] = (),
    ) -> None:
        self._clock, self._parent = clock, parent
        self._places: re.Pattern[str] | None = _places(places) if parent is None else parent._places
        self._lasting: tuple[str, ...] = ()
        self._minted: dict[str, float] = {}
        self._own = _Needles((), (), 0)
        self.know(secrets)

    def know(self, secrets: Iterable[str]) -> None:
        """Know these secrets too, from now on."""
        lasting = tuple(dict.fromkeys((*self._lasting, *chain.from_iterable(map(_as_written, secrets)))))
        if lasting != self._lasting:
            self._lasting = lasting
            self._own = _Needles.of((*lasting, *self._minted))

    def learn(self, token: str) -> None:
        """Know a token that was made just now, until nobody can use it any more."""
        now = self._clock()
        minted = {known: until for known, until in self._minted.items() if until > now}
        self._minted = {**minted, token: now + MINTED_SECONDS}
        self._own = _Needles.of((*self._lasting, *self._minted))

    @property
    def _known(self) -> "_Needles":
        return self._own if self._parent is None else self._own.with_those_of(self._parent._known)

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

    def public(self, text: str) -> str:
        """Return the text as it may be posted: redacted, and without paths of this machine. What is in a worktree is
        named from there. Doing it twice changes nothing more.
        """
        text = self.redact(text)
        return text if self._places is None else self._places.sub(_shown_place, text)

    def redact_known(self, text: str) -> str:
        """Return the text with `[redacted]` for each known secret, also in base64 and URL-encoded."""
        for _ in range(_MOST_PASSES):
            if not (spans := sorted(self._known.spans(text))):
                break
            text = _cut(text, spans)
        return text

    def knows_nothing_of(self, text: str) -> bool:
        """Return True only where `redact_known` would leave the text, and any part of it, as it is."""
        return next(self._known.found_in(text), None) is None

    def holds_secret(self, pieces: Iterable[bytes]) -> bool:
        """Return whether a stream holds a known secret, with only one piece in memory at a time."""
        known, seen = self._known, ""
        for piece in pieces:
            seen = _SPACES.sub(" ", seen + piece.translate(_AS_SPACES).decode("latin-1"))
            if known.may_be_in(seen) and next(known.found_in(seen), None) is not None:
                return True
            seen = seen[max(0, len(seen) - known.longest) :]
        return False


_NAME = r"(?:[\w.~+@-]|\\[_*~])+"
"""A name in a path, also as Markdown escapes it."""


def _places(paths: Iterable[str]) -> re.Pattern[str] | None:
    """Return what finds DATA_DIR, known by these paths, and what is in it; None without any."""
    found = sorted({path.rstrip("/") for path in paths if path.strip("/")}, key=len, reverse=True)
    if not found:
        return None
    written = "|".join(
        "".join(re.escape(one) if one.isalnum() else rf"\\?{re.escape(one)}" for one in path) for path in found
    )
    # A directory of one name may be meant otherwise, where nothing of ours follows.
    alone = "" if any(path.count("/") < 2 for path in found) else r"|(?![\w-]|\.\w)"
    return re.compile(
        rf"""(?<![\w.~-])(?:{written})(?:
            (?P<tree>/worktrees/{_NAME}/{_NAME}/{_NAME}|/checks/(?:{_NAME}/)+?tree(?![\w.-]))(?P<below>/(?=[^\s/]))?
          | (?P<home>/homes/\d+|/checks/(?:{_NAME}/)+?home(?![\w.-]))
          | /(?P<ours>(?:worktrees|checks|homes|repos|private|kept|trash|attachments|workers|postgres)\b)
          {alone}
        )""",
        re.VERBOSE,
    )


def _shown_place(found: re.Match[str]) -> str:
    if found["tree"]:
        return "" if found["below"] else "."
    return "~" if found["home"] else found["ours"] or "DATA_DIR"


@dataclass(frozen=True, slots=True)
class _Needles:
    """What to look for in a text without gaps: the secrets, and what base64 text holds of them."""

    plain: tuple[str, ...]
    base64: tuple[str, ...]
    longest: int
    """The most characters of text that hold one, URL-encoded and with a gap of one character after each."""

    @classmethod
    def of(cls, secrets: Iterable[str]) -> "_Needles":
        plain: dict[str, None] = {}
        encoded: dict[str, None] = {}
        for secret in secrets:
            squeezed = _GAPS.sub("", secret)
            if len(squeezed) < SHORTEST_SECRET or squeezed in REDACTED:
                continue
            raw = secret.encode(errors="surrogatepass")
            # The bytes of a stream, and what is URL-encoded, are read as Latin-1.
            for one in (secret, raw.decode("latin-1")):
                plain |= dict.fromkeys((_GAPS.sub("", one), _GAPS.sub("", one.replace(" ", "+"))))
            encoded |= dict.fromkeys(_base64_cores(raw))
        longest = max((len(one) for one in (*plain, *encoded)), default=0)
        return cls(tuple(plain), tuple(encoded), 6 * longest)

    def with_those_of(self, other: "_Needles") -> "_Needles":
        """Return what to look for to find those of both."""
        return _Needles(self.plain + other.plain, self.base64 + other.base64, max(self.longest, other.longest))

    def found_in(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield each that is in the text, and whether it is base64."""
        readings = [_without_gaps(text)]
        if "%" in text:  # a gap may be within what is encoded, or after a `%` that encodes nothing
            readings += [_unquoted(readings[0]), _without_gaps(_unquoted(text))]
        yield from ((one, False) for one in self.plain if any(one in reading for reading in readings))
        readings = [reading.replace("-", "+").replace("_", "/") for reading in readings]
        yield from ((one, True) for one in self.base64 if any(one in reading for reading in readings))

    def may_be_in(self, text: str) -> bool:
        """Return False only where none is in a text whose gaps are single spaces: much faster than `found_in`.

        Their beginnings are looked for in the text as it is, and around what is URL-encoded in it.
        """
        quoted = _around_quoted(text, 6 * _BEGINNING) if "%" in text else ""
        plain = _without_gaps("\0".join((text, _unquoted(quoted.replace(" ", "")), _unquoted(quoted))))
        encoded = plain.replace("-", "+").replace("_", "/")
        return any(one[:_BEGINNING] in plain for one in self.plain) or any(
            one[:_BEGINNING] in encoded for one in self.base64
        )

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where they stand in the text; of base64 the whole word."""
        for needle, is_base64 in self.found_in(text):
            done = 0
            for found in re.finditer(r"[\s>]*".join(map(_spelled, needle)), text):
                start, end = found.span()
                if end <= done:
                    continue
                if is_base64:
                    # What is left of a word holds some bits of the secret, and is of no use to anybody.
                    while start > done and text[start - 1] in _BASE64_LETTERS:
                        start -= 1
                    word = _BASE64_WORD.match(text, end)
                    end = done = word.end() if word else end
                yield start, end


def _without_gaps(text: str) -> str:
    try:
        return text.encode("latin-1").translate(None, _LATIN_GAPS).decode("latin-1")
    except UnicodeEncodeError:
        return _GAPS.sub("", text)


def _around_quoted(text: str, reach: int) -> str:
    """Return what is within reach of a URL-encoded byte, which may have spaces inside; one text for those that meet."""
    spans = list[list[int]]()
    for found in _QUOTED_WITH_SPACES.finditer(text):
        if spans and found.start() - reach <= spans[-1][1]:
            spans[-1][1] = found.end() + reach
        else:
            spans.append([max(0, found.start() - reach), found.end() + reach])
    return "\0".join(text[start:end] for start, end in spans)


def _unquoted(text: str) -> str:
    """Return a text with each URL-encoded byte read as Latin-1. `unquote` takes a second for 4 MB of binary data."""
    return _QUOTED.sub(lambda found: chr(int(found[1], 16)), text)


def _spelled(character: str) -> str:
    """Return the pattern of a character, also URL-encoded; those of URL-safe base64 count as those of plain base64."""
    spellings = {"+": "+-", "/": "/_"}.get(character, character)
    encoded = {"".join(f"%{byte:02x}" for byte in one.encode(code, "replace")) for one in spellings for code in _CODES}
    return f"(?:{'|'.join(map(re.escape, spellings))}|(?i:{'|'.join(sorted(encoded))}))"


def _as_written(secret: str) -> Iterator[str]:
    """Yield a secret, also as Python and JSON print it, and each long line of one with several lines, such as a key."""
    # Python's form depends on the quotes in the text around it, and a line of the log may hold that form in JSON.
    for printed in (secret, repr(secret)[1:-1], repr(secret + "'")[1:-2]):
        yield from (printed, json.dumps(printed)[1:-1])
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


def _without_formats(text: str) -> str:
    text = _FORMATS.sub(REDACTED, text)
    if "PRIVATE KEY" in text:
        text = _KEY_WITHOUT_END.sub(REDACTED, _KEY.sub(_without_key, text))
    return text


def _without_key(found: re.Match[str]) -> str:
    """The two lines around a key, without one between them, are none."""
    return REDACTED if len(_KEY_LETTERS.findall(found[1])) >= _SHORTEST_KEY else found[0]


def _cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the text with one `[redacted]` for each group of overlapping spans; they are sorted by their start."""
    parts: list[str] = []
    kept = 0
    for start, end in spans:
        if start >= kept:
            parts += [text[kept:start], REDACTED]
        kept = max(kept, end)
    return "".join((*parts, text[kept:]))
