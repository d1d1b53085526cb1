"""The caps on cost within a turn: its agent is told to finish, then it is ended (DESIGN.md §4, Money)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace

import structlog

from bot import counters
from bot.agents.driver import AgentDone, Block, Cancelled, Outcome
from bot.agents.prompt_loop import AgentDriver
from bot.prompt import remarks
from bot.store import turns
from bot.store.failures import log_failure
from bot.store.turns import ClaimLostError, Use
from bot.tasks import concurrently
from bot.thread import notices
from bot.thread.reasons import CapReached
from bot.turn.turn_run import TurnRun

FINISH_SECONDS = 120.0
"""How long an agent may take to finish once it was told to. It is told once."""
LOOK_SECONDS = 5.0
"""How often a running turn looks at what others spend under the caps of the day."""
RECORD_EVERY_SECONDS = 1.0
_log = structlog.get_logger()


async def record_use(run: TurnRun) -> None:
    """Record what the agent told of its use so far: a cost beyond the turn's limit does not count. Raises
    ClaimLostError.
    """
    use, cost, most = run.progress.use, run.progress.usage.session_cost_usd, run.ctx.most_usd_of_turn
    counted = await run.write(turns.record_use, run.turn.claim, cost, use.tokens, use.model, most)
    run.progress.use = Use(counted.cost_usd, counted.tokens, counted.model)
    if counted.beyond_usd:
        counters.COST_NOT_COUNTED.inc(counted.beyond_usd)
        _log.warning("cost-not-counted", beyond_usd=counted.beyond_usd, counted_usd=counted.cost_usd)


@asynccontextmanager
async def capped(run: TurnRun) -> AsyncIterator[asyncio.Event]:
    """Yield an event that ends a prompt: it is set when the turn is to stop, or has reached a cap (`run.cap`).

    The cost of the turn is in its row meanwhile, so that all nodes see it, and a crash loses nothing of it.
    """
    ending = asyncio.Event()
    async with concurrently(_follow(run.stop, ending)), concurrently(_watch(run, ending)):
        yield ending


async def prompt_capped(run: TurnRun, agent: AgentDriver, prompt: Sequence[Block]) -> Outcome:
    """Prompt the agent. At a cap it is interrupted, told to finish, and ended if it does not."""
    async with capped(run) as ending:
        outcome = await agent.prompt(prompt, run.ctx.limits, ending, run.progress.note)
    if isinstance(outcome, Cancelled) and run.cap is not None and not run.stop.is_set():
        return await _finish(run, agent, run.cap)
    return outcome


async def _follow(stop: asyncio.Event, ending: asyncio.Event) -> None:
    await stop.wait()
    ending.set()


async def _watch(run: TurnRun, ending: asyncio.Event) -> None:
    ctx, changed = run.ctx, run.progress.cost_changed
    others_count = ctx.rules.max_cost_usd_per_repository_per_day is not None or ctx.max_cost_usd_per_day is not None
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS if others_count else None):
                await changed.wait()
        try:
            if changed.is_set():
                changed.clear()
                await record_use(run)
            reached = await ctx.cap_reached(run.turn.worktree.repository, run.progress.use.cost_usd)
        except ClaimLostError:
            return  # `run.watch` ends the run
        except Exception as problem:  # noqa: BLE001 - a look that fails lets no turn go on without a cap
            log_failure("turn-cost", problem)
            reached = None
        if reached is not None and not run.stop.is_set():
            _log.warning("cost-limit-reached", **asdict(reached))
            run.cap = reached
            ending.set()
            return
        await asyncio.sleep(RECORD_EVERY_SECONDS)


async def _finish(run: TurnRun, agent: AgentDriver, reached: CapReached) -> AgentDone | Cancelled:
    """Let an agent that was interrupted finish, within FINISH_SECONDS and once; return its answer, or one in its place.

    Cancelled only where the turn is to stop meanwhile.
    """
    run.notices.append(notices.cost_limit_reached(reached))
    limits = run.ctx.limits
    if agent.is_open:
        limits = replace(limits, total_seconds=min(FINISH_SECONDS, limits.total_seconds))
        run.progress.agent_goes_on()
        ended = await agent.prompt((remarks.FINISH_NOW,), limits, run.stop, run.progress.note)
        if isinstance(ended, AgentDone):
            return ended
        _log.warning("agent-did-not-finish", outcome=type(ended).__name__)
    return Cancelled() if run.stop.is_set() else AgentDone(notices.STOPPED_AT_COST_LIMIT)
