"""One turn, from its claim to its visible end: authority, worktree, session, agent, push, answer."""

import asyncio
import shutil
from collections.abc import Awaitable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

import structlog
from structlog.contextvars import bound_contextvars

from bot import counters
from bot.model import Actor
from bot.node.setup_script import SetUp, script_of, set_up
from bot.node.variables import values_of, variables_in
from bot.prompt import remarks
from bot.prompt.collect import Collected
from bot.prompt.foreign import Told
from bot.rules import Chosen
from bot.store import conversations, jobs, turns, worktrees
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn, ClaimLostError, Use
from bot.tasks import concurrently, unless
from bot.thread import commit_message, notices, reasons, tracking
from bot.thread.formatting import plain
from bot.thread.tracking import Changes, TurnResult
from bot.tree.clone.arriving import fetch_beside
from bot.tree.clone.clone import Clone, StoppedError, clone_lock, reading
from bot.tree.clone.metadata import record_use
from bot.tree.clone.packing import was_packed
from bot.turn.asking import ask_agent
from bot.turn.checkout import NotReady, Ready, Seen, files_seen, prepare
from bot.turn.confirm import Confirmed, NotConfirmedError, confirm, may_all_ask
from bot.turn.ending import finish, hand_back, put_back, stopped
from bot.turn.prompting import read_thread
from bot.turn.proof import Proof
from bot.turn.publishing import guard_of, publish
from bot.turn.pull_request import pull_request_of, pulls_while_pushed
from bot.turn.push_guard import Guard
from bot.turn.repository_rules import use_fetched_rules, use_known_rules
from bot.turn.switching import TurnMovedError
from bot.turn.turn_run import TurnRun
from bot.turn.waiting import Wait, after, passing

DISK_FULL_BELOW_BYTES = 4 << 20
NAMES_VALID_FOR = timedelta(minutes=1)
"""How long after the request the names in its payload are taken as GitHub's."""
RULES_VALID_FOR = timedelta(minutes=1)
"""How old an answer of GitHub may be that tells whether a branch is protected, when the agent is done."""
FEW_THREADS = 1000
"""GitHub has one or two refs for each pull request: to list so many takes less time than a request more."""
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
        if run.turn.number <= FEW_THREADS:
            run.ctx = replace(run.ctx, git=run.ctx.git.of_few_refs())
        async with reading(run.ctx.clone(run.turn.worktree.folder)) as clone:
            run.ctx = replace(run.ctx, opened=clone)
            return await unless(run.watch(), work(run))
    except ClaimLostError:
        raise
    except StoppedError:
        return await stopped(run)
    except NotConfirmedError as problem:
        _log.warning("request-not-confirmed", requested_by=run.turn.requested_by, why=problem.reason)
        return TurnResult("refused", problem.reason)
    except Exception as problem:  # noqa: BLE001 - a bug is logged with its traceback, and the turn still ends visibly
        return _after(run, problem)


async def work(run: TurnRun) -> TurnResult | Wait:
    """Do what the turn asks for. Raises StoppedError, NotConfirmedError, ClaimLostError, and what a step raises."""
    await run.unless_stopped(_follow_rename(run))
    await use_known_rules(run)
    # GitHub takes longest to answer: all is asked at once, and the worktree is prepared meanwhile.
    async with (
        concurrently(read_thread(run.ctx, run.turn)) as thread,
        concurrently(_confirm(run)) as confirmed,
        run.progress.shown(run.ctx.pool, run.thread_ref, run.turn, run.ctx.clock),
    ):
        ready = await run.unless_stopped(_prepare(run, confirmed))
        if isinstance(ready, TurnResult):
            return ready
        began, clone = run.ctx.clock(), run.ctx.clone(run.turn.worktree.folder)
        async with concurrently(guard_of(run.ctx, run.turn, ready, fetched=True)) as guard:
            # With a saved answer the agent was done before the run was cut off or put back: it does not run again.
            lacks_history, seen = clone.is_shallow, await files_seen(run)
            async with concurrently(_fetch_beside(run, replace(clone, objects=None))) as arriving:
                answer = run.turn.answer or await _answer(run, ready, thread)
                if isinstance(answer, str) and lacks_history:
                    await run.unless_stopped(arriving)
            if not isinstance(answer, str):
                return answer
            is_fresh = run.ctx.clock() - began < RULES_VALID_FOR
            return await _deliver(run, ready, answer, guard if is_fresh else None, seen)


async def _answer(run: TurnRun, ready: Ready, thread: Awaitable[Collected | None]) -> str | TurnResult | Wait:
    """Return what the agent answers, or what is said where none is needed, once that is saved; or the end."""
    return await run.kind.begin(run, ready) or await ask_agent(run, ready, thread)


async def _fetch_beside(run: TurnRun, clone: Clone) -> None:
    """Fetch what the turn does not need, from when its agent has started: that is what a person waits for."""
    if run.turn.answer is None and run.kind.agent == "always":
        await run.progress.until_agent_begins()
    was_shallow = clone.is_shallow
    await fetch_beside(clone)
    if was_shallow:
        await _care_for_new_clone(run)


async def _care_for_new_clone(run: TurnRun) -> None:
    """Let the files of a new clone be packed, once its history is there."""
    clone = run.ctx.clone(run.turn.worktree.folder)
    if not clone.is_shallow and not was_packed(clone):
        await run.write(jobs.defer, jobs.chore(run.ctx.node, "new clones"))


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


async def _confirm(run: TurnRun) -> Confirmed | None:
    """Ask GitHub again who may ask, and what was asked; nothing but a fetch is done before it has said yes.

    None once the agent is done. Raises NotConfirmedError, GitHubError.
    """
    turn = run.turn
    if turn.answer is not None:
        return None
    confirmed = await confirm(run.ctx, turn)
    if confirmed.request != turn.request:
        await run.write(turns.save_request, turn.claim, confirmed.request)
        run.turn = replace(turn, request=confirmed.request)
    await _give_variables(run, confirmed.authors)
    return confirmed


async def _give_variables(run: TurnRun, authors: Collection[Actor]) -> None:
    """Give the repository's variables to its set-up script and the agent, unless strangers have a say in what these do.

    Raises GitHubError, OSError.
    """
    ctx, turn = run.ctx, run.turn
    if not (found := values_of(ctx.data_dir, turn.worktree.repository)):
        return
    ctx.redactor.know(found.values())
    is_ours = turn.pinned_sha is None and variables_in(ctx.data_dir, turn.worktree) == found
    if not is_ours or await run.kind.of_outsider(run) or not await may_all_ask(ctx, turn, authors):
        run.notices.append(notices.VARIABLES_WITHHELD)
        return
    run.variables = found
    # The repository's, of each agent: which one it is follows from rows and rules that are read meanwhile.
    run.ctx = replace(ctx, agent_variables={agent: {**own, **found} for agent, own in ctx.agent_variables.items()})


async def _prepare(run: TurnRun, confirmed: Awaitable[Confirmed | None]) -> Ready | TurnResult:
    """Prepare the checkout, and run its setup script; each step can be cut off and done again."""
    turn, ctx, progress = run.turn, run.ctx, run.progress
    fetching = partial(tracking.fetching, first=not ctx.clone(turn.worktree.folder).path.is_dir())
    progress.enter(fetching(None))
    ready = await prepare(ctx, turn, confirmed, lambda line: progress.enter(fetching(line)))
    if isinstance(ready, NotReady):
        if turn.answer is None:
            return TurnResult("refused", ready.reason)
        run.notices.append(ready.reason)
        return TurnResult("done")
    refused, ctx = await use_fetched_rules(run), run.ctx
    run.notices += ready.notices
    await _choose_agent(run)
    run.branch = ready.branch
    run.head_before, context_ended = await run.write(_save_worktree, turn, ready)
    run.notices += [notices.CONTEXT_ENDED] if context_ended else []
    path, branches = ctx.directory(turn.worktree.path), (ready.branch, ready.base_branch)
    await asyncio.to_thread(record_use, path, turn.worktree, *branches, ctx.clock())
    if refused is not None:
        return refused
    await _care_for_new_clone(run)
    if (asked := await confirmed) is None:
        return ready
    await run.kind.settle(run, asked)
    kind = run.kind
    if (why := await kind.may_begin(run, ready)) is not None:
        return TurnResult("refused", why)
    if kind.agent != "never":
        run.cap = await run.ctx.cap_reached(turn.worktree.repository, turn.use.cost_usd)
    if run.cap is not None:
        # An agent that worked before the turn was cut off is not asked again, but its work is published.
        return ready if turn.use != Use() else TurnResult("refused", reasons.cost_limit(run.cap))
    return replace(ready, remarks=(*ready.remarks, *await _set_up(run)))


async def _choose_agent(run: TurnRun) -> None:
    """Let the turn have the agent and the model of its request, else of its conversation, else of its rules."""
    turn, rules = run.turn, run.ctx.rules
    asked, chosen = turn.began_with or turn.asked_agent, Chosen(turn.chosen_agent, turn.chosen_model)
    run.ctx = replace(run.ctx, rules=chosen.within(rules, asked))
    for gone in dict.fromkeys((asked, chosen.agent)):
        if gone is not None and gone not in rules.agents:
            run.notices.append(notices.agent_gone(gone, run.ctx.rules.agent))
            await run.write(conversations.forget_agent, turn.conversation_id, gone)


async def _set_up(run: TurnRun) -> tuple[Told, ...]:
    """Run the repository's script, unless it succeeded in this checkout before; return what the agent is told.

    Raises GitError, InvalidNameError, OSError, UnsafeCommandError.
    """
    turn, ctx = run.turn, run.ctx
    if not ctx.rules.setup or run.kind.agent == "never" or await run.write(worktrees.is_set_up, turn.worktree.id):
        return ()
    async with clone_lock(ctx.clone(turn.worktree.folder), early=True) as lock:
        found = await script_of(lock)
    if found is None:
        await run.write(turns.record_setup, turn.claim)
        return ()
    run.progress.enter(tracking.SETTING_UP)
    done = found
    if not isinstance(done, SetUp):
        home = ctx.home(turn.conversation_id)
        running = set_up(ctx, turn.worktree, home, done, run.disk_overflowed, run.variables)
        done = await running
    told: list[Told] = []
    if done.left:
        run.notices.append(notices.setup_left(done.left))
        told.append(remarks.setup_left(len(done.left)))
    if done.failure is None:
        await run.write(turns.record_setup, turn.claim)
    else:
        run.notices.append(notices.setup_failed(done.failure, done.output))
        told.append(remarks.setup_failed(done.failure, done.output))
    return tuple(told)


async def _save_worktree(connection: Connection, turn: ClaimedTurn, ready: Ready) -> tuple[str, bool]:
    """Return the commit at which the turn began, and whether the thread's session ended with its files."""
    before = await turns.save_worktree(connection, turn.claim, ready.branch, ready.base_branch, ready.head)
    if ready.made_again or not turn.worktree.is_made:
        await worktrees.forget_setup(connection, turn.worktree.id)
    ended = ready.made_again and await conversations.end_session(connection, turn.conversation_id, "worktree-missing")
    return before, bool(ended)


async def _deliver(
    run: TurnRun, ready: Ready, answer: str, guard: Awaitable[Guard] | None, seen: Seen | None
) -> TurnResult:
    """Commit and push what a turn that works changed. Raises StoppedError if a stop was accepted before the push.

    `seen` are the files before a turn that plans or reviews.
    """
    if run.turn.answer is not None and values_of(run.ctx.data_dir, run.turn.worktree.repository):
        # The agent had them in an earlier run, and the check needs them too.
        with suppress(NotConfirmedError):
            await _give_variables(run, (await confirm(run.ctx, run.turn)).authors)
    turn, ctx = run.turn, run.ctx
    text, subject = commit_message.split_subject(answer)
    if await run.write(turns.stop_requested, turn.claim) is not None:
        raise StoppedError
    kind = run.kind
    if not kind.writes:
        return await kind.answered(run, answer, seen)
    rules, proof = await run.unless_stopped(guard or guard_of(ctx, turn, ready)), Proof(run, ready, subject)
    async with concurrently(pulls_while_pushed(run, ready.branch, rules.passed)) as pulls:
        changes, told = await publish(ctx, turn, ready, run.head_before, proof, rules, run.stop)
        run.notices += told
        if isinstance(changes, Changes):
            rules.passed.set()
            changes = replace(changes, pull_request=await pull_request_of(run, ready, changes, pulls))
    if changes is None and not told and subject is not None:
        run.notices.append(notices.NOTHING_CHANGED)  # the answer claims a change
    await kind.published(run, ready, changes, told)
    return TurnResult("done", answer=commit_message.split_subject(run.answer or text)[0], changes=changes)


def _after(run: TurnRun, problem: Exception) -> TurnResult | Wait:
    """Return how the turn goes on after a problem."""
    began, answered = run.progress.agent_began, run.answer is not None
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
            run.notices.append(notices.push_failed(run.branch, str(problem)))
            return TurnResult("done")
        case "failed":
            _log.warning("turn-failed", problem=str(problem))
            return TurnResult("failed", reasons.trouble(str(problem), None if began else passing(problem)))
        case "crashed":
            _log.error("turn-crashed", exc_info=problem)
            return TurnResult("failed", reasons.own_error(run.turn.id))
