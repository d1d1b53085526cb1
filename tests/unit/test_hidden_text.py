"""What a reader of GitHub's page does not see does not reach the agent."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompt.hidden import drop_invisible, strip_hidden
from tests.support.injections import HIDDEN, PAYLOAD, VISIBLE


def samples(classes: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(name, text) for name, texts in classes.items() for text in texts]


@pytest.mark.parametrize(("kind", "text"), samples(HIDDEN))
def test_hidden_text_is_removed(kind: str, text: str) -> None:
    seen = strip_hidden(text)

    assert PAYLOAD not in seen, kind
    assert all(unicodedata.category(character) not in {"Cf", "Co", "Cn"} for character in seen)
    assert seen == drop_invisible(seen)


@pytest.mark.parametrize(("kind", "text"), samples(VISIBLE))
def test_visible_text_is_kept(kind: str, text: str) -> None:
    assert PAYLOAD in strip_hidden(text), kind


@pytest.mark.parametrize(
    "text",
    [
        "A paragraph with `code`, **bold** and [a link](https://example.com).",
        "```python\nif a < b and c > d:\n    x = '<p hidden>'\n```",
        "    indented code <!-- kept -->\n\ntext",
        "- [ ] one\n- [x] two\n\n1. three",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "x < y, a > b, 5 <6",
        "![](https://example.com/a.png)",
        "Grüße, 日本語, עברית, émoji 🎉",
        "`` a ` b <!-- c --> ``",
    ],
)
def test_what_everybody_sees_stays_as_it_is(text: str) -> None:
    assert strip_hidden(text) == text.strip("\n ")


def test_windows_line_breaks_become_plain_ones() -> None:
    assert strip_hidden("a\r\nb\rc") == "a\nb\nc"


@given(st.text(max_size=300))
def test_stripping_twice_changes_nothing_more(text: str) -> None:
    once = strip_hidden(text)

    assert drop_invisible(once) == once
    assert "<!--" not in _outside_of_code(once)


@given(st.lists(st.sampled_from(["<!--", "-->", "`", "```\n", "<p hidden>", "</p>", "\n", "\n\n", "a", "> ", "- "])))
def test_any_mixture_ends_in_text_without_comments_outside_of_code(pieces: list[str]) -> None:
    assert "<!--" not in _outside_of_code(strip_hidden("".join(pieces)))


@pytest.mark.parametrize("piece", ["![", "[", "<?", "<!a", "<!--", "<", "<svg>", "<a ", "](", "` ", "[a]: b\n", "&#1;"])
def test_a_long_text_takes_no_more_than_seconds(piece: str) -> None:
    started = time.process_time()

    strip_hidden(piece * (65_536 // len(piece)))

    assert time.process_time() - started < 5


def _outside_of_code(text: str) -> str:
    return "" if "`" in text or "    " in text or "\t" in text else text
