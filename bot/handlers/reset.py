"""`/reset`: the session ends and the worktree is reset."""

from bot.handlers.command import CommandSyntax
from bot.handlers.context import RequestContext
from bot.handlers.handler import Handler
from bot.handlers.worktree_operation import queue_operation
from bot.messages import replies


async def _run(ctx: RequestContext, _argument: str | None) -> None:
    await queue_operation(ctx, "reset")


RESET = Handler(CommandSyntax("reset"), replies.RESET_SUMMARY, _run)
