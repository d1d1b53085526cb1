"""`/reset`: the session ends and the worktree is reset."""

from bot.handlers.context import Handler, RequestContext
from bot.handlers.worktree import queue_operation
from bot.messages import replies


async def _run(ctx: RequestContext, _argument: str | None) -> None:
    await queue_operation(ctx, "reset")


RESET = Handler("reset", summary=replies.RESET_SUMMARY, run=_run)
