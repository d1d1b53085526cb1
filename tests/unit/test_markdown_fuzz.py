"""Random Markdown, read by the bot and by GitHub's parser: both must agree on what is live, hidden and spoken.

An oracle of its own reads the HTML of cmark-gfm, without the bot's readers.
"""

import random
import re
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
from bot.thread.agent_answer import answer_parts
from bot.thread.commit_message import subject
from bot.thread.formatting import clause, inline_code, inline_text
from bot.thread.pull_requests import Answer, description
from bot.thread.tracking import AskedBy, PlanEntry, TurnResult
from bot.turn.parsing import CommentParser
from bot.verbs import VERBS
from tests.support.fuzz import FUZZ

SERVER = "https://github.com"
PARSER = CommentParser("bot", VERBS.commands.values())
MENTION = re.compile(r"(?<![A-Za-z0-9/.+_-])@[A-Za-z0-9]")
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
SPANS = ["`", "``", "```", "\n```\n", "~~~", "\\", "*", "_", "~~", "!", "[", "]", "(", ")", ":", '"', "text", " ", "\r"]
HTML = ["<b>", "</b>", "<!--", "-->", "<details>", "</details>", "<summary>", "</summary>", "&lt;", "<pre>", "</pre>"]
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
            notices.push_refused(text, text),
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


def test_what_the_page_does_not_show_is_not_told() -> None:
    pieces = ["EVIL", '[x](/y "', "\n[x]: /y ", "\n| a |\n|-|\n| 1 | ", "![", "](/z)", "'", *BLOCKS, *SPANS, *HTML]
    for text in documents(3, pieces, 300):
        if "EVIL" in strip_hidden(text):
            assert "EVIL" in "".join(Seen(text).shown) + "".join(re.findall(r'(?:href|src)="[^"]*', to_html(text))), (
                text
            )


def test_what_is_not_spoken_on_the_page_starts_nothing() -> None:
    # Whole elements: the oracle does not know where HTML ends an open one.
    quoted = ["<q>@bot do</q>", "<blockquote>@bot do</blockquote>", "\n<blockquote>\n\n@bot do\n\n</blockquote>\n"]
    quoted += ["<pre>@bot do</pre>", "<code>@bot do</code>", "<!--", "-->", "@bot do", "@bot do", "[x](", "](y)"]
    for text in documents(5, [*quoted, *BLOCKS, *SPANS], 300):
        if PARSER.parse(text).request is not None:
            assert "@bot" in "".join(Seen(text).spoken), text
