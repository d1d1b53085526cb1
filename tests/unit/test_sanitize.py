"""What the agent wrote, on its way out: nothing live, cut into comments."""

import re
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompt.hidden import strip_hidden
from bot.thread.agent_answer import COMMENT_CHARACTERS, MOST_COMMENTS, answer_parts, split
from bot.thread.marker import reply_marker, signed, turn_marker
from bot.thread.sanitize import FOLDS, is_inert, sanitize
from bot.turn.parsing import CommentParser
from bot.verbs import VERBS
from tests.support.fuzz import FUZZ
from tests.support.rendered import html

SERVER = "https://github.example"
HOST = urlsplit(SERVER).netloc
SECRET = "s3cr3t/with+odd=chars"

prose = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=60)
live = ["@octocat", "&#64;", "a@b.example", "fixes #1 ", "<b>", "<!--", "-->", "<div>\n", "<pre>", "</pre>", "&lt;"]
links = ["](", "[", "![x](", ")", "[r]: ", "[x][r]", "javascript:alert(1)", "//evil.example", "https://evil.example/x"]
links += ["www.evil.example", "<https://evil.example>", f"{SERVER}/o/r", '"', "threadtree:turn=1"]
structure = [
    *("`", "``", "```\n", "~~~\n", "\n", "\n\n", "    ", "\t", "\r", "> ", "- ", "1. ", "#", "===", "---\n", "\\"),
    *("*", "_"),
]
structure += ["<details>\n", "<summary>x</summary>\n", "</details>\n", "<details><summary>", "[!NOTE]: /x\n"]
structure += ["| a | b |\n|---|---|\n", "|", "text "]
hostile = st.lists(st.sampled_from(live + links + structure), max_size=14).map("".join)


@pytest.mark.parametrize(
    "text",
    [
        "Plain prose with *emphasis*, a < b, 1 <3, e-mail me@example.com and `@code`.",
        "- one\n- [ ] two\n  1. three\n\n> quoted",
        "```python\n@decorator\ndef f() -> None: ...  # fixes #1 https://evil.example <b>\n```",
        f"[the file](docs/README.md) and [the commit]({SERVER}/o/r/commit/1) and {SERVER}/o/r/pull/2",
        "| a | b |\n| --- | --- |\n| `x|y` | c |",
        "Line one  \nline two\n\n---\n\n# Title",
    ],
)
def test_ordinary_markdown_stays_exactly_as_it_is(text: str) -> None:
    assert sanitize(text, SERVER) == text


@pytest.mark.parametrize("mention", ["@octocat", "(@octocat)", "**@octocat**", "_@octocat_", "@org/team", "\\@octocat"])
def test_a_mention_reads_the_same_and_pings_nobody(mention: str) -> None:
    safe = sanitize(f"Ask {mention} please", SERVER)
    assert "@o" not in safe
    assert safe.replace("\u2060", "") == f"Ask {mention} please"


def test_an_entity_cannot_hide_a_mention() -> None:
    assert "\u2060octocat" in sanitize("&#64;octocat", SERVER)


@pytest.mark.parametrize("closing", ["Fixes #1", "closes: o/r#2", f"Resolved {SERVER}/o/r/issues/3", "fix GH-4"])
def test_closing_keywords_close_nothing(closing: str) -> None:
    safe = sanitize(closing, SERVER)
    assert safe != closing
    assert safe.replace("\u2060", "") == closing


def test_links_and_images_elsewhere_are_shown_but_lead_nowhere() -> None:
    safe = sanitize(
        "See [this](https://evil.example/x), ![i](https://evil.example/i.png) and https://evil.example.", SERVER
    )
    rendered = html(safe)
    assert "<a" not in rendered
    assert "<img" not in rendered
    assert rendered.count("https://evil.example") == 3


@pytest.mark.parametrize("url", [f"{SERVER}@evil.example/", f"{SERVER}.evil.example/", "https://github.example:444/"])
def test_an_address_that_only_looks_like_the_server_leads_nowhere(url: str) -> None:
    assert 'href="http' not in html(sanitize(f"See {url} now", SERVER))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a ` b https://evil.example", "a ` b https\\://evil.example"),
        ("`x`<https://evil.example>", "`x`&lt;https\\://evil.example>"),
        ("See [r].\n\n[r]: https://evil.example", "See [r].\n\n[r]\\: https\\://evil.example"),
        # Or the first line of the bot's own box would be a link, and the box none.
        ("[!NOTE]: /evil/repo\n\n> [ !tip ]: /x", "[!NOTE]\\: /evil/repo\n\n> [ !tip ]\\: /x"),
        ("[a]: /octo/hello\n\nx[^a]\n\n[^a]: b", "[a]\\: /octo/hello\n\nx[^a]\n\n[^a]\\: b"),
        ("a `span\n<div>\nover lines`", "a `span\n&lt;div>\nover lines`"),
        ("| a |\n|---|\n| `b | @c` |", "| a |\n|---|\n| `b | @\u2060c` |"),
    ],
)
def test_only_what_is_live_is_changed_and_the_rest_stays_prose(written: str, shown: str) -> None:
    assert sanitize(written, SERVER) == shown


def test_raw_html_and_comments_are_shown_as_text() -> None:
    assert sanitize("<img src=x> <!-- hi --> </details>", SERVER) == "&lt;img src=x> &lt;!-- hi --> &lt;/details>"


@given(text=hostile)
def test_whatever_the_agent_writes_nothing_in_it_is_live(text: str) -> None:
    safe = sanitize(text, SERVER)
    assert is_inert(safe, HOST)
    assert "threadtree:turn=" not in safe


@given(text=hostile)
def test_sanitizing_twice_changes_nothing_more(text: str) -> None:
    once = sanitize(text, SERVER)
    assert sanitize(once, SERVER) == once


@given(text=prose)
def test_a_marker_in_the_text_is_no_marker(text: str) -> None:
    body = signed(f"{text}{turn_marker(1, 1)} <!--threadtree: REPLY=2 -->", turn_marker(7, 2))
    assert body.endswith(turn_marker(7, 2))
    assert len(re.findall(r"threadtree:\s*(?:turn|reply)\s*=", body, re.IGNORECASE)) == 1
    assert reply_marker(3) == "<!-- threadtree:reply=3 -->"


def test_a_text_that_fits_is_one_part_unchanged() -> None:
    assert split("a\n\nb\n", 10) == ("a\n\nb\n",)


def test_long_text_is_cut_between_paragraphs() -> None:
    assert split("one one\n\ntwo two\n\nthree", 17) == ("one one\n\ntwo two", "three")


def test_a_code_fence_is_kept_whole() -> None:
    fence = "```py\nx = 1\n\ny = 2\n```"
    assert split(f"before before\n\n{fence}\n\nafter", 30) == ("before before", f"{fence}\n\nafter")


def test_a_fence_longer_than_a_comment_is_closed_and_opened_again() -> None:
    code = "\n".join(f"line {number}" for number in range(40))
    parts = split(f"~~~py\n{code}\n~~~", 120)
    assert all(part.startswith("~~~py\n") and part.endswith("\n~~~") for part in parts)
    assert "\n".join(part.removeprefix("~~~py\n").removesuffix("\n~~~") for part in parts) == code


def harmless(part: str) -> bool:
    """Whether nothing in a part is live but its folds."""
    return is_inert(part, HOST, FOLDS)


def shown(answer: str, limit: int = COMMENT_CHARACTERS) -> tuple[str, ...]:
    return answer_parts(answer, server_url=SERVER, limit=limit)[0]


def test_a_fold_stays_a_fold_with_harmless_words() -> None:
    answer = "Before.\n<details><summary>Ask @octocat & co</summary>\nfixes #1 <b>\n</details>\nAfter."
    assert shown(answer) == (
        "Before.\n\n<details>\n<summary>Ask @\u2060octocat &amp; co</summary>\n\n"
        "fixes\u2060 #1 &lt;b>\n\n</details>\n\nAfter.",
    )


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_any_end_of_a_line_is_one(end: str) -> None:
    answer = end.join(["", "", "[r]: https://evil.example", "", "<details>", "x", "</details>", "[r]"])
    (part,) = shown(answer)
    assert "\r" not in part
    assert part.startswith("[r]\\: https\\://evil.example\n\n<details>")
    assert harmless(part)


def test_a_fold_in_code_is_code() -> None:
    answer = "```html\n<details>\n<summary>x</summary>\n</details>\n```"
    assert shown(answer) == (answer,)


@pytest.mark.parametrize(
    "left_open", ["<details>\ntext", "```py\nx = 1", "<details>\n<details>\n```\nx", "<!-- x", "- a\n  ```\n  b"]
)
def test_what_an_answer_leaves_open_is_closed(left_open: str) -> None:
    (part,) = shown(left_open)
    assert part.count("<details>") == part.count("</details>")
    rendered = html(f"{part}\n\nAfter it.")
    assert rendered.endswith("<p>After it.</p>\n")


def test_a_fold_longer_than_a_comment_is_closed_and_opened_again() -> None:
    parts = shown("<details>\n<summary>Log</summary>\n\n" + "\n\n".join(["word " * 12] * 20) + "\n</details>", 400)
    assert len(parts) > 1
    for part in parts:
        assert (part.startswith("<details>\n<summary>Log</summary>"), part.endswith("</details>")) == (True, True)
        assert len(part) <= 400


@given(text=st.lists(st.sampled_from(["word ", "x" * 30, "\n\n", "\n", "é", "- item\n"]), max_size=80).map("".join))
def test_the_parts_join_to_the_text_and_keep_the_limit(text: str) -> None:
    parts = split(text, 50)
    assert all(len(part) <= 50 for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(text=hostile, limit=st.integers(200, 400))
def test_an_answer_of_any_length_fits_its_comments_and_stays_harmless(text: str, limit: int) -> None:
    parts, _ = answer_parts((text + "\n\n") * 20, server_url=SERVER, limit=limit)
    assert len(parts) <= MOST_COMMENTS
    assert all(len(part) <= limit and harmless(part) for part in parts)


WORST = ["[a](", "- a\n", "| a | b |\n|---|---|\n" + "| `x` | y |\n" * 30, "<details>\n"]


@pytest.mark.parametrize("pattern", WORST if FUZZ > 1 else WORST[:1])
def test_the_worst_markdown_of_3_mb_takes_seconds_and_five_comments(pattern: str) -> None:
    answer = pattern * (3_000_000 // len(pattern))
    started = time.process_time()
    parts, was_cut = answer_parts(answer, server_url=SERVER)
    assert time.process_time() - started < 12
    assert was_cut
    assert 1 <= len(parts) <= MOST_COMMENTS
    assert all(len(part) <= COMMENT_CHARACTERS for part in parts)


# Each takes longer than other text somewhere on the way, or once did.
SHAPES = [
    *("[", "![l", "[a](<", "[a][", "a]", ">", "> - ", "- ", "*a_ ", "**a *", "_a __", "~~a ~", "`a``", "<!--", "<!A"),
    *("<?", "<![CDATA[", "<a ", "<a b='", "&a", "www.a", "www._", "www.a?!", "http://a", "http://a_", "a@", "a@b."),
    *("a.b-_+", "mailto:", "xmpp:a@b", "[^a]", "a\n-\n", "[a]: b\n", "[a]:\n", "<details>\n", "<details>\n\n", "\t"),
    *("\0", "\\[", "- [ ] ", "<div>\n\n", "<p>", "<td>", "<b>", "<font><b>", "<select><option>", "<svg><p>", "<h1>"),
    *("<table><tr>", "<form>", "<a><b>", "<math><mi>", "<template>", "一*", "@tree-bot ", "/stop\n", "/", "1. "),
    *("fix.", "fix_", "fix *", "](", "www.)", "https://github.example/", "&#99;heck passed\n", "check passed\n\n", "@"),
]
SHAPES_AS_LONG_AS: list[Callable[[int], str]] = [
    *(lambda size, shape=shape: (shape * (size // len(shape) + 1))[:size] for shape in SHAPES),
    lambda size: "".join(f"{' ' * (2 * depth)}- a\n" for depth in range(int(size**0.5))),
    lambda size: "".join("`" * ticks + " " for ticks in range(1, int((2 * size) ** 0.5))),
    lambda size: "".join(f"[^{note}]: a\n" for note in range(size // 11)),
    lambda size: "[^a]: b\n\n" + "[^a] " * (size // 5),
    lambda size: "|" + "a|" * (size // 4) + "\n|" + "-|" * (size // 4) + "\n|",
    lambda size: "|a|\n|-|\n" + "|" * size,
    lambda size: "|" + "a|" * 60 + "\n|" + "-|" * 60 + "\n" + "|\n" * (size // 2),
    lambda size: "|a|\n|-|\n|" + "\\|" * (size // 2),
    lambda size: "".join(f"[{number}]: /{number}\n" for number in range(size // 20)) + "[a] " * (size // 20),
]
SIZE = 16_000 if FUZZ == 1 else 64_000
PARSER = CommentParser("tree-bot", VERBS.commands.values())


@pytest.mark.parametrize("read", [lambda text: shown(text), PARSER.parse, strip_hidden])
def test_no_shape_of_a_text_takes_much_longer_than_prose(read: Callable[[str], object]) -> None:
    def seconds(text: str) -> float:
        began = time.thread_time()
        read(text)
        return time.thread_time() - began

    def is_in_proportion(shape: Callable[[int], str]) -> bool:
        took = seconds(shape(SIZE))
        return took < 25 * usual and (took < 4 * usual or took < 9 * seconds(shape(SIZE // 4)))

    usual = min(seconds("The quick *brown* fox jumps over `it`.\n\n" * (SIZE // 40)) for _ in range(3))
    for shape in SHAPES_AS_LONG_AS:
        # Once more where something else was in the way.
        assert any(is_in_proportion(shape) for _ in range(3)), shape(30)


def test_an_empty_answer_has_no_parts() -> None:
    assert answer_parts(" \n", server_url=SERVER) == ((), False)


def test_the_end_of_a_fold_that_was_never_opened_is_text() -> None:
    assert shown("\n\n</details>\n\n<details>\n</details>\n</details>")[0].endswith("</details>\n\n&lt;/details>")
