"""`/worktree list|reset|remove|restore|prune`: the worktree's files, and the work that was rescued from it."""

from typing import Literal

from bot.handlers.context import Handler, RequestContext
from bot.handlers.parsing import one_of
from bot.store import conversations, operations, rescues, worktrees
from bot.store.operations import PullRequestAsked, RequestedBy
from bot.thread import replies, worktree_replies

WORKTREE_VERBS = ("list", "reset", "remove", "restore", "prune")

_MAY_PRUNE = ("maintain", "admin")  # it removes files of other threads

_parse_verb = one_of(*WORKTREE_VERBS)


def parse_argument(words: str) -> tuple[str | None, str]:
    """Return the verb, or None where a single unknown word stands in its place: the answer then shows the usage."""
    verb, left_over = _parse_verb(words)
    return (None, "") if verb is None and " " not in left_over else (verb, left_over)


async def _run(ctx: RequestContext, argument: str | None) -> None:
    match argument:
        case "list":
            own = await worktrees.worktree_of_thread(ctx.connection, ctx.conversation_id)
            rescued = await rescues.of_conversation(ctx.connection, ctx.conversation_id)
            await ctx.reply(worktree_replies.worktree_list(own, rescued, ctx.now))
        case "reset" | "remove" | "restore" as kind:
            await queue_operation(ctx, kind)
        case "prune" if ctx.permission not in _MAY_PRUNE:
            await ctx.reply(worktree_replies.may_not_prune(ctx.permission))
        case "prune":
            await ctx.reply(worktree_replies.pruning(await _prune(ctx)))
        case _:
            await ctx.reply(worktree_replies.USAGE)


async def _prune(ctx: RequestContext) -> int:
    """Release the repository's worktrees that no open thread uses and nothing needs; return how many are removed."""
    found = await worktrees.with_all_threads_closed(ctx.connection, ctx.repository)
    return sum([await conversations.release_worktree(ctx.connection, worktree_id) for worktree_id in found])


async def queue_operation(ctx: RequestContext, kind: Literal["reset", "remove", "restore"]) -> None:
    """Queue the operation for the node that has the worktree, or reply why there is nothing to do."""
    connection, conversation_id = ctx.connection, ctx.conversation_id
    live = await conversations.own_live_worktree(connection, conversation_id)
    worktree_id = live.id if live else None
    if kind == "restore":
        found = await _worktree_to_restore_in(ctx, worktree_id)
        if isinstance(found, str):
            await ctx.reply(found)
            return
        worktree_id = found
    if worktree_id is None:
        await ctx.reply(worktree_replies.no_worktree(kind))
        return
    await enqueue_in_line(ctx, worktree_id, kind)


async def enqueue_in_line(
    ctx: RequestContext,
    worktree_id: int,
    kind: Literal["reset", "remove", "restore", "pull-request"],
    pull_request: PullRequestAsked | None = None,
) -> None:
    """Enqueue an operation; where requests go before it, say so in a comment that becomes its result."""
    asker = RequestedBy(ctx.author.login, ctx.request.ask.at, ctx.conversation_id, ctx.request.target)
    operation_id = await operations.enqueue(ctx.connection, worktree_id, kind, asker, pull_request)
    turns_ahead = (await operations.status_of(ctx.connection, operation_id)).turns_ahead
    if turns_ahead:
        reply_id = await ctx.reply(worktree_replies.in_line(kind, turns_ahead))
        await operations.note_reply(ctx.connection, operation_id, reply_id)


async def _worktree_to_restore_in(ctx: RequestContext, own: int | None) -> int | str:
    """Return the id of the worktree that the latest rescue is restored in, or a sentence that says why there is none.

    It is the conversation's own, or the one that the work was rescued from. A queued operation on the conversation's
    own worktree may still rescue something.
    """
    connection, conversation_id = ctx.connection, ctx.conversation_id
    latest = next(iter(await rescues.of_conversation(connection, conversation_id, 1)), None)
    if own is not None and (latest is not None or await operations.is_busy(connection, own)):
        return own
    if latest is None:
        return worktree_replies.NOTHING_TO_RESTORE
    if await conversations.is_closed(connection, conversation_id):
        return worktree_replies.CLOSED_TO_RESTORE
    reserved = await worktrees.reserve_again(connection, latest.worktree_id, latest.conversations)
    if not reserved and not await worktrees.is_removing(connection, latest.worktree_id):
        return worktree_replies.rescued_elsewhere(await worktrees.threads_at_path(connection, latest.worktree_id))
    return latest.worktree_id


WORKTREE = Handler("worktree", parse_argument, summary=replies.WORKTREE_SUMMARY, run=_run)
