"""An operator wants a thread's worktree made, before anybody asks for anything there."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from bot.decide.pull_requests import closed_issues, pull_head
from bot.github.client import GitHub
from bot.handlers.context import ChosenWorktree, GitHubFacts, NodePaths, RequestContext
from bot.model import Repository
from bot.reply.thread_comments import ThreadRef
from bot.store import conversations, upkeep
from bot.store.database import Pool


async def reserve_worktree(
    pool: Pool, github: GitHub, premises: NodePaths, clock: Callable[[], datetime], repository: Repository, number: int
) -> ChosenWorktree:
    """The worktree that a request on the thread would run in: its own, a shared one, or one that is reserved now.

    Raises NotFound where there is no such thread, GitHubError.
    """
    thread = await github.thread(repository, number)
    facts = GitHubFacts(clock())
    if thread.kind == "pull":
        pull = await github.pull(repository, number)
        place = await pull_head(github, repository, pull)
        closes: tuple[int, ...] = ()
        if place.same_repository:
            closes = await closed_issues(github, repository, pull, clock, asyncio.sleep)
        facts = replace(facts, pull=place, closes=closes)
    async with pool.acquire() as connection, connection.transaction():
        await upkeep.know_node(connection, premises.node)
        folder = await conversations.save_codebase(connection, repository)
        row = await conversations.save_conversation(
            connection, repository, number, thread.kind, thread.title, thread.closed_at
        )
        ctx = RequestContext(connection, premises, repository, number, ThreadRef(repository, row.id), folder, facts)
        return await ctx.place()
