"""The worktree that a conversation's next turn runs in is looked up or reserved, from rows (DESIGN.md §4)."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from bot.github.client import GitHub
from bot.github.errors import GitHubError
from bot.github.transport import Clock, Sleep
from bot.handlers.choose_worktree import (
    NewWorktree,
    PullRequestHead,
    SharedWorktree,
    SharingCandidate,
    choose_node,
    choose_worktree,
    new_worktree,
)
from bot.handlers.context import Nodes, ThreadContext, save_thread
from bot.messages import notices
from bot.model import HeadBranch, Repository, worktree_path
from bot.store import conversations, nodes, sharing
from bot.store.database import Pool

YOUNG_PULL_SECONDS = 60
CLOSING_REFERENCES_SECONDS = 10.0
CLOSING_REFERENCES_WAITS_SECONDS = (3.0, 5.0)
"""GitHub links a new pull request to its issues a little later: asked again within 10 s, then it means none."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AssignedWorktree:
    """The worktree of the next turn, and its node.

    `switch_to`: the branch that it must have when the turn runs; `notices`: what the reply must say about it.
    """

    worktree_id: int
    node: str
    switch_to: str | None = None
    notices: tuple[str, ...] = ()


async def assign_worktree(ctx: ThreadContext) -> AssignedWorktree:
    """Return the conversation's worktree from now on: its own, a shared one, or a new one that is reserved."""
    ready = await conversations.own_ready_worktree(ctx.connection, ctx.conversation_id)
    if ready is not None:
        own, switch_to = ready
        return AssignedWorktree(own.id, own.node, switch_to)
    await sharing.lock_codebase(ctx.connection, ctx.repository)
    live = await conversations.own_live_worktree(ctx.connection, ctx.conversation_id)
    if live is not None:
        switch_to = await sharing.pending_switch(ctx.connection, ctx.conversation_id)
        return AssignedWorktree(live.id, live.node, switch_to)
    linked, on_branch = await _sharing_candidates(ctx)
    match choose_worktree(ctx.number, ctx.pull, linked, on_branch):
        case SharedWorktree() as shared:
            return await _share(ctx, shared)
        case NewWorktree() as new:
            return await _reserve(ctx, new)


async def assign_worktree_for_operator(
    pool: Pool, github: GitHub, node: str, clock: Clock, repository: Repository, number: int
) -> AssignedWorktree:
    """Return the worktree in which a request on the thread would run, before the first request.

    Raises NotFound where there is no such thread, GitHubError.
    """
    thread = await github.thread(repository, number)
    pull = None
    if thread.kind == "pull":
        pull = await look_up_pull_request(github, repository, number, clock, asyncio.sleep, choosing=True)
    async with pool.acquire() as connection, connection.transaction():
        thread_ref, folder = await save_thread(
            connection, repository, number, thread.kind, thread.title, thread.closed_at
        )
        return await assign_worktree(ThreadContext(connection, Nodes(node), thread_ref, number, folder, pull))


async def _sharing_candidates(ctx: ThreadContext) -> tuple[list[SharingCandidate], SharingCandidate | None]:
    """Return the live worktrees of the issues that the pull request closes, and the one that has its head branch."""
    if ctx.pull is None:
        return [], None
    linked = await conversations.worktrees_of_issues(ctx.connection, ctx.repository, ctx.pull.closes)
    on_branch = await sharing.on_branch(ctx.connection, ctx.repository, ctx.pull.head_ref)
    ids = [worktree.id for _, worktree in linked] + ([on_branch.id] if on_branch else [])
    uses = await sharing.usage(ctx.connection, ids, ctx.conversation_id)
    return (
        [SharingCandidate(worktree, uses[worktree.id], issue) for issue, worktree in linked],
        SharingCandidate(on_branch, uses[on_branch.id]) if on_branch else None,
    )


async def _share(ctx: ThreadContext, shared: SharedWorktree) -> AssignedWorktree:
    candidate = shared.candidate
    live = await conversations.live_worktree(ctx.connection, candidate.worktree.id)
    if live is None:  # it was purged, and its path is another's now
        return await _reserve(ctx, new_worktree(ctx.number, ctx.pull))
    await conversations.use_worktree(ctx.connection, ctx.conversation_id, live.id)
    _log.info("worktree-shared", worktree=live.id, conversation_id=ctx.conversation_id, switch_to=shared.switch_to)
    if candidate.issue is not None:
        notice = notices.in_worktree_of(candidate.issue)
    else:
        notice = notices.in_worktree_on_branch(candidate.use.owner, shared.switch_to)
    return AssignedWorktree(live.id, live.node, shared.switch_to, (notice,))


async def _reserve(ctx: ThreadContext, new: NewWorktree) -> AssignedWorktree:
    node, path = ctx.nodes.own, worktree_path(ctx.folder, new.folder)
    if ctx.nodes.timeout_seconds is not None:
        node = choose_node(node, await nodes.live_nodes(ctx.connection, ctx.nodes.timeout_seconds))
    worktree_id = await conversations.reserve_worktree(
        ctx.connection, ctx.repository, node=node, path=path, owner=ctx.number, start=new.start
    )
    await conversations.use_worktree(ctx.connection, ctx.conversation_id, worktree_id)
    branch = new.start.branch if isinstance(new.start, HeadBranch) else None
    said = (notices.not_shared(new.instead_of, branch),) if new.instead_of else ()
    return AssignedWorktree(worktree_id, node, notices=said)


async def look_up_pull_request(
    github: GitHub, repository: Repository, number: int, clock: Clock, sleep: Sleep, *, choosing: bool
) -> PullRequestHead:
    """Return whose head it is, and what matters where a worktree has to be chosen. Raises GitHubError."""
    pull = await github.pull(repository, number)
    is_same = pull.head_repository_id == repository.id
    is_protected = False
    closes: tuple[int, ...] = ()
    if choosing and is_same:
        is_protected = pull.head_ref == pull.default_branch or await github.is_protected(repository, pull.head_ref)
        closes = await _closed_issues(github, repository, number, pull.created_at, clock, sleep)
    return PullRequestHead(pull.head_ref, pull.head_sha, is_same, is_protected, closes, pull.head_pushed_at)


async def _closed_issues(
    github: GitHub, repository: Repository, number: int, created_at: datetime, clock: Clock, sleep: Sleep
) -> tuple[int, ...]:
    """Return the issues of this repository that the pull request closes; a failure means none, never an error."""
    try:
        async with asyncio.timeout(CLOSING_REFERENCES_SECONDS):
            for wait in (*CLOSING_REFERENCES_WAITS_SECONDS, None):
                found = await github.closing_issues(repository, number)
                numbers = tuple(issue.number for issue in found if issue.repository_id == repository.id)
                is_young = clock() - created_at < timedelta(seconds=YOUNG_PULL_SECONDS)
                if numbers or wait is None or not is_young:
                    return numbers
                await sleep(wait)
    except (GitHubError, TimeoutError) as problem:
        _log.warning("closing-references-unknown", pull=number, problem=str(problem) or type(problem).__name__)
    return ()
