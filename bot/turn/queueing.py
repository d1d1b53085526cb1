"""A request to the agent: it becomes a queued turn."""

from dataclasses import replace
from datetime import timedelta

from bot.ask import Ask, Part, Review
from bot.node import rescue_rows as rescues
from bot.store import conversations, worktrees
from bot.thread import agent_choice, notices, reasons, thread_comments, tracking
from bot.thread.formatting import plain
from bot.thread.tracking import TurnResult
from bot.turn import message_rows as messages
from bot.turn import request_rows as requests
from bot.turn.assign_worktree import assign_worktree
from bot.turn.request import RequestContext

COLLECTED_FOR = timedelta(minutes=1)
"""So long a single remark on the bot's pull request waits for further ones of the same person."""


def named_part(comment_id: int | None, text: str) -> str:
    """Return a part of a review with its name: its lines of code are told apart from it, as material."""
    return f"Comment {comment_id}:\n{text}"


async def queue_on_branch(ctx: RequestContext, verb: str, nothing: str, *, needs_agent: bool = True) -> None:
    """Queue a turn of the verb that a command is named after; say that there is `nothing` without a branch."""
    if ctx.pull is None and not await has_branch(ctx):
        await ctx.reply(nothing)
        return
    await ctx.acknowledge()
    await queue_turn(ctx, ctx.asks(f"/{verb}", verb), needs_agent=needs_agent)


async def has_branch(ctx: RequestContext) -> bool:
    """Return whether an issue has a worktree, or had one whose branch was pushed: then it is made again from that."""
    live = await conversations.own_live_worktree(ctx.connection, ctx.conversation_id)
    return live is not None or await requests.last_pushed_to(ctx.connection, ctx.conversation_id) is not None


async def queue_alone(ctx: RequestContext, verb: str, words: str, worktree_id: int) -> None:
    """Queue a turn that works on the worktree itself, as the command with these words asks."""
    ask, place = ctx.asks(words, verb, retry_of=ctx.retry_of), (ctx.conversation_id, worktree_id)
    queued = await requests.enqueue(ctx.connection, *place, ask, ctx.now, needs_agent=False)
    words = tracking.queued(queued.ahead, queued.wait)
    await thread_comments.track(ctx.connection, ctx.thread_ref, queued.id, ask.target, words)


async def request_agent(ctx: RequestContext, ask: Ask, part: Part | None = None) -> None:
    """Queue a turn for what a comment, review or thread asks of the agent; of a review, by its `part`.

    A thread's own text is one request, whether opened, labelled or assigned within a minute. So are the parts of a
    review, in any order: one that its turn was not asked is added while the turn waits, and later is a turn of its own.
    So are the single remarks that a person makes until the turn of the first of them begins.
    """
    own = ctx.request.ask
    if ask.agent is not None and ask.agent not in ctx.rules.agents:
        words = agent_choice.no_such_agent(ask.agent, ctx.rules.agents)
        await thread_comments.decline(ctx.connection, ctx.thread_ref, own.target, words)
        return
    if (words := ctx.verbs.kind_of(ask).only_on_pulls) and ctx.request.thread.kind != "pull":
        await ctx.reply(words)
        return
    if ctx.silent_until is None:
        await ctx.acknowledge(*dict.fromkeys((own.target, ask.target)))
    if ask.seen is not None and await requests.is_repeated(
        ctx.connection, ctx.conversation_id, ask.seen, ask.at, ask.agent, ask.by.id
    ):
        return
    if part is not None and ask.review is not None and (review_id := ask.review.id) is not None:
        joined = await requests.join_turn_of_review(ctx.connection, ctx.conversation_id, review_id, part)
        if joined is None and ask.review.collects:
            joined = await requests.join_remarks(ctx.connection, ctx.conversation_id, ask.by.id, part) or None
        if joined:
            return
        if joined is False:
            # The part stays with it: GitHub's text is compared in the same form.
            ask = replace(own, text=part.text, title=ask.title, context=part.context, review=Review((part.id,)))
    await queue_turn(ctx, ask)


async def queue_turn(ctx: RequestContext, ask: Ask, why: str | None = None, *, needs_agent: bool = True) -> None:
    """Queue a turn; work that was rescued when the thread's worktree was removed is restored before it runs.

    `why` says why the bot asks, where no person does. `needs_agent`: it may need one.
    """
    connection, conversation_id = ctx.connection, ctx.conversation_id
    if ctx.request.thread.kind == "pull" and not _collects(ask):
        await requests.collect_no_more(connection, conversation_id)
    before = await requests.before_a_turn(connection, conversation_id, ask.by.id)
    rescue = await rescues.pending_restore(connection, conversation_id) if before.may_have_rescue else None
    if rescue is not None:
        await worktrees.reserve_again(connection, rescue.worktree_id, rescue.conversations)
    ask = replace(ask, pinned_sha=ask.pinned_sha or _pinned_sha(ctx))
    await _queue(ctx, ask, why, before.turns_today if needs_agent else 0, needs_agent=needs_agent)


def _collects(ask: Ask) -> bool:
    return ask.review is not None and ask.review.collects


def _pinned_sha(ctx: RequestContext) -> str | None:
    """Return the head of a fork at the time of the request, which is all that may run; None for a branch of ours."""
    if ctx.pull is None or ctx.pull.same_repository:
        return None
    return ctx.request.thread.head_sha or ctx.pull.head_sha


def _head_moved(ctx: RequestContext, ask: Ask) -> str | None:
    """Return the reason to refuse a fork whose head was, or may have been, pushed after the request, or None."""
    if ask.pinned_sha is None or ctx.pull is None:
        return None
    if ask.pinned_sha != ctx.pull.head_sha:
        return reasons.head_moved(ask.pinned_sha)
    asked_head, pushed_at = ctx.request.thread.head_sha, ctx.pull.pushed_at
    is_known = asked_head is not None or pushed_at is None or pushed_at <= ask.at
    return None if is_known else reasons.head_moved(None)


def _refusal(ctx: RequestContext, ask: Ask, turns_today: int) -> str | None:
    if ctx.silent_until is not None:
        return reasons.over_hourly_limit(ctx.policy.comments_per_hour)
    limit = ctx.policy.turns_per_person_per_day
    if turns_today >= limit:
        return reasons.over_daily_limit(limit)
    return _head_moved(ctx, ask)


async def _queue(ctx: RequestContext, ask: Ask, why: str | None, turns_today: int, *, needs_agent: bool) -> None:
    """Write the turn and its tracking comment and ring its node, or write a refused turn."""
    connection, thread_ref, told = ctx.connection, ctx.thread_ref, (why,) if why is not None else ()
    if (reason := _refusal(ctx, ask, turns_today)) is not None:
        queued = await requests.enqueue(connection, ctx.conversation_id, None, ask, ctx.now, told, plain(reason))
        if ctx.silent_until is not None:
            await ctx.be_silent()
            return
        asked = tracking.asked(ask, ctx.server_url, ctx.repository, ctx.number, queued.id)
        asked = replace(asked, is_fix=why is not None)
        result = TurnResult("refused", reason, asked=asked, notices=told)
        await thread_comments.ended(connection, thread_ref, queued.id, ask.target, tracking.final(result), "refused")
        return
    assigned = await assign_worktree(ctx)
    late = ctx.now - ask.at
    said = (*told, *((notices.taken_up_late(late),) if late > notices.LATE else ()), *assigned.notices)
    until = ctx.now + COLLECTED_FOR if _collects(ask) else None
    waits = None if until is None else reasons.collects(until, ctx.now)
    queued = await requests.enqueue(
        connection,
        ctx.conversation_id,
        assigned.worktree_id,
        ask,
        ctx.now,
        said,
        waits=waits,
        until=until,
        switch_to=assigned.switch_to,
        needs_agent=needs_agent,
    )
    words = tracking.queued(queued.ahead, queued.wait)
    if waits is not None and not queued.ahead:
        words = tracking.waiting(waits)
    # No person asks for a fix, so its comment says why it began.
    words = "\n\n".join((words, *(said if why is not None else ())))
    await thread_comments.track(connection, thread_ref, queued.id, ask.target, words)
    # A plain comment: what comes with a command, a label or a place in the code, or is bound to a commit, waits.
    is_plain = ask.target.kind == "comment" and ask.pinned_sha is None and not ctx.request.commands
    if queued.ahead and is_plain and ask.review is None and ask.gesture is None:
        await messages.offer(connection, queued.id)
