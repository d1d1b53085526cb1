"""`/worktree list|reset|remove|restore|prune`: the worktree's files, and the work that was rescued from it."""

from bot.node import rescue_rows as rescues
from bot.store import conversations, worktrees
from bot.thread import replies, worktree_replies
from bot.turn.parsing import one_of
from bot.turn.request import Handler, RequestContext, Verb
from bot.verbs.remove import ask_for_removal
from bot.verbs.reset import ask_for_reset
from bot.verbs.restore import ask_to_restore

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
        case "reset":
            await ask_for_reset(ctx, "/worktree reset")
        case "remove":
            await ask_for_removal(ctx)
        case "restore":
            await ask_to_restore(ctx)
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


WORKTREE = Handler("worktree", parse_argument, summary=replies.WORKTREE_SUMMARY, run=_run)
VERB = Verb(commands=(WORKTREE,), recorded=("worktree prune",))
