"""The parts that a worker and a command on this node's worktrees share: GitHub, git, the sandbox."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import inf
from typing import TypeVar

import httpx
import structlog

from bot.agents.presets import NotInstalled, command_of, preset
from bot.care import upkeep_rows as upkeep
from bot.care.on_request import work_on_node
from bot.care.removing import remove_decided
from bot.care.retention_rules import Policies
from bot.github.auth import AppCredentials, Credentials, TokenCredentials
from bot.github.client import GitHub
from bot.github.errors import NotFound, Refused
from bot.node.context import NodeContext
from bot.node.identity import identify
from bot.node.launching import Launcher
from bot.node.node_rows import NodeSelf
from bot.node.transactions import persist
from bot.redaction import Redactor
from bot.rules import SETTINGS, Rules
from bot.sandbox.bwrap import NoSandbox, Sandbox, Unusable, sandbox_for
from bot.sandbox.net.egress import Outside
from bot.sandbox.outbound import Outbound
from bot.serve.base import CannotStartError, redactor_of, require_current_schema
from bot.serve.clock import DatabaseClock, set_clock
from bot.settings import Settings
from bot.store.database import Pool, database
from bot.store.jobs import queue_of
from bot.tree import Git, authorise, credential_server, move_in

COMMAND_CONNECTIONS, COMMAND_PATIENCE_SECONDS = 4, 30.0
GITHUB_TIMEOUT = httpx.Timeout(30.0, connect=10.0)

G = TypeVar("G", bound=GitHub)
Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The clock and the sleep, which tests replace. The clock is the database's, once that was asked."""

    clock: Clock = field(default_factory=DatabaseClock)
    sleep: Sleep = asyncio.sleep


@asynccontextmanager
async def node_context(settings: Settings, dsn: str) -> AsyncIterator[NodeContext]:
    """Yield the context of a command on this node's worktrees. Without credentials, requests are anonymous.

    Raises CannotStartError, NodeInUseError.
    """
    around, redactor = Surroundings(), redactor_of(settings)
    async with AsyncExitStack() as stack:
        github = None
        if settings.github_token is not None or settings.github_app_id is not None:
            github = await stack.enter_async_context(open_client(GitHub, settings, around, redactor))
        opening = open_node(settings, dsn, redactor, around, github, COMMAND_CONNECTIONS)
        ctx, _ = await stack.enter_async_context(opening)
        await move_in(ctx.data_dir, ctx.git)
        yield ctx


@asynccontextmanager
async def open_node(
    settings: Settings,
    dsn: str,
    redactor: Redactor,
    around: Surroundings,
    github: GitHub | None,
    connections: int,
    *,
    for_turns: bool = False,
) -> AsyncIterator[tuple[NodeContext, NodeSelf]]:
    """Yield the context of this node's worktrees, and the node; `for_turns` the agents must be there, and the database
    is waited for.

    Raises CannotStartError.
    """
    async with AsyncExitStack() as stack:
        patience = inf if for_turns else COMMAND_PATIENCE_SECONDS
        opening = database(dsn, size=connections, patience_seconds=patience, redactor=redactor)
        pool = await stack.enter_async_context(opening)
        await persist(pool, require_current_schema)
        await persist(pool, set_clock, around.clock)
        settings.with_data_dir()
        launcher, sandbox = launcher_of(settings, optional=not for_turns), await open_sandbox(settings)
        node = await identify(pool, settings.data_dir, settings.node_name)
        ctx = NodeContext(
            pool=pool,
            git=await stack.enter_async_context(open_git(settings, pool, github, sandbox)),
            node=node.id,
            dsn=dsn,
            data_dir=settings.data_dir,
            server_url=settings.github_server_url,
            public_url=settings.public_url,
            clock=around.clock,
            sleep=around.sleep,
            github=github,
            redactor=redactor,
            launcher=launcher,
            disk_reserve_bytes=settings.disk_reserve_bytes,
            rules=rules_of(settings),
            setup_seconds=settings.turn_timeout_seconds,
            check_seconds=settings.check_timeout_seconds,
            purge_on_success=settings.worktree_purge_on_success,
        )
        yield ctx, node


@asynccontextmanager
async def jobs_of_node(ctx: NodeContext, policy_at: Policies) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Yield what does the jobs of the node, for a command while no worker runs."""
    # Imported here: other commands need not wait for the engine.
    from bot.store.engine import Handlers, engine, run_until_empty

    handlers = Handlers(partial(remove_decided, ctx), node=partial(work_on_node, ctx, policy_at))
    async with engine(ctx.dsn, handlers).open_async() as app:
        yield partial(run_until_empty, app, queue_of(ctx.node))


def launcher_of(settings: Settings, *, optional: bool = False) -> Launcher:
    """Return what starts programs in worktrees. Raises CannotStartError where one of AGENT is missing, unless that is
    `optional`.
    """
    agents: dict[str, tuple[str, ...]] = {}
    for agent in settings.agent:
        chosen = preset(agent)
        found = settings.agent_command if chosen is None else command_of(chosen, settings.path)
        if not isinstance(found, NotInstalled):
            agents[agent] = found
        elif not optional:
            raise CannotStartError(f"AGENT={agent}: {found.reason} {found.next_step}")
    outside = Outside(outbound_of(settings), settings.allowed_hosts)
    return Launcher(settings.agent_network, settings.path, settings.lang, agents, outside, settings.mcp_config)


def rules_of(settings: Settings) -> Rules:
    """Return the rules of a repository that chose nothing."""
    decided = frozenset(rule for rule, name in SETTINGS.items() if name in settings.model_fields_set)
    decided |= frozenset({"network"} if settings.agent_network == "none" else ())
    chosen = {rule: getattr(settings, name) for rule, name in SETTINGS.items()}
    return Rules(agents=settings.agent, agent=settings.agent[0], model=settings.agent_model, decided=decided, **chosen)


def outbound_of(settings: Settings) -> Outbound:
    """Return the way to other hosts, for programs too. DATA_DIR must be there. Raises CannotStartError."""
    try:
        return Outbound(*settings.outbound).with_bundle(settings.data_dir)
    except OSError as error:
        raise CannotStartError(
            f"SSL_CERT_FILE cannot be copied into DATA_DIR ({error.strerror}); correct it."
        ) from error


async def open_sandbox(settings: Settings) -> Sandbox:
    """Return the agents' sandbox after a test run. Raises CannotStartError."""
    sandbox = sandbox_for(settings.agent_sandbox, settings.data_dir, settings.path)
    if isinstance(sandbox, NoSandbox):
        return sandbox
    found = await asyncio.to_thread(sandbox.probe)
    if isinstance(found, Unusable):
        raise CannotStartError(f"AGENT_SANDBOX={settings.agent_sandbox}: {found.why} {found.what_to_do}")
    enforced = sandbox.enforcement
    _log.info("sandbox-usable", version=found, processes=enforced.processes, memory=enforced.memory)
    return sandbox


@asynccontextmanager
async def open_client(
    kind: type[G],
    settings: Settings,
    around: Surroundings,
    redactor: Redactor,
    credentials: Credentials | None = None,
) -> AsyncIterator[G]:
    """Yield a client of GitHub of this kind, by default with the bot's credentials; the redactor learns the tokens that
    it gets. Raises CannotStartError if none are set.
    """
    async with Outbound(*settings.outbound).client(GITHUB_TIMEOUT) as http:
        yield kind(
            api_url=settings.github_api_url,
            graphql_url=settings.github_graphql_url,
            credentials=credentials or _credentials(settings),
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
async def open_git(settings: Settings, pool: Pool, github: GitHub | None, sandbox: Sandbox) -> AsyncIterator[Git]:
    """Yield git, with the bot's credentials for GitHub if there are any."""
    outbound = outbound_of(settings).for_git()
    has_lfs = shutil.which("git-lfs", path=settings.path) is not None
    if github is None:
        yield Git(search_path=settings.path, sandbox=sandbox, lfs=has_lfs, outbound=outbound)
        return

    async def token_for(full_name: str) -> str:
        owner, _, name = full_name.partition("/")
        try:
            # A submodule's is mostly no repository that the bot works on.
            known = await upkeep.codebase_named(pool, settings.platform, full_name)
            return await github.git_token(known or await github.repository(settings.platform, owner, name))
        except (NotFound, Refused) as refusal:
            raise LookupError(str(refusal)) from refusal

    server_url = settings.github_server_url
    async with credential_server(settings.data_dir, server_url, token_for, github.reject_token) as helper:
        shown = partial(authorise, server_url, token_for)
        yield Git(
            helper,
            search_path=settings.path,
            sandbox=sandbox,
            wait_for_new=github.wait_for_new,
            authorise=shown,
            lfs=has_lfs,
            outbound=outbound,
        )
