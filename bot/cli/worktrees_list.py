"""`threadtree worktrees list`: the rows, with what is on this node's disk, and the work that was rescued."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.filesize import decimal

from bot.cli.listings import ROWS_FOR_PEOPLE, Json, Limit, print_table
from bot.messages.formatting import format_count, format_duration
from bot.model import WorktreeState
from bot.node.context import NodeContext
from bot.store import listings, rescues
from bot.worktrees.summary import Summary, summarize

OpenNode = Callable[[], AbstractAsyncContextManager[NodeContext]]
"""Opens what working on this node's worktrees takes."""
LOOKS_AT_ONCE = 4

NoDisk = Annotated[bool, typer.Option("--no-disk", help="Only what the database knows, which is quicker.")]


@dataclass(frozen=True, slots=True)
class ListedRescue:
    """Work that was rescued; `name` is its ref in the clone, or its directory in DATA_DIR/kept."""

    name: str
    files: int
    commits: int
    bytes: int
    created_at: datetime
    restored_at: datetime | None


@dataclass(frozen=True, slots=True)
class ListedWorktree:
    """A worktree as scripts get it; what is on disk is null on other nodes and where it cannot be told."""

    id: int
    codebase: str
    path: str
    branch: str | None
    node: str
    state: WorktreeState
    conversations: list[str]
    created_at: datetime
    updated_at: datetime
    bytes: int | None
    changed_files: int | None
    ahead: int | None
    behind: int | None
    rescues: list[ListedRescue]


def add_list(group: typer.Typer, ctx: OpenNode) -> None:
    """Adds the command to the group `worktrees`."""

    @group.command("list", help="The checkouts, and what was rescued from them.")
    def list_worktrees(json: Json = False, limit: Limit = None, no_disk: NoDisk = False) -> None:
        wanted = limit if json or limit else ROWS_FOR_PEOPLE + 1
        found = asyncio.run(_listed(ctx, wanted, with_disk=not no_disk))
        if json:
            typer.echo(orjson.dumps(found, option=orjson.OPT_UTC_Z | orjson.OPT_INDENT_2))
        else:
            _print(found, limit or ROWS_FOR_PEOPLE)


async def _listed(open_node: OpenNode, limit: int | None, *, with_disk: bool) -> list[ListedWorktree]:
    async with open_node() as ctx:
        async with ctx.pool.acquire() as connection:
            rows = await listings.worktrees(connection, limit)
            rescued = await rescues.latest(connection)
        of_worktree: defaultdict[int, list[ListedRescue]] = defaultdict(list)
        for one in rescued:
            name = one.ref or one.kept or ""
            of_worktree[one.worktree_id].append(
                ListedRescue(name, one.files, one.commits, one.bytes, one.created_at, one.restored_at)
            )
        looks = await _looks(ctx, rows if with_disk else [])
    return [_joined(row, looks.get(row.id), of_worktree[row.id]) for row in rows]


async def _looks(ctx: NodeContext, rows: Sequence[listings.Worktree]) -> dict[int, Summary]:
    thread_ref = [row for row in rows if row.node == ctx.node and row.state != "removed"]
    at_once = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def one(row: listings.Worktree) -> tuple[int, Summary | None]:
        async with at_once:
            return row.id, await summarize(ctx.clone(row.folder), Path(row.path), row.branch)

    with Console(stderr=True).status(f"Looking at {len(thread_ref)} worktrees"):
        found = await asyncio.gather(*map(one, thread_ref))
    return {worktree_id: seen for worktree_id, seen in found if seen is not None}


def _joined(row: listings.Worktree, seen: Summary | None, rescued: list[ListedRescue]) -> ListedWorktree:
    return ListedWorktree(
        id=row.id,
        codebase=row.codebase,
        path=row.path,
        branch=row.branch,
        node=row.node,
        state=row.state,
        conversations=row.conversations,
        created_at=row.created_at,
        updated_at=row.updated_at,
        bytes=seen.bytes if seen else None,
        changed_files=seen.changed_files if seen else None,
        ahead=seen.ahead if seen else None,
        behind=seen.behind if seen else None,
        rescues=rescued,
    )


def _print(rows: Sequence[ListedWorktree], limit: int) -> None:
    if not rows:
        typer.echo("No worktrees yet.", err=True)
        return
    headers = ("ID", "STATE", "USED BY", "BRANCH", "NOW", "PATH")
    print_table(headers, 2, [_cells(row) for row in rows[:limit]])
    rescued = [(row, one) for row in rows[:limit] for one in row.rescues]
    if rescued:
        typer.echo("\nRescued work; `threadtree worktrees restore ID` brings back the latest of a worktree:")
        print_table(("ID", "AGE", "SIZE", "WHAT", "KEPT AS"), 3, [_rescue_cells(row, one) for row, one in rescued])
    if len(rows) > limit:
        typer.echo(f"There are more than these {limit}: --limit N shows N.", err=True)


def _cells(row: ListedWorktree) -> tuple[str, ...]:
    return (
        str(row.id),
        row.state,
        " ".join(row.conversations) or f"{row.codebase}: none",
        row.branch or "(detached)",
        _now(row),
        row.path,
    )


def _now(row: ListedWorktree) -> str:
    """Size, and how it differs from what is committed and from GitHub's branch."""
    words = [] if row.bytes is None else [decimal(row.bytes)]
    if row.changed_files:
        words.append(f"{row.changed_files} changed")
    if row.ahead:
        words.append(f"{row.ahead} ahead")
    if row.behind:
        words.append(f"{row.behind} behind")
    return ", ".join(words)


def _rescue_cells(row: ListedWorktree, one: ListedRescue) -> tuple[str, ...]:
    what = f"{format_count(one.files, 'file')}, {format_count(one.commits, 'commit')}" + (
        ", restored" if one.restored_at else ""
    )
    return str(row.id), format_duration(datetime.now(UTC) - one.created_at), decimal(one.bytes), what, one.name
