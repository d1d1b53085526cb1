"""`/help`: the list of commands."""

from collections.abc import Sequence

from bot.handlers.context import Handler, RequestContext
from bot.messages import replies


def help_handler(others: Sequence[Handler]) -> Handler:
    """Return the handler of `/help`, which lists itself before the `others`."""

    async def run(ctx: RequestContext, _argument: str | None) -> None:
        commands = [(handler.name, handler.summary) for handler in (handler_of_help, *others)]
        await ctx.reply(replies.help_text(ctx.policy.bot_name, commands))

    handler_of_help = Handler("help", needs_no_slash=True, summary=replies.HELP_SUMMARY, run=run)
    return handler_of_help
