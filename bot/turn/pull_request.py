"""After a push: the pull request of an issue's branch is linked, opened, or one click away, and its text kept true."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import structlog

from bot import refs
from bot.github.answers import Pull
from bot.github.errors import GitHubError
from bot.json_values import storable
from bot.prompt.description import ask_for_description
from bot.prompt.foreign import Fence
from bot.refs import InvalidNameError
from bot.sandbox.untrusted_files import read_untrusted
from bot.thread import notices, pull_requests
from bot.thread.tracking import Changes, PullRequestLink
from bot.tree import GitError
from bot.turn.kind import Ready
from bot.turn.own_pull import IssueThread, Opened, adopt, describe, is_ours, keep_true, open_once, open_one
from bot.turn.pull_request_rows import own_pull, record_pull_request, record_push, tell_once
from bot.turn.thread_answers import OUT
from bot.turn.turn_run import TurnRun

LONGEST_WAIT_SECONDS = 60.0
LEFT = OUT / "pull_request.md"
LARGEST_FILE_BYTES = 64 * 1024
_log = structlog.get_logger()


Pulls = tuple[Pull, ...] | None
"""The pull requests of a branch, None where they do not matter."""


async def asked_of_agent(run: TurnRun, ready: Ready, fence: Fence, *, conventional: bool) -> str:
    """Return what the agent is told of the description that it leaves; empty where there is nothing to describe.

    That is for a branch that has the bot's pull request, or will get one. Raises GitError, InvalidNameError.
    """
    turn, repository = run.turn, run.turn.worktree.repository
    branch, base, default = ready.branch, ready.base_branch or repository.default_branch, repository.default_branch
    if not run.kind.writes or branch is None or base is None or default is None:
        return ""
    if turn.conversation.kind != "issue" and await own_pull(run.ctx.pool, repository, branch) is None:
        return ""
    template = await run.tree.template(default)
    file = f"{refs.remote(default)}:{template}" if template is not None else None
    return ask_for_description(fence, branch, base, file, conventional=conventional)


async def description_of(run: TurnRun) -> str | None:
    """Return the description that the agent left, to be saved with its answer; None if it left none."""
    try:
        left = await asyncio.to_thread(read_left, run.ctx.home(run.turn.conversation.id)) if run.kind.writes else ""
    except (OSError, ValueError):
        run.notices.append(notices.DESCRIPTION_UNREADABLE)
        return None
    return await asyncio.to_thread(run.ctx.redactor.redact, left) or None


def read_left(home: Path) -> str:
    """Return the description that an agent left in its HOME, empty without one.

    Raises OSError for what is no file, or too large, and UnicodeDecodeError.
    """
    try:
        left: str = storable(read_untrusted(home, LEFT, LARGEST_FILE_BYTES).decode())
    except FileNotFoundError:
        return ""
    return left


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
    text is written anew. `asked` are those of the turn's own branch.

    AUTO_PULL_REQUEST opens one unless the branch ever had one: a person may have closed it. None without the answer of
    GitHub, and on a pull request. Raises ClaimLostError.
    """
    turn, branch, pulls = run.turn, changes.branch, None
    net = await _net(run, ready, changes.head)
    pushed = branch, changes.head, net, run.head_before
    await run.write(record_push, turn.claim, *pushed, merged=changes.merged)
    try:
        async with asyncio.timeout(LONGEST_WAIT_SECONDS):
            pulls = await (asked if branch == ready.branch else _pulls_of(run, branch))
            link = None if pulls is None else await _linked_or_opened(run, ready, branch, pulls)
    except (GitError, GitHubError, InvalidNameError, TimeoutError) as problem:
        _log.warning("pull-request-unknown", branch=branch, problem=str(problem))
        return None
    await _keep_true(run, ready, branch, open_one(pulls or ()))
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
    if (pull := open_one(pulls)) is not None:
        return PullRequestLink(pull.url, pull.number)
    found = await run.tree.proposal(branch, ready.base_branch, repository.default_branch)
    if turn.conversation.kind != "issue" or found is None or not found.is_new:
        return None
    thread = IssueThread(repository, turn.conversation.id, turn.conversation.number, turn.conversation.title)
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
    await adopt(ctx, thread, branch, result.pull)
    return PullRequestLink(result.pull.url, result.pull.number)


async def _keep_true(run: TurnRun, ready: Ready, branch: str, pull: Pull | None) -> None:
    """Rewrite what the bot's pull request says of the branch; where a person took that over, say so once.

    A failure to do so is only logged: the next push does it too. Raises ClaimLostError.
    """
    ctx, turn, repository = run.ctx, run.turn, run.turn.worktree.repository
    thread = IssueThread(repository, turn.conversation.id, turn.conversation.number, turn.conversation.title)
    try:
        own = await adopt(ctx, thread, branch, pull) if pull is not None else None
        if pull is None or own is None:
            return
        if not is_ours(pull, own):
            first = await run.write(tell_once, repository, pull.number)
            run.notices += [pull_requests.edited_by_hand(pull.number)] if first is not None else []
            return
        found = await run.tree.proposal(branch, pull.base, repository.default_branch)
        if found is not None and found.is_new:
            await keep_true(ctx, ctx.github, replace(thread, number=own.closes), branch, own, found)
    except (GitError, GitHubError, InvalidNameError) as problem:
        _log.warning("description-not-written", branch=branch, problem=str(problem))
