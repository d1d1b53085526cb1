"""`/status`: what runs and waits here, the branch, the session."""

from bot.handlers.context import Handler, RequestContext
from bot.messages import replies
from bot.store import conversations, sharing


async def _run(ctx: RequestContext, _argument: str | None) -> None:
    now = await conversations.overview(ctx.connection, ctx.conversation_id, ctx.now)
    next_branch = await sharing.pending_switch(ctx.connection, ctx.conversation_id)
    running_for = ctx.now - now.running_since if now.running_since else None
    branch = now.branch and (next_branch or now.branch)
    silent = None
    if now.silent_node is not None and now.silent_since is not None:
        silent = replies.node_silent_since(now.silent_node, now.silent_since, ctx.now)
    words = replies.status(
        branch,
        running_for,
        now.waiting,
        session_active=now.session_active,
        wait=now.wait,
        not_posted=now.not_posted,
        silent=silent,
        removal_error=now.removal_error,
    )
    await ctx.reply(words)


STATUS = Handler("status", needs_no_slash=True, summary=replies.STATUS_SUMMARY, run=_run)
