"""`/pr [draft|ready] [title]`: the thread's branch becomes a pull request."""

from bot.handlers.context import Handler, RequestContext
from bot.handlers.worktree import enqueue_in_line
from bot.messages import pull_requests, replies
from bot.store.operations import PullRequestAsked
from bot.store.pull_requests import thread_to_open_for

# No title, but what people add to a command.
_POLITE = frozenset({"please", "now", "please now", "now please", "thanks", "thank you"})


def parse_argument(words: str) -> tuple[str | None, str]:
    """Return all words as the argument: `draft` or `ready`, and a title."""
    return words or None, ""


def asked_for(argument: str | None) -> PullRequestAsked:
    """Return what the argument asks for; without a word for it the pull request is ready for review."""
    first, _, rest = (argument or "").partition(" ")
    kind = first.casefold().rstrip(":,")
    title = (rest if kind in ("draft", "ready") else argument or "").strip()
    is_title = bool(title) and title.casefold().strip(" .,!") not in _POLITE
    return PullRequestAsked(draft=kind == "draft", title=title if is_title else None)


async def _run(ctx: RequestContext, argument: str | None) -> None:
    is_pull, worktree_id = await thread_to_open_for(ctx.connection, ctx.conversation_id)
    if is_pull:
        await ctx.reply(pull_requests.IS_PULL_REQUEST)
        return
    if worktree_id is None:
        await ctx.reply(pull_requests.NO_BRANCH)
        return
    await enqueue_in_line(ctx, worktree_id, "pull-request", asked_for(argument))


PR = Handler("pr", parse_argument, summary=replies.PR_SUMMARY, run=_run)
