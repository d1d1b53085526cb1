"""`/worktree list|reset|remove|restore|prune`: the worktree's files, and the work that was rescued from it."""

from bot.handlers.command import CommandSyntax, one_of
from bot.handlers.context import RequestContext
from bot.handlers.handler import Handler
from bot.handlers.worktree_operation import queue_operation
from bot.messages import replies, worktree_replies
from bot.messages.worktree_replies import OldWork, Saved, WorktreeLine
from bot.store import conversations, rescues, worktrees

WORKTREE_VERBS = ("list", "reset", "remove", "restore", "prune")

_parse_verb = one_of(*WORKTREE_VERBS)


def parse_argument(words: str) -> tuple[str | None, str]:
    """Return the verb, or None where a single unknown word stands in its place: the answer then shows the usage."""
    verb, left_over = _parse_verb(words)
    return (None, "") if verb is None and " " not in left_over else (verb, left_over)


async def _run(ctx: RequestContext, argument: str | None) -> None:
    match argument:
        case "list":
            await ctx.reply(await _list(ctx))
        case "reset":
            await queue_operation(ctx, "reset")
        case "remove":
            await queue_operation(ctx, "remove")
        case "restore":
            await queue_operation(ctx, "restore")
        case "prune":
            await ctx.reply(worktree_replies.pruning(await _prune(ctx)))
        case _:
            await ctx.reply(worktree_replies.USAGE)


async def _list(ctx: RequestContext) -> str:
    line = None
    own = await worktrees.worktree_of_thread(ctx.connection, ctx.conversation_id)
    if own is not None:
        line = WorktreeLine(own.branch, own.detached, own.state == "ready", own.others, ctx.now - own.active_at)
    found = await rescues.of_conversation(ctx.connection, ctx.conversation_id)
    rescued = [
        OldWork(
            saved=Saved(rescue.files, rescue.commits, rescue.kept is not None),
            age=ctx.now - rescue.created_at,
            bytes=rescue.bytes,
            restored=rescue.restored_at is not None,
        )
        for rescue in found
    ]
    return worktree_replies.worktree_list(line, rescued)


async def _prune(ctx: RequestContext) -> int:
    """Release the repository's worktrees that no open thread uses and nothing needs; return how many are removed."""
    found = await worktrees.with_all_threads_closed(ctx.connection, ctx.repository)
    return sum([await conversations.release_worktree(ctx.connection, worktree_id) for worktree_id in found])


WORKTREE = Handler(CommandSyntax("worktree", parse_argument), replies.WORKTREE_SUMMARY, _run)
