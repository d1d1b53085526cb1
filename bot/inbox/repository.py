"""From the repository that a payload names to the one that may be written, before anything is."""

from dataclasses import replace
from typing import TypeVar

from bot.github.client import GitHub
from bot.github.events import (
    BlockersChanged,
    ChecksEnded,
    RepositoryDeleted,
    ThreadClosed,
    ThreadReopened,
    Ticked,
    Unreadable,
)
from bot.inbox.actions import Ignore
from bot.node.repository_names import known_codebase, named
from bot.store.database import Pool
from bot.turn.parsing import Request

T = TypeVar("T")


async def in_its_repository(pool: Pool, github: GitHub, action: T) -> T | Ignore:
    """Return the action with its repository as a row, or GitHub, has it. Raises GitHubError, NotFound for no such one.

    What asks nothing is for repositories that the bot knows.
    """
    match action:
        case ThreadClosed() | ThreadReopened() | BlockersChanged() | ChecksEnded() | RepositoryDeleted():
            if (known := await known_codebase(pool, action.repository)) is None:
                return Ignore("a repository where nobody has asked anything")
            # What was deleted has no name any more.
            is_gone = isinstance(action, RepositoryDeleted)
            there = known.repository if is_gone else await named(pool, github, action.repository)
            return replace(action, repository=there)
        case Unreadable(addressed=addressed) if addressed is not None:
            there = await named(pool, github, addressed.repository)
            return replace(action, addressed=replace(addressed, repository=there))
        case Request() | Ticked():
            return replace(action, repository=await named(pool, github, action.repository))
        case _:
            return action
