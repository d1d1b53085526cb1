"""A request to the agent: it becomes a queued turn."""

from dataclasses import replace

from bot.handlers.assign_worktree import assign_worktree
from bot.handlers.context import RequestContext
from bot.messages import reasons, tracking
from bot.messages.tracking import TurnResult
from bot.reply import thread_comments
from bot.store import operations, requests, rescues, worktrees
from bot.store.jobs import defer, turns_bell
from bot.store.requests import NewTurn


async def request_agent(ctx: RequestContext, text: str, *, context: str, review_id: int | None) -> None:
    """Queue a turn for what a comment, review or thread asks of the agent.

    A thread's own text is one request, whether opened, labelled or assigned within a minute.
    """
    is_own_text = ctx.target.id is None
    if is_own_text and await requests.is_repeated(ctx.connection, ctx.conversation_id, text, ctx.asked_at):
        return
    pinned_sha = ctx.pull.head_sha if ctx.pull and not ctx.pull.same_repository else None
    await queue_turn(ctx, text, context=context, pinned_sha=pinned_sha, review_id=review_id)


async def queue_turn(
    ctx: RequestContext, text: str, *, context: str = "", pinned_sha: str | None = None, review_id: int | None = None
) -> None:
    """Queue a turn; work that was rescued when the thread's worktree was removed is restored before it runs."""
    connection, conversation_id = ctx.connection, ctx.conversation_id
    rescue = await rescues.pending_restore(connection, conversation_id)
    if rescue is not None:
        await worktrees.reserve_again(connection, rescue.worktree_id, rescue.conversations)
    # A removal in progress may still find work to rescue.
    is_being_removed = await worktrees.is_being_removed(connection, conversation_id)
    turn = NewTurn(
        text=text,
        requested_by=ctx.author.login,
        requested_by_id=ctx.author.id,
        asked_at=ctx.asked_at,
        target=ctx.target,
        review_id=review_id,
        pinned_sha=pinned_sha,
        context=context,
    )
    await _queue(ctx, turn)
    if rescue is not None or is_being_removed:
        await operations.restore_before_newest_turn(connection, conversation_id)


async def _queue(ctx: RequestContext, turn: NewTurn) -> None:
    """Write the turn and its tracking comment and ring its node; over the daily limit, write a refused turn."""
    connection, thread_ref = ctx.connection, ctx.thread_ref
    limit = ctx.policy.turns_per_person_per_day
    if await requests.turns_of_person_today(connection, turn.requested_by_id) >= limit:
        reason = reasons.over_daily_limit(limit)
        turn_id = await requests.enqueue(connection, ctx.conversation_id, None, turn, refused=reason)
        if turn_id is not None:
            await thread_comments.ended(connection, thread_ref, turn_id, turn.target, TurnResult("refused", reason))
        return
    assigned = await assign_worktree(ctx)
    turn = replace(turn, notices=assigned.notices)
    turn_id = await requests.enqueue(
        connection, ctx.conversation_id, assigned.worktree_id, turn, switch_to=assigned.switch_to
    )
    if turn_id is None:
        return  # the review already is one turn
    await thread_comments.react(connection, thread_ref, turn.target, "eyes")
    turns_ahead = await requests.place_in_line(connection, turn_id)
    await thread_comments.track(connection, thread_ref, turn_id, turn.target, tracking.queued(turns_ahead))
    await defer(connection, turns_bell(assigned.node))
