"""What a check leaves in `$THREADTREE_REPORTS`: reports of tests (JUnit XML, TAP), and pictures.

The code that is checked can write there what it likes: what is read is bounded, and names are foreign text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, NoReturn
from xml.parsers import expat

from bot.sandbox.untrusted_files import entries_below, read_untrusted
from bot.thread.formatting import one_line

MAX_FILE_BYTES, MAX_TOTAL_BYTES = 8 << 20, 32 << 20
MOST_ENTRIES, MOST_TESTS, MOST_POINTS, DEEPEST = 2000, 20_000, 100_000, 100
"""A test may be told several times: so many results are read in all. XML of a report has a few levels."""
LONGEST_NAME = 200
MAX_PICTURE_BYTES, MOST_PICTURES = 1 << 20, 8
_PICTURE = re.compile(
    rb"(?P<png>\x89PNG\r\n\x1a\n)|(?P<jpeg>\xff\xd8\xff)|(?P<gif>GIF8)|(?P<webp>RIFF.{4}WEBP)", re.DOTALL
)
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
# https://testanything.org/tap-version-14-specification.html: a test point, after it a directive.
_POINT = re.compile(r"(?P<indent> *)(?P<ok>ok|not ok)\b *(?P<number>\d*)(?: *-)? *(?P<name>.*)")
_DIRECTIVE = re.compile(r"(?<!\\)#\s*(?:skip(?:ped)?|todo)\b", re.IGNORECASE)
_YAML = re.compile(r" *(---|\.\.\.)\s*")

Outcome = bool | None
"""Whether a test passed; None: it was skipped, or is not expected to pass yet."""


@dataclass(frozen=True, slots=True)
class Report:
    """The names of the tests by how they ended, and how many reports could not be read."""

    passed: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    skipped: int = 0
    unread: int = 0

    @property
    def tests(self) -> frozenset[str]:
        """All tests that ran."""
        return self.passed | self.failed


class _RefusedError(ValueError):
    """The file is no report, or one that nobody needs."""


def read_reports(folder: Path) -> Report:
    """Read all reports in a folder, at any depth; a test that is in several failed if it failed in one of them."""
    found: dict[str, Outcome] = {}
    room, unread, points = MAX_TOTAL_BYTES, 0, 0
    for entry in islice(entries_below(folder), MOST_ENTRIES):
        path = PurePath(entry.path).relative_to(folder)
        parse = _PARSERS.get(path.suffix.lower())
        if parse is None or not entry.is_file(follow_symlinks=False):
            continue
        try:
            data = read_untrusted(folder, path, min(MAX_FILE_BYTES, room))
            room -= len(data)
            for name, passed in parse(data):
                points += 1
                _take_in(found, name, passed, is_room=points <= MOST_POINTS)
        except (OSError, expat.ExpatError, LookupError, ValueError):
            unread += 1
    return Report(
        frozenset(name for name, passed in found.items() if passed),
        frozenset(name for name, passed in found.items() if passed is False),
        sum(passed is None for passed in found.values()),
        unread,
    )


def read_pictures(folder: Path) -> tuple[dict[str, bytes], int]:
    """Return the first pictures in a folder (PNG, JPEG, GIF, WebP), at any depth, by names that mean nothing to git.

    And how many files with such an ending are not among them.
    """
    found, left_out = dict[str, bytes](), 0
    entries = islice(entries_below(folder), MOST_ENTRIES)
    for path in sorted(PurePath(entry.path).relative_to(folder) for entry in entries):
        if path.suffix.lower() not in _PICTURES:
            continue
        try:
            data = read_untrusted(folder, path, MAX_PICTURE_BYTES) if len(found) < MOST_PICTURES else b""
        except OSError:
            data = b""
        if _PICTURE.match(data):
            found[f"{len(found) + 1}-{_NOT_IN_NAMES.sub('-', path.stem)[:60]}{path.suffix.lower()}"] = data
        else:
            left_out += 1
    return found, left_out


def media_type(data: bytes) -> str | None:
    """Return the type of a picture by how it begins; None where it is none of those that are shown."""
    begins = _PICTURE.match(data)
    return f"image/{begins.lastgroup}" if begins else None


def _take_in(found: dict[str, Outcome], name: str, passed: Outcome, *, is_room: bool) -> None:
    name = one_line("".join(c if c.isprintable() else "\ufffd" for c in name))
    name = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
    known = found.get(name)
    if not is_room or (name not in found and len(found) >= MOST_TESTS):
        raise _RefusedError("too many tests")
    found[name] = passed if known is None else known and passed is not False


def junit(data: bytes) -> list[tuple[str, Outcome]]:
    """Return the test cases of a report in JUnit's XML, with their classes. Raises ExpatError, LookupError, ValueError.

    There is no schema; these names are what all tools write: https://github.com/testmoapp/junitxml
    """
    cases: list[tuple[str, Outcome]] = []
    open_tags = 0

    def begins(tag: str, attributes: dict[str, Any]) -> None:
        nonlocal open_tags
        open_tags += 1
        if open_tags > DEEPEST or len(cases) > MOST_POINTS:
            raise _RefusedError("no report of tests is so deep, or so long")
        if tag == "testcase":
            names = (attributes.get("classname"), attributes.get("name"))
            # As GoogleTest writes a test that is switched off.
            ran = attributes.get("status") != "notrun" or None
            cases.append((".".join(filter(None, names)) or f"test {len(cases) + 1}", ran))
        elif tag in ("failure", "error", "skipped") and cases:
            cases[-1] = cases[-1][0], None if tag == "skipped" else False

    def ends(_: str) -> None:
        nonlocal open_tags
        open_tags -= 1

    def refuses(*_: object) -> NoReturn:
        raise _RefusedError("a report needs no document type, and entities grow without end")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = begins, ends
    parser.StartDoctypeDeclHandler = refuses
    parser.Parse(data.lstrip(), True)
    return cases


def tap(data: bytes) -> Iterator[tuple[str, Outcome]]:
    """Yield the test points of a report in TAP; not one that sums up the points of its subtest."""
    depth, in_yaml, below_failed = 0, False, False
    for line in data.decode(errors="replace").splitlines():
        if (mark := _YAML.fullmatch(line)) is not None:
            in_yaml = mark[1] == "---"
            continue
        point = None if in_yaml else _POINT.match(line)
        if point is None:
            # Node-tap sums up before the points of a subtest, with a brace, and not after them.
            depth = min(depth, line.index("}")) if line.strip() == "}" else depth
            continue
        sums_up, before, depth = len(point["indent"]) < depth, below_failed, len(point["indent"])
        # It also writes how long each took.
        text = point["name"].rstrip()
        name, time, took = text.removesuffix("{").rpartition(" # time=")
        name, *directive = _DIRECTIVE.split(name if time and " " not in took.strip() else text, maxsplit=1)
        passed = None if directive else point["ok"] == "ok"
        below_failed = passed is False
        sums_up = sums_up or (passed is True and text.endswith(" {"))
        if not sums_up or (passed is False and not before):
            yield name.strip() or f"test {point['number']}".strip(), passed


_PARSERS = {".xml": junit, ".tap": tap}
