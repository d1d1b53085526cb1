"""`threadtree rescues list|restore|drop` and `threadtree disk`: what is kept, until when, and what takes the space."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import orjson
import typer
from rich.filesize import decimal

from bot.cli.listings import ROWS_FOR_PEOPLE, print_table
from bot.cli.running import fail, run_on_node
from bot.cli.worktrees import execute_operation, print_place
from bot.clones import trash
from bot.messages.formatting import format_count
from bot.node.context import NodeContext
from bot.node.room import BY_REPOSITORY, FOLDERS, free_bytes
from bot.operations.drop import drop_kept, drop_now
from bot.settings import load
from bot.store import rescues
from bot.store.rescues import Rescue

_ID = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept until `expires_at`; `id` is None for a directory without a row, such as a damaged clone."""

    id: int | None
    worktree: int | None
    codebase: str | None
    conversations: tuple[str, ...]
    branch: str | None
    name: str
    files: int
    commits: int
    bytes: int
    node: str
    created_at: datetime
    expires_at: datetime
    restored_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Space:
    """The disk space that something takes, of one repository or of all."""

    what: str
    codebase: str | None
    bytes: int


def list_rescues(*, json: bool, limit: int | None) -> None:
    """Print what was rescued or kept, newest first, on all nodes; directories without a row of this node only."""
    kept_for = timedelta(days=load().rescue_expiry_days)

    async def listed(ctx: NodeContext) -> list[_Kept]:
        async with ctx.pool.acquire() as connection:
            rows = await rescues.latest(connection)
        without = await asyncio.to_thread(_without_row, ctx, rows, kept_for)
        both = [*(_kept(row, kept_for) for row in rows), *without]
        return sorted(both, key=lambda one: one.created_at, reverse=True)

    found = run_on_node(listed)
    if json:
        typer.echo(orjson.dumps(found[:limit], option=orjson.OPT_UTC_Z | orjson.OPT_INDENT_2))
        return
    shown = found[: limit or ROWS_FOR_PEOPLE]
    if not shown:
        typer.echo("Nothing was rescued or kept.", err=True)
        return
    headers = ("ID", "SIZE", "EXPIRES (UTC)", "OF", "WHAT", "KEPT AS")
    print_table(headers, 3, map(_cells, shown), last_is_whole=True)
    if len(found) > len(shown):
        typer.echo(f"There are more than these {len(shown)}: --limit N shows N.", err=True)


def restore_rescue(rescue: str) -> None:
    """Bring a rescue back into its worktree; exit status 2 where it is not the latest of that."""

    async def restored(ctx: NodeContext) -> None:
        found = await _find(ctx, rescue)
        async with ctx.pool.acquire() as connection:
            newer = await rescues.newer(connection, found)
        if newer is not None:
            fail(f"Rescue {newer.id} of the same worktree is newer; only the latest can be restored.", 2)
        await execute_operation(ctx, found.worktree_id, "restore")
        await print_place(ctx, found.worktree_id)

    run_on_node(restored)


def drop_rescue(rescue: str) -> None:
    """Delete a rescue for good, by its id, or a kept directory without one by its name."""

    async def dropped(ctx: NodeContext) -> int:
        if _ID.fullmatch(rescue):
            return await drop_now(ctx, await _find(ctx, rescue))
        async with ctx.pool.acquire() as connection:
            rows = await rescues.latest(connection)
        if rescue not in _names_without_row(ctx, rows):
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

    rows, free = run_on_node(measured)
    if json:
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        return
    cells = [(decimal(row.bytes), row.what, row.codebase or "") for row in rows]
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


def _kept(row: Rescue, kept_for: timedelta) -> _Kept:
    return _Kept(
        row.id,
        row.worktree_id,
        row.codebase,
        tuple(f"{row.codebase}#{number}" for number in row.conversations),
        row.branch,
        row.ref or row.kept or "",
        row.files,
        row.commits,
        row.bytes,
        row.node_name,
        row.created_at,
        row.created_at + kept_for,
        row.restored_at,
    )


def _names_without_row(ctx: NodeContext, rows: list[Rescue]) -> dict[str, datetime]:
    """Return the directories in DATA_DIR/kept that no rescue's row names, and since when they are kept."""
    known = {row.kept for row in rows}
    folder = trash.kept_folder(ctx.data_dir)
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return {name: at for name in names if name not in known and (at := trash.kept_since(name)) is not None}


def _without_row(ctx: NodeContext, rows: list[Rescue], kept_for: timedelta) -> list[_Kept]:
    found: list[_Kept] = []
    for name, at in _names_without_row(ctx, rows).items():
        size = trash.size_of(trash.kept_folder(ctx.data_dir) / name)
        found.append(_Kept(None, None, None, (), None, name, 0, 0, size, ctx.node, at, at + kept_for, None))
    return found


def _cells(kept: _Kept) -> tuple[str, ...]:
    counts = [(kept.files, "file"), (kept.commits, "commit")]
    words = [format_count(count, noun) for count, noun in counts if count]
    if kept.id is None:
        words.append("a directory without a row")
    if kept.restored_at:
        words.append("restored")
    users = " ".join(kept.conversations)
    return (
        str(kept.id or ""),
        decimal(kept.bytes),
        f"{kept.expires_at:%Y-%m-%d %H:%M}",
        users or kept.codebase or "",
        ", ".join(words),
        kept.name,
    )
