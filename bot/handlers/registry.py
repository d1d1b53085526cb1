"""The slash commands: what each does, in the transaction of the caller."""

from datetime import timedelta
from typing import Any, assert_never

from bot.decide.actions import Request
from bot.decide.parsing import Command, UnknownCommand, worktree_verb
from bot.handlers import bringing_back
from bot.handlers.close import stop_turns
from bot.handlers.context import RequestContext
from bot.handlers.worktree import run_worktree_command
from bot.messages import reasons, replies
from bot.reply import thread_comments
from bot.store import conversations, requests

# GitHub's times are whole seconds: what was asked in the same second was asked before.
_GITHUB_CLOCK_TICK = timedelta(seconds=1)


async def run_command(ctx: RequestContext, hear: Request, command: Command | UnknownCommand) -> None:
    connection, thread_ref, target = ctx.connection, ctx.thread_ref, hear.target
    await thread_comments.seen(connection, thread_ref, target)
    if isinstance(command, UnknownCommand):
        await thread_comments.reply(connection, thread_ref, target, replies.unknown_command(f"/{command.name}"))
        return
    match command.name:
        case "help":
            await thread_comments.reply(connection, thread_ref, target, replies.help_text(ctx.facts.bot_name))
        case "status":
            await thread_comments.reply(connection, thread_ref, target, await ctx.status())
        case "reset-context":
            ended = await conversations.end_session(connection, thread_ref.conversation_id, "reset-requested")
            words = replies.CONTEXT_RESET if ended else replies.NO_SESSION_TO_RESET
            await thread_comments.reply(connection, thread_ref, target, words)
        case "stop":
            reason = reasons.stopped_by(hear.speaker.login)
            stopped = await stop_turns(
                connection,
                thread_ref,
                reason,
                asked_before=hear.asked_at + _GITHUB_CLOCK_TICK,
                queued=command.argument == "all",
            )
            if not stopped:
                await thread_comments.reply(connection, thread_ref, target, replies.nothing_to_stop())
        case "retry":
            last = await requests.last_not_done(connection, thread_ref.conversation_id)
            if last is None:
                await thread_comments.reply(connection, thread_ref, target, replies.nothing_to_retry())
            else:
                await bringing_back.queue(ctx, _again(last, hear))
        case "reset":
            await run_worktree_command(ctx, hear, "reset")
        case "worktree":
            await run_worktree_command(ctx, hear, worktree_verb(command))
        case _:
            assert_never(command.name)


def _again(last: dict[str, Any], hear: Request) -> requests.NewTurn:
    return requests.NewTurn(
        text=last["request"],
        requested_by=hear.speaker.login,
        requested_by_id=hear.speaker.id,
        asked_at=hear.asked_at,
        target=hear.target,
        pinned_sha=last["pinned_sha"],
        context=last["context"],
    )
