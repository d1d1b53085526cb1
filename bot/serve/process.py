"""The worker: it decides, runs turns and answers. The demo runs the web part in the same process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import structlog

from bot.agents.opening import load_library
from bot.care.on_request import work_on_node
from bot.care.removing import remove_decided
from bot.github.answers import BotIdentity
from bot.github.client import GitHub
from bot.github.errors import GitHubError, Transient, Unauthenticated
from bot.inbox.decider import Decider
from bot.locks import worker_lock
from bot.node import variables
from bot.node.identity import registered
from bot.node.node_rows import NodeSelf
from bot.node.transactions import persist
from bot.redaction import Redactor
from bot.sandbox.outbound import Outbound
from bot.serve.base import CannotStartError, redactor_of
from bot.serve.parts import Surroundings, open_client, open_node
from bot.serve.turns import turn_context
from bot.serve.web import run_web
from bot.serve.worker import Housekeeping, defer_chores, do_job, keep_alive, listen, open_engine, send_due
from bot.settings import Settings
from bot.store import deliveries
from bot.store.engine import Handlers, chores_of, engine, run_pool
from bot.store.jobs import queue_of
from bot.tasks import unless_stopped
from bot.thread.outbox import Sender
from bot.tree import move_in
from bot.turn import notify
from bot.turn.context import TurnContext
from bot.turn.request import Nodes
from bot.turn.runner import Runner

CONNECTIONS = 9
"""To Postgres, beside the engine's and the one that hears doorbells: a place for each writer, and five for the rest."""
DECIDE_AT_ONCE = 8
WRITERS_AT_ONCE = 4
"""Each holds a connection while GitHub answers."""
WORKTREES_AT_ONCE = 6
"""Decided removals, beside the turns."""
_log = structlog.get_logger()


async def run_both(
    settings: Settings, dsn: str, stopping: asyncio.Event, around: Surroundings, on_listening: Callable[[str], None]
) -> None:
    """Run web and worker in this process until `stopping` is set, for the demo. Raises CannotStartError."""
    redactor = redactor_of(settings)
    try:
        async with asyncio.TaskGroup() as group:
            web = run_web(settings, dsn, redactor, on_listening)
            group.create_task(unless_stopped(stopping, web), name="web")
            group.create_task(run_worker(settings, dsn, redactor, stopping, around), name="worker")
    except BaseExceptionGroup as problems:
        for problem in problems.exceptions:
            if isinstance(problem, CannotStartError):
                raise problem from problems
        raise


async def run_worker(
    settings: Settings, dsn: str, redactor: Redactor, stopping: asyncio.Event, around: Surroundings
) -> None:
    """Run a worker until `stopping` is set, at any moment of its start too. What needs no network is checked first.

    Raises CannotStartError; NodeInUseError, also later.
    """
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(_opened(settings, dsn, redactor, around))
        if (opened := await unless_stopped(stopping, opening)) is not None:
            await _run_loops(*opened, settings, stopping)


@asynccontextmanager
async def _opened(
    settings: Settings, dsn: str, redactor: Redactor, around: Surroundings
) -> AsyncIterator[tuple[TurnContext, NodeSelf, Runner]]:
    """Yield what a worker needs before its loops begin."""
    async with AsyncExitStack() as stack:
        github = await stack.enter_async_context(open_client(GitHub, settings, around, redactor))
        opening = open_node(settings, dsn, redactor, around, github, CONNECTIONS, for_turns=True)
        on_node, node = await stack.enter_async_context(opening)
        if not on_node.git.sandbox.isolates:
            _log.warning("agents-run-without-a-sandbox", setting="AGENT_SANDBOX=off")
        if settings.poll_interval_seconds is not None:
            _log.info("polling", every_seconds=settings.poll_interval_seconds)
        me = await _identity(github, settings)
        ctx = turn_context(on_node, settings, github, me)
        await stack.enter_async_context(registered(ctx.pool, node, settings.node_timeout_seconds, around.sleep))
        await move_in(ctx.data_dir, ctx.git)
        worker_name = stack.enter_context(worker_lock(settings.data_dir / "workers"))
        runner = Runner(ctx, worker_name, settings.max_concurrent_turns, settings.max_turns_per_repository)
        # Before the first decision: what does not mention a known name is not decided on.
        for name in (ctx.policy.bot_name, ctx.policy.bot_login.removesuffix("[bot]")):
            await persist(ctx.pool, deliveries.add_name, name)
        # While it is imported, everything else in this process waits: a burst of comments at the first turn as well.
        for agent in settings.agent:
            await asyncio.to_thread(load_library, agent)
        yield ctx, node, runner


async def _run_loops(
    ctx: TurnContext, node: NodeSelf, runner: Runner, settings: Settings, stopping: asyncio.Event
) -> None:
    """Run the job queues, the turns and the housekeeping. The outbox, housekeeping and stop requests go on until the
    turns have ended: turns need them during SHUTDOWN_GRACE_SECONDS.
    """
    platform, server_url = settings.platform, settings.github_server_url
    everywhere = Nodes(node.id, settings.node_timeout_seconds, settings.branch_prefix)
    of = (platform, server_url, ctx.policy, ctx.rules, everywhere, ctx.verbs, ctx.clock, ctx.sleep, ctx.notifies)
    decider = Decider(ctx.pool, ctx.github, *of)
    redactor_for = partial(variables.redactor_of, ctx.data_dir, ctx.redactor)
    sender = Sender(ctx.pool, ctx.github, redactor_for, ctx.clock, ctx.sleep)
    turns_ended = asyncio.Event()

    async def send(writer: str) -> None:
        await send_due(sender, writer)

    async def run_turns() -> None:
        await runner.serve(stopping, settings.shutdown_grace_seconds)
        turns_ended.set()

    housekeeping = Housekeeping(ctx, node, settings, decider.stalled)
    jobs: dict[str, Callable[[], Awaitable[None]]] = {}
    in_worktree = partial(do_job, "worktree", partial(remove_decided, ctx))
    on_node = partial(do_job, "node", partial(work_on_node, ctx, settings.retention))
    http, url = Outbound(*settings.outbound).client(notify.ANSWER_SECONDS), settings.notify_url
    tell = notify.Notifier(ctx.pool, http, url.get_secret_value() if url else "", server_url, ctx.redactor).send
    app = engine(ctx.dsn, Handlers(in_worktree, decider.decide, send, jobs, on_node, tell))
    chores = housekeeping.chores(app)
    jobs |= {name: partial(housekeeping.do, name, work) for name, (_, work) in chores.items()}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(http)
        await unless_stopped(stopping, stack.enter_async_context(open_engine(app)))
        if stopping.is_set():
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(run_pool(app, "decide", DECIDE_AT_ONCE, stopping), name="decide")
            group.create_task(run_turns(), name="turns")
            group.create_task(run_pool(app, "outbox", WRITERS_AT_ONCE, turns_ended, empty_at_end=True), name="outbox")
            grace = settings.shutdown_grace_seconds
            worktrees = run_pool(app, queue_of(node.id), WORKTREES_AT_ONCE, stopping, grace_seconds=grace)
            group.create_task(worktrees, name="worktrees")
            housework = run_pool(app, chores_of(node.id), len(chores), turns_ended, grace_seconds=0, listens=False)
            group.create_task(housework, name="chores")
            if url is not None:
                out = run_pool(app, notify.QUEUE, 1, stopping, grace_seconds=0, listens=False)
                group.create_task(out, name="notifications out")
            group.create_task(defer_chores(app, node.id, chores, turns_ended), name="times of chores")
            group.create_task(keep_alive(ctx, node, runner, settings, turns_ended), name="heartbeat")
            group.create_task(listen(ctx.dsn, node.id, runner, turns_ended), name="notifications")


async def _identity(github: GitHub, settings: Settings) -> BotIdentity:
    """Return who the bot is. GitHub is asked until it answers: every decision needs it. Raises CannotStartError."""
    while True:
        try:
            return await github.identity()
        except Unauthenticated as problem:
            names = "GITHUB_TOKEN is" if settings.github_token else "GITHUB_APP_ID and the App's private key are"
            raise CannotStartError(f"{names} not accepted by GitHub ({problem}); correct it.") from problem
        except Transient as problem:
            _log.warning("github-away", problem=str(problem))
            await asyncio.sleep(problem.retry_after_seconds or 5)
        except GitHubError as problem:
            raise CannotStartError(
                f"GITHUB_API_URL {settings.github_api_url} does not say who the bot is ({problem}); correct it."
            ) from problem
