"""The worktree that a conversation's next turn runs in is looked up or reserved, from rows (DESIGN.md §4)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from bot.github.client import GitHub
from bot.handlers.choose_worktree import NewWorktree, SharedWorktree, SharingCandidate, choose_worktree, new_worktree
from bot.handlers.context import NodePaths, ThreadContext, save_thread
from bot.handlers.pull_requests import look_up_pull_request
from bot.messages import notices
from bot.model import HeadBranch, Repository
from bot.store import conversations, sharing, upkeep
from bot.store.database import Pool


@dataclass(frozen=True, slots=True)
class AssignedWorktree:
    """The worktree of the next turn, and its node.

    `switch_to`: the branch that it must have when the turn runs; `notice`: what the reply must say about it.
    """

    worktree_id: int
    node: str
    switch_to: str | None = None
    notice: str | None = None


async def assign_worktree(ctx: ThreadContext) -> AssignedWorktree:
    """Return the conversation's worktree from now on: its own, a shared one, or a new one that is reserved."""
    await sharing.lock_codebase(ctx.connection, ctx.repository)
    own = await conversations.worktree_of(ctx.connection, ctx.conversation_id)
    live = await conversations.live_worktree(ctx.connection, own) if own is not None else None
    if live is not None:
        switch_to = await sharing.pending_switch(ctx.connection, ctx.conversation_id)
        return AssignedWorktree(live.id, live.node, switch_to)
    match choose_worktree(ctx.number, ctx.pull, await _of_closed_issues(ctx), await _on_head_branch(ctx)):
        case SharedWorktree() as shared:
            return await _share(ctx, shared)
        case NewWorktree() as new:
            return await _reserve(ctx, new)


async def assign_worktree_for_operator(
    pool: Pool, github: GitHub, paths: NodePaths, clock: Callable[[], datetime], repository: Repository, number: int
) -> AssignedWorktree:
    """Return the worktree that a request on the thread would run in, before anybody asks there.

    Raises NotFound where there is no such thread, GitHubError.
    """
    thread = await github.thread(repository, number)
    pull = None
    if thread.kind == "pull":
        pull = await look_up_pull_request(github, repository, number, clock, asyncio.sleep)
    async with pool.acquire() as connection, connection.transaction():
        await upkeep.insert_node(connection, paths.node)
        thread_ref, folder = await save_thread(
            connection, repository, number, thread.kind, thread.title, thread.closed_at
        )
        return await assign_worktree(ThreadContext(connection, paths, thread_ref, number, folder, pull))


async def _of_closed_issues(ctx: ThreadContext) -> list[SharingCandidate]:
    """Return the live worktrees of the issues that the pull request closes."""
    closes = list(ctx.pull.closes) if ctx.pull else []
    found = await conversations.worktrees_of_issues(ctx.connection, ctx.repository, closes)
    uses = await sharing.usage(ctx.connection, [worktree.id for _, worktree in found], ctx.conversation_id)
    return [SharingCandidate(worktree, uses[worktree.id], issue) for issue, worktree in found]


async def _on_head_branch(ctx: ThreadContext) -> SharingCandidate | None:
    """Return the worktree that has the head branch of the pull request, or soon will."""
    if ctx.pull is None:
        return None
    found = await sharing.on_branch(ctx.connection, ctx.repository, ctx.pull.head_ref)
    if found is None:
        return None
    uses = await sharing.usage(ctx.connection, [found.id], ctx.conversation_id)
    return SharingCandidate(found, uses[found.id])


async def _share(ctx: ThreadContext, shared: SharedWorktree) -> AssignedWorktree:
    candidate = shared.candidate
    live = await conversations.live_worktree(ctx.connection, candidate.worktree.id)
    if live is None:  # it was purged, and its path is another's now
        return await _reserve(ctx, new_worktree(ctx.number, ctx.pull))
    await conversations.use_worktree(ctx.connection, ctx.conversation_id, live.id)
    if candidate.issue is not None:
        notice = notices.in_worktree_of(candidate.issue)
    else:
        notice = notices.in_worktree_on_branch(candidate.use.owner, shared.switch_to)
    return AssignedWorktree(live.id, live.node, shared.switch_to, notice)


async def _reserve(ctx: ThreadContext, new: NewWorktree) -> AssignedWorktree:
    path = f"{ctx.paths.worktrees}/{ctx.folder}/{new.folder}"
    worktree_id = await conversations.reserve_worktree(
        ctx.connection, ctx.repository, node=ctx.paths.node, path=path, owner=ctx.number, start=new.start
    )
    await conversations.use_worktree(ctx.connection, ctx.conversation_id, worktree_id)
    branch = new.start.branch if isinstance(new.start, HeadBranch) else None
    notice = notices.not_shared(new.instead_of, branch) if new.instead_of else None
    return AssignedWorktree(worktree_id, ctx.paths.node, None, notice)
