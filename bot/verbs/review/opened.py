"""`review = "opened"`: the default branch asks for one review of each pull request that is opened, or ready."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bot.ask import Ask
from bot.github.answers import Pull
from bot.github.errors import NotFound
from bot.model import Actor, Repository, Target, Thread
from bot.node.repository_names import named
from bot.node.repository_rules import known_rules
from bot.rules import CONFIG_PATH
from bot.store import conversations
from bot.store.database import Connection
from bot.thread import outbox_rows as outbox
from bot.thread.authority import serves
from bot.turn.assign_worktree import look_up_pull_request
from bot.turn.choose_worktree import PullRequestHead
from bot.turn.confirm import NotConfirmedError, twice
from bot.turn.kind import Kind, Ready
from bot.turn.parsing import REVIEW, Request
from bot.turn.queueing import queue_turn
from bot.turn.request import Parts, RequestContext, Write, save_thread
from bot.turn.turn_run import TurnRun
from bot.verbs.review import words

VERB = "review"
_RULE = Actor(CONFIG_PATH, 0)
"""Who asks is no person, so the turn goes after those of people, and counts to nobody's day."""


async def _may_begin(run: TurnRun, ready: Ready) -> str | None:
    return None if run.ctx.rules.review == "opened" else words.ASKED_NO_MORE


def kind_of(ask: Ask, kinds: Mapping[str, Kind[Any]]) -> Kind[Any] | None:
    """Return the kind of a review that the default branch asks; a person who repeats it asks as for any other."""
    if ask.verb != VERB or not ask.of.get("opened") or ask.retry_of is not None:
        return None
    return replace(kinds[VERB], confirmed_by="rule", may_begin=_may_begin)


async def at_opening(parts: Parts, repository: Repository, number: int, asked: Ask | None) -> Write | None:
    """Return what queues the review; None where the rules want none, or GitHub shows a draft, or one of a bot.

    Raises GitHubError.
    """
    if asked is not None and asked.verb == VERB:
        return None
    rules = await known_rules(parts.pool, parts.rules, repository)
    if rules.review != "opened":
        return None
    repository = await named(parts.pool, parts.github, repository)
    if not serves(parts.policy, repository):
        return None
    try:
        pull = await twice(parts.sleep, partial(_ready, parts, repository, number))
    except NotConfirmedError:
        return None
    async with parts.pool.acquire() as connection:
        standing = await conversations.standing(connection, repository, number)
    choosing = not standing.has_worktree
    head = await look_up_pull_request(parts.github, repository, number, parts.clock, parts.sleep, choosing=choosing)
    return partial(_queue, parts, repository, pull, head)


async def _ready(parts: Parts, repository: Repository, number: int) -> Pull:
    """Return the pull request if it is a person's, open, and no draft. Raises NotConfirmedError, GitHubError."""
    try:
        pull = await parts.github.pull(repository, number)
    except NotFound:
        raise NotConfirmedError("there is no such pull request") from None
    is_own = parts.policy.is_own(Actor("", pull.author_id or 0), pull.body)
    if not pull.is_open or pull.is_draft or pull.is_bots or is_own:
        raise NotConfirmedError("the pull request is closed, a draft, or a bot's")
    return pull


async def _queue(
    parts: Parts, repository: Repository, pull: Pull, head: PullRequestHead, connection: Connection
) -> None:
    """Queue it once, whatever happens to the pull request later."""
    key = f"review-opened/{repository.platform}/{repository.id}/{pull.number}"
    if not await conversations.first_seen(connection, hashlib.sha256(key.encode()).digest()):
        return
    thread, now = Thread(pull.number, "pull", pull.title, None, head.head_sha), parts.clock()
    ref, folder = await save_thread(connection, repository, thread)
    ask = Ask(REVIEW, _RULE, now, Target("pull"), VERB, of={"opened": True})
    rules = await known_rules(connection, parts.rules, repository)
    silent_until = await outbox.silent_until(connection, ref.conversation_id, parts.policy.comments_per_hour, now)
    where = connection, parts.nodes, ref, pull.number, folder, head
    of = Request(repository, thread, ask, key), parts.policy, rules, parts.server_url, now, parts.verbs
    await queue_turn(RequestContext(*where, *of, silent_until=silent_until), ask, words.WHY_OPENED)
