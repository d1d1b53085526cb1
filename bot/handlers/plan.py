"""`/plan` asks for a plan alone, which `/approve` has carried out."""

import asyncio

from bot.handlers.agent_request import AgentRequest, queue_turn
from bot.handlers.context import Handler, RequestContext
from bot.messages import plans as words
from bot.prompt.hidden import strip_hidden
from bot.prompt.plans import carry_out
from bot.store import plans


async def _plan(ctx: RequestContext, _: str | None) -> None:
    await ctx.reply(words.NOTHING_TO_PLAN)


async def _approve(ctx: RequestContext, _: str | None) -> None:
    plan = await plans.newest(ctx.connection, ctx.conversation_id)
    if plan is not None and plan.state != "done":
        await ctx.reply(words.PLAN_NOT_THERE)
    elif plan is None or not plan.is_kept:
        await ctx.reply(words.NOTHING_TO_APPROVE)
    elif plan.followed_by is not None:
        await ctx.reply(words.not_open(plan.turn_id, plan.followed_by, approved=plan.is_approved))
    else:
        # What no reader saw, nobody approved.
        text = carry_out(await asyncio.to_thread(strip_hidden, plan.answer))
        await queue_turn(ctx, AgentRequest(text, plan_of=plan.turn_id), pinned_sha=plan.pinned_sha)


PLAN = Handler("plan", lambda words: (words or None, ""), summary=words.PLAN_SUMMARY, run=_plan, asks="plan")
APPROVE = Handler("approve", summary=words.APPROVE_SUMMARY, run=_approve, queues_turn=True)
