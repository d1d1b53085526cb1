"""`threadtree worktrees create|reset|remove|restore|touch`: one worktree's life, from the command line."""

import asyncio
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import typer

from bot.cli.running import fail, open_node, run
from bot.clones import metadata
from bot.github.errors import NotFound
from bot.handlers.assign_worktree import assign_worktree_for_operator
from bot.handlers.context import NodePaths
from bot.node.context import NodeContext
from bot.node.process_lock import worker_lock
from bot.operations import execute
from bot.store import listings, operations, retention
from bot.store.listings import FoundWorktree
from bot.store.operations import OperationKind, RequestedBy

OPERATOR = "the operator"
_THREAD = re.compile(r"(?P<owner>[A-Za-z0-9_-]+)/(?P<name>[A-Za-z0-9._-]+)#(?P<number>[0-9]{1,9})")
_ID = re.compile(r"[0-9]{1,18}")


def create(thread: str) -> None:
    """Make the worktree of the thread `owner/repo#number`; exit status 2 for text that names none."""
    named = _THREAD.fullmatch(thread)
    if named is None:
        fail(f"{thread!r} names no thread; write it like octo/hello#42.", 2)

    async def created() -> None:
        async with open_node() as ctx:
            await _create(ctx, named["owner"], named["name"], int(named["number"]))

    run(created())


def operate(worktree: str, kind: OperationKind) -> None:
    """Reset, remove or restore a worktree; exit status 1 where that fails, 2 for an unknown worktree."""

    async def operated() -> None:
        async with open_node() as ctx:
            found = await find(ctx, worktree)
            async with ctx.pool.acquire() as connection, connection.transaction():
                operation_id = await operations.enqueue(connection, found.id, kind, RequestedBy(OPERATOR, ctx.clock()))
            await _carry_out(ctx, operation_id)

    run(operated())


def touch(worktree: str) -> None:
    """Count a worktree as used now, in its row and in the metadata beside it."""

    async def touched() -> None:
        async with open_node() as ctx:
            found = await find(ctx, worktree)
            now = ctx.clock()
            async with ctx.pool.acquire() as connection:
                path = await retention.touch(connection, found.id, now)
            if path is None:
                fail(f"Worktree {found.id} is {found.state}; only a live one can be touched.")
            await asyncio.to_thread(_touch_metadata, Path(path), now)
        typer.echo(f"Worktree {found.id} counts as used now.")

    run(touched())


def _touch_metadata(path: Path, now: datetime) -> None:
    known = metadata.read(path)
    if isinstance(known, metadata.Metadata):
        metadata.write(path, replace(known, updated_at=now))


async def find(ctx: NodeContext, named: str) -> FoundWorktree:
    """Return the worktree of this node with this id or path; end the command if there is none."""
    worktree_id = int(named) if _ID.fullmatch(named) else None
    async with ctx.pool.acquire() as connection:
        found = await listings.find_worktree(connection, worktree_id, _absolute(named))
    if found is None:
        fail(f"There is no worktree {named}: `threadtree worktrees list` shows them.", 2)
    if found.node != ctx.node:
        fail(f"Worktree {found.id} is on the node {found.node}; run this there (NODE_NAME here is {ctx.node}).", 2)
    return found


def _absolute(path: str) -> str:
    """The path as the rows have it: symbolic links are not followed."""
    return str(Path(path).absolute())


async def _create(ctx: NodeContext, owner: str, name: str, number: int) -> None:
    github = ctx.github
    if github is None:
        fail("GITHUB_TOKEN is not set, and GitHub is asked about the thread; set it, or the App's two settings.", 2)
    try:
        repository = await github.repository(urlsplit(ctx.server_url).netloc, owner, name)
        paths = NodePaths(ctx.node, str(ctx.data_dir / "worktrees"))
        assigned = await assign_worktree_for_operator(ctx.pool, github, paths, ctx.clock, repository, number)
    except NotFound:
        fail(f"GitHub shows the bot no {owner}/{name}#{number}; correct it, or give the bot access.")
    if assigned.node != ctx.node:
        fail(f"Its worktree {assigned.worktree_id} is on the node {assigned.node}; run this there.", 2)
    async with ctx.pool.acquire() as connection, connection.transaction():
        asker = RequestedBy(OPERATOR, ctx.clock())
        operation_id = await operations.enqueue(connection, assigned.worktree_id, "create", asker)
    await _carry_out(ctx, operation_id)
    found = await find(ctx, str(assigned.worktree_id))
    typer.echo(f"Worktree {found.id}: {found.path}")


async def _carry_out(ctx: NodeContext, operation_id: int) -> None:
    """Execute the operation, or wait for the worker that has begun it; print how it ended."""
    with worker_lock(ctx.workers) as worker:
        operation = await execute.execute(ctx, worker, operation_id, lambda words: typer.echo(words, err=True))
    if operation.state == "failed":
        fail(operation.outcome or "The operation failed.")
    typer.echo(operation.outcome)
