"""`threadtree rescues list|restore|drop` and `threadtree disk`: what is kept, until when, and what takes the space."""

import asyncio
import re
from typing import Annotated, Final

import orjson
import typer
from rich.filesize import decimal

from bot.care.expire import drop_kept
from bot.care.removing import delete_trashed
from bot.cli.calls import correctable, items_of, print_json, print_rows, record, show_items
from bot.cli.options import Json, Limit, Repo, State, command_group
from bot.cli.running import fail, run_on_database, run_on_node
from bot.cli.worktrees import carry_out
from bot.node import node_rows as nodes
from bot.node import rescue_rows as stored
from bot.node.context import NodeContext
from bot.node.identity import known_id
from bot.node.room import free_bytes, kept_directories, spaces
from bot.operator.api import changes, rows
from bot.settings import load
from bot.store.database import Connection

_ID = re.compile(r"[0-9]{1,18}")
RescueId = Annotated[str, typer.Argument(metavar="ID", help="Its id in `rescues list`.")]

rescues = command_group()
_NO_ROW: Final = dict.fromkeys(rows.Rescue.model_fields) | {"conversations": [], "files": 0, "commits": 0}


@rescues.command("list")
def list_rescues(json: Json = False, limit: Limit = None, repository: Repo = None, state: State = None) -> None:
    """List what was rescued or kept, with its size and when it expires, the newest first."""

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
        kept = await asyncio.to_thread(kept_directories, data_dir)
        await nodes.save_kept(connection, node, orjson.dumps(kept).decode())


@rescues.command("restore")
def restore_rescue(rescue: RescueId) -> None:
    """Bring a rescue back into its worktree, which is made again where it is gone."""

    run_on_node(lambda ctx: carry_out(ctx, changes.restore_rescue, rescue))


@rescues.command("drop")
def drop_rescue(
    rescue: Annotated[str, typer.Argument(metavar="ID", help="Its id in `rescues list`, or its name there.")],
) -> None:
    """Delete a rescue for good, before it expires."""

    async def dropped(ctx: NodeContext) -> None:
        if _ID.fullmatch(rescue):
            await carry_out(ctx, changes.drop_rescue, rescue)
            return
        with_id = {one.kept for one in await stored.latest(ctx.pool)}
        if rescue in with_id or rescue not in {one["name"] for one in kept_directories(ctx.data_dir)}:
            fail(f"Nothing without an id is kept as {rescue!r}: `threadtree rescues list` shows what is there.", 2)
        freed = f"{decimal(await delete_trashed(drop_kept(ctx, rescue)))} freed"
        await record(ctx.pool, "drop", f"rescue {rescue}", outcome=freed)
        typer.echo(f"Dropped; {freed}.")

    run_on_node(dropped)


def disk(json: Json = False) -> None:
    """Show what takes the disk space of this node."""

    async def measured(ctx: NodeContext) -> tuple[list[rows.Space], int]:
        async with ctx.pool.acquire() as connection:
            rescued = sum(one.bytes for one in await stored.latest(connection) if not one.kept and one.node == ctx.node)
        found = [*await asyncio.to_thread(lambda: list(spaces(ctx.data_dir))), ("rescues in the clones", None, rescued)]
        both = [rows.Space(what=what, codebase=codebase, bytes=size) for what, codebase, size in found]
        return sorted(both, key=lambda one: -one.bytes), free_bytes(ctx.data_dir)

    found, free = run_on_node(measured)
    if json:
        print_json(found)
        return
    print_rows(found)
    typer.echo(f"{decimal(free)} are free; {decimal(load().disk_reserve_bytes)} stay free (DISK_RESERVE_GB).", err=True)
