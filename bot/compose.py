"""The composition root: settings in, a running web process, worker or both. Nothing else builds the object graph."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto

import httpx
import structlog
import uvicorn
from starlette.applications import Starlette

from bot.agents.driver import Limits
from bot.agents.presets import NotInstalled, command_of, preset
from bot.authority import Policy
from bot.decide.decider import Decider
from bot.git import runner as git_runner
from bot.git.credential_server import credential_server
from bot.github.answers import Identity
from bot.github.auth import AppCredentials, Credentials, TokenCredentials
from bot.github.client import GitHub
from bot.github.errors import Transient, Unauthenticated
from bot.handlers.context import NodePaths
from bot.health import database_probe, health_routes
from bot.node.context import NodeContext
from bot.node.process_lock import worker_lock
from bot.postgres.embedded import embedded_postgres
from bot.receive.endpoint import Receiver
from bot.receive.inbox import Inbox
from bot.reply.outbox import Sender
from bot.run.context import TurnContext
from bot.run.runner import Runner
from bot.sandbox.cage import Cage, Unusable, cage_for
from bot.settings import Settings, known_secrets
from bot.store import bells, upkeep
from bot.store.database import Pool, database
from bot.store.engine import Handlers, engine, run_pool
from bot.store.migrate import Current, schema_state
from bot.worker import Housekeeper, OutboxRounds, listen_for_stops, open_engine

WEB_CONNECTIONS = 6
WORKER_CONNECTIONS = 16
COMMAND_CONNECTIONS = 4
DECIDE_AT_ONCE = 8
LANES_AT_ONCE = 8
GITHUB_TIMEOUT = httpx.Timeout(30.0, connect=10.0)

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]
_log = structlog.get_logger()


class Role(Enum):
    """What a process does."""

    WEB = auto()
    WORKER = auto()


class CannotStartError(Exception):
    """The process cannot start as it is set up; the message names the next step."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a test moves by hand."""

    clock: Clock = lambda: datetime.now(UTC)
    sleep: Sleep = asyncio.sleep


@asynccontextmanager
async def database_url(settings: Settings) -> AsyncIterator[str]:
    """The address of the database: the one that is set, or the embedded Postgres, started if nobody uses it yet."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    async with embedded_postgres(settings.with_data_dir().data_dir / "postgres", settings.postgres_bin_dir) as dsn:
        yield dsn


async def run(
    settings: Settings,
    dsn: str,
    roles: frozenset[Role],
    stopping: asyncio.Event,
    *,
    surroundings: Surroundings | None = None,
    on_listening: Callable[[str], None] = lambda _: None,
) -> None:
    """Runs until `stopping` is set. Raises CannotStartError for what only the operator can mend."""
    around = surroundings or Surroundings()
    async with AsyncExitStack() as stack:
        connections = WEB_CONNECTIONS + (WORKER_CONNECTIONS if Role.WORKER in roles else 0)
        pool = await stack.enter_async_context(database(dsn, size=connections))
        await _require_current_schema(pool)
        worker = None
        if Role.WORKER in roles:
            worker = await stack.enter_async_context(_worker(settings, dsn, pool, stopping, around))
        async with asyncio.TaskGroup() as group:
            if worker is not None:
                worker(group)
            if Role.WEB in roles:
                group.create_task(_web(settings, pool, stopping, on_listening), name="web")


@asynccontextmanager
async def node_context(
    settings: Settings, dsn: str, surroundings: Surroundings | None = None
) -> AsyncIterator[NodeContext]:
    """What work on this node's worktrees takes, without agents; git and GitHub are asked with the credentials that are
    set, or without any. Raises CannotStartError.
    """
    around = surroundings or Surroundings()
    settings.with_data_dir()
    cage = await _cage(settings)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(database(dsn, size=COMMAND_CONNECTIONS))
        await _require_current_schema(pool)
        github = None
        if settings.github_token is not None or settings.github_app_id is not None:
            github = await stack.enter_async_context(_github(settings, around))
        yield NodeContext(
            pool=pool,
            git=await stack.enter_async_context(_git(settings, pool, github, cage)),
            node=settings.node_name,
            data_dir=settings.data_dir,
            server_url=settings.github_server_url,
            clock=around.clock,
            github=github,
        )


async def _require_current_schema(pool: Pool) -> None:
    async with pool.acquire() as connection:
        state = await schema_state(connection)
    if not isinstance(state, Current):
        raise CannotStartError(
            f"The database's schema does not fit this version ({type(state).__name__.lower()}); "
            "run `threadtree migrate`."
        )


class _Server(uvicorn.Server):
    """Leaves signals to the process, which has more than a server to stop."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def _bound(settings: Settings) -> socket.socket:
    """The socket to listen on: uvicorn would end the process at once where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise CannotStartError(
            f"HOST {settings.host} and PORT {settings.port} cannot be listened on ({error.strerror}); "
            "choose others, or end what listens there."
        ) from error
    # asyncio sets this only on sockets it made itself; without it every answer waits for the peer's delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def _web(settings: Settings, pool: Pool, stopping: asyncio.Event, on_listening: Callable[[str], None]) -> None:
    async with Inbox(pool) as inbox:
        receiver = Receiver(inbox, settings.webhook_secrets, settings.platform)
        app = Starlette(routes=[receiver.route(), *health_routes(database_probe(pool))])
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=10,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve([_bound(settings)]))
        stop = asyncio.create_task(stopping.wait())
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            if server.started:
                host, port = server.servers[0].sockets[0].getsockname()[:2]
                on_listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            server.should_exit = True
            await serving


@asynccontextmanager
async def _worker(
    settings: Settings, dsn: str, pool: Pool, stopping: asyncio.Event, around: Surroundings
) -> AsyncIterator[Callable[[asyncio.TaskGroup], None]]:
    """Everything a worker needs, opened; yields what starts its tasks."""
    settings.with_data_dir()
    secrets = known_secrets(settings)
    # First what can be told without asking anybody.
    agent_command, cage = _agent_command(settings), await _cage(settings)
    async with AsyncExitStack() as stack:
        github = await stack.enter_async_context(_github(settings, around))
        me = await _identity(github, settings, stopping)
        policy = _policy(settings, me)
        name = stack.enter_context(worker_lock(settings.data_dir / "workers"))
        ctx = TurnContext(
            pool=pool,
            github=github,
            git=await stack.enter_async_context(_git(settings, pool, github, cage)),
            node=settings.node_name,
            data_dir=settings.data_dir,
            server_url=settings.github_server_url,
            policy=policy,
            author=git_runner.Identity(me.login, f"{me.id}+{me.login}@users.noreply.{settings.platform.split(':')[0]}"),
            agent=settings.agent,
            agent_command=agent_command,
            agent_variables={key: value.get_secret_value() for key, value in settings.agent_env.items()},
            search_path=settings.path,
            lang=settings.lang,
            network=settings.agent_network,
            allow_workflow_changes=settings.allow_workflow_changes,
            limits=Limits(settings.turn_timeout_seconds, settings.turn_idle_timeout_seconds),
            secrets=secrets,
            clock=around.clock,
            setup_script=settings.setup_script,
            purge_on_success=settings.worktree_purge_on_success,
            session_ttl_seconds=settings.session_ttl_seconds,
        )
        runner = Runner(ctx, name, settings.max_concurrent_turns, settings.max_turns_per_repository)
        paths = NodePaths(settings.node_name, str(settings.data_dir / "worktrees"))
        decider = Decider(pool, github, settings.platform, policy, paths, around.clock, around.sleep)
        rounds = OutboxRounds(Sender(pool, github, secrets, around.clock, around.sleep), around.clock, around.sleep)

        async def ring() -> None:
            runner.ring()

        app = engine(dsn, Handlers(decider.decide, rounds.go, ring))
        await stack.enter_async_context(open_engine(app))
        async with pool.acquire() as connection:
            await upkeep.heartbeat(connection, settings.node_name)
        keeper = Housekeeper(ctx, app, runner, settings)

        turns_ended = asyncio.Event()

        async def run_turns() -> None:
            await runner.serve(stopping, settings.shutdown_grace_seconds)
            turns_ended.set()

        def start(group: asyncio.TaskGroup) -> None:
            group.create_task(run_pool(app, "decide", DECIDE_AT_ONCE, stopping), name="decide")
            group.create_task(run_pool(app, bells.turns_queue(settings.node_name), 1, stopping), name="doorbell")
            group.create_task(run_turns(), name="turns")
            # What turns still need in the grace they are given.
            group.create_task(run_pool(app, "outbox", LANES_AT_ONCE, turns_ended, empty_at_end=True), name="outbox")
            group.create_task(keeper.keep(turns_ended), name="housekeeping")
            group.create_task(listen_for_stops(dsn, runner.stop_asked, turns_ended), name="stops")

        yield start


@asynccontextmanager
async def _github(settings: Settings, around: Surroundings) -> AsyncIterator[GitHub]:
    async with httpx.AsyncClient(timeout=GITHUB_TIMEOUT) as http:
        yield GitHub(
            api_url=settings.github_api_url,
            graphql_url=settings.github_graphql_url,
            credentials=_credentials(settings),
            http=http,
            clock=around.clock,
            sleep=around.sleep,
        )


@asynccontextmanager
async def _git(
    settings: Settings, pool: Pool, github: GitHub | None, cage: Cage | None
) -> AsyncIterator[git_runner.Git]:
    """git, with the bot's credentials for GitHub where it has any."""
    if github is None:
        yield git_runner.Git(search_path=settings.path, cage=cage)
        return
    tokens = _token_source(settings, pool, github)
    async with credential_server(settings.data_dir, settings.github_server_url, tokens) as helper:
        yield git_runner.Git(helper.git_config, search_path=settings.path, cage=cage)


async def _cage(settings: Settings) -> Cage | None:
    """The agents' cage, tried out: where AGENT_SANDBOX asks for one and there can be none, nothing starts."""
    cage = cage_for(settings.agent_sandbox, settings.data_dir, settings.path)
    if cage is None:
        _log.warning("agents-run-without-a-sandbox", setting="AGENT_SANDBOX=off")
        return None
    found = await asyncio.to_thread(cage.probe)
    if isinstance(found, Unusable):
        raise CannotStartError(f"AGENT_SANDBOX={settings.agent_sandbox}: {found.why} {found.what_to_do}")
    _log.info("sandbox", version=found.version, processes=found.processes, memory=found.memory)
    return cage


def _agent_command(settings: Settings) -> tuple[str, ...]:
    chosen = preset(settings.agent)
    if chosen is None:
        return settings.agent_command
    found = command_of(chosen, settings.path)
    if isinstance(found, NotInstalled):
        raise CannotStartError(f"AGENT={settings.agent}: {found.reason} {found.next_step}")
    return found


def _credentials(settings: Settings) -> Credentials:
    if settings.github_token is not None:
        return TokenCredentials(settings.github_token.get_secret_value())
    if settings.github_app_id is None or settings.github_private_key is None:
        raise CannotStartError("GITHUB_TOKEN is not set; set it, or GITHUB_APP_ID and GITHUB_PRIVATE_KEY_PATH.")
    return AppCredentials(str(settings.github_app_id), settings.github_private_key.get_secret_value())


async def _identity(github: GitHub, settings: Settings, stopping: asyncio.Event) -> Identity:
    """Who the bot is. GitHub away: asked again until it answers, since without it nothing can be decided."""
    while True:
        try:
            return await github.identity()
        except Unauthenticated as problem:
            names = "GITHUB_TOKEN is" if settings.github_token else "GITHUB_APP_ID and the App's private key are"
            raise CannotStartError(f"{names} not accepted by GitHub ({problem}); correct it.") from problem
        except Transient as problem:
            _log.warning("github-away", problem=str(problem))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), timeout=problem.retry_after_seconds or 5)
            if stopping.is_set():
                raise CannotStartError("Stopped before GitHub answered.") from problem


def _policy(settings: Settings, me: Identity) -> Policy:
    return Policy(
        bot_id=me.id,
        bot_login=me.login,
        bot_name=settings.bot_name or me.mention,
        label=settings.bot_label,
        allowed_repositories=settings.allowed_repos,
        allowed_users=settings.allowed_users,
        allowed_bots=settings.allowed_bots,
        turns_per_person_per_day=settings.max_turns_per_person_per_day,
    )


def _token_source(settings: Settings, pool: Pool, github: GitHub) -> Callable[[str], Awaitable[str]]:
    async def token_for(full_name: str) -> str:
        async with pool.acquire() as connection:
            repository = await upkeep.codebase_named(connection, settings.platform, full_name)
        if repository is None:
            raise LookupError(f"{full_name} is not a repository of this bot")
        return await github.git_token(repository)

    return token_for
