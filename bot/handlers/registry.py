"""Every chat command. A new one is added here."""

from typing import assert_never

from bot.handlers.command import Command, UnknownCommand
from bot.handlers.context import Handler, RequestContext
from bot.handlers.help import help_handler
from bot.handlers.pr import PR
from bot.handlers.reset import RESET
from bot.handlers.reset_context import RESET_CONTEXT
from bot.handlers.retry import RETRY
from bot.handlers.status import STATUS
from bot.handlers.stop import STOP
from bot.handlers.worktree import WORKTREE
from bot.messages import replies
from bot.reply import thread_comments

_HANDLERS = (STATUS, STOP, RETRY, PR, RESET_CONTEXT, RESET, WORKTREE)
HANDLERS: dict[str, Handler] = {handler.name: handler for handler in (help_handler(_HANDLERS), *_HANDLERS)}
"""The handlers by the name of their command, in the order in which `/help` lists them."""


async def run_command(ctx: RequestContext, command: Command | UnknownCommand) -> None:
    """Run one command of a comment, in the caller's transaction."""
    await thread_comments.acknowledge(ctx.connection, ctx.thread_ref, ctx.target, ctx.author.id)
    match command:
        case Command(name=name, argument=argument):
            await HANDLERS[name].run(ctx, argument)
        case UnknownCommand(words=words):
            await ctx.reply(replies.unknown_command(words, HANDLERS))
        case _:
            assert_never(command)
