"""The checks of the bot's database and of the agents' models."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal
from urllib.parse import urlsplit

import asyncpg
import httpx

from bot.agents.presets import ANTHROPIC, ANTHROPIC_TOKEN, BEDROCK, GEMINI, SUBSCRIPTION, ModelApi, preset
from bot.inbox.recover import MOST_REPOSITORIES
from bot.inbox.recovery_rows import active_repositories
from bot.model import Repository
from bot.node.node_rows import OF_A_MACHINE, connections
from bot.node.repository_rules import config_problems
from bot.operator.api import listings
from bot.postgres.embedded import OLDEST_MAJOR_VERSION, find_binaries
from bot.postgres.files import EmbeddedPostgresError, Files
from bot.postgres.supervisor import name_for_initdb
from bot.rules import CONFIG_PATH
from bot.sandbox.outbound import Outbound, why_unreachable
from bot.settings import Settings
from bot.store.database import DATABASE_AWAY
from bot.store.migrate import MigrationError, load_migrations, missing_migrations
from bot.store.scope import EVERYTHING
from bot.thread.formatting import plain

DATABASE_SECONDS: Final = 10.0
_WITHOUT_LIST = (BEDROCK, SUBSCRIPTION)
"""What has no list of models, or shows it to no such key."""
State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """A `problem` is what the bot cannot work with as it is set up; `next_step` says what to do."""

    check: str
    state: State
    found: str
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the database tells: the repositories that were asked something within 30 days, the full names, in lower
    case, of those and of the named ones of which something was ever received, and whether anything was.
    """

    active: Sequence[Repository] = ()
    heard: frozenset[str] = frozenset()
    anything: bool = False


async def database_checks(
    settings: Settings, opened: AbstractAsyncContextManager[str]
) -> tuple[list[Check], Known | None]:
    """Return whether the database can be used, what is wrong in the rules of repositories, and what it tells of those.

    None where it tells nothing. An embedded one that was not made yet is not made now.
    """
    try:
        return await _database(settings, opened)
    except (EmbeddedPostgresError, MigrationError) as problem:
        found, step = str(problem), None
    except (TimeoutError, ValueError, asyncpg.PostgresError, *DATABASE_AWAY) as problem:
        embedded = settings.database_url is None
        which = "the embedded Postgres" if embedded else "DATABASE_URL"
        found = f"{which} cannot be used: {str(problem) or type(problem).__name__}"
        step = "Check DATA_DIR." if embedded else "Correct it, or start that Postgres."
    return [Check("database", "problem", found, step)], None


async def _database(settings: Settings, opened: AbstractAsyncContextManager[str]) -> tuple[list[Check], Known | None]:
    files = Files(settings.data_dir / "postgres")
    if settings.database_url is None and not files.data.exists():
        programs = await asyncio.to_thread(find_binaries, settings.postgres_bin_dir, files)
        await asyncio.to_thread(name_for_initdb)
        return [Check("database", "ok", f"made at the start, by the Postgres in {programs}")], Known()
    async with opened as dsn, asyncio.timeout(DATABASE_SECONDS):
        connection = await asyncpg.connect(dsn)
        try:
            version = connection.get_server_version().major
            found = f"Postgres {version} answers"
            if version < OLDEST_MAJOR_VERSION:
                step = f"Use Postgres {OLDEST_MAJOR_VERSION} or later."
                return [Check("database", "problem", f"{found}, which is too old", step)], None
            if missing := await missing_migrations(connection):
                if missing == [one.name for one in await asyncio.to_thread(load_migrations)]:
                    return [Check("database", "ok", f"{found}; it is empty: `threadtree serve` fills it")], Known()
                found = f"{found}; its schema is of an older version and lacks {', '.join(missing)}"
                step = "Run `threadtree migrate`: `threadtree web` and `worker` do not start before."
                return [Check("database", "problem", found, step)], None
            rules = [_rules_check(*wrong) for wrong in await config_problems(connection)]
            checks = [connections_check(found, *await connections(connection)), *rules]
            return checks, await _known(settings, connection)
        finally:
            await connection.close()


async def _known(settings: Settings, connection: asyncpg.Connection) -> Known:
    received = partial(listings.newest, connection, "deliveries", 1, scope=EVERYTHING)
    active = await active_repositories(connection, settings.platform, datetime.now(UTC), MOST_REPOSITORIES)
    named = [name for name in settings.named_repos if await received(repository=name)]
    heard = frozenset(name.lower() for name in (*named, *(one.full_name for one in active)))
    return Known(active, heard, bool(await received()))


def connections_check(found: str, most: int, machines: int) -> Check:
    """Return whether all machines can connect at once: where none is free, what they do waits."""
    needed = machines * OF_A_MACHINE
    if most >= needed:
        return Check("database", "ok", found)
    found = f"{found}; it gives {most} connections, and {machines} machines need up to {needed}"
    return Check("database", "warning", found, f"Set Postgres' max_connections to {needed + 10} or more.")


def _rules_check(full_name: str, problems: str) -> Check:
    """Return a warning: what is wrong in a repository's file is for its own people to correct."""
    found = f"{CONFIG_PATH}: {' '.join(map(plain, problems.splitlines()))}"
    step = f"`threadtree config show {full_name}` tells what holds. A request reads the file when it starts."
    return Check(f"rules of {full_name}", "warning", found, step)


async def model_checks(settings: Settings, http: httpx.AsyncClient) -> list[Check]:
    """Ask each API whose key the agents use for its list of models, which costs nothing."""
    found: dict[str, tuple[ModelApi, Mapping[str, str]]] = {}
    for agent in settings.agent:
        handed = settings.variables_for(agent)
        if (chosen := preset(agent)) is not None:
            found |= {api.key: (api, handed) for api in chosen.apis if api.key in handed}
    return [await _model_check(settings, api, handed, http) for api, handed in found.values()]


async def _model_check(settings: Settings, api: ModelApi, handed: Mapping[str, str], http: httpx.AsyncClient) -> Check:
    key, base_url, name = handed[api.key], api.address(handed), f"model of {api.key}"
    if api in _WITHOUT_LIST:
        found = "the key was not tried: nothing that costs nothing can be asked with it"
        return Check(name, "warning", found, "The first request to the agent shows whether it is accepted.")
    headers = {
        # https://docs.anthropic.com/en/api/models-list, https://ai.google.dev/api/models, https://platform.openai.com/docs/api-reference/models
        ANTHROPIC: {"x-api-key": key, "anthropic-version": "2023-06-01"},
        ANTHROPIC_TOKEN: {"authorization": f"Bearer {key}", "anthropic-version": "2023-06-01"},
        GEMINI: {"x-goog-api-key": key},
    }.get(api, {"authorization": f"Bearer {key}"})
    try:
        answer = await http.get(f"{base_url}/v1/models", headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as problem:
        why, step = why_unreachable(problem, base_url)
        found = f"{base_url} does not answer{way(settings, base_url)}: {why}"
        return Check(name, "problem", found, step or f"Correct {api.base_url}, or the network.")
    if answer.status_code in {401, 403}:
        return Check(
            name, "problem", f"{base_url} does not accept the key ({answer.status_code})", f"Correct {api.key}."
        )
    if not answer.is_success:
        return Check(name, "warning", f"{base_url} answers {answer.status_code} to the question for its models")
    return Check(name, "ok", f"{base_url} accepts the key{way(settings, base_url)}")


def way(settings: Settings, address: str) -> str:
    """Return words for the way to an address, where that is not the direct one."""
    url = urlsplit(address)
    proxy = Outbound(*settings.outbound).proxy_for(url.hostname or "", url.port or 443)
    return f" through the proxy {proxy.hostname}:{proxy.port}" if proxy and url.scheme == "https" else ""
