"""`threadtree worktrees create|reset|remove|restore|touch`: one worktree's life, from the command line."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NoReturn
from urllib.parse import urlsplit

import typer

from bot.cli.touch import touch
from bot.cli.worktrees_list import OpenNode
from bot.github.errors import NotFound
from bot.handlers.assign_worktree import assign_worktree_for_operator
from bot.handlers.context import NodePaths
from bot.node.context import NodeContext
from bot.node.process_lock import worker_lock
from bot.operations import execute
from bot.store import listings, operations
from bot.store.listings import FoundWorktree
from bot.store.operations import Asker, OperationKind

OPERATOR = "the operator"
_THREAD = re.compile(r"(?P<owner>[A-Za-z0-9_-]+)/(?P<name>[A-Za-z0-9._-]+)#(?P<number>[0-9]{1,9})")
_ID = re.compile(r"[0-9]{1,18}")

Which = Annotated[str, typer.Argument(metavar="ID", help="Its id in `worktrees list`, or its path.")]


def add_commands(group: typer.Typer, open_node: OpenNode) -> None:
    """Adds the commands to the group `worktrees`. Exit status 1 where it could not be done, 2 for a wrong name."""

    def on(worktree: str, act: Callable[[NodeContext, FoundWorktree], Awaitable[None]]) -> None:
        async def run() -> None:
            async with open_node() as ctx:
                await act(ctx, await find(ctx, worktree))

        asyncio.run(run())

    @group.command(help="Make the worktree of a thread.")
    def create(thread: Annotated[str, typer.Argument(metavar="OWNER/REPO#N")]) -> None:
        named = _THREAD.fullmatch(thread)
        if named is None:
            fail(f"{thread!r} names no thread; write it like octo/hello#42.", 2)

        async def run() -> None:
            async with open_node() as ctx:
                await _create(ctx, named["owner"], named["name"], int(named["number"]))

        asyncio.run(run())

    @group.command(help="Rescue what GitHub lacks, then start over.")
    def reset(worktree: Which) -> None:
        on(worktree, lambda ctx, found: _operate(ctx, found, "reset"))

    @group.command(help="Rescue what GitHub lacks, then remove it.")
    def remove(worktree: Which) -> None:
        on(worktree, lambda ctx, found: _operate(ctx, found, "remove"))

    @group.command(help="Bring back what was rescued from it last.")
    def restore(worktree: Which) -> None:
        on(worktree, lambda ctx, found: _operate(ctx, found, "restore"))

    @group.command("touch", help="Count it as used now.")
    def touch_one(worktree: Which) -> None:
        on(worktree, _touch)


async def find(ctx: NodeContext, named: str) -> FoundWorktree:
    """The worktree of this node that somebody named by id or path; ends the command where there is none."""
    worktree_id = int(named) if _ID.fullmatch(named) else None
    async with ctx.pool.acquire() as connection:
        found = await listings.find_worktree(connection, worktree_id, _absolute(named))
    if found is None:
        fail(f"There is no worktree {named}: `threadtree worktrees list` shows them.", 2)
    if found.node != ctx.node:
        fail(f"Worktree {found.id} is on the node {found.node}; run this there (NODE_NAME here is {ctx.node}).", 2)
    return found


def _absolute(path: str) -> str:
    """As the rows have it: links in it are not followed."""
    return str(Path(path).absolute())


def fail(sentence: str, status: int = 1) -> NoReturn:
    """Ends the command with a sentence on stderr."""
    typer.echo(f"threadtree: {sentence}", err=True)
    raise typer.Exit(status)


async def _create(ctx: NodeContext, owner: str, name: str, number: int) -> None:
    github = ctx.github
    if github is None:
        fail("GITHUB_TOKEN is not set; set it, or GITHUB_APP_ID and GITHUB_PRIVATE_KEY_PATH: a thread is asked for.", 2)
    try:
        repository = await github.repository(urlsplit(ctx.server_url).netloc, owner, name)
        paths = NodePaths(ctx.node, str(ctx.data_dir / "worktrees"))
        assigned = await assign_worktree_for_operator(ctx.pool, github, paths, ctx.clock, repository, number)
    except NotFound:
        fail(f"GitHub shows the bot no {owner}/{name}#{number}; correct it, or give the bot access.")
    if assigned.node != ctx.node:
        fail(f"Its worktree {assigned.worktree_id} is on the node {assigned.node}; run this there.", 2)
    async with ctx.pool.acquire() as connection, connection.transaction():
        asker = Asker(OPERATOR, ctx.clock())
        operation_id = await operations.ask(connection, assigned.worktree_id, "create", asker)
    await carry_out(ctx, operation_id)
    found = await find(ctx, str(assigned.worktree_id))
    typer.echo(f"It is worktree {found.id}: {found.path}")


async def _operate(ctx: NodeContext, found: FoundWorktree, kind: OperationKind) -> None:
    async with ctx.pool.acquire() as connection, connection.transaction():
        operation_id = await operations.ask(connection, found.id, kind, Asker(OPERATOR, ctx.clock()))
    await carry_out(ctx, operation_id)


async def carry_out(ctx: NodeContext, operation_id: int) -> None:
    """Does what was asked here, or waits for the worker that has begun it; prints how it ended."""
    with worker_lock(ctx.workers) as worker:
        standing = await execute.execute(ctx, worker, operation_id, lambda words: typer.echo(words, err=True))
    if standing.state == "failed":
        fail(standing.outcome or "It was not done.")
    typer.echo(standing.outcome)


async def _touch(ctx: NodeContext, found: FoundWorktree) -> None:
    if not await touch(ctx, found.id):
        fail(f"Worktree {found.id} is {found.state}; only one that is there can be touched.")
    typer.echo(f"Worktree {found.id} counts as used now.")
