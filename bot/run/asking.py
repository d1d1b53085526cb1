"""The agent's part of a turn: its session, its prompt, and how it ends."""

import asyncio
from collections.abc import Awaitable
from typing import assert_never

import structlog

from bot.agents.driver import AgentDone, Cancelled, Failed, OpenFailed, Outcome, SessionOpened, TimedOut, Usage
from bot.agents.opening import driver_for
from bot.clones.clone import StoppedError
from bot.messages import notices, reasons, tracking
from bot.messages.tracking import TurnResult
from bot.network.usage_limit import UsageLimit
from bot.prompt.collect import Collected
from bot.run.checkout import Ready
from bot.run.prompt import Prompt, make_prompt
from bot.run.turn_run import TurnRun
from bot.run.waiting import Wait, wait_for_model
from bot.sandbox.disk import watched
from bot.store import conversations, turns
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn
from bot.tasks import concurrently

_BUSY_STATUSES = (429, 529)
_log = structlog.get_logger()


async def ask_agent(run: TurnRun, ready: Ready, thread: Awaitable[Collected | None]) -> str | TurnResult | Wait:
    """Prompt the agent in the prepared worktree; return its answer, once that is saved, or how the turn goes on.

    Raises StoppedError, ClaimLostError, GitError, OSError, UnsafeCommandError.
    """
    limit = UsageLimit(run.ctx.clock)
    outcome = await _prompt_agent(run, ready, thread, limit)
    busy = isinstance(outcome, Failed) and outcome.status in _BUSY_STATUSES
    if busy or (limit.until is not None and isinstance(outcome, (TurnResult, Failed, TimedOut))):
        # An agent gives up after some attempts, or is silent until the limit's end.
        wait = wait_for_model(limit.until, run.turn.asked_at, run.turn.waiting_since, run.ctx.clock())
        if wait is not None and not run.stop.is_set():
            _log.warning("usage-limit-reached", until=wait.until.isoformat())
            return wait
    match outcome:
        case TurnResult():
            return outcome
        case AgentDone(text=text, usage=usage):
            return await _save(run, text, usage)
        case Cancelled():
            raise StoppedError
        case TimedOut(kind=kind, seconds=seconds):
            return TurnResult("timed-out", reasons.timed_out(kind, seconds))
        case Failed(reason=reason, stderr_tail=stderr_tail):
            _log.warning("agent-failed", reason=reason)
            return TurnResult("failed", reason, last_words=stderr_tail)
        case _:
            assert_never(outcome)


async def _save(run: TurnRun, text: str, usage: Usage | None) -> str:
    """Save the answer before anything is pushed: a later run of the turn delivers it without the agent."""
    if usage is not None:
        cost = usage.session_cost if usage.currency in (None, "USD") else None
        both = (usage.input_tokens, usage.output_tokens)
        tokens = usage.total_tokens if None in both else sum(filter(None, both))
        use = await run.write(turns.record_use, run.turn.claim, cost, tokens, usage.model)
        run.known.cost_usd, run.known.tokens = use.cost_usd, use.tokens
        run.known.model = usage.model or run.known.model
    answer = await asyncio.to_thread(run.ctx.redactor.redact, text)
    await run.write(turns.save_answer, run.turn.claim, answer, tuple(run.known.notices))
    run.known.answer = answer
    return answer


async def _prompt_agent(
    run: TurnRun, ready: Ready, thread: Awaitable[Collected | None], limit: UsageLimit
) -> Outcome | TurnResult:
    turn, ctx = run.turn, run.ctx
    session, known_as = await run.write(turns.active_session, turn.conversation_id) or (None, None)
    async with (
        ctx.launching(turn, limit=limit) as (launch, disk),
        driver_for(ctx.agent, launch) as agent,
        # Most sessions are resumed, and the prompt is ready before most agents are.
        concurrently(_prompt(run, ready, thread, session)) as prompting,
    ):
        opened = await run.unless_stopped(agent.open(known_as))
        if isinstance(opened, OpenFailed):
            _log.warning("agent-not-started", reason=opened.reason)
            words = reasons.agent_not_started(opened.reason, opened.next_step)
            return TurnResult("failed", words, last_words=opened.stderr_tail)
        is_lost = session is not None and not opened.resumed
        if is_lost:
            _log.warning("context-lost", why=opened.lost)
            run.known.notices.append(notices.CONTEXT_LOST)
        await run.write(_join_session, turn, ctx.agent, session, opened)
        prompt = await run.unless_stopped(prompting)
        if is_lost:
            prompt = await run.unless_stopped(_prompt(run, ready, thread, None))
        if ctx.opened is not None and ctx.opened.objects is not None:
            await ctx.opened.objects.close()  # the agent may be at work for long
        run.progress.agent_begins()
        async with watched(disk, run.disk_overflowed):
            return await agent.prompt(prompt.blocks, ctx.limits, run.stop, run.progress.note)


async def _join_session(
    connection: Connection, turn: ClaimedTurn, agent: str, stored: int | None, opened: SessionOpened
) -> None:
    """Record that the turn runs in the stored session, or in a new one."""
    session = stored if opened.resumed else None
    if stored is not None and session is None:
        await conversations.end_session(connection, turn.conversation_id, "agent-lost")
    if session is None:
        session = await turns.start_session(connection, turn.claim, agent, opened.assistant_session_id)
    await turns.use_session(connection, turn.claim, session)


async def _prompt(run: TurnRun, ready: Ready, thread: Awaitable[Collected | None], session: int | None) -> Prompt:
    """Build the prompt once the thread was read; `session` is the resumed session's id."""
    run.progress.enter(tracking.READING)
    prompt = await make_prompt(run.ctx, run.turn, ready, session, await thread)
    if not prompt.read:
        run.known.notices.append(notices.THREAD_NOT_READ)
    run.known.read = prompt.read
    await run.write(turns.record_read, run.turn.claim, prompt.read, whole_thread=prompt.whole_thread)
    return prompt
