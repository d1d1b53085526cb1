"""One turn, from its claim to its visible end: authority, worktree, session, agent, push, answer."""

import asyncio
import shutil
from dataclasses import replace
from datetime import timedelta
from functools import partial

import structlog
from structlog.contextvars import bound_contextvars

from bot import counters, failpoints
from bot.authority import Denied, before_asking_github, by_permission
from bot.clones.clone import StoppedError, reading
from bot.clones.metadata import record_use
from bot.messages import commit_message, notices, reasons, tracking
from bot.messages.formatting import plain
from bot.messages.tracking import Changes, TurnResult
from bot.model import Actor
from bot.reply import thread_comments
from bot.run.asking import ask_agent
from bot.run.checkout import NotReady, Ready, prepare
from bot.run.ending import finish
from bot.run.prompt import read_thread
from bot.run.publishing import publish
from bot.run.pull_request import pull_request_of
from bot.run.setup_script import prepare_checkout
from bot.run.switching import TurnMovedError
from bot.run.turn_run import TurnRun
from bot.run.waiting import Wait, after, put_back
from bot.store import conversations, turns, worktrees
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn, ClaimLostError
from bot.tasks import concurrently, unless

DISK_FULL_BELOW_BYTES = 4 << 20
NAMES_VALID_FOR = timedelta(minutes=1)
"""How long after the request the names in its payload are taken as GitHub's."""
_log = structlog.get_logger()


async def run_turn(run: TurnRun) -> None:
    """Run a claimed turn until it has ended, was requeued, or belongs to another claim. Raises only cancellation.

    A lost claim ends the run without a word.
    """
    turn = run.turn
    with bound_contextvars(turn=turn.id, conversation=f"{turn.worktree.repository.full_name}#{turn.number}"):
        _log.info("turn-started", resuming=turn.resuming)
        try:
            end = await _guarded(run)
            if isinstance(end, Wait):
                if await put_back(run, end):
                    _log.info("turn-requeued-until", why=end.why, until=end.until.isoformat())
                    return
                end = await run.stopped()
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
        return await unless(run.watch(), work(run))
    except ClaimLostError:
        raise
    except StoppedError:
        return await run.stopped()
    except Exception as problem:  # noqa: BLE001 - a bug is logged with its traceback, and the turn still ends visibly
        return _after(run, problem)


async def work(run: TurnRun) -> TurnResult | Wait:
    """Do what the turn asks for. Raises StoppedError, ClaimLostError, and what a step raises."""
    await run.unless_stopped(_follow_rename(run))
    turn, outside = run.turn, run.ctx
    # GitHub takes longest to answer, and the worktree is prepared meanwhile.
    async with concurrently(read_thread(outside, turn)) as thread:
        if turn.answer is None and (why := await run.unless_stopped(_denied(run))) is not None:
            return TurnResult("refused", why)
        async with (
            run.progress.shown(outside.pool, run.thread_ref, turn, outside.clock),
            reading(outside.clone(turn.worktree.folder)) as clone,
        ):
            run.ctx = replace(outside, opened=clone)
            ready = await run.unless_stopped(_prepare(run))
            if isinstance(ready, TurnResult):
                return ready
            # With a saved answer the agent was done before the run was cut off or put back: it does not run again.
            answer = turn.answer or await ask_agent(run, ready, thread)
            return await _deliver(run, ready, answer) if isinstance(answer, str) else answer


async def _follow_rename(run: TurnRun) -> None:
    """Use the present names of the repository and its default branch, if they may be new since the request."""
    turn, before = run.turn, run.turn.worktree.repository
    if run.ctx.clock() - turn.asked_at < NAMES_VALID_FOR:
        return
    now = await run.ctx.github.as_named_now(before)
    if now != before:
        await run.write(conversations.save_codebase, now)
        _log.info("repository-renamed", before=before.full_name, now=now.full_name, default=now.default_branch)
        run.turn = replace(turn, worktree=replace(turn.worktree, repository=now))


async def _denied(run: TurnRun) -> str | None:
    """Return the reason to refuse the turn now, or None, after asking for permission again. Raises GitHubError."""
    turn, ctx = run.turn, run.ctx
    sender = Actor(turn.requested_by, turn.requested_by_id, turn.requested_by_id in ctx.policy.allowed_bots)
    verdict = before_asking_github(ctx.policy, sender, turn.worktree.repository)
    if verdict is None:
        verdict = by_permission(await ctx.github.permission(turn.worktree.repository, turn.requested_by))
    return reasons.permission_withdrawn(turn.requested_by) if isinstance(verdict, Denied) else None


async def _prepare(run: TurnRun) -> Ready | TurnResult:
    """Prepare the checkout, and run its setup script; each step can be cut off and done again."""
    turn, ctx, progress = run.turn, run.ctx, run.progress
    fetching = partial(tracking.fetching, first=not ctx.clone(turn.worktree.folder).path.is_dir())
    progress.enter(fetching(None))
    ready = await prepare(ctx, turn, lambda line: progress.enter(fetching(line)))
    if isinstance(ready, NotReady):
        if turn.answer is None:
            return TurnResult("refused", ready.reason)
        run.known.notices.append(ready.reason)
        return TurnResult("done")
    run.known.notices += ready.notices
    run.known.branch = ready.branch
    run.known.head_before = await run.write(_save_worktree, turn, ready)
    path, branches = ctx.directory(turn.worktree.path), (ready.branch, ready.base_branch)
    await asyncio.to_thread(record_use, path, turn.worktree, *branches, ctx.clock())
    return await _set_up(run, ready) if ctx.setup_script and turn.answer is None else ready


async def _save_worktree(connection: Connection, turn: ClaimedTurn, ready: Ready) -> str:
    before = await turns.save_worktree(connection, turn.claim, ready.branch, ready.base_branch, ready.head)
    if ready.made_again or not turn.worktree.is_made:
        await worktrees.forget_setup(connection, turn.worktree.id)
    if ready.made_again:
        await conversations.end_session(connection, turn.conversation_id, "worktree-missing")
    return before


async def _set_up(run: TurnRun, ready: Ready) -> Ready:
    """Run the setup script unless it succeeded in this checkout before; return what the agent is told with it."""
    turn = run.turn
    if await run.write(worktrees.is_set_up, turn.worktree.id):
        return ready
    prepared = await prepare_checkout(run.ctx, turn, run.progress, run.disk_overflowed)
    failpoints.reached("worktree-set-up")
    run.known.notices += prepared.notices
    if prepared.done:
        await run.write(turns.record_setup, turn.claim)
    return replace(ready, remarks=(*ready.remarks, *prepared.remarks))


async def _deliver(run: TurnRun, ready: Ready, answer: str) -> TurnResult:
    """Commit and push. Raises StoppedError if a stop was accepted before the push."""
    turn, ctx, known = run.turn, run.ctx, run.known
    text, subject = commit_message.split_subject(answer)
    if await run.write(turns.stop_requested, turn.claim) is not None:
        raise StoppedError
    changes, told = await publish(ctx, turn, ready, known.head_before, subject, run.stop)
    known.notices += told
    if changes is None and not told:
        text = answer  # nothing was committed, so the line is part of what the agent says
    if isinstance(changes, Changes):
        pull_request, notice = await pull_request_of(ctx, turn, ready, changes)
        changes = replace(changes, pull_request=pull_request)
        known.notices += [notice] if notice else []
    return TurnResult("done", answer=text, changes=changes)


def _after(run: TurnRun, problem: Exception) -> TurnResult | Wait:
    """Return how the turn goes on after a problem."""
    began, answered = run.progress.agent_began, run.known.answer is not None
    # What was met before the agent began is over.
    since = None if began else run.turn.waiting_since
    disk_is_full = shutil.disk_usage(run.ctx.data_dir).free < DISK_FULL_BELOW_BYTES
    match after(problem, since, run.ctx.clock(), began=began, answered=answered, disk_is_full=disk_is_full):
        case Wait() as wait:
            _log.warning("turn-waits", until=wait.until.isoformat(), problem=str(problem))
            return wait
        case "not-published":
            # The work stays in the worktree, and the next turn pushes it.
            _log.warning("publish-failed", problem=str(problem))
            run.known.notices.append(notices.push_failed(run.known.branch, str(problem)))
            return TurnResult("done")
        case "failed":
            _log.warning("turn-failed", problem=str(problem))
            return TurnResult("failed", reasons.trouble(str(problem)))
        case "crashed":
            _log.error("turn-crashed", exc_info=problem)
            return TurnResult("failed", reasons.own_error(run.turn.id))


async def hand_back(run: TurnRun) -> None:
    """Requeue the turn: this process stops, and another run continues it."""
    turn, words = run.turn, tracking.HANDED_BACK
    async with run.ctx.pool.acquire() as connection, connection.transaction():
        if await turns.requeue(connection, turn.claim):
            await thread_comments.track(connection, run.thread_ref, turn.id, turn.target, words)
            _log.info("turn-requeued")
