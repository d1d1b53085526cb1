"""The slash commands: what each does, in the transaction of the caller."""

from datetime import timedelta
from typing import Any, assert_never

from bot.decide.actions import Hear
from bot.decide.parsing import Command, UnknownCommand, worktree_verb
from bot.handlers import bringing_back
from bot.handlers.close import stop_turns
from bot.handlers.context import Desk
from bot.handlers.worktree import obey_worktree
from bot.messages import replies
from bot.reply import thread_comments
from bot.store import conversations, requests

# GitHub's times are whole seconds: what was asked in the same second was asked before.
_GITHUB_CLOCK_TICK = timedelta(seconds=1)


async def obey(desk: Desk, hear: Hear, command: Command | UnknownCommand) -> None:
    connection, here, target = desk.connection, desk.here, hear.target
    await thread_comments.seen(connection, here, target)
    if isinstance(command, UnknownCommand):
        await thread_comments.reply(connection, here, target, replies.unknown_command(f"/{command.name}"))
        return
    match command.name:
        case "help":
            await thread_comments.reply(connection, here, target, replies.help_text(desk.facts.bot_name))
        case "status":
            await thread_comments.reply(connection, here, target, await desk.status())
        case "reset-context":
            ended = await conversations.end_session(connection, here.conversation_id, "reset-requested")
            words = replies.CONTEXT_RESET if ended else replies.NO_SESSION_TO_RESET
            await thread_comments.reply(connection, here, target, words)
        case "stop":
            reason = replies.stopped_by(hear.speaker.login)
            stopped = await stop_turns(
                connection,
                here,
                reason,
                asked_before=hear.asked_at + _GITHUB_CLOCK_TICK,
                queued=command.argument == "all",
            )
            if not stopped:
                await thread_comments.reply(connection, here, target, replies.stopping(running=False, dropped=0))
        case "retry":
            last = await requests.last_not_done(connection, here.conversation_id)
            if last is None:
                await thread_comments.reply(connection, here, target, replies.nothing_to_retry())
            else:
                await bringing_back.queue(desk, _again(last, hear))
        case "reset":
            await obey_worktree(desk, hear, "reset")
        case "worktree":
            await obey_worktree(desk, hear, worktree_verb(command))
        case _:
            assert_never(command.name)


def _again(last: dict[str, Any], hear: Hear) -> requests.Request:
    return requests.Request(
        text=last["request"],
        requested_by=hear.speaker.login,
        requested_by_id=hear.speaker.id,
        asked_at=hear.asked_at,
        target=hear.target,
        pinned_sha=last["pinned_sha"],
        context=last["context"],
    )
