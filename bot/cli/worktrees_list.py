"""`threadtree worktrees list`: the rows, what is on this node's disk, and the work that was rescued."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, get_args

import orjson
import typer
from rich.console import Console
from rich.filesize import decimal

from bot.cli.listings import ROWS_FOR_PEOPLE, print_table
from bot.cli.running import fail, open_node, run
from bot.messages.formatting import format_count, format_duration
from bot.model import WorktreeState
from bot.node.context import NodeContext
from bot.store import listings, rescues
from bot.store.rescues import Rescue
from bot.worktrees.summary import Summary, summarize

SUMMARIES_AT_ONCE: Final = 4
ListedState = WorktreeState | Literal["missing"]
STATES: Final = (*get_args(WorktreeState), "missing")


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
    """A worktree as scripts get it; what is on disk is null on other nodes and where it is unknown."""

    id: int
    codebase: str
    path: str
    branch: str | None
    node: str
    state: ListedState
    conversations: list[str]
    created_at: datetime
    updated_at: datetime
    bytes: int | None
    changed_files: int | None
    ahead: int | None
    behind: int | None
    rescues: list[ListedRescue]


@dataclass(frozen=True, slots=True)
class _Listed:
    worktrees: list[ListedWorktree]
    rescued: list[Rescue]
    data_dir: Path


def print_worktrees(
    *, json: bool, limit: int | None, with_disk: bool, every: bool, repository: str | None, state: str | None
) -> None:
    """Print the newest worktrees that match, without removed ones unless `every` or `state` asks for them."""
    if state is not None and state not in STATES:
        fail(f"{state!r} is no state; choose one of {', '.join(STATES)}.", 2)
    # Whether a worktree is missing is known only after a look at the disk.
    stored_state = "ready" if state == "missing" else state
    wanted = None if state == "missing" else limit if json or limit else ROWS_FOR_PEOPLE + 1

    async def listed() -> _Listed:
        async with open_node() as ctx:
            async with ctx.pool.acquire() as connection:
                rows = await listings.worktrees(
                    connection, wanted, with_removed=every, repository=repository, state=stored_state
                )
                rescued = await rescues.latest(connection)
            found = await _with_disk(ctx, rows, rescued) if with_disk else [_joined(row, None, rescued) for row in rows]
            return _Listed(found, rescued, ctx.data_dir)

    result = run(listed())
    matching = [row for row in result.worktrees if state is None or row.state == state]
    if json:
        typer.echo(orjson.dumps(matching[:limit], option=orjson.OPT_UTC_Z | orjson.OPT_INDENT_2))
        return
    ids = {row.id for row in matching}
    filtered = repository is not None or state is not None
    rescued = [one for one in result.rescued if not filtered or one.worktree_id in ids]
    _print(matching, rescued, limit or ROWS_FOR_PEOPLE, result.data_dir)


async def _with_disk(
    ctx: NodeContext, rows: Sequence[listings.Worktree], rescued: Sequence[Rescue]
) -> list[ListedWorktree]:
    """The rows with what is on disk, for the worktrees of this node."""
    at_once = asyncio.Semaphore(SUMMARIES_AT_ONCE)

    async def one(row: listings.Worktree) -> ListedWorktree:
        if row.node != ctx.node or row.state == "removed":
            return _joined(row, None, rescued)
        async with at_once:
            summary = await summarize(ctx.clone(row.folder), Path(row.path), row.branch)
        missing = summary is None and row.state == "ready"
        return _joined(row, summary, rescued, "missing" if missing else None)

    with Console(stderr=True).status(f"Reading {format_count(len(rows), 'worktree')}"):
        return await asyncio.gather(*map(one, rows))


def _joined(
    row: listings.Worktree, summary: Summary | None, rescued: Sequence[Rescue], state: ListedState | None = None
) -> ListedWorktree:
    return ListedWorktree(
        id=row.id,
        codebase=row.codebase,
        path=row.path,
        branch=row.branch,
        node=row.node,
        state=state or row.state,
        conversations=row.conversations,
        created_at=row.created_at,
        updated_at=row.updated_at,
        bytes=summary.bytes if summary else None,
        changed_files=summary.changed_files if summary else None,
        ahead=summary.ahead if summary else None,
        behind=summary.behind if summary else None,
        rescues=[
            ListedRescue(_name(one), one.files, one.commits, one.bytes, one.created_at, one.restored_at)
            for one in rescued
            if one.worktree_id == row.id
        ],
    )


def _name(rescue: Rescue) -> str:
    return rescue.ref or rescue.kept or ""


def _print(rows: Sequence[ListedWorktree], rescued: Sequence[Rescue], limit: int, data_dir: Path) -> None:
    if rows:
        headers = ("ID", "STATE", "USED BY", "BRANCH", "ON DISK", "PATH")
        print_table(headers, 2, [_cells(row, data_dir) for row in rows[:limit]], last_is_whole=True)
        typer.echo(f"Paths are relative to {data_dir}.", err=True)
    else:
        typer.echo("No worktrees; --all includes removed ones.", err=True)
    if rescued:
        typer.echo("\nRescued work; `threadtree worktrees restore ID` brings back the latest of a worktree:")
        cells = [_rescue_cells(one) for one in rescued]
        print_table(("ID", "AGE", "SIZE", "WHAT", "KEPT AS"), 3, cells, last_is_whole=True)
    if len(rows) > limit:
        typer.echo(f"There are more than these {limit}: --limit N shows N.", err=True)


def _cells(row: ListedWorktree, data_dir: Path) -> tuple[str, ...]:
    path = Path(row.path)
    return (
        str(row.id),
        row.state,
        " ".join(row.conversations) or f"{row.codebase}: none",
        row.branch or "(detached)",
        _on_disk(row),
        str(path.relative_to(data_dir) if path.is_relative_to(data_dir) else path),
    )


def _on_disk(row: ListedWorktree) -> str:
    """The size, and the difference to what is committed and to GitHub's branch."""
    words = [] if row.bytes is None else [decimal(row.bytes)]
    if row.changed_files:
        words.append(f"{row.changed_files} changed")
    if row.ahead:
        words.append(f"{row.ahead} ahead")
    if row.behind:
        words.append(f"{row.behind} behind")
    return ", ".join(words)


def _rescue_cells(rescue: Rescue) -> tuple[str, ...]:
    counts = [(rescue.files, "file"), (rescue.commits, "commit")]
    words = [format_count(count, noun) for count, noun in counts if count]
    if rescue.restored_at:
        words.append("restored")
    age = format_duration(datetime.now(UTC) - rescue.created_at)
    return str(rescue.worktree_id), age, decimal(rescue.bytes), ", ".join(words), _name(rescue)
