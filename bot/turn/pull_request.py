"""After a push: the pull request of an issue's branch is linked, opened, or one click away, and its text kept true."""

import asyncio
from collections.abc import Awaitable

import structlog

from bot.github.answers import Pull
from bot.github.errors import GitHubError
from bot.operations.pull_request import IssueThread, Opened, adopt, describe, is_ours, open_once, open_one
from bot.store.pull_requests import own_pull, record_pull_request, record_push, tell_once
from bot.thread import pull_requests
from bot.thread.tracking import Changes, PullRequestLink
from bot.tree.git.errors import GitError
from bot.tree.git.refs import InvalidNameError
from bot.tree.proposal import Proposal, proposal_of
from bot.turn.checkout import Ready
from bot.turn.turn_run import TurnRun

LONGEST_WAIT_SECONDS = 60.0
_log = structlog.get_logger()


Pulls = tuple[Pull, ...] | None
"""The pull requests of a branch, None where they do not matter."""


async def pulls_while_pushed(run: TurnRun, branch: str | None, may_go: asyncio.Event) -> Pulls:
    """Return the pull requests of the branch, asked for once it is pushed: GitHub takes its time for both. Raises
    GitHubError.
    """
    await may_go.wait()
    return await _pulls_of(run, branch) if branch else None


async def _pulls_of(run: TurnRun, branch: str) -> Pulls:
    repository = run.turn.worktree.repository
    if run.turn.conversation.kind != "issue" and await own_pull(run.ctx.pool, repository, branch) is None:
        return None
    return await run.ctx.github.pulls_of(repository, branch)


async def pull_request_of(
    run: TurnRun, ready: Ready, changes: Changes, asked: Awaitable[Pulls]
) -> PullRequestLink | None:
    """Return the pull request of the branch that the turn pushed, or the page that opens one. If the bot opened it, its
    text is to be written anew. `asked` are those of the turn's own branch.

    AUTO_PULL_REQUEST opens one unless the branch ever had one: a person may have closed it. None without the answer of
    GitHub, and on a pull request. Raises ClaimLostError.
    """
    turn, branch = run.turn, changes.branch
    net = await _net(run, ready, changes.head)
    await run.write(record_push, turn.claim, branch, changes.head, net, merged=changes.merged)
    try:
        async with asyncio.timeout(LONGEST_WAIT_SECONDS):
            pulls = await (asked if branch == ready.branch else _pulls_of(run, branch))
            link = None if pulls is None else await _linked_or_opened(run, ready, branch, pulls)
    except (GitError, GitHubError, InvalidNameError, TimeoutError) as problem:
        _log.warning("pull-request-unknown", branch=branch, problem=str(problem))
        return None
    if turn.conversation.kind != "issue":
        return None
    await run.write(record_pull_request, turn.conversation.id, link.number if link else None)
    return link


async def _net(run: TurnRun, ready: Ready, head: str) -> tuple[int, int, int] | None:
    """Return the files that `head` changes against its base, and its commits ahead and behind; None if unknown."""
    worktree = run.turn.worktree
    clone, base = run.tree.clone, ready.base_branch or worktree.repository.default_branch
    try:
        tip = await clone.tip(base)
        if tip is None:
            return None
        return await clone.count_files(tip, head), *await clone.ahead_behind(head, tip)
    except GitError as problem:
        _log.warning("branch-not-compared", problem=str(problem))
        return None


async def _linked_or_opened(run: TurnRun, ready: Ready, branch: str, pulls: tuple[Pull, ...]) -> PullRequestLink | None:
    ctx, turn, repository = run.ctx, run.turn, run.turn.worktree.repository
    thread = IssueThread(repository, turn.conversation.id, turn.conversation.number, turn.conversation.title)
    if (pull := open_one(pulls)) is not None:
        await _keep_true(run, thread, branch, pull)
        return PullRequestLink(pull.url, pull.number)
    clone = run.tree.clone
    found = await proposal_of(clone, branch, ready.base_branch, repository.default_branch)
    if turn.conversation.kind != "issue" or not isinstance(found, Proposal):
        return None
    new = await describe(ctx, thread, branch, found)
    page = PullRequestLink(new.page)
    # Commits that did not merge with the branch went to another one, which people look at first.
    if ctx.rules.auto_pull_request == "never" or pulls or branch != ready.branch:
        return page
    result = await open_once(ctx, ctx.github, thread, new, draft=ctx.rules.auto_pull_request == "draft")
    if not isinstance(result, Opened):
        run.notices.append(result)
        return page
    run.notices += [pull_requests.NO_DRAFTS] if result.drafts_refused else []
    await _keep_true(run, thread, branch, result.pull)
    return PullRequestLink(result.pull.url, result.pull.number)


async def _keep_true(run: TurnRun, thread: IssueThread, branch: str, pull: Pull) -> None:
    """Let the bot's description be rewritten after the turn; where a person took it over, say so once."""
    own = await adopt(run.ctx, thread, branch, pull)
    if own is None:
        return
    run.describes = is_ours(pull, own)
    if not run.describes:
        first = await run.write(tell_once, thread.repository, pull.number)
        run.notices += [pull_requests.edited_by_hand(pull.number)] if first is not None else []
