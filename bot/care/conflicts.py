"""A pull request of the bot that got a conflict with its base says so once. No webhook tells that: GitHub is asked."""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby

import structlog

from bot.github.answers import Mergeable
from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Refused
from bot.model import Repository, Thread
from bot.node.transactions import persist
from bot.store.database import Connection, Pool
from bot.thread import thread_comments
from bot.thread.formatting import inline_code
from bot.turn import pull_request_rows as rows
from bot.turn.request import save_thread

CONFLICTS_SECONDS = 10.0
"""The pause between two looks for pull requests of which GitHub is to be asked."""
MOST_AT_ONCE = 50
_log = structlog.get_logger()


def conflicts(base: str) -> str:
    """Say once that a pull request of the bot got a conflict."""
    name = inline_code(base)
    return (
        f"This pull request conflicts with {name}, so it cannot be merged as it is. Write `/update`: it merges {name} "
        "into the branch, and the agent resolves the conflicts."
    )


async def tell_of_conflicts(pool: Pool, github: GitHub, clock: Callable[[], datetime]) -> None:
    """Ask GitHub about the bot's pull requests whose time has come: after another one was closed or the bot pushed, and
    each hour.

    What GitHub does not know yet is asked again a minute later.
    """
    due = await rows.take_unchecked(pool, clock(), MOST_AT_ONCE)
    for repository, pulls in groupby(sorted(due, key=lambda one: one.repository.id), lambda one: one.repository):
        numbers = [pull.number for pull in pulls]
        try:
            found = await github.mergeable(repository, numbers)
        except (GitHubError, LookupError, TypeError, ValueError) as problem:
            _log.info("conflicts-asked-one-by-one", repository=repository.full_name, problem=str(problem))
            found = (None,) * len(numbers)
        for number, pull in zip(numbers, found, strict=True):
            if pull is not None:
                await persist(pool, _note, repository, number, pull, clock())
        untold = [number for number, pull in zip(numbers, found, strict=True) if pull is None]
        await _ask_one_by_one(pool, github, repository, untold, clock)


async def _ask_one_by_one(
    pool: Pool, github: GitHub, repository: Repository, numbers: Sequence[int], clock: Callable[[], datetime]
) -> None:
    for at, number in enumerate(numbers):
        try:
            pull = await github.pull(repository, number)
        except (NotFound, Refused) as problem:
            _log.warning("conflict-unknown", repository=repository.full_name, number=number, problem=str(problem))
        except GitHubError as problem:
            _log.warning("conflicts-unknown", repository=repository.full_name, problem=str(problem))
            for left in numbers[at:]:
                await rows.check_soon(pool, repository, clock(), left)
            return
        else:
            await persist(pool, _note, repository, number, pull.as_mergeable, clock())


async def _note(connection: Connection, repository: Repository, number: int, pull: Mergeable, now: datetime) -> None:
    if pull.state != "OPEN":
        await rows.check_no_more(connection, repository, number)
    elif pull.mergeable == "UNKNOWN":
        await rows.check_soon(connection, repository, now, number)
    elif await rows.is_new_conflict(connection, repository, number, pull.head, pull.mergeable == "CONFLICTING"):
        thread_ref, _ = await save_thread(connection, repository, Thread(number, "pull", pull.title, None))
        await thread_comments.tell(connection, thread_ref, conflicts(pull.base))
        _log.info("conflict-told", conversation=f"{repository.full_name}#{number}", head=pull.head)
