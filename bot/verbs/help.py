"""`/help`: the chat commands, each with its summary."""

from bot.thread import replies
from bot.turn.request import Handler, RequestContext, Verb


async def _help(ctx: RequestContext, _: str | None) -> None:
    commands = [(handler.name, handler.summary) for handler in ctx.verbs.commands.values()]
    await ctx.reply(replies.help_text(ctx.policy.bot_name, commands, bare=ctx.rules.bare_commands))


VERB = Verb(commands=(Handler("help", needs_no_slash=True, summary=replies.HELP_SUMMARY, run=_help),))
