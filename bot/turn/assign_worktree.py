"""The worktree that a conversation's next turn runs in is looked up or reserved, from rows (DESIGN.md §4)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from bot.github.client import GitHub
from bot.github.errors import GitHubError
from bot.github.transport import Clock, Sleep
from bot.model import HeadBranch, Repository
from bot.node import node_rows as nodes
from bot.node.repository_names import stored
from bot.store import conversations, worktrees
from bot.store.database import Pool
from bot.tasks import concurrently
from bot.thread import notices
from bot.turn import sharing_rows as sharing
from bot.turn.choose_worktree import (
    OwnWorktree,
    PullRequestHead,
    SharingCandidate,
    choose_node,
    choose_worktree,
    new_worktree,
    worktree_path,
)
from bot.turn.request import Nodes, ThreadContext, save_thread

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
    live = await conversations.own_live_worktree(ctx.connection, ctx.conversation_id)
    if live is None:
        await sharing.lock_codebase(ctx.connection, ctx.repository)
        live = await conversations.own_live_worktree(ctx.connection, ctx.conversation_id)
    if live is not None:
        switch_to = await sharing.pending_switch(ctx.connection, ctx.conversation_id)
        return AssignedWorktree(live.id, live.node, switch_to)
    if ctx.pull is None:
        return await _reserve(ctx, new_worktree(ctx.number, None, branch_prefix=ctx.nodes.branch_prefix))
    linked, on_branch = await _sharing_candidates(ctx, ctx.pull)
    chosen = choose_worktree(ctx.number, ctx.pull, linked, on_branch)
    if isinstance(chosen, OwnWorktree):
        return await _reserve(ctx, chosen)
    return await _share(ctx, chosen, ctx.pull.head_ref)


async def assign_worktree_for_operator(
    pool: Pool, github: GitHub, where: Nodes, clock: Clock, repository: Repository, number: int
) -> AssignedWorktree:
    """Return the worktree in which a request on the thread would run, before the first request.

    `repository` is as GitHub tells it now. Raises NotFound where there is no such thread, GitHubError.
    """
    thread = await github.thread(repository, number)
    pull = None
    if thread.kind == "pull":
        pull = await look_up_pull_request(github, repository, number, clock, asyncio.sleep, choosing=True)
    await stored(pool, repository)
    async with pool.acquire() as connection, connection.transaction():
        thread_ref, folder = await save_thread(connection, repository, thread)
        return await assign_worktree(ThreadContext(connection, where, thread_ref, number, folder, pull))


async def _sharing_candidates(
    ctx: ThreadContext, pull: PullRequestHead
) -> tuple[list[SharingCandidate], SharingCandidate | None]:
    """Return the live worktrees of the issues that the pull request closes, and the one that has its head branch."""
    linked = await conversations.worktrees_of_issues(ctx.connection, ctx.repository, pull.closes or ())
    on_branch = None
    if pull.same_repository:
        on_branch = await conversations.worktree_on_branch(ctx.connection, ctx.repository, pull.head_ref)
    ids = [worktree.id for _, worktree in linked] + ([on_branch.id] if on_branch else [])
    uses = dict(await sharing.usage(ctx.connection, ids, ctx.conversation_id))
    return (
        [SharingCandidate(worktree, uses[worktree.id], issue) for issue, worktree in linked],
        SharingCandidate(on_branch, uses[on_branch.id]) if on_branch else None,
    )


async def _share(ctx: ThreadContext, candidate: SharingCandidate, switch_to: str) -> AssignedWorktree:
    live = await conversations.live_worktree(ctx.connection, candidate.worktree.id)
    if live is None:  # it was purged, and its path is another's now
        return await _reserve(ctx, new_worktree(ctx.number, ctx.pull))
    await conversations.use_worktree(ctx.connection, ctx.conversation_id, live.id)
    _log.info("worktree-shared", worktree=live.id, conversation_id=ctx.conversation_id, switch_to=switch_to)
    if candidate.issue is None:
        told: tuple[str, ...] = (notices.in_worktree_on_branch(candidate.use.owner, switch_to),)
    elif candidate.worktree.branch == switch_to:
        told = ()  # a pull request of the issue's own branch: that surprises nobody
    else:
        told = (notices.in_worktree_of(candidate.issue),)
    return AssignedWorktree(live.id, live.node, switch_to, told)


async def _reserve(ctx: ThreadContext, new: OwnWorktree) -> AssignedWorktree:
    node, path = ctx.nodes.own, worktree_path(ctx.folder, new.folder)
    if ctx.nodes.timeout_seconds is not None:
        node = choose_node(node, await nodes.live_nodes(ctx.connection, ctx.nodes.timeout_seconds))
    worktree_id = await conversations.reserve_worktree(
        ctx.connection, ctx.repository, node=node, path=path, owner=ctx.number, start=new.start
    )
    await conversations.use_worktree(ctx.connection, ctx.conversation_id, worktree_id)
    branch = new.start.branch if isinstance(new.start, HeadBranch) else None
    said = (notices.not_shared(new.instead_of, branch),) if new.instead_of else ()
    if ctx.pull is not None and ctx.pull.closes is None and branch is not None:
        await worktrees.ask_what_it_closes(ctx.connection, worktree_id, is_due=True)
        said = (notices.CLOSES_UNKNOWN,)
    return AssignedWorktree(worktree_id, node, notices=said)


async def look_up_pull_request(
    github: GitHub, repository: Repository, number: int, clock: Clock, sleep: Sleep, *, choosing: bool
) -> PullRequestHead:
    """Return whose head it is, and what matters where a worktree has to be chosen. Raises GitHubError."""
    pull = await github.pull(repository, number)
    is_same = pull.head_repository_id == repository.id
    if not choosing:
        return PullRequestHead(pull.head_ref, pull.head_sha, is_same, False, (), pull.head_pushed_at)
    is_young = is_same and clock() - pull.created_at < timedelta(seconds=YOUNG_PULL_SECONDS)
    waits = CLOSING_REFERENCES_WAITS_SECONDS if is_young else ()
    async with concurrently(closed_issues(github, repository, number, sleep, waits)) as closing:
        is_protected = is_same and (
            pull.head_ref == pull.default_branch or await github.is_protected(repository, pull.head_ref)
        )
        closes = await closing
    return PullRequestHead(pull.head_ref, pull.head_sha, is_same, is_protected, closes, pull.head_pushed_at)


async def closed_issues(
    github: GitHub, repository: Repository, number: int, sleep: Sleep, waits_seconds: Sequence[float] = ()
) -> tuple[int, ...] | None:
    """Return the issues of this repository that the pull request closes; None where GitHub does not tell it in time.

    `waits_seconds`: the pauses after which an empty answer is asked for again.
    """
    numbers = None
    try:
        async with asyncio.timeout(CLOSING_REFERENCES_SECONDS):
            for wait in (*waits_seconds, None):
                numbers = await github.closing_issues(repository, number)
                if numbers or wait is None:
                    break
                await sleep(wait)
    except (GitHubError, LookupError, TimeoutError, TypeError) as problem:
        _log.warning("closing-references-unknown", pull=number, problem=str(problem) or type(problem).__name__)
    return numbers
