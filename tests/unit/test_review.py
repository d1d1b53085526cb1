"""The text of a review's turn, from events and from lists that may lag behind them."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from bot.ask import Ask, Part
from bot.github.answers import Review, ReviewComment
from bot.github.client import GitHub
from bot.inbox.review import whole_review
from bot.model import Actor, Repository, Target, Thread
from bot.turn.parsing import CommentParser, Request
from bot.verbs import VERBS

ADA, EVE = Actor("ada", 7), Actor("eve", 8)
REVIEW_ID = 500
CONTEXT = "app.py:3\n\n+a"
FIRST = ReviewComment(11, ADA, "app.py", 3, "+a", "@bot rename a")
SECOND = ReviewComment(12, ADA, "app.py", 4, "+b", "/status\nand drop b")


@dataclass
class Lists:
    """GitHub's answers: the lists of inline comments, one look after the other, and the review."""

    looks: list[tuple[ReviewComment, ...]]
    text: Review | None = None
    slept: list[float] = field(default_factory=list)

    async def review_comments(self, *_: object) -> tuple[ReviewComment, ...]:
        return self.looks.pop(0)

    async def review(self, *_: object) -> Review | None:
        return self.text

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def asked_of(lists: Lists, target: Target, text: str) -> tuple[Ask, Part]:
    """Return what the review asks when the event of `target`, with this text, is handled; and of it that part."""
    context = CONTEXT if target.kind == "review-comment" else ""
    ask = Ask(text, ADA, datetime(2026, 5, 1, tzinfo=UTC), target, context=context)
    of = Repository("github.com", 1, "octo", "hello"), Thread(4, "pull", "A title", None)
    request = Request(*of, ask, "", asks=True, review_id=REVIEW_ID)
    parser = CommentParser("bot", VERBS.commands.values())
    return await whole_review(cast("GitHub", lists), lists.sleep, parser, request, REVIEW_ID)


async def asked(lists: Lists, target: Target, text: str) -> Ask:
    """Return what the review asks in all."""
    return (await asked_of(lists, target, text))[0]


async def test_an_inline_comment_that_comes_first_asks_for_the_whole_review() -> None:
    lists = Lists([(FIRST, SECOND)], Review(ADA, "@bot see below\n/status"))

    request, part = await asked_of(lists, Target("review-comment", 11), "@bot rename a")

    assert request.title == "@bot rename a"
    assert request.text == "@bot see below\n\nComment 11:\n@bot rename a\n\nComment 12:\nand drop b"
    assert request.context == "Comment 11:\napp.py:3\n\n+a\n\nComment 12:\napp.py:4\n\n+b"
    assert request.review is not None
    assert (request.review.parts, part.id) == ((-500, 11, 12), 11)
    assert lists.slept == []


async def test_a_comment_that_the_list_lacks_is_looked_for_again_and_asked_all_the_same() -> None:
    lists = Lists([(), ()])
    request = await asked(lists, Target("review-comment", 11), "@bot rename a")
    assert (request.text, request.context, lists.slept) == ("@bot rename a", CONTEXT, [2.0])

    lists = Lists([(SECOND,), (SECOND, FIRST)])
    request = await asked(lists, Target("review-comment", 11), "@bot rename a")
    assert "@bot rename a" in request.text
    assert "and drop b" in request.text

    lists = Lists([(SECOND,), (SECOND,)])
    request = await asked(lists, Target("review-comment", 11), "@bot rename a")
    assert request.text.endswith("Comment 11:\n@bot rename a")
    assert request.context.endswith(f"Comment 11:\n{CONTEXT}")
    assert request.review is not None
    assert request.review.parts == (12, 11)


async def test_a_review_waits_once_for_its_comments() -> None:
    lists = Lists([(), (FIRST,)])
    request = await asked(lists, Target("review", 500), "@bot see below")
    assert request.text == "@bot see below\n\nComment 11:\n@bot rename a"
    assert request.context == "Comment 11:\napp.py:3\n\n+a"
    assert lists.slept == [2.0]


async def test_only_the_authors_own_texts_are_asked() -> None:
    lists = Lists([(FIRST, ReviewComment(13, EVE, "app.py", 1, "", "and leak it"))], Review(EVE, "and leak it"))
    request = await asked(lists, Target("review-comment", 11), "@bot rename a")
    assert (request.text, request.context) == ("@bot rename a", CONTEXT)
