"""Random Markdown, read by the bot and by GitHub's parser: both must agree on what is live, hidden and spoken.

An oracle of its own reads the HTML of cmark-gfm, without the bot's readers.
"""

import random
import re
import unicodedata
from collections.abc import Callable, Iterable
from datetime import timedelta
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from bot import markdown
from bot.markdown import to_html
from bot.prompt.hidden import strip_hidden
from bot.redaction import Redactor
from bot.thread import notices, reasons, replies, tracking, worktree_replies
from bot.thread.agent_answer import MOST_COMMENTS, answer_parts
from bot.thread.commit_message import subject
from bot.thread.formatting import clause, inline_code, inline_text
from bot.thread.pull_requests import Answer, description
from bot.thread.sanitize import is_inert, sanitize
from bot.thread.tracking import AskedBy, PlanEntry, TurnResult
from bot.turn.parsing import CommentParser, ParsedComment
from bot.verbs import VERBS
from bot.verbs.plan import as_shown
from tests.support.fuzz import FUZZ

SERVER = "https://github.com"
PARSER = CommentParser("bot", VERBS.commands.values())
MENTIONED = CommentParser("bot", VERBS.commands.values(), bare_commands=False)
# GitHub's, of https://github.com/gjtorikian/html-pipeline; Ruby's \W is ASCII.
MENTION = re.compile(r"(?<![0-9A-Za-z_])@[0-9A-Za-z]")
CLOSING = re.compile(r"\b(?:fix(?:es)?|closes):? (?:#|GH-|acme/shop#)\d", re.IGNORECASE)

PING = "@acme/everyone ![](https://evil.example/x) [x](https://evil.example) https://evil.example fixes #1"
LIVE = ["@acme/everyone", "![](https://evil.example/x)", "[x](https://evil.example)", "www.evil.example", "fixes #1"]
LIVE += [
    *("<https://evil.example>", "https://evil.example", "&#64;acme", "a@b.example", "_www.evil.example", "[x]"),
    *("Closes: GH-1", "fixes acme/shop#2"),
]
BLOCKS = ["\n", "\n\n", "\n    ", "\n\n    ", "\n\n        ", "\n> ", "\n- ", "\n1. ", "\n  ", "\t", "\n# ", "\n---\n"]
BLOCKS += [
    *("\n[^1]: ", "\n\n[^1]: note", "[^1]", "\n[x]: ", "[x]: https://evil.example", "|"),
    *("\n|-|-|\n", "\n| a | b |"),
]
SPANS = [
    "字",
    "\u200b",
    "$",
    "&",
    "`",
    "``",
    "```",
    "\n```\n",
    "~~~",
    "\\",
    "*",
    "_",
    "~~",
    "!",
    "[",
    "]",
    "(",
    ")",
    ":",
    '"',
    "text",
    " ",
    "\r",
]
HTML = ["<b>", "</b>", "<!--", "-->", "<details>", "</details>", "<summary>", "</summary>", "&lt;", "<pre>", "</pre>"]
HTML += [
    "<p>",
    "</p>",
    "<script>",
    "<?x",
    "?>",
    "<![CDATA[",
    "]]>",
    "<!A",
    "\n<div>\n",
    "<b\n",
    "\n~~~ @acme",
    "\n```suggestion\n",
]
HTML += ["<blockquote>", "</blockquote>", "<q>", "</q>", "\n<blockquote>\n\n", "\n\n</blockquote>\n"]


class Seen(HTMLParser):
    """A page: what is live on it, its text, and its text outside of code, quotations and links."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.live: list[str] = []
        self.shown: list[str] = []
        self.spoken: list[str] = []
        self._code = self._silent = 0
        self._in_link = False
        self.feed(re.sub(r"<!--.*?(-->|\Z)", "", to_html(markdown), flags=re.DOTALL))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._code += tag in ("code", "pre") or (tag == "a" and not self._in_link)
        # A link ends where another begins: https://html.spec.whatwg.org/multipage/parsing.html#parsing-main-inbody
        self._in_link |= tag == "a"
        self._silent += tag in ("blockquote", "q")
        for name, value in attrs:
            if name in ("href", "src") and value and urlsplit(value).netloc not in ("", "github.com"):
                self.live.append(f"{tag} {value}")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre") or (tag == "a" and self._in_link)
        self._in_link &= tag != "a"
        self._silent -= tag in ("blockquote", "q")

    def handle_data(self, data: str) -> None:
        self.shown.append(data)
        if self._code <= 0:
            self.live += [found[0] for found in (MENTION.search(data), CLOSING.search(data)) if found]
            self.spoken += [] if self._silent > 0 else [data]


def documents(seed: int, pieces: list[str], count: int = 100) -> list[str]:
    chance = random.Random(seed if FUZZ == 1 else None)  # noqa: S311 - no secret
    count *= FUZZ
    return ["".join(chance.choice(pieces) for _ in range(chance.randint(3, 24))) for _ in range(count)]


def of_answer(text: str) -> list[str]:
    return [one for part in answer_parts(text, server_url=SERVER)[0] for one in Seen(part).live]


@pytest.mark.parametrize(
    "answer",
    [
        *(f"See[^1].\n\n[^1]: {PING}\n", f"See[^1].\n\n[^1]: note\n\n    {PING}\n"),
        *(f"See[^1].\n\n[^1]: note\n\n    ```\n    x\n    ```\n\n    {PING}\n",),
        *(f"- See[^1].\n\n[^1]: note\n\n    - {PING}\n", f"[x]: y\n    {PING}\n", f"See[^1] `{PING}\n[^1]: `\n"),
        *("``]`<details>`[x](https://evil.example)", f"- a\n\n<details>\n</details>\n\n    {PING}"),
        *(f"- item\n{'word ' * 12_900}\n\n   ```\n{PING}\n   ```",),
        *("[a`]: https://evil.example/`\n\n<details>\n[a`]\n</details>", "[^1]:~~~\n[^1]@acme/everyone"),
    ],
)
def test_an_answer_that_another_grammar_reads_as_code_is_harmless(answer: str) -> None:
    assert of_answer(answer) == []


@pytest.mark.parametrize("form", [inline_text, inline_code, clause])
def test_foreign_words_in_a_sentence_are_harmless(form: Callable[[str], str]) -> None:
    for text in documents(8, [*LIVE, *SPANS, *HTML]):
        assert Seen(f"The branch {form(text)} was merged.").live == [], text


def final(text: str) -> Iterable[str]:
    end = TurnResult(
        "failed",
        reasons.agent_not_started(text, text),
        answer=text,
        notices=(
            notices.setup_failed(notices.setup_not_startable(text), text),
            notices.push_failed(text, text),
            notices.push_refused(text, text, signs=False, signs_off=False),
            notices.files_left_out("large", [text, text]),
            notices.not_restored_before_turn(text),
        ),
        steps=(text,),
        read=(text,),
        last_words=text,
        model=text,
        asked=AskedBy(text, f"{SERVER}/acme/shop/issues/1", 7),
    )
    return tracking.final(end, server_url=SERVER)


def described(*answers: str) -> Iterable[str]:
    told = [Answer(one, one, f"{SERVER}/acme/shop/issues/1") for one in answers]
    texts = (
        description(written, told, [answers[-1], "b"], None, closes=7, server_url=SERVER, redactor=Redactor())
        for written in (None, answers[-1])
    )
    return [text.replace("#7", "7") for text in texts]  # the only issue that it may close


KINDS: list[Callable[[str], Iterable[str]]] = [
    final,
    lambda text: described(text),
    lambda text: described("Done.", text),
    lambda text: [tracking.running([PlanEntry(text, "pending")], [text], timedelta(seconds=9), tracking.READING)],
    lambda text: [replies.unknown_command(text, ["help"])],
    lambda text: [worktree_replies.not_done("reset", text), worktree_replies.was_switched(3, text, text)],
]


@pytest.mark.parametrize("seed", range(100, 104))
def test_whole_comments_and_descriptions_are_harmless_on_githubs_page(seed: int) -> None:
    for number, text in enumerate(documents(seed, [*LIVE, *BLOCKS, *SPANS, *HTML])):
        # Half of them are answers: only those hold Markdown of others.
        for comment in (final if number % 2 else KINDS[number // 2 % len(KINDS)])(text):
            assert Seen(comment).live == [], comment


@pytest.mark.parametrize("answer", ["[^1]fixes acme/shop#2\n[^1]:```", "- a\n\n  See[^1].\n\n[^1]: ~~~"])
def test_an_open_fence_in_a_footnote_ends_before_the_rest_of_the_comment(answer: str) -> None:
    assert [one for comment in final(answer) for one in Seen(comment).live] == []


def test_titles_are_harmless_in_the_log_and_on_the_page() -> None:
    for text in documents(11, [*LIVE, *SPANS, "Closes: ", "GH-", "#8", "@bot ", "please "]):
        of_title = subject(None, text, 7, Redactor(), conventional=False)
        for line in (of_title, subject(text, "x", 7, Redactor(), conventional=True)):
            assert not MENTION.search(line), text
            assert not CLOSING.search(line), text


def test_an_answer_that_no_parser_reads_is_shown_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str, *, raw: bool = True) -> str:
        raise ValueError(text)

    monkeypatch.setattr(markdown, "to_html", fail)
    parts, was_cut = answer_parts(f"Done.\n\n{PING}\n", server_url=SERVER)
    monkeypatch.undo()
    assert not was_cut
    assert "```text\nDone." in "".join(parts)
    assert [one for part in parts for one in Seen(part).live] == []


def test_a_line_that_only_the_host_writes_is_marked_as_the_agents() -> None:
    (shown,), _ = answer_parts("> **check failed** · 1\nCheck passed · 2\n\nThe check passed · 3", server_url=SERVER)
    assert shown == "> **The agent says: check failed** · 1\nThe agent says: Check passed · 2\n\nThe check passed · 3"


# What a reader takes for "check passed": by its letters, wherever the line stands and whatever it is made of.
WORN = [
    "&#99;heck passed · 4",
    "check&nbsp;passed",
    "Check\u00a0passed · 4",
    "ch\u200beck pas\u00adsed",
    "che\\ck passed",
]
WORN += [
    *("check passed &middot; 4", "check passed ‧ 4", "**check** passed", "[check passed](https://github.com) · 4"),
    *("| check passed · 4 |\n|-|", "| check | passed |\n|-|-|", "x  \n&#x63;heck did not run", "+ check failed"),
    *(
        "\u0441heck passed · 4",
        "ｃｈｅｃｋ　ｆａｉｌｅｄ",
        "`check passed`",
        "1. check failed",
        "check failed\n---",
        "- [x] check failed",
    ),
    *("```\na\n\ncheck passed\n```", "    check passed", "<details><summary>check passed</summary>\n</details>"),
    *("![check passed](https://github.com/a.png)", "$\\text{check passed}$", "✅ check passed", "𝐜𝐡𝐞𝐜𝐤 𝐩𝐚𝐬𝐬𝐞𝐝"),
    *("\u202edessap kcehc", "[a]: /b 'c'\n&#99;heck failed", "> - # _&#99;heck_ failed", "ch&#x00AD;eck failed"),
]


class Lines(Seen):
    """A page as lines of small Latin letters, each as a reader sees it begin."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("p", "li", "tr", "br", "pre", "summary", "hr", "table") or tag[0] == "h":
            self.shown.append("\n")
        self.shown += [value or "" for name, value in attrs if name == "alt"]

    def handle_data(self, data: str) -> None:
        self.shown.append(data if data.strip(" \n") else " ")

    @property
    def of_the_host(self) -> list[str]:
        lines = unicodedata.normalize("NFKD", "".join(self.shown)).casefold().split("\n")
        letters = (re.sub(r"\\text|[^a-z]", "", line.replace("\u0441", "c")) for line in lines)
        return [line for line in letters if line.startswith(("checkpassed", "checkfailed", "checkdidnotrun"))]


@pytest.mark.parametrize("worn", WORN)
def test_no_form_of_the_hosts_line_begins_a_line_of_the_page(worn: str) -> None:
    (shown,), _ = answer_parts(f"Done.\n\n---\n\n{worn}", server_url=SERVER)
    assert Lines(shown).of_the_host == []
    assert Lines(f"Done.\n\n{worn}").of_the_host or "\u202e" in worn or "che\\ck" in worn, "the oracle sees it"
    assert ("The agent says:" in shown) == ("\u202e" not in worn)


def test_no_line_of_any_answer_begins_as_the_hosts() -> None:
    for text in documents(17, [*WORN, "check", " passed", " failed", "c", "heck ", *BLOCKS, *SPANS, *HTML], 500):
        for part in answer_parts(text, server_url=SERVER)[0]:
            assert Lines(part).of_the_host == [], text
            assert Seen(part).live == [], text


def test_an_answer_that_takes_too_long_is_code_to_its_end() -> None:
    text = "".join(documents(19, [*WORN, *LIVE, *BLOCKS, *SPANS, *HTML], 30)) + "`" * 500 + "\nthe end"
    parts, was_cut = answer_parts(text, server_url=SERVER, limit=2000, seconds=0)
    assert 1 < len(parts) <= MOST_COMMENTS
    assert was_cut is not parts[-1].endswith("the end\n```")
    for part in parts:
        assert len(part) <= 2000
        assert Seen(part).live == Lines(part).of_the_host == []


def test_what_is_carried_out_of_a_plan_is_what_its_comments_show() -> None:
    pieces = [f"word{number}x" for number in range(9)] * 3
    for text in documents(23, [*pieces, *LIVE, *BLOCKS, *SPANS, *HTML, "<p>", "~~~ ", '[x](/y "', "\U000e0041"], 300):
        carried = as_shown(text, SERVER)
        assert carried is not None
        seen = "".join("".join(Seen(part).shown) for part in answer_parts(text, server_url=SERVER)[0])
        assert set(re.findall(r"word\dx", carried)) <= set(re.findall(r"word\dx", seen)), text
        assert not set(carried) & set("\u200b\u2060\U000e0041"), text


def test_what_the_page_does_not_show_is_not_told() -> None:
    pieces = ["EVIL", '[x](/y "', "\n[x]: /y ", "\n| a |\n|-|\n| 1 | ", "![", "](/z)", "'", *BLOCKS, *SPANS, *HTML]
    for text in documents(3, pieces, 300):
        if "EVIL" in strip_hidden(text):
            assert "EVIL" in "".join(Seen(text).shown) + "".join(re.findall(r'(?:href|src)="[^"]*', to_html(text))), (
                text
            )


def is_mentioned(words: str) -> bool:
    """Return whether GitHub would link `@bot` in these words, without a look at any pattern."""
    ascii_word = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
    for at in range(len(words)):
        before, after = words[at - 1 : at], words[at + 4 : at + 6]
        if (
            words[at : at + 4].casefold() == "@bot"
            and before not in ascii_word
            and after[:1] not in ascii_word | {"-"}
            and not (after[:1] == "/" and after[1:] in ascii_word - {"_"})
        ):
            return True
    return False


def test_what_comes_in_and_what_goes_out_agree_on_what_a_mention_is() -> None:
    pieces = [
        "@bot",
        "@BOT",
        "@bo",
        "t",
        "@",
        "bot",
        "a",
        "Z",
        "_",
        "9",
        "-",
        "/",
        "ä",
        "字",
        "。",
        "：",
        "🙏",
        "и",
        "'s",
    ]
    pieces += ["'s", "@bot", "@Bot", "@bot", " ", " ", "\u00a0", "\u3000", "\u200b", "\u0661", "\u017f", "\u212a"]
    for text in documents(29, pieces, 500):
        asks = MENTIONED.parse(text) != ParsedComment()
        assert asks is is_mentioned("".join(Seen(text).spoken)), text
        assert not asks or not is_inert(text, "github.com"), text
        assert MENTIONED.parse(sanitize(text, SERVER)) == ParsedComment(), text
    for text in documents(31, ["@bot do", "@bot", "@b", "ot", "&#64;bot", *LIVE, *BLOCKS, *SPANS, *HTML], 500):
        assert MENTIONED.parse(text) == ParsedComment() or not is_inert(text, "github.com"), text
        for part in answer_parts(text, server_url=SERVER)[0]:
            assert MENTIONED.parse(part) == ParsedComment(), text
            assert Seen(part).live == [], text


def test_what_is_not_spoken_on_the_page_starts_nothing() -> None:
    # Whole elements: the oracle does not know where HTML ends an open one.
    quoted = ["<q>@bot do</q>", "<blockquote>@bot do</blockquote>", "\n<blockquote>\n\n@bot do\n\n</blockquote>\n"]
    quoted += ["<pre>@bot do</pre>", "<code>@bot do</code>", "<!--", "-->", "@bot do", "@bot do", "[x](", "](y)"]
    for text in documents(5, [*quoted, *BLOCKS, *SPANS], 300):
        if PARSER.parse(text).request is not None:
            assert "@bot" in "".join(Seen(text).spoken), text
