"""Reports that a check leaves: what tools write is read, and what nobody needs is refused within bounds."""

import os
from pathlib import Path

import pytest

from bot.check import reports
from bot.check.reports import MAX_FILE_BYTES, Outcome, Report, junit, read_reports, tap

PYTEST = b"""<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="1"
 failures="1" skipped="1" tests="4"><testcase classname="tests.test_cart" name="test_total[0-&lt;x&gt;]" time="0.1" />
<testcase classname="tests.test_cart" name="test_empty"><failure message="assert">@me &amp; you</failure></testcase>
<testcase classname="tests.test_cart" name="test_set_up"><error message="x">boom</error></testcase>
<testcase classname="tests.test_cart" name="test_later"><skipped type="pytest.skip" message="later"/></testcase>
</testsuite></testsuites>"""
NODE = b"""TAP version 13
# Subtest: cart
    # Subtest: has a total
    ok 1 - has a total
      ---
      duration_ms: 0.3
      message: |
        not ok 7 - this is text
      ...
    # Subtest: can be empty
    not ok 2 - can be empty
    1..2
not ok 1 - cart
ok 2 - mail # SKIP no server
not ok 3 - later # TODO
ok 4
1..4
"""


def test_junit_as_pytest_writes_it() -> None:
    assert junit(PYTEST) == [
        ("tests.test_cart.test_total[0-<x>]", True),
        ("tests.test_cart.test_empty", False),
        ("tests.test_cart.test_set_up", False),
        ("tests.test_cart.test_later", None),
    ]


def test_junit_that_is_odd() -> None:
    text = b"\n<?xml version='1.0'?><a><testsuite><testcase name='off' status='notrun'/></testsuite><testcase/></a>"
    assert junit(text) == [("off", None), ("test 2", True)]


def test_tap_as_node_writes_it() -> None:
    assert list(tap(NODE)) == [
        ("has a total", True),
        ("can be empty", False),
        ("mail", None),
        ("later", None),
        ("test 4", True),
    ]


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("ok 1 - a\n    ok 1 - b\nnot ok 2 - sums up", [("a", True), ("b", True), ("sums up", False)]),
        ("okay\nnot okay\nBail out!\n1..0 # skip all\n", []),
        ("ok - a \\# todo", [("a \\# todo", True)]),
        ("  ---\nok 1 - a\n", []),
        ("not ok 1 - a\n  ---\n  x:\n    {\n    }\n  ...\nok 2 - b\n", [("a", False), ("b", True)]),
        (
            "ok 1 - a # time=5ms\nok 2 - b # time=5.2ms {\n    ok 1 - c # time=x y\n}\n",
            [("a", True), ("c # time=x y", True)],
        ),
        (
            "not ok 1 - {\n    ok 1 - c\n}\nok 3 # Skipped: why\nok 4 - skips",
            [("{", False), ("c", True), ("test 3", None), ("skips", True)],
        ),
    ],
)
def test_tap_that_is_odd(text: str, points: list[tuple[str, Outcome]]) -> None:
    assert list(tap(text.encode())) == points


def test_all_reports_of_a_folder_are_one(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "TEST-a.xml").write_bytes(PYTEST)
    (tmp_path / "b.tap").write_text("not ok - tests.test_cart.test_total[0-<x>]\nok - two\x00\u202elines\n")
    (tmp_path / "notes.txt").write_text("not ok - no report\n")
    found = read_reports(tmp_path)
    assert found.failed == {f"tests.test_cart.{one}" for one in ("test_total[0-<x>]", "test_empty", "test_set_up")}
    assert found.passed == {"two\ufffd\ufffdlines"}
    assert (found.skipped, found.unread) == (1, 0)


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><x><testcase name="&b;"/></x>'


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        '<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x"><x><testcase name="x"/></x>',
        "<x><testcase name='half'/>",
        "<?xml version='1.0' encoding='no-such'?><x/>",
        "",
        "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    ],
)
def test_what_is_no_report_is_counted_and_nothing_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.xml").write_text(text, encoding="latin-1")
    assert read_reports(tmp_path) == Report(unread=1)


def test_what_an_attacker_leaves_is_neither_followed_nor_waited_for_nor_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_TESTS", 3)
    secret, folder = tmp_path / "secret.tap", tmp_path / "reports"
    folder.mkdir()
    secret.write_text("ok - secret\n")
    (folder / "link.tap").symlink_to(secret)
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.xml")
    with (folder / "large.xml").open("wb") as file:
        file.truncate(1 << 30)
    (folder / "many.tap").write_text("".join(f"ok - {n}\n" for n in range(100)))
    found = read_reports(folder)
    assert found == Report(frozenset("012"), unread=2)
    assert MAX_FILE_BYTES < 1 << 30


def test_a_report_of_many_levels_or_of_endless_results_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "MOST_POINTS", 9)
    (tmp_path / "deep.xml").write_text("<a>" * 101 + "<testcase name='deep'/>" + "</a>" * 101)
    (tmp_path / "long.xml").write_text(f"<a>{'<testcase/>' * 11}</a>")
    (tmp_path / "same.tap").write_text("ok - same\n" * 10)
    (tmp_path / "wide.xml").write_text(f"<a>{'<b></b>' * 101}</a>")
    assert read_reports(tmp_path) == Report(frozenset({"same"}), unread=3)
