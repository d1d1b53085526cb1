"""`/help`: the list of commands."""

from collections.abc import Sequence

from bot.handlers.command import CommandSyntax
from bot.handlers.context import RequestContext
from bot.handlers.handler import Handler
from bot.messages import replies


def help_handler(others: Sequence[Handler]) -> Handler:
    """Return the handler of `/help`, which lists itself before the `others`."""

    async def run(ctx: RequestContext, _argument: str | None) -> None:
        commands = [(handler.name, handler.summary) for handler in (handler_of_help, *others)]
        await ctx.reply(replies.help_text(ctx.policy.bot_name, commands))

    handler_of_help = Handler(CommandSyntax("help", needs_no_slash=True), replies.HELP_SUMMARY, run)
    return handler_of_help
