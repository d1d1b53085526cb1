"""A request to the agent: it becomes a queued turn."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from bot.handlers.assign_worktree import assign_worktree
from bot.handlers.context import RequestContext
from bot.model import Target, TurnMode
from bot.store import conversations, messages, operations, requests, rescues, worktrees
from bot.store.requests import NewTurn
from bot.thread import agent_choice, notices, reasons, replies, thread_comments, tracking
from bot.thread.formatting import plain
from bot.thread.tracking import TurnResult

COLLECTED_FOR = timedelta(minutes=1)
"""So long a single remark on the bot's pull request waits for further ones of the same person."""


@dataclass(frozen=True, slots=True)
class ReviewParts:
    """The parts of a review that are known: inline comments by id, its own text by the review's id, negated.

    `part` is the one whose event is handled, `text` what it asks by itself, and `context` the code that it is about.
    """

    review_id: int
    parts: tuple[int, ...]
    part: int
    text: str
    context: str = ""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """The text for the agent, and the place in the code that it is about. `review`: it is the text of a review.

    `seen` is a thread's own text as a person sees it, None for another text. `target` is what the answer answers, None
    where that is the text whose event is handled. `agent`: the one that the request names. `plan_of`: the turn
    whose plan it carries out. `collects`: it waits for further remarks of the person. `mends`: the commit whose failing
    checks, named in `context`, ask; `why` says so.
    """

    text: str
    context: str = ""
    review: ReviewParts | None = None
    seen: str | None = None
    target: Target | None = None
    mode: TurnMode = "work"
    agent: str | None = None
    plan_of: int | None = None
    collects: bool = False
    mends: str | None = None
    why: str | None = None


def named_part(comment_id: int | None, text: str) -> str:
    """Return a part of a review with its name: its lines of code are told apart from it, as material."""
    return f"Comment {comment_id}:\n{text}"


async def queue_on_branch(ctx: RequestContext, kind: Literal["undo", "update"], nothing: str) -> None:
    """Queue a turn of the kind that a command is named after; say that there is `nothing` without a branch."""
    if await conversations.own_live_worktree(ctx.connection, ctx.conversation_id) is None and ctx.pull is None:
        await ctx.reply(nothing)
        return
    await ctx.acknowledge()
    await queue_turn(ctx, AgentRequest(f"/{kind}", mode=kind))


async def request_agent(ctx: RequestContext, asked: AgentRequest) -> None:
    """Queue a turn for what a comment, review or thread asks of the agent.

    A thread's own text is one request, whether opened, labelled or assigned within a minute. So are the parts of a
    review, in any order: one that its turn was not asked is added while the turn waits, and later is a turn of its own.
    So are the single remarks that a person makes until the turn of the first of them begins.
    """
    if asked.agent is not None and asked.agent not in ctx.rules.agents:
        words = agent_choice.no_such_agent(asked.agent, ctx.rules.agents)
        await thread_comments.decline(ctx.connection, ctx.thread_ref, ctx.request.target, words)
        return
    if asked.mode == "review" and ctx.request.thread.kind != "pull":
        await ctx.reply(replies.NOTHING_TO_REVIEW)
        return
    if ctx.silent_until is None:
        await ctx.acknowledge(*dict.fromkeys((ctx.request.target, asked.target or ctx.request.target)))
    if asked.seen is not None and await requests.is_repeated(
        ctx.connection, ctx.conversation_id, asked.seen, ctx.request.asked_at, asked.agent, ctx.author.id
    ):
        return
    if (review := asked.review) is not None:
        part = review.part, review.text, review.context
        joined = await requests.join_turn_of_review(ctx.connection, ctx.conversation_id, review.review_id, *part)
        if joined is None and asked.collects:
            joined = await requests.join_remarks(ctx.connection, ctx.conversation_id, ctx.author.id, *part) or None
        if joined:
            return
        if joined is False:
            asked = AgentRequest(review.text, review.context, mode=asked.mode)
    await queue_turn(ctx, asked)


async def queue_turn(
    ctx: RequestContext, asked: AgentRequest, *, pinned_sha: str | None = None, retry_of: int | None = None
) -> None:
    """Queue a turn; work that was rescued when the thread's worktree was removed is restored before it runs.

    `pinned_sha` is the head of a fork that an earlier request was about, `retry_of` that request's turn.
    """
    connection, conversation_id = ctx.connection, ctx.conversation_id
    if ctx.request.thread.kind == "pull" and not asked.collects:
        await requests.collect_no_more(connection, conversation_id)
    before = await requests.before_a_turn(connection, conversation_id, ctx.author.id)
    rescue = await rescues.pending_restore(connection, conversation_id) if before.may_have_rescue else None
    if rescue is not None:
        await worktrees.reserve_again(connection, rescue.worktree_id, rescue.conversations)
    turn = NewTurn(
        text=asked.text,
        requested_by=ctx.author.login,
        requested_by_id=ctx.author.id,
        asked_at=ctx.request.asked_at,
        target=asked.target or ctx.request.target,
        review_id=asked.review.review_id if asked.review else None,
        review_parts=asked.review.parts if asked.review else (),
        pinned_sha=pinned_sha or _pinned_sha(ctx),
        context=asked.context,
        seen=asked.seen,
        retry_of=retry_of,
        mode=asked.mode,
        agent=asked.agent,
        plan_of=asked.plan_of,
        collects_until=ctx.now + COLLECTED_FOR if asked.collects else None,
        mends=asked.mends,
        notices=(asked.why,) if asked.why else (),
    )
    await _queue(ctx, turn, before.turns_today)
    # A removal in progress may still find work to rescue.
    if rescue is not None or before.is_being_removed:
        await operations.restore_before_newest_turn(connection, conversation_id)


def _pinned_sha(ctx: RequestContext) -> str | None:
    """Return the head of a fork at the time of the request, which is all that may run; None for a branch of ours."""
    if ctx.pull is None or ctx.pull.same_repository:
        return None
    return ctx.request.thread.head_sha or ctx.pull.head_sha


def _head_moved(ctx: RequestContext, turn: NewTurn) -> str | None:
    """Return the reason to refuse a fork whose head was, or may have been, pushed after the request, or None."""
    if turn.pinned_sha is None or ctx.pull is None:
        return None
    if turn.pinned_sha != ctx.pull.head_sha:
        return reasons.head_moved(turn.pinned_sha)
    asked_head, pushed_at = ctx.request.thread.head_sha, ctx.pull.pushed_at
    is_known = asked_head is not None or pushed_at is None or pushed_at <= ctx.request.asked_at
    return None if is_known else reasons.head_moved(None)


def _refusal(ctx: RequestContext, turn: NewTurn, turns_today: int) -> str | None:
    if ctx.silent_until is not None:
        return reasons.over_hourly_limit(ctx.policy.comments_per_hour)
    limit = ctx.policy.turns_per_person_per_day
    if turns_today >= limit:
        return reasons.over_daily_limit(limit)
    return _head_moved(ctx, turn)


async def _queue(ctx: RequestContext, turn: NewTurn, turns_today: int) -> None:
    """Write the turn and its tracking comment and ring its node, or write a refused turn."""
    connection, thread_ref = ctx.connection, ctx.thread_ref
    if (reason := _refusal(ctx, turn, turns_today)) is not None:
        queued = await requests.enqueue(connection, ctx.conversation_id, None, turn, ctx.now, refused=plain(reason))
        if ctx.silent_until is not None:
            await ctx.be_silent()
            return
        asked = tracking.asked(turn.requested_by, ctx.server_url, ctx.repository, ctx.number, turn.target, queued.id)
        asked = replace(asked, is_fix=turn.mends is not None and turn.retry_of is None)
        result = TurnResult("refused", reason, asked=asked, notices=turn.notices)
        await thread_comments.ended(connection, thread_ref, queued.id, turn.target, tracking.final(result), "refused")
        return
    assigned = await assign_worktree(ctx)
    late = ctx.now - turn.asked_at
    said = (notices.taken_up_late(late),) if late > notices.LATE else ()
    turn = replace(turn, notices=(*turn.notices, *said, *assigned.notices))
    waits = None if turn.collects_until is None else reasons.collects(turn.collects_until, ctx.now)
    queued = await requests.enqueue(
        connection, ctx.conversation_id, assigned.worktree_id, turn, ctx.now, waits=waits, switch_to=assigned.switch_to
    )
    words = tracking.queued(queued.ahead, queued.wait, is_set_up=queued.is_set_up)
    if waits is not None and not queued.ahead:
        words = tracking.waiting(waits)
    # Nobody who reads the thread has asked.
    words = "\n\n".join((words, *(turn.notices if turn.mends is not None else ())))
    await thread_comments.track(connection, thread_ref, queued.id, turn.target, words)
    # A plain comment: what comes with a command, a label or a place in the code waits for its turn.
    if queued.ahead and turn.mends is None and turn.target.kind == "comment" and not ctx.request.parsed.commands:
        await messages.offer(connection, queued.id)
