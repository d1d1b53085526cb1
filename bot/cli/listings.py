"""`threadtree worktrees list`, and how lists are printed: a table for people, `--json` for scripts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import orjson
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from bot.cli.running import fail, run_on_node
from bot.clones.clone import reading
from bot.messages.formatting import format_count, format_duration
from bot.model import WorktreeState
from bot.store import listings, rescues
from bot.store.rescues import Rescue
from bot.worktrees.summary import Summary, summarize

if TYPE_CHECKING:  # only `worktrees list` needs it, and `run_on_node` imports it: GitHub's client takes a moment
    from bot.node.context import NodeContext

ROWS_FOR_PEOPLE: Final = 50
UNLIMITED: Final = 10_000
"""More columns than any line has."""
STATES: Final = (*get_args(WorktreeState), "missing")


def print_json(rows: object) -> None:
    """Print rows, or one of them, with all fields."""
    typer.echo(orjson.dumps(rows, option=orjson.OPT_UTC_Z | orjson.OPT_INDENT_2))


def tell_of_more(rows: Sequence[object], shown: Sequence[object]) -> None:
    if len(rows) > len(shown):
        typer.echo(f"There are more than these {len(shown)}: --limit N shows N.", err=True)


def print_table(
    headers: Iterable[str], whole: int, rows: Iterable[Sequence[str]], *, last_is_whole: bool = False
) -> None:
    """Print a table on stdout. The first `whole` columns are never wrapped, so that they can be copied; nor is the
    last one with `last_is_whole` where stdout is no terminal: the lines are then as long as they must be.
    """
    console = Console()
    if last_is_whole and not console.is_terminal:
        console = Console(width=UNLIMITED)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, header in enumerate(headers):
        table.add_column(header, no_wrap=place < whole, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def text_of(value: object) -> str:
    """Return a cell of a table: a time to the minute, in UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    return "" if value is None else str(value)


# Worktrees


@dataclass(frozen=True, slots=True)
class _Listed:
    """A worktree, and what is `on_disk`: None on other nodes and where it is unknown."""

    row: listings.Worktree
    state: str
    on_disk: Summary | None


def print_worktrees(
    *, json: bool, limit: int | None, with_disk: bool, every: bool, repository: str | None, state: str | None
) -> None:
    """Print the newest worktrees that match, without removed ones unless `every` or `state` asks for them."""
    if state is not None and state not in STATES:
        fail(f"{state!r} is no state; choose one of {', '.join(STATES)}.", 2)
    # Whether a worktree is missing is known only after a look at the disk.
    stored_state = "ready" if state == "missing" else state
    wanted = None if state == "missing" else limit if json or limit else ROWS_FOR_PEOPLE + 1

    async def listed(ctx: "NodeContext") -> tuple[list[_Listed], list[Rescue], Path]:
        async with ctx.pool.acquire() as connection:
            rows = await listings.worktrees(
                connection, wanted, with_removed=every, repository=repository, state=stored_state
            )
            rescued = await rescues.latest(connection)
        return await _look_at_disk(ctx, rows, with_disk), rescued, ctx.data_dir

    found, rescued, data_dir = run_on_node(listed)
    matching = [one for one in found if state is None or one.state == state]
    if json:
        of_each = dict[int, list[Rescue]]()
        for rescue in rescued:
            of_each.setdefault(rescue.worktree_id, []).append(rescue)
        print_json([_as_json(one, of_each.get(one.row.id, [])) for one in matching[:limit]])
        return
    ids = {one.row.id for one in matching}
    filtered = repository is not None or state is not None
    shown = matching[: limit or ROWS_FOR_PEOPLE]
    _print_tables(shown, [one for one in rescued if not filtered or one.worktree_id in ids], data_dir)
    tell_of_more(matching, shown)


async def _look_at_disk(ctx: "NodeContext", rows: Sequence[listings.Worktree], with_disk: bool) -> list[_Listed]:
    """Add what is on disk to the worktrees of this node, if `with_disk`."""
    rows = [row if row.node_id != ctx.node else replace(row, path=str(ctx.directory(row.path))) for row in rows]
    looked_at = [row for row in rows if with_disk and row.node_id == ctx.node and row.state != "removed"]
    found: dict[Path, Summary] = {}
    with Console(stderr=True).status(f"Reading {format_count(len(looked_at), 'worktree')}"):
        for folder in {row.folder for row in looked_at}:
            branches = {Path(row.path): row.branch for row in looked_at if row.folder == folder}
            async with reading(ctx.clone(folder)) as clone:  # one process answers for all its worktrees
                found |= await summarize(clone, branches)

    ids = {row.id for row in looked_at}

    def listed(row: listings.Worktree) -> _Listed:
        on_disk = found.get(Path(row.path)) if row.id in ids else None
        missing = row.id in ids and on_disk is None and row.state == "ready"
        return _Listed(row, "missing" if missing else row.state, on_disk)

    return [listed(row) for row in rows]


def _as_json(listed: _Listed, rescued: Sequence[Rescue]) -> dict[str, object]:
    row = {field.name: getattr(listed.row, field.name) for field in fields(listed.row)}
    del row["folder"], row["node_id"]
    on_disk = {field.name: getattr(listed.on_disk, field.name, None) for field in fields(Summary)}
    return {**row, "state": listed.state, **on_disk, "rescues": [_rescue_as_json(rescue) for rescue in rescued]}


def _rescue_as_json(rescue: Rescue) -> dict[str, object]:
    names = ("files", "commits", "bytes", "created_at", "restored_at")
    return {"name": _name(rescue), **{name: getattr(rescue, name) for name in names}}


def _name(rescue: Rescue) -> str:
    """Return its ref in the clone, or its directory in DATA_DIR/kept."""
    return rescue.ref or rescue.kept or ""


def _print_tables(shown: Sequence[_Listed], rescued: Sequence[Rescue], data_dir: Path) -> None:
    if shown:
        headers = ("ID", "STATE", "USED BY", "BRANCH", "ON DISK", "PATH")
        print_table(headers, 2, [_cells(one, data_dir) for one in shown], last_is_whole=True)
        typer.echo(f"Paths are relative to {data_dir}.", err=True)
    else:
        typer.echo("No worktrees; --all includes removed ones.", err=True)
    if rescued:
        typer.echo("\nRescued work; `threadtree worktrees restore ID` brings back the latest of a worktree:")
        cells = [_rescue_cells(one) for one in rescued]
        print_table(("ID", "AGE", "SIZE", "WHAT", "KEPT AS"), 3, cells, last_is_whole=True)


def _cells(listed: _Listed, data_dir: Path) -> tuple[str, ...]:
    row = listed.row
    path = Path(row.path)
    return (
        str(row.id),
        listed.state,
        " ".join(row.conversations) or f"{row.codebase}: none",
        row.branch or "(detached)",
        _on_disk(listed.on_disk),
        str(path.relative_to(data_dir) if path.is_relative_to(data_dir) else path),
    )


def _on_disk(summary: Summary | None) -> str:
    """Return the size, and the difference to what is committed and to GitHub's branch."""
    if summary is None:
        return ""
    counts = [(summary.changed_files, "changed"), (summary.ahead, "ahead"), (summary.behind, "behind")]
    return ", ".join([decimal(summary.bytes), *(f"{count} {word}" for count, word in counts if count)])


def _rescue_cells(rescue: Rescue) -> tuple[str, ...]:
    counts = [(rescue.files, "file"), (rescue.commits, "commit")]
    words = [format_count(count, noun) for count, noun in counts if count]
    if rescue.restored_at:
        words.append("restored")
    age = format_duration(datetime.now(UTC) - rescue.created_at)
    return str(rescue.worktree_id), age, decimal(rescue.bytes), ", ".join(words), _name(rescue)
