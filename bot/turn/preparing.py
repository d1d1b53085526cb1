"""Before the agent: names and rules as they are now, the confirmed request, the checkout and its set-up."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial

import structlog

from bot import refs
from bot.node.repository_names import of_this_minute
from bot.node.rescue_rows import pending_restore
from bot.node.variables import know_variables
from bot.rules import Chosen
from bot.store import conversations, jobs, turns, worktrees
from bot.store.database import Connection
from bot.store.turns import ClaimedTurn, Use
from bot.tasks import concurrently
from bot.thread import notices, reasons, tracking
from bot.thread.tracking import TurnResult
from bot.tree import Metadata
from bot.turn.blocked import hold
from bot.turn.checkout import NotReady, prepare
from bot.turn.confirm import confirm
from bot.turn.kind import Confirmed, Ready
from bot.turn.repository_rules import use_fetched_rules, use_known_rules
from bot.turn.restoring import bring_back_before
from bot.turn.setting_up import set_up_for_agent
from bot.turn.turn_run import TurnRun
from bot.turn.variables import give_variables
from bot.turn.words import Asked

_log = structlog.get_logger()


async def take_up(run: TurnRun) -> None:
    """Use the repository's present names, its variables as secrets, and the rules that are known of it."""
    repository = run.turn.worktree.repository
    know_variables(run.ctx.data_dir, repository, run.ctx.redactor)
    await run.unless_stopped(_follow_rename(run))
    await use_known_rules(run)


async def _follow_rename(run: TurnRun) -> None:
    """Use the names of the repository, and its default branch, as GitHub has them now: git fetches by name."""
    turn, before = run.turn, run.turn.worktree.repository
    now = await of_this_minute(run.ctx.pool, run.ctx.github, before)
    if now != before:
        _log.info("repository-renamed", before=before.full_name, now=now.full_name, default=now.default_branch)
        run.turn = replace(turn, worktree=replace(turn.worktree, repository=now))


async def confirm_request(run: TurnRun) -> Confirmed | None:
    """Ask GitHub again who may ask, and what was asked; nothing but a fetch is done before it has said yes.

    None once the agent is done, and where an operator asks. Raises NotConfirmedError, MustWaitError, GitHubError.
    """
    turn = run.turn
    if turn.so_far.answer is not None or not run.is_of_thread:
        return None
    async with concurrently(hold(run)) as may_begin:
        confirmed = await confirm(run.ctx, turn)
        await may_begin
    if confirmed.ask != turn.ask:
        await run.write(turns.save_ask, turn.claim, confirmed.ask)
        run.turn = replace(turn, ask=confirmed.ask)
    if run.kind.carry_out is None:
        await give_variables(run, confirmed)
    return confirmed


async def get_ready(run: TurnRun, confirmed: Awaitable[Confirmed | None]) -> Ready | TurnResult:
    """Prepare the checkout, and run its setup script; each step can be cut off and done again."""
    turn, ctx, progress = run.turn, run.ctx, run.progress
    fetching = partial(tracking.fetching, first=not run.tree.clone.path.is_dir())
    progress.enter(fetching(None))
    if turn.so_far.answer is None and (rescue := await run.write(pending_restore, turn.conversation.id, turn.id)):
        await confirmed
        await bring_back_before(run, rescue)
        turn = run.turn
    ready = await prepare(ctx, turn, confirmed, lambda line: progress.enter(fetching(line)))
    if isinstance(ready, NotReady):
        if turn.so_far.answer is None:
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
    await asyncio.to_thread(Metadata.record_use, path, turn.worktree, *branches, ctx.clock())
    if refused is not None:
        return refused
    await _care_for_new_clone(run)
    if (asked := await confirmed) is None:
        return ready
    if (settled := await ctx.verbs.settle(Asked(ctx, run.turn, turn.id, asked), ctx.rules)) is not None:
        ask, why = settled
        await run.write(turns.save_ask, turn.claim, ask)
        run.turn, run.kind = replace(turn, ask=ask), ctx.verbs.kind_of(ask)
        run.notices += [why] if why is not None else []
    kind = run.kind
    if (why := await kind.may_begin(run, ready)) is not None:
        return TurnResult("refused", why)
    if kind.agent != "never":
        run.cap = await run.ctx.cap_reached(turn.worktree.repository, turn.so_far.use.cost_usd)
    if run.cap is not None:
        # An agent that worked before the turn was cut off is not asked again, but its work is published.
        return ready if turn.so_far.use != Use() else TurnResult("refused", reasons.cost_limit(run.cap))
    return replace(ready, remarks=(*ready.remarks, *await set_up_for_agent(run)))


async def _save_worktree(connection: Connection, turn: ClaimedTurn, ready: Ready) -> tuple[str, bool]:
    """Return the commit at which the turn began, and whether the thread's session ended with its files."""
    # A pull request's branch that is away may be there again.
    branch = ready.branch or refs.head_branch(turn.worktree)
    before = await turns.save_worktree(connection, turn.claim, branch, ready.base_branch, ready.head)
    if ready.made_again or not turn.worktree.is_made:
        await worktrees.forget_setup(connection, turn.worktree.id)
    ended = ready.made_again and await conversations.end_session(connection, turn.conversation.id, "worktree-missing")
    return before, bool(ended)


async def _choose_agent(run: TurnRun) -> None:
    """Let the turn have the agent and the model of its request, else of its conversation, else of its rules."""
    turn, rules = run.turn, run.ctx.rules
    asked = turn.so_far.began_with or turn.ask.agent
    chosen = Chosen(turn.conversation.chosen_agent, turn.conversation.chosen_model)
    run.ctx = replace(run.ctx, rules=chosen.within(rules, asked))
    for gone in dict.fromkeys((asked, chosen.agent)):
        if gone is not None and gone not in rules.agents:
            run.notices.append(notices.agent_gone(gone, run.ctx.rules.agent))
            await run.write(conversations.forget_agent, turn.conversation.id, gone)


async def fetch_the_rest(run: TurnRun) -> None:
    """Fetch what the turn does not need, from when its agent has started: that is what a person waits for."""
    if run.turn.so_far.answer is None and run.kind.agent == "always":
        await run.progress.until_agent_begins()
    tree = run.tree
    was_shallow = tree.clone.is_shallow
    await tree.fetch_beside()
    if was_shallow:
        await _care_for_new_clone(run)


async def _care_for_new_clone(run: TurnRun) -> None:
    """Let the files of a new clone be packed, once its history is there."""
    clone = run.tree.clone
    if not clone.is_shallow and not clone.is_packed:
        await run.write(jobs.defer, jobs.chore(run.ctx.node, "new clones"))
