"""What a reader of GitHub's page does not see does not reach the agent."""

import sys
import time
import unicodedata
from types import ModuleType
from unittest.mock import Mock

import pytest

from bot.markdown import _library
from bot.prompt.hidden import drop_invisible, strip_hidden
from tests.support.injections import HIDDEN, PAYLOAD, VISIBLE


def samples(classes: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(name, text) for name, texts in classes.items() for text in texts]


def test_hidden_text_is_removed() -> None:
    for kind, text in samples(HIDDEN):
        seen = strip_hidden(text)

        assert PAYLOAD not in seen, kind
        assert all(unicodedata.category(character) not in {"Cf", "Co", "Cn"} for character in seen)
        assert seen == drop_invisible(seen)


def test_visible_text_is_kept() -> None:
    for kind, text in samples(VISIBLE):
        assert PAYLOAD in strip_hidden(text), kind


def test_what_everybody_sees_stays_as_it_is() -> None:
    for text in [
        *("A paragraph with `code`, **bold** and [a link](https://example.com).",),
        *("```\nif a < b and c > d:\n    x = '<p hidden>'\n```", "- [ ] one\n- [x] two\n\n1. three"),
        *("| a | b |\n|---|---|\n| 1 | 2 |", "x < y, a > b, 5 <6", "![](https://example.com/a.png)"),
        *("Grüße, 日本語, עברית, émoji 🎉", "``a ` b <!-- c -->``"),
    ]:
        assert strip_hidden(text) == text.strip("\n ")


def test_windows_line_breaks_become_plain_ones() -> None:
    assert strip_hidden("a\r\nb\rc") == "a\nb\nc"


def test_an_indented_block_is_told_as_a_fenced_one() -> None:
    assert strip_hidden("    a <!-- kept -->\n\ntext") == "```\na <!-- kept -->\n```\n\ntext"


def test_what_the_page_shows_is_told_as_markdown() -> None:
    for written, told in [
        ("a[^n]\n\n[^n]: note", "a[^n]\n\n[^n]: note"),
        ("www.example.com", "www.example.com"),
        ("<https://example.com>", "https://example.com"),
        ("[a](<b c>)", "[a](b%20c)"),
        ("2. a\n3. b\n   - c", "2. a\n3. b\n   - c"),
        ("<b>a</b><br><i>b</i>", "**a**\n*b*"),
        ("```suggestion\na\n```", "```suggestion\na\n```"),
    ]:
        assert strip_hidden(written) == told


def test_a_text_that_no_parser_reads_is_told_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bot.markdown.to_html", Mock(side_effect=IndexError))

    assert strip_hidden("a *b* <!-- c -->\u200b") == "a *b* <!-- c -->"


def test_a_text_is_read_while_another_thread_imports_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmarkgfm._cmark", ModuleType("half imported"))
    _library.cache_clear()

    assert strip_hidden("a *b* <!-- c -->") == "a *b*"


@pytest.mark.parametrize("piece", ["![", "[", "<?", "<!a", "<!--", "<", "<svg>", "<a ", "](", "` ", "[a]: b\n", "&#1;"])
def test_a_long_text_takes_no_more_than_seconds(piece: str) -> None:
    started = time.process_time()

    strip_hidden(piece * (65_536 // len(piece)))

    assert time.process_time() - started < 5
