"""`threadtree rescues list|restore|drop` and `threadtree disk`: what is kept, until when, and what takes the space."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
from rich.filesize import decimal

from bot.api import rows
from bot.cli.calls import correctable, items_of, print_json, print_table, show_items
from bot.cli.running import fail, run_on_database, run_on_node
from bot.cli.worktrees import execute_operation, print_place
from bot.clones import trash
from bot.node.context import NodeContext
from bot.node.identity import known_id
from bot.node.room import BY_REPOSITORY, FOLDERS, free_bytes, kept_directories
from bot.operations.drop import drop_kept, drop_now
from bot.settings import load
from bot.store import listings, nodes, rescues
from bot.store.database import Connection
from bot.store.rescues import Rescue

_ID = re.compile(r"[0-9]{1,18}")
_NO_ROW: Final = dict.fromkeys(rows.Rescue.model_fields) | {"conversations": [], "files": 0, "commits": 0}


@dataclass(frozen=True, slots=True)
class _Space:
    """The disk space that something takes, of one repository or of all."""

    what: str
    codebase: str | None
    bytes: int


def list_rescues(*, json: bool, limit: int | None, repository: str | None, state: str | None) -> None:
    """Print what was rescued or kept on all nodes, newest first. Directories without a row fit no filter."""

    async def listed(connection: Connection) -> list[rows.Rescue]:
        found: list[rows.Rescue] = await items_of(connection, "rescues", repo=repository, state=state)
        if repository is None and state is None:
            await _report_kept(connection)
            for node in await items_of(connection, "nodes"):
                kept = [{**_NO_ROW, **dict(one), "node": node.name} for one in node.kept]
                found += [rows.Rescue.model_construct(None, **one) for one in kept]
        return sorted(found, key=lambda one: one.created_at, reverse=True)

    filtered = repository is not None or state is not None
    with correctable():
        found = run_on_database(listed)
    show_items("rescues", found, json=json, limit=limit, filtered=filtered)


async def _report_kept(connection: Connection) -> None:
    """Write what is kept whole on this node now; its worker does so from time to time."""
    data_dir = load().data_dir
    if (node := known_id(data_dir)) is not None:
        await nodes.save_kept(connection, node, await asyncio.to_thread(kept_directories, data_dir))


def restore_rescue(rescue: str) -> None:
    """Bring a rescue of this node back into the worktree where its thread works, if that is here, else into its own.

    Exit status 2 where it is not the latest of its worktree, or is on another node.
    """

    async def restored(ctx: NodeContext) -> None:
        found = await _find(ctx, rescue)
        async with ctx.pool.acquire() as connection:
            newer = await rescues.newer(connection, found)
            worktree_id = await rescues.home(connection, found)
        if newer is not None:
            fail(f"Rescue {newer.id} of the same worktree is newer; only the latest can be restored.", 2)
        await execute_operation(ctx, worktree_id, "restore", found.id)
        await print_place(ctx, worktree_id)

    run_on_node(restored)


def drop_rescue(rescue: str) -> None:
    """Delete a rescue for good, by its id, or a kept directory without one by its name."""

    async def dropped(ctx: NodeContext) -> int:
        if _ID.fullmatch(rescue):
            return await drop_now(ctx, await _find(ctx, rescue))
        async with ctx.pool.acquire() as connection:
            await _report_kept(connection)
            kept = [
                one["name"]
                for node in await listings.nodes(connection, None)
                for one in node["kept"]
                if node["id"] == ctx.node
            ]
        if rescue not in kept:
            fail(f"Nothing without an id is kept as {rescue!r}: `threadtree rescues list` shows what is there.", 2)
        return await drop_kept(ctx, rescue)

    typer.echo(f"Dropped; {decimal(run_on_node(dropped))} freed now, the rest when its clone is packed.")


def print_disk(*, json: bool) -> None:
    """Print what takes the disk space of this node, the largest first."""

    async def measured(ctx: NodeContext) -> tuple[list[_Space], int]:
        async with ctx.pool.acquire() as connection:
            rescued = sum(one.bytes for one in await rescues.latest(connection) if one.ref and one.node == ctx.node)
        found = await asyncio.to_thread(lambda: list(_measured(ctx.data_dir)))
        both = [*found, _Space("rescues in the clones", None, rescued)]
        return sorted(both, key=lambda one: -one.bytes), free_bytes(ctx.data_dir)

    spaces, free = run_on_node(measured)
    if json:
        print_json(spaces)
        return
    cells = [(decimal(one.bytes), one.what, one.codebase or "") for one in spaces]
    print_table(("SIZE", "WHAT", "REPOSITORY"), 2, cells)
    typer.echo(f"{decimal(free)} are free; {decimal(load().disk_reserve_bytes)} stay free (DISK_RESERVE_GB).", err=True)


def _measured(data_dir: Path) -> Iterator[_Space]:
    for what, folder in BY_REPOSITORY.items():
        for place in sorted((data_dir / folder).glob("*/*")):
            if place.is_dir() and not place.is_symlink():
                name = f"{place.parent.name}/{place.name.removesuffix('.git')}"
                yield _Space(what, name, trash.size_of(place))
    for what, folder in (FOLDERS | {"database": "postgres"}).items():
        if what not in BY_REPOSITORY:
            yield _Space(what, None, trash.size_of(data_dir / folder))


async def _find(ctx: NodeContext, rescue: str) -> Rescue:
    """Return the rescue of this node with this id; end the command if there is none."""
    async with ctx.pool.acquire() as connection:
        found = await rescues.with_id(connection, int(rescue)) if _ID.fullmatch(rescue) else None
    if found is None:
        fail(f"There is no rescue {rescue}: `threadtree rescues list` shows them.", 2)
    if found.node != ctx.node:
        fail(f"Rescue {found.id} is on the node {found.node_name}; run this there.", 2)
    return found
