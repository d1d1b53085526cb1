"""The chat commands that need little: `/status`, `/retry`, `/pr`, `/reset-context` and `/reset`."""

from bot.handlers.agent_request import AgentRequest, queue_turn
from bot.handlers.context import Handler, RequestContext
from bot.handlers.worktree import enqueue_in_line, queue_operation
from bot.messages import pull_requests, replies
from bot.reply import thread_comments
from bot.store import conversations, requests, sharing
from bot.store.operations import PullRequestAsked
from bot.store.pull_requests import thread_to_open_for

# No title, but what people add to a command.
_POLITE = frozenset({"please", "now", "please now", "now please", "thanks", "thank you"})


async def _status(ctx: RequestContext, _: str | None) -> None:
    now = await conversations.overview(ctx.connection, ctx.conversation_id, ctx.now)
    next_branch = await sharing.pending_switch(ctx.connection, ctx.conversation_id)
    running_for = ctx.now - now.running_since if now.running_since else None
    branch = now.branch and (next_branch or now.branch)
    silent = None
    if now.silent_node is not None and now.silent_since is not None:
        silent = replies.node_silent_since(now.silent_node, now.silent_since, ctx.now)
    words = replies.status(
        branch,
        running_for,
        now.waiting,
        session_active=now.session_active,
        wait=now.wait,
        not_posted=now.not_posted,
        silent=silent,
        removal_error=now.removal_error,
    )
    await ctx.reply(words)


async def _retry(ctx: RequestContext, _: str | None) -> None:
    last = await requests.last_not_done(ctx.connection, ctx.conversation_id)
    if last is None:
        await ctx.reply(replies.NOTHING_TO_RETRY)
        return
    await thread_comments.acknowledge(ctx.connection, ctx.thread_ref, ctx.target, ctx.author.id)
    await queue_turn(ctx, AgentRequest(last["request"], last["context"]), pinned_sha=last["pinned_sha"])


async def _reset(ctx: RequestContext, _: str | None) -> None:
    await queue_operation(ctx, "reset")


async def _reset_context(ctx: RequestContext, _: str | None) -> None:
    ended = await conversations.end_session(ctx.connection, ctx.conversation_id, "reset-requested")
    await ctx.reply(replies.CONTEXT_RESET if ended else replies.NO_SESSION_TO_RESET)


async def _pr(ctx: RequestContext, argument: str | None) -> None:
    is_pull, worktree_id = await thread_to_open_for(ctx.connection, ctx.conversation_id)
    if is_pull:
        await ctx.reply(pull_requests.IS_PULL_REQUEST)
    elif worktree_id is None:
        await ctx.reply(pull_requests.NO_BRANCH)
    else:
        await enqueue_in_line(ctx, worktree_id, "pull-request", pull_request_asked(argument))


def pull_request_asked(argument: str | None) -> PullRequestAsked:
    """Return what the argument of `/pr` asks for; without a word for it the pull request is ready for review."""
    first, _, rest = (argument or "").partition(" ")
    kind = first.casefold().rstrip(":,")
    title = (rest if kind in ("draft", "ready") else argument or "").strip()
    is_title = bool(title) and title.casefold().strip(" .,!") not in _POLITE
    return PullRequestAsked(draft=kind == "draft", title=title if is_title else None)


STATUS = Handler("status", needs_no_slash=True, summary=replies.STATUS_SUMMARY, run=_status)
RETRY = Handler("retry", summary=replies.RETRY_SUMMARY, run=_retry, queues_turn=True)
PR = Handler("pr", lambda words: (words or None, ""), summary=replies.PR_SUMMARY, run=_pr)
RESET_CONTEXT = Handler("reset-context", summary=replies.RESET_CONTEXT_SUMMARY, run=_reset_context)
RESET = Handler("reset", summary=replies.RESET_SUMMARY, run=_reset)
