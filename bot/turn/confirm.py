"""Before the agent starts: who asks may still ask, and a request is what GitHub shows by now (DESIGN.md §4, Authority).

What a delivery said was confirmed before it was written down (`bot/inbox/gate.py`); a request may wait for hours.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from bot.ask import Ask
from bot.github.thread import Text
from bot.github.thread_parts import read_asked, read_edits, who_asked
from bot.github.transport import Sleep
from bot.markdown import MarkdownError
from bot.model import Actor, Target
from bot.store import turns
from bot.store.turns import ClaimedTurn
from bot.tasks import concurrently
from bot.thread import reasons
from bot.thread.authority import Denied
from bot.turn.context import TurnContext
from bot.turn.kind import Confirmed
from bot.turn.may_ask import may_ask
from bot.turn.parsing import Command, CommentParser
from bot.turn.pull_request_rows import is_own_pull
from bot.turn.queueing import named_part

T = TypeVar("T")
RETRY: Final = "retry"
"""The command that repeats a request."""
LOOK_AGAIN_SECONDS = 2.0
"""GitHub may tell of a text a moment before all its machines show it."""


class NotConfirmedError(Exception):
    """The person may not ask by now, or GitHub does not show the request; `reason` says so to people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def twice(sleep: Sleep, look: Callable[[], Awaitable[T]], settles: Callable[[T], bool] = lambda _: True) -> T:
    """Return what `look` finds; it looks again where GitHub does not show it, or what that shows does not settle it.

    Raises what the second look raises.
    """
    try:
        if settles(found := await look()):
            return found
    except NotConfirmedError:
        pass
    await sleep(LOOK_AGAIN_SECONDS)
    return await look()


async def confirm(ctx: TurnContext, turn: ClaimedTurn) -> Confirmed:
    """Return the request as it stands on GitHub by now, from a person who may ask. Raises NotConfirmedError,
    GitHubError.
    """
    sender = Actor(turn.ask.by.login, turn.ask.by.id, turn.ask.by.id in ctx.policy.allowed_bots)
    if asked_by_rule(ctx, turn.ask):
        return await _request(ctx, turn)
    async with concurrently(_request(ctx, turn)) as confirming:
        if (refusal := await denied(ctx, turn, sender)) is not None:
            raise NotConfirmedError(reasons.may_not_ask_any_more(turn.ask.by.login, refusal.why))
        return await confirming


def asked_by_rule(ctx: TurnContext, ask: Ask) -> bool:
    """Return whether the default branch asks, and no person: one who repeats it must be allowed to ask."""
    return ctx.verbs.kind_of(ask).confirmed_by == "rule" and ask.retry_of is None


async def may_all_ask(ctx: TurnContext, turn: ClaimedTurn, authors: Iterable[Actor]) -> bool:
    """Return whether everybody who wrote the request may ask too: who labels an issue asks in the words of its author.

    Raises GitHubError.
    """
    others = [one for one in authors if one.id != turn.ask.by.id]
    return not any(await asyncio.gather(*(denied(ctx, turn, one) for one in others)))


async def denied(ctx: TurnContext, turn: ClaimedTurn, person: Actor) -> Denied | None:
    """Return why somebody may not ask by now, None if they may. Raises GitHubError."""
    verdict = await may_ask(ctx.github, ctx.policy, person, turn.worktree.repository, allowed=ctx.rules.allowed)
    return verdict if isinstance(verdict, Denied) else None


async def _request(ctx: TurnContext, turn: ClaimedTurn) -> Confirmed:
    """Return the request as it stands on GitHub.

    An edit counts where the person who asked made it. A retry is asked by its own comment, and what it repeats by the
    texts of the first request.
    """
    first = None if turn.ask.retry_of is None else await turns.ask_of(ctx.pool, turn.ask.retry_of)
    first = first or turn.ask
    return await twice(ctx.sleep, lambda: _confirm(ctx, turn, first))


async def _confirm(ctx: TurnContext, turn: ClaimedTurn, first: Ask) -> Confirmed:
    if turn.ask.target != first.target:
        await _confirm_command(ctx, turn, turn.ask.target, turn.ask.by.id, RETRY)
    kind = ctx.verbs.kind_of(turn.ask)
    if first.gesture is not None and first.target.id is not None:
        await _confirm_tick(ctx, turn, first)
        return Confirmed(turn.ask, frozenset())  # in the bot's own words
    if kind.confirmed_by == "command":
        await _confirm_command(ctx, turn, first.target, first.by.id, kind.command or turn.ask.text)
    if kind.confirmed_by == "rule":
        if (written := await _shown(ctx, turn, Target(turn.conversation.kind))) is None:
            raise NotConfirmedError(reasons.GONE_FROM_GITHUB)
        return Confirmed(turn.ask, frozenset({written.author}))
    if kind.confirmed_by != "words":
        return Confirmed(turn.ask, frozenset())  # in the bot's own words
    ids = first.review.parts if first.review is not None else ()
    parts = [Target("review", -part) if part < 0 else Target("review-comment", part) for part in ids]
    places = parts or [first.target]
    found = await asyncio.gather(*(_shown(ctx, turn, target) for target in places))
    # Leave out those of several that were deleted: they ask nothing any more.
    there = [(target, text) for target, text in zip(places, found, strict=True) if text is not None]
    if not there:
        raise NotConfirmedError(reasons.GONE_FROM_GITHUB)
    texts = [text for _, text in there]
    authors = frozenset(text.author for text in texts)
    person, shown = first.by.id, ctx.redactor.redact_known
    on_own_pull = bool(parts) and await is_own_pull(ctx.pool, turn.worktree.repository, turn.conversation.number)
    read = partial(_asked, ctx.parser, texts, [target for target, _ in there if parts])
    asked, verbs = await asyncio.to_thread(read, on_own_pull=on_own_pull)
    if parts and not (asked or on_own_pull):
        pull = await ctx.github.pull(turn.worktree.repository, turn.conversation.number)
        if ctx.policy.is_own(Actor("", pull.author_id or 0), pull.body):
            asked, verbs = await asyncio.to_thread(read, on_own_pull=True)
    is_same = shown(turn.ask.text) in map(shown, asked)
    if is_same and first.gesture is None and all(text.author.id == person for text in texts):
        return Confirmed(turn.ask, authors, verbs)
    known = await who_asked(ctx.github, turn.worktree.repository, [text.node_id or "" for text in texts])
    if first.gesture is not None:
        given = next((one for one in known[0].gestures if one.id == first.gesture), None)
        if kind.gesture_says is not None:
            return Confirmed(turn.ask, authors, verbs)  # it asks whatever the text says
        if given is None or not known[0].stands_for(given):
            raise NotConfirmedError(reasons.NOT_CONFIRMED)
        labelled = await asyncio.to_thread(ctx.parser.parse_labeled, texts[0].body)
        return Confirmed(replace(turn.ask, text=labelled.request or ""), authors, verbs)
    last = [who.writer(text.author).id for text, who in zip(texts, known, strict=True)]
    if is_same:
        is_theirs = all(person in (one.author.id, by) for one, by in zip(texts, last, strict=True))
    else:
        is_edited = any(who.edited_at is not None and who.edited_at >= first.at for who in known)
        is_theirs = (is_edited or len(there) < len(places)) and all(by == person for by in last)
    if not is_theirs:
        raise NotConfirmedError(reasons.NOT_CONFIRMED)
    if not asked:
        raise NotConfirmedError(reasons.ASKS_NO_MORE)
    return Confirmed(turn.ask if is_same else replace(turn.ask, text=asked[0]), authors, verbs)


async def _confirm_tick(ctx: TurnContext, turn: ClaimedTurn, first: Ask) -> None:
    """Raise NotConfirmedError unless the person made the edit by which the bot was asked."""
    text = await _shown(ctx, turn, first.target)
    if text is None:
        raise NotConfirmedError(reasons.GONE_FROM_GITHUB)
    edits = await read_edits(ctx.github, turn.worktree.repository, text.node_id or "")
    if not any((one.id, one.by.id) == (first.gesture, first.by.id) for one in edits):
        raise NotConfirmedError(reasons.NOT_CONFIRMED)


async def _confirm_command(ctx: TurnContext, turn: ClaimedTurn, target: Target, person: int, wanted: str) -> None:
    """Raise NotConfirmedError unless the person's text has the command of this name, or this whole one."""
    text = await _shown(ctx, turn, target)
    if text is None:
        raise NotConfirmedError(reasons.GONE_FROM_GITHUB)
    if text.author.id != person:
        (who,) = await who_asked(ctx.github, turn.worktree.repository, [text.node_id or ""])
        if who.writer(text.author).id != person:
            raise NotConfirmedError(reasons.NOT_CONFIRMED)
    commands = (await asyncio.to_thread(ctx.parser.parse, text.body)).commands
    if not any(isinstance(one, Command) and wanted in (one.name, one.words) for one in commands):
        raise NotConfirmedError(reasons.ASKS_NO_MORE)


async def _shown(ctx: TurnContext, turn: ClaimedTurn, target: Target) -> Text | None:
    found = await read_asked(ctx.github, turn.worktree.repository, turn.conversation.number, target)
    return None if found is None else found.text


def _asked(
    parser: CommentParser, texts: Sequence[Text], parts: Sequence[Target], *, on_own_pull: bool
) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return what the texts ask in the forms in which that may be stored, the most usual first; nothing: ().

    And the verbs that they ask for.
    """
    try:
        parsed = [parser.parse(text.body, on_own_pull=on_own_pull) for text in texts]
        requests, verbs = [one.request for one in parsed], frozenset(one.verb for one in parsed)
        if all(request is None for request in requests):
            return (), verbs
        if not parts:
            return (requests[0] or "",), verbs
        rests = [
            one.request or "" if one.keeps_command else parser.rest_of(text.body)
            for one, text in zip(parsed, texts, strict=True)
        ]
    except MarkdownError:
        return (), frozenset()
    # A single review comment has no heading, also when others join it later; a remark always has one.
    named = [
        named_part(part.id, rest) if part.kind == "review-comment" and rest else rest
        for part, rest in zip(parts, rests, strict=True)
    ]
    forms = "\n\n".join(filter(None, named)), "\n\n".join(filter(None, [rests[0], *named[1:]]))
    return forms if len(parts) > 1 else forms[::-1], verbs
