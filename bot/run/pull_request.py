"""After a push to an issue's branch: its pull request is linked, opened, or one click away."""

import asyncio

import structlog

from bot.git.errors import GitError
from bot.git.refs import InvalidNameError
from bot.github.errors import GitHubError
from bot.messages import pull_requests
from bot.messages.tracking import Changes, PullRequestLink
from bot.node.transactions import persist
from bot.operations.pull_request import Opened, Thread, describe, open_once, open_one
from bot.run.checkout import Ready
from bot.run.context import TurnContext
from bot.store.pull_requests import record_push
from bot.store.turns import ClaimedTurn
from bot.worktrees.proposal import Proposal, proposal_of

LONGEST_WAIT_SECONDS = 60.0
_log = structlog.get_logger()


async def pull_request_of(
    ctx: TurnContext, turn: ClaimedTurn, ready: Ready, changes: Changes
) -> tuple[PullRequestLink | None, str | None]:
    """Return the pull request of the branch that the turn pushed, or the page that opens one; and a notice.

    AUTO_PULL_REQUEST opens one unless the branch ever had one: a person may have closed it. None without the answer of
    GitHub, and on a pull request. Raises ClaimLostError.
    """
    await persist(ctx.pool, lambda connection: record_push(connection, turn.claim, changes.branch))
    if turn.kind != "issue":
        return None, None
    try:
        async with asyncio.timeout(LONGEST_WAIT_SECONDS):
            return await _linked_or_opened(ctx, turn, ready, changes.branch)
    except (GitError, GitHubError, InvalidNameError, TimeoutError) as problem:
        _log.warning("pull-request-unknown", branch=changes.branch, problem=str(problem))
        return None, None


async def _linked_or_opened(
    ctx: TurnContext, turn: ClaimedTurn, ready: Ready, branch: str
) -> tuple[PullRequestLink | None, str | None]:
    repository = turn.worktree.repository
    pulls = await ctx.github.pulls_of(repository, branch)
    if (pull := open_one(pulls)) is not None:
        return PullRequestLink(pull.url, pull.number), None
    clone = ctx.clone(turn.worktree.folder)
    found = await proposal_of(clone, branch, ready.base_branch, repository.default_branch)
    if not isinstance(found, Proposal):
        return None, None
    thread = Thread(repository, turn.conversation_id, turn.number, turn.title)
    new = await describe(ctx, thread, branch, found)
    page = PullRequestLink(new.page)
    # Commits that did not merge with the branch went to another one, which people look at first.
    if ctx.auto_pull_request == "never" or pulls or branch != ready.branch:
        return page, None
    result = await open_once(ctx, ctx.github, thread, new, draft=ctx.auto_pull_request == "draft")
    if not isinstance(result, Opened):
        return page, result.words
    notice = pull_requests.NO_DRAFTS if result.drafts_refused else None
    return PullRequestLink(result.pull.url, result.pull.number), notice
