"""Every chat command. A new one is added here."""

from typing import assert_never

from bot.handlers.command import Command, UnknownCommand
from bot.handlers.context import Handler, RequestContext
from bot.handlers.simple import PR, RESET, RESET_CONTEXT, RETRY, STATUS
from bot.handlers.stop import STOP
from bot.handlers.worktree import WORKTREE
from bot.messages import replies
from bot.reply import thread_comments


async def _help(ctx: RequestContext, _: str | None) -> None:
    commands = [(handler.name, handler.summary) for handler in HANDLERS.values()]
    await ctx.reply(replies.help_text(ctx.policy.bot_name, commands))


HELP = Handler("help", needs_no_slash=True, summary=replies.HELP_SUMMARY, run=_help)
HANDLERS: dict[str, Handler] = {
    handler.name: handler for handler in (HELP, STATUS, STOP, RETRY, PR, RESET_CONTEXT, RESET, WORKTREE)
}
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
