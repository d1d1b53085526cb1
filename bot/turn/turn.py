"""One turn, from its claim to its visible end: authority, worktree, session, agent, push, answer."""

import asyncio
import shutil
from dataclasses import replace

import structlog
from structlog.contextvars import bound_contextvars

from bot import counters
from bot.store.turns import ClaimLostError
from bot.tasks import concurrently, unless
from bot.thread import notices, reasons
from bot.thread.formatting import plain
from bot.thread.outcome import Nothing
from bot.thread.tracking import TurnResult
from bot.tree import StoppedError
from bot.turn.alone import carry_out
from bot.turn.asking import ask_agent
from bot.turn.checkout import files_seen
from bot.turn.confirm import NotConfirmedError
from bot.turn.ending import finish, hand_back, put_back, stopped
from bot.turn.preparing import confirm_request, fetch_the_rest, get_ready, take_up
from bot.turn.prompting import read_thread
from bot.turn.publishing import deliver
from bot.turn.switching import TurnMovedError
from bot.turn.turn_run import TurnRun
from bot.turn.waiting import MustWaitError, Wait, after, passing

DISK_FULL_BELOW_BYTES = 4 << 20
FEW_THREADS = 1000
"""GitHub has one or two refs for each pull request: to list so many takes less time than a request more."""
_log = structlog.get_logger()


async def run_turn(run: TurnRun) -> None:
    """Run a claimed turn until it has ended, was requeued, or belongs to another claim. Raises only cancellation.

    A lost claim ends the run without a word.
    """
    turn = run.turn
    name = f"{turn.worktree.repository.full_name}#{turn.conversation.number}"
    with bound_contextvars(turn=turn.id, conversation=name):
        _log.info("turn-started", resuming=turn.so_far.resuming)
        try:
            end = await _guarded(run)
            if isinstance(end, Wait):
                if await put_back(run, end):
                    _log.info("turn-requeued-until", why=str(end.why), until=end.until.isoformat())
                    return
                end = await stopped(run)
            await finish(run, end)
            _log.info("turn-ended", state=end.state, reason=end.reason and plain(end.reason))
        except TurnMovedError:
            _log.info("turn-moved")
        except ClaimLostError:
            counters.LOST_CLAIMS.labels("turn").inc()
            _log.warning("claim-lost")
        except asyncio.CancelledError:
            await asyncio.shield(hand_back(run))
            raise


async def _guarded(run: TurnRun) -> TurnResult | Wait:
    """Do the work while its row is watched. A stop and a problem are ends too. Raises ClaimLostError."""
    try:
        if run.turn.conversation.number <= FEW_THREADS:
            run.ctx = replace(run.ctx, git=run.ctx.git.of_few_refs())
        async with run.tree.clone.reading() as clone:
            run.ctx = replace(run.ctx, opened=clone)
            return await unless(run.watch(), work(run))
    except ClaimLostError:
        raise
    except StoppedError:
        return await stopped(run)
    except NotConfirmedError as problem:
        _log.warning("request-not-confirmed", requested_by=run.turn.ask.by.login, why=problem.reason)
        return TurnResult("refused", problem.reason)
    except MustWaitError as problem:
        return problem.wait
    except Exception as problem:  # noqa: BLE001 - a bug is logged with its traceback, and the turn still ends visibly
        return _after(run, problem)


async def work(run: TurnRun) -> TurnResult | Wait:
    """Do what the turn asks for. Raises StoppedError, NotConfirmedError, ClaimLostError, and what a step raises."""
    await take_up(run)
    if run.kind.carry_out is not None:
        async with run.progress.shown(run.ctx.pool, run.thread_ref, run.turn, run.ctx.clock):
            await run.unless_stopped(confirm_request(run))
            return await carry_out(run, run.kind.carry_out)
    # GitHub takes longest to answer: all is asked at once, and the worktree is prepared meanwhile.
    async with (
        concurrently(read_thread(run.ctx, run.turn)) as thread,
        concurrently(confirm_request(run)) as confirmed,
        run.progress.shown(run.ctx.pool, run.thread_ref, run.turn, run.ctx.clock),
    ):
        ready = await run.unless_stopped(get_ready(run, confirmed))
        if isinstance(ready, TurnResult):
            return ready
        # With a saved answer the agent was done before the run was cut off or put back: it does not run again.
        lacks_history, seen = run.tree.clone.is_shallow, await files_seen(run)
        async with concurrently(fetch_the_rest(run)) as arriving:
            begun = run.turn.so_far.answer or await run.kind.begin(run, ready)
            answer = begun or await ask_agent(run, ready, thread)
            if isinstance(answer, str) and lacks_history:
                await run.unless_stopped(arriving)
        return await deliver(run, ready, answer, seen) if isinstance(answer, str) else answer


def _after(run: TurnRun, problem: Exception) -> TurnResult | Wait:
    """Return how the turn goes on after a problem."""
    began, answered = run.progress.agent_began, run.answer is not None
    # What was met before the agent began is over.
    since = None if began else run.turn.so_far.waiting_since
    disk_is_full = shutil.disk_usage(run.ctx.data_dir).free < DISK_FULL_BELOW_BYTES
    match after(problem, since, run.ctx.clock(), began=began, answered=answered, disk_is_full=disk_is_full):
        case Wait() as wait:
            _log.warning("turn-waits", until=wait.until.isoformat(), problem=str(problem))
            return wait
        case "not-published":
            # The work stays in the worktree, and the next turn pushes it.
            _log.warning("publish-failed", problem=str(problem))
            nothing = Nothing(notices.push_failed(run.branch, str(problem)))
            run.notices.append(nothing.why)
            return TurnResult("done", nothing=nothing)
        case "failed":
            _log.warning("turn-failed", problem=str(problem))
            return TurnResult("failed", reasons.trouble(str(problem), None if began else passing(problem)))
        case "crashed":
            _log.error("turn-crashed", exc_info=problem)
            return TurnResult("failed", reasons.own_error(run.turn.id))
