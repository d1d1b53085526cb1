"""Names, default branch and installation of a repository: as GitHub tells them, found by its id, and nobody else.

A payload names things, it does not describe them: one webhook secret is known to the admins of all repositories, and
each of them can sign another one's id with any name.
"""

from dataclasses import dataclass

import structlog

from bot.github.client import GitHub
from bot.model import Repository
from bot.node.transactions import persist
from bot.store import conversations
from bot.store.database import Connection, Pool, statement

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Codebase:
    """A repository's row; `is_fresh`: GitHub told what it has within the last minute."""

    repository: Repository
    is_fresh: bool


@statement("""
select *, updated_at > now() - interval '1 minute' as is_fresh from codebases
where (platform, repository_id) = ($1, $2)
""")
async def known_codebase(connection: Connection, repository: Repository) -> Codebase | None:
    """Return the row of the repository with this id, None without one."""


async def named(pool: Pool, github: GitHub, repository: Repository) -> Repository:
    """Return the repository that has the id of the one that a payload names.

    As its row has it, where the payload says nothing else; else as GitHub tells it, which is stored. Raises
    GitHubError: NotFound where GitHub shows the bot no such repository.
    """
    known = await persist(pool, known_codebase, repository)
    if known is not None and is_as_known(repository, known.repository, is_app=github.is_app):
        return known.repository
    _log.info("repository-named-otherwise", repository=repository.id, said=repository.full_name)
    return await stored(pool, await github.by_id(repository))


async def of_this_minute(pool: Pool, github: GitHub, repository: Repository) -> Repository:
    """Return a known repository as GitHub told it within the last minute, or tells it now.

    For what goes by its name, such as git: the name may be another repository's by now. Raises GitHubError.
    """
    known = await persist(pool, known_codebase, repository)
    if known is not None and known.is_fresh:
        return known.repository
    return await stored(pool, await github.as_named_now(known.repository if known is not None else repository))


async def stored(pool: Pool, told: Repository) -> Repository:
    """Return what GitHub told, once it is stored."""
    await persist(pool, conversations.save_codebase, told)
    return told


def is_as_known(said: Repository, known: Repository, *, is_app: bool) -> bool:
    """Return whether a payload says of a repository what its row has, as far as it says something."""
    if (said.full_name, said.default_branch or known.default_branch) != (known.full_name, known.default_branch):
        return False
    # With a personal token there are none, whatever a payload says.
    installation = said.installation_id or known.installation_id
    return not is_app or (installation is not None and installation == known.installation_id)
