"""What happens to pull requests of the bot's branches beside their close: people open them, and review them."""

from dataclasses import dataclass
from datetime import datetime

import structlog

from bot.ask import Ask
from bot.github.events import Event, Written
from bot.inbox import gate
from bot.model import Repository
from bot.node.repository_names import known_codebase, named
from bot.node.transactions import persist
from bot.store.database import Connection
from bot.thread.authority import Allowed, by_permission
from bot.thread.pull_requests import digest
from bot.turn import notify
from bot.turn import pull_request_rows as rows
from bot.turn.confirm import NotConfirmedError
from bot.turn.request import Parts

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PullNews:
    """A pull request of the bot's branch, made for the issue `closes`, was opened by a person at a time.

    Without `closes` somebody with write access reviewed it then.
    """

    repository: Repository
    number: int
    branch: str
    at: datetime
    closes: int | None = None


async def news_of(parts: Parts, event: Event | None, reviewed: Ask | None) -> PullNews | None:
    """Return what GitHub confirms of such a pull request, None for no news. Raises GitHubError.

    `reviewed` is what the event asks of the bot, which GitHub has confirmed with the right of its author.
    """
    if not isinstance(event, Written) or not event.branch:
        return None
    if (known := await persist(parts.pool, known_codebase, event.repository)) is None:
        return None
    is_review = event.remark.target.kind == "review"
    number, branch = event.thread.number, event.branch
    closes = None if is_review else await rows.issue_of_branch(parts.pool, known.repository, branch)
    if closes is None and not (is_review and await rows.is_of_own_branch(parts.pool, known.repository, number)):
        return None
    repository = await named(parts.pool, parts.github, event.repository)
    try:
        at = await (_reviewed(parts, event, reviewed) if is_review else _opened(parts, event))
    except NotConfirmedError as problem:
        _log.warning("not-confirmed", problem=problem.reason)
        return None
    return None if at is None else PullNews(repository, number, branch, at, closes)


async def _opened(parts: Parts, event: Written) -> datetime | None:
    """Return when a person opened it, None where the bot did: it is recorded where that is done."""
    pull = await gate.confirmed_opening(parts.github, parts.sleep, event)
    is_bots = pull.author_id == parts.policy.bot_id and digest(pull.body) is not None
    return None if is_bots else pull.created_at


async def _reviewed(parts: Parts, event: Written, asked: Ask | None) -> datetime | None:
    """Return when somebody with write access reviewed it, None where somebody else did."""
    if asked is not None:
        return None if asked.by.is_bot else asked.at
    shown = await gate.confirmed_written(parts.github, parts.sleep, event, with_thread=False)
    who = shown.remark.author
    if who.is_bot or who.id == parts.policy.bot_id:
        return None
    permission, _ = await parts.github.permission(event.repository, who)
    return shown.written_at if isinstance(by_permission(permission), Allowed) else None


async def record(connection: Connection, news: PullNews, *, notifies: bool) -> None:
    """Write the news, in the transaction that ends their delivery."""
    if news.closes is None:
        await rows.record_review(connection, news.repository, news.number, news.at)
        return
    opened = (news.repository, news.number, news.branch, news.closes, news.at)
    if await rows.record_opened(connection, *opened) is not None and notifies:
        await notify.of_pull_request(connection, news.repository, news.number)
