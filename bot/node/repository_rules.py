"""A repository's own rules: `.threadtree/config.toml` of its default branch, as git has it and as its row has it."""

import asyncio
from dataclasses import dataclass

from bot import refs
from bot.model import Repository
from bot.rules import CONFIG_PATH, MAX_CONFIG_BYTES, Config, Found, Rules, read_config, stored_config, within
from bot.store.database import Connection, Pool, statement
from bot.thread import repository_rules as words
from bot.tree import Clone


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """What a repository's row has of its file of rules: the JSON of what is right, git's name of the file, problems."""

    config: str = "{}"
    config_blob: str | None = None
    config_problem: str | None = None


@statement("select config, config_blob, config_problem from codebases where (platform, repository_id) = ($1, $2)")
async def config_of(connection: Connection, repository: Repository) -> StoredConfig | None:
    """Return the repository's rules, None where it has no row."""


@statement("""
update codebases set config = $3, config_blob = $4, config_problem = $5 where (platform, repository_id) = ($1, $2)
""")
async def save_config(connection: Connection, repository: Repository, now: StoredConfig) -> None:
    """Write what was read of the repository's file."""


@statement("select owner || '/' || name, config_problem from codebases where config_problem is not null order by 1")
async def config_problems(connection: Connection) -> list[tuple[str, str]]:
    """Return the repositories whose file of rules has a problem, with it."""


async def known_rules(database: Connection | Pool, operators: Rules, repository: Repository) -> Rules:
    """Return the rules as the node that fetched the repository last knew them; nothing is asked of git."""
    known = await stored(database, repository)
    return within(operators, stored_config(known.config))[0]


async def stored(database: Connection | Pool, repository: Repository) -> StoredConfig:
    """Return what the row of the repository has."""
    return await config_of(database, repository) or StoredConfig()


def before(known: StoredConfig) -> Config | None:
    """Return what a row has of the repository's file; None where it never had one."""
    return None if known.config_blob is None else stored_config(known.config)


async def config_in(clone: Clone, branch: str) -> tuple[str | None, Found]:
    """Return git's name of the file on the remote's branch, as it was fetched last, and what it says.

    None, and a file without a key, if there is none. Raises GitError.
    """
    blob = await clone.object_at(f"{refs.remote(branch)}:{CONFIG_PATH}")
    text = None if blob is None else await clone.file_at(branch, CONFIG_PATH, MAX_CONFIG_BYTES)
    if text is None:
        return None, Found(Config())
    if text == "irregular":
        return blob, Found(problems=(words.unreadable(words.irregular(MAX_CONFIG_BYTES)),))
    # The worst file takes the parser half a second.
    return blob, await asyncio.to_thread(read_config, text)
