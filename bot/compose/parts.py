"""The parts that a worker and a command on this node's worktrees share: GitHub, git, the sandbox."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import httpx
import structlog

from bot.compose.base import CannotStartError, redactor_of, require_current_schema
from bot.git.credential_server import credential_server
from bot.git.runner import Git
from bot.github.auth import AppCredentials, Credentials, TokenCredentials
from bot.github.client import GitHub
from bot.github.errors import NotFound, Refused
from bot.node.context import NodeContext
from bot.node.identity import identify
from bot.node.move_in import move_in
from bot.node.transactions import persist
from bot.operations.execute import work_in
from bot.redaction import Redactor
from bot.sandbox.cage import NoCage, Sandbox, Unusable, sandbox_for
from bot.settings import Settings
from bot.store import upkeep
from bot.store.database import Pool, database
from bot.store.doorbell import queue_of

COMMAND_CONNECTIONS = 4
GITHUB_TIMEOUT = httpx.Timeout(30.0, connect=10.0)

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The clock and the sleep, which tests replace."""

    clock: Clock = lambda: datetime.now(UTC)
    sleep: Sleep = asyncio.sleep


@asynccontextmanager
async def node_context(settings: Settings, dsn: str) -> AsyncIterator[NodeContext]:
    """Yield the context of a command on this node's worktrees. Without credentials, requests are anonymous.

    Raises CannotStartError, NodeInUseError.
    """
    around, redactor = Surroundings(), redactor_of(settings)
    settings.with_data_dir()
    cage = await open_cage(settings)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(database(dsn, size=COMMAND_CONNECTIONS, redactor=redactor))
        await persist(pool, require_current_schema)
        identified = await identify(pool, settings.data_dir, settings.node_name)
        github = None
        if settings.github_token is not None or settings.github_app_id is not None:
            github = await stack.enter_async_context(open_github(settings, around, redactor))
        ctx = NodeContext(
            pool=pool,
            git=await stack.enter_async_context(open_git(settings, pool, github, cage)),
            node=identified.node.id,
            dsn=dsn,
            data_dir=settings.data_dir,
            server_url=settings.github_server_url,
            clock=around.clock,
            sleep=around.sleep,
            github=github,
            redactor=redactor,
            disk_reserve_bytes=settings.disk_reserve_bytes,
        )
        await move_in(ctx, identified.was_at)
        yield ctx


@asynccontextmanager
async def jobs_of_node(ctx: NodeContext) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Yield what does the waiting removals and operations of the node, for a command while no worker runs."""
    # Imported here: other commands need not wait for the engine.
    from bot.store.engine import Handlers, engine, run_until_empty

    async with engine(ctx.dsn, Handlers(partial(work_in, ctx))).open_async() as app:
        yield partial(run_until_empty, app, queue_of(ctx.node))


async def open_cage(settings: Settings) -> Sandbox:
    """Return the agents' sandbox after a test run. Raises CannotStartError."""
    cage = sandbox_for(settings.agent_sandbox, settings.data_dir, settings.path)
    if isinstance(cage, NoCage):
        return cage
    found = await asyncio.to_thread(cage.probe)
    if isinstance(found, Unusable):
        raise CannotStartError(f"AGENT_SANDBOX={settings.agent_sandbox}: {found.why} {found.what_to_do}")
    enforced = cage.enforcement
    _log.info("sandbox-usable", version=found.version, processes=enforced.processes, memory=enforced.memory)
    return cage


@asynccontextmanager
async def open_github(settings: Settings, around: Surroundings, redactor: Redactor) -> AsyncIterator[GitHub]:
    """Yield a client of GitHub with the bot's credentials; the redactor learns the tokens that it gets.

    Raises CannotStartError if no credentials are set.
    """
    async with httpx.AsyncClient(timeout=GITHUB_TIMEOUT) as http:
        yield GitHub(
            api_url=settings.github_api_url,
            graphql_url=settings.github_graphql_url,
            credentials=_credentials(settings),
            http=http,
            clock=around.clock,
            sleep=around.sleep,
            on_new_token=redactor.learn,
        )


def _credentials(settings: Settings) -> Credentials:
    if settings.github_token is not None:
        return TokenCredentials(settings.github_token.get_secret_value())
    if settings.github_app_id is None or settings.github_private_key is None:
        raise CannotStartError("GITHUB_TOKEN is not set; set it, or GITHUB_APP_ID and GITHUB_PRIVATE_KEY_PATH.")
    return AppCredentials(str(settings.github_app_id), settings.github_private_key.get_secret_value())


@asynccontextmanager
async def open_git(settings: Settings, pool: Pool, github: GitHub | None, cage: Sandbox) -> AsyncIterator[Git]:
    """Yield git, with the bot's credentials for GitHub if there are any."""
    if github is None:
        yield Git(search_path=settings.path, cage=cage)
        return

    async def token_for(full_name: str) -> str:
        async with pool.acquire() as connection:
            repository = await upkeep.codebase_named(connection, settings.platform, full_name)
        if repository is None:
            raise LookupError(f"{full_name} is not a repository of this bot")
        try:
            return await github.git_token(repository)
        except (NotFound, Refused) as refusal:
            raise LookupError(str(refusal)) from refusal

    async with credential_server(
        settings.data_dir, settings.github_server_url, token_for, github.reject_token
    ) as helper:
        yield Git(helper, search_path=settings.path, cage=cage)
