"""`/plan` asks for a plan alone, which `/approve` has carried out."""

import asyncio

from bot.handlers.agent_request import AgentRequest, queue_turn
from bot.handlers.context import Handler, RequestContext
from bot.prompt.hidden import strip_hidden
from bot.prompt.plans import carry_out
from bot.store import plans
from bot.store.plans import Plan
from bot.thread import plans as words
from bot.thread.agent_answer import answer_parts
from bot.thread.commit_message import split_subject
from bot.thread.questions import TO_ANSWER


def is_open(plan: Plan | None) -> bool:
    """Return whether the plan is there, and nothing has come of it yet."""
    return plan is not None and plan.state == "done" and plan.is_kept and plan.followed_by is None


def asks_back(plan: Plan) -> bool:
    """Return whether the agent has a question before it can plan."""
    return TO_ANSWER in plan.answer


def as_shown(answer: str, server_url: str) -> str | None:
    """Return what a reader of the comments sees: what nobody saw, nobody approved. None where they lack its end."""
    text, _ = split_subject(answer)
    _, was_cut = answer_parts(text, server_url=server_url)
    return None if was_cut else strip_hidden(text)


async def _plan(ctx: RequestContext, _: str | None) -> None:
    await ctx.reply(words.NOTHING_TO_PLAN)


async def _approve(ctx: RequestContext, _: str | None) -> None:
    plan = await plans.newest(ctx.connection, ctx.conversation_id)
    if plan is not None and plan.state != "done":
        await ctx.reply(words.PLAN_NOT_THERE)
    elif plan is None or not plan.is_kept or asks_back(plan):
        await ctx.reply(words.NOTHING_TO_APPROVE)
    elif plan.followed_by is not None:
        await ctx.reply(words.not_open(plan.turn_id, plan.followed_by, approved=plan.is_approved))
    elif (text := await asyncio.to_thread(as_shown, plan.answer, ctx.server_url)) is None:
        await ctx.reply(words.PLAN_TOO_LONG)
    else:
        await queue_turn(ctx, AgentRequest(carry_out(text), plan_of=plan.turn_id), pinned_sha=plan.pinned_sha)


PLAN = Handler("plan", lambda words: (words or None, ""), summary=words.PLAN_SUMMARY, run=_plan, asks="plan")
APPROVE = Handler("approve", summary=words.APPROVE_SUMMARY, run=_approve, queues_turn=True)
