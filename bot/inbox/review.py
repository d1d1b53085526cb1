"""A review and its inline comments as one request, in whatever order their events arrive (DESIGN.md §3.2)."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from bot.ask import Ask, Part, Review
from bot.github.answers import ReviewComment
from bot.github.client import GitHub
from bot.github.transport import Sleep
from bot.model import Target
from bot.turn.parsing import CommentParser, Request
from bot.turn.queueing import named_part

LISTS_LAG_SECONDS = 2.0


async def whole_review(
    github: GitHub, sleep: Sleep, parser: CommentParser, request: Request, review_id: int
) -> tuple[Ask, Part]:
    """Return what the review asks in all, and the part whose event is handled. Raises GitHubError.

    In all: its own text and its author's inline comments. The part may not be in GitHub's list of the review's comments
    yet. A single remark, which GitHub wraps in a review of its own, collects those that follow.
    """
    ask = request.ask
    comments = await _own_comments(github, request, review_id)
    is_comment = ask.target.kind == "review-comment"
    part = ask.target.id if is_comment and ask.target.id else -review_id
    asks = partial(parser.parse, on_own_pull=request.on_own_pull)
    # GitHub does not tell how many inline comments a review has: an empty list may also be one that lags.
    if part not in {comment.id for comment in comments} if is_comment else not comments:
        await sleep(LISTS_LAG_SECONDS)
        comments = await _own_comments(github, request, review_id)
    found = {} if is_comment else {part: ask.text}
    addressing = {part} | {comment.id for comment in comments if asks(comment.body).request is not None}
    if is_comment and (whole := await github.review(request.repository, request.thread.number, review_id)):
        by_author = whole.author is not None and whole.author.id == ask.by.id
        found[-review_id] = parser.rest_of(whole.body) if by_author else ""
        if by_author and asks(whole.body).request is not None:
            addressing.add(-review_id)
    places = {comment.id: _place(comment) for comment in comments}
    for comment in comments:
        rest = parser.rest_of(comment.body)
        found[comment.id] = rest and named_part(comment.id, rest)
    own_text, title = ask.text, None
    if is_comment:
        own_text, places[part] = named_part(part, ask.text), named_part(part, ask.context)
        title = ask.text.strip().partition("\n")[0]
    found[part] = found.get(part) or own_text
    found = {key: words for key, words in found.items() if words}
    own = Part(part, own_text, places.get(part, ""))
    review = Review(tuple(found), review_id)
    if len(found) > 1:
        target, text = _answer_at(review_id, addressing), "\n\n".join(found.values())
        context = "\n\n".join(places[key] for key in found if key in places)
        ask = replace(ask, text=text, title=title, context=context, review=review, target=target)
    elif is_comment and request.is_remark:
        ask = replace(ask, text=own_text, title=title, context=own.context, review=replace(review, collects=True))
    else:
        ask = replace(ask, review=review)
    return ask, own


def _answer_at(review_id: int, addressing: Collection[int]) -> Target:
    """Return where the one answer goes: to the only inline comment that addresses the bot, else to the conversation.

    `addressing` are parts of the review, which do not depend on the order of the events.
    """
    only = next(iter(addressing)) if len(addressing) == 1 else -review_id
    return Target("review", review_id) if only < 0 else Target("review-comment", only)


async def _own_comments(github: GitHub, request: Request, review_id: int) -> Sequence[ReviewComment]:
    found = await github.review_comments(request.repository, request.thread.number, review_id)
    return [one for one in found if one.author is not None and one.author.id == request.author.id]


def _place(comment: ReviewComment) -> str:
    """Return the lines that an inline comment is about: GitHub often leaves out their number here."""
    line = f":{comment.line}" if comment.line else ""
    return named_part(comment.id, f"{comment.path}{line}\n\n{comment.diff_hunk}")
