"""The agent's part of a turn: its session, its prompt, and how it ends."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import assert_never

import structlog

from bot.agents.driver import AgentDone, Block, Cancelled, CannotOpenError, Failed, Outcome, SessionOpened, TimedOut
from bot.agents.opening import driver_for
from bot.agents.prompt_loop import AgentDriver
from bot.prompt.collect import Collected
from bot.sandbox.disk import watched
from bot.sandbox.net.model_answers import BUSY_STATUSES, ModelAnswers
from bot.store import conversations, turns
from bot.store.database import Connection
from bot.store.states import EndReason
from bot.store.turns import ClaimedTurn
from bot.tasks import concurrently
from bot.thread import notices, reasons
from bot.thread.tracking import TurnResult
from bot.tree import StoppedError
from bot.turn import questions_left
from bot.turn.caps import prompt_capped, record_use
from bot.turn.kind import Ready
from bot.turn.messages import pass_messages_on, told_before
from bot.turn.prompting import make_prompt
from bot.turn.pull_request import description_of
from bot.turn.thread_answers import read_left
from bot.turn.turn_run import TurnRun
from bot.turn.waiting import Wait, wait_for_model

_log = structlog.get_logger()


async def ask_agent(run: TurnRun, ready: Ready, thread: Awaitable[Collected | None]) -> str | TurnResult | Wait:
    """Prompt the agent in the prepared worktree; return its answer, once that is saved, or how the turn goes on.

    Raises StoppedError, ClaimLostError, GitError, OSError, UnsafeCommandError.
    """
    if run.cap is not None:  # reached by an earlier run of the turn
        run.notices.append(notices.cost_limit_reached(run.cap))
        return await _save(run, notices.STOPPED_AT_COST_LIMIT)
    ctx, answers = run.ctx, ModelAnswers(run.ctx.clock, run.progress.model_answered)
    async with (
        ctx.launching(run.turn, run.kind, answers) as (launch, disk),
        driver_for(ctx.rules.agent, launch) as agent,
    ):
        run.messages = await run.unless_stopped(told_before(run))
        prompt = await run.unless_stopped(_open(run, agent, ready, thread))
        if isinstance(prompt, TurnResult):
            outcome: TurnResult | Outcome = prompt
        else:
            if ctx.opened is not None and ctx.opened.objects is not None:
                await ctx.opened.objects.close()  # the agent may be at work for long
            run.progress.agent_begins()
            over = asyncio.Event()
            async with watched(disk, run.disk_overflowed), concurrently(pass_messages_on(run, agent, over)) as passing:
                outcome = await prompt_capped(run, agent, prompt)
                over.set()
                await passing
        # Now: an agent that is closed may still have asked something else.
        is_busy = answers.refuses or (isinstance(outcome, Failed) and outcome.status in BUSY_STATUSES)
        reset = answers.until
    # Without a database this waits: by then the agent is gone.
    if not isinstance(prompt, TurnResult):
        await record_use(run)
    gave_up = ""
    if (is_busy or reset is not None) and isinstance(outcome, (TurnResult, Failed, TimedOut)):
        # An agent gives up after some attempts, or is silent until the limit's end.
        since, now = run.turn.so_far.waiting_since, ctx.clock()
        wait = wait_for_model(reset, run.turn.ask.at, since, now)
        if wait is not None and not run.stop.is_set():
            _log.warning("model-refuses", why=wait.why, until=wait.until.isoformat())
            return wait
        gave_up = f"{reasons.model_refused(now - (since or run.turn.ask.at))} " if wait is None else ""
    match outcome:
        case TurnResult(reason=reason):
            return replace(outcome, reason=f"{gave_up}{reason}") if gave_up else outcome
        case AgentDone(text=text):
            return await _save(run, text)
        case Cancelled():
            raise StoppedError
        case TimedOut(kind=kind, seconds=seconds):
            return TurnResult("timed-out", f"{gave_up}{reasons.timed_out(kind, seconds)}")
        case Failed(reason=reason, stderr_tail=stderr_tail):
            _log.warning("agent-failed", reason=reason)
            return TurnResult("failed", f"{gave_up}{reason}", last_words=stderr_tail)
        case _:
            assert_never(outcome)


async def _open(
    run: TurnRun, agent: AgentDriver, ready: Ready, thread: Awaitable[Collected | None]
) -> tuple[Block, ...] | TurnResult:
    """Open the thread's session, or a new one; return the prompt for it."""
    turn, ctx = run.turn, run.ctx
    session, known_as, its_agent = await run.write(turns.active_session, turn.conversation.id) or (None, None, None)
    is_others = session is not None and its_agent != ctx.rules.agent
    # Most sessions are resumed, and the prompt is ready before most agents are.
    async with concurrently(make_prompt(run, ready, thread, session)) as prompting:
        try:
            opened = await agent.open(None if is_others else known_as)
        except CannotOpenError as error:
            _log.warning("agent-not-started", reason=error.reason)
            words = reasons.agent_not_started(error.reason, error.next_step)
            return TurnResult("failed", words, last_words=error.stderr_tail)
        is_lost = session is not None and not opened.resumed
        if is_lost:
            _log.warning("context-lost", why=opened.lost)
            run.notices.append(notices.agent_changed(ctx.rules.agent) if is_others else notices.CONTEXT_LOST)
        why: EndReason = "agent-changed" if is_others else "agent-lost"
        await run.write(_join_session, turn, ctx.rules.agent, session, opened, why)
        prompt = await prompting
    return await make_prompt(run, ready, thread, None) if is_lost else prompt


async def _save(run: TurnRun, text: str) -> str:
    """Save the answer before anything is pushed: a later run of the turn delivers it without the agent."""
    run.look_for_variables()
    redact = run.ctx.redactor.redact
    answer = await asyncio.to_thread(redact, text)
    asked, not_asked = await asyncio.to_thread(questions_left.read_left, run.ctx.home(run.turn.conversation.id))
    answer = questions_left.asking(answer) if asked else answer
    left, left_out = await asyncio.to_thread(read_left, run.ctx.home(run.turn.conversation.id), run.inline)
    run.thread_answers = tuple(f"{comment} {redact(body)}" for comment, body in left.items())
    run.notices += filter(None, (left_out, not_asked))
    answer = await run.kind.take(run, answer, left)
    description = await description_of(run)
    saved = answer, tuple(map(redact, run.notices)), run.thread_answers, run.kept, description
    await run.write(turns.save_answer, run.turn.claim, *saved)
    run.answer = answer
    return answer


async def _join_session(
    connection: Connection, turn: ClaimedTurn, agent: str, stored: int | None, opened: SessionOpened, why: EndReason
) -> None:
    """Record that the turn runs in the stored session, or in a new one; `why` the stored one then ends."""
    session = stored if opened.resumed else None
    if stored is not None and session is None:
        await conversations.end_session(connection, turn.conversation.id, why)
    if session is None:
        session = await turns.start_session(connection, turn.claim, agent, opened.assistant_session_id)
    await turns.use_session(connection, turn.claim, session, opened.models)
