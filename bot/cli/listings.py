"""`threadtree sessions|turns|deliveries list`: a table for people, `--json` for scripts."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bot.cli.running import open_connection, run
from bot.store import listings
from bot.store.database import Connection

ROWS_FOR_PEOPLE: Final = 50
UNLIMITED: Final = 10_000
"""More columns than any line has."""
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class _Listing(Generic[Row]):
    """One list: where its rows come from, and the columns of its table."""

    name: str
    fetch: Callable[[Connection, int | None], Awaitable[list[Row]]]
    headers: tuple[str, ...]
    whole: int
    """The number of columns, from the left, that are never wrapped, so that they can be copied."""
    cells: Callable[[Row], tuple[str, ...]]


def list_rows(listing: _Listing[Row], *, json: bool, limit: int | None) -> None:
    """Print the newest rows: a table of at most ROWS_FOR_PEOPLE, or all fields of all rows as JSON."""

    async def fetched() -> list[Row]:
        async with open_connection() as connection:
            return await listing.fetch(connection, limit if json or limit else ROWS_FOR_PEOPLE + 1)

    rows = run(fetched())
    if json:
        typer.echo(orjson.dumps(rows, option=orjson.OPT_UTC_Z | orjson.OPT_INDENT_2))
    else:
        _show(listing, rows, limit or ROWS_FOR_PEOPLE)


def _show(listing: _Listing[Row], rows: Sequence[Row], limit: int) -> None:
    if not rows:
        typer.echo(f"No {listing.name} yet.", err=True)
        return
    print_table(listing.headers, listing.whole, [listing.cells(row) for row in rows[:limit]])
    if len(rows) > limit:
        typer.echo(f"There are more than these {limit}: --limit N shows N.", err=True)


def print_table(
    headers: Sequence[str], whole: int, rows: Iterable[Sequence[str]], *, last_is_whole: bool = False
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


def _when(time: datetime | None) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if time else ""


def _joined(*words: str | None) -> str:
    return " ".join(word for word in words if word)


SESSIONS: _Listing[listings.Session] = _Listing(
    name="sessions",
    fetch=listings.sessions,
    headers=("ID", "LAST (UTC)", "CONVERSATION", "AGENT", "STATE"),
    whole=2,
    cells=lambda row: (
        str(row.id),
        _when(row.last_active_at),
        row.conversation,
        row.agent,
        "active" if row.active else _joined("ended:", row.end_reason),
    ),
)
TURNS: _Listing[listings.Turn] = _Listing(
    name="turns",
    fetch=listings.turns,
    headers=("ID", "STATE", "ENDED (UTC)", "CONVERSATION", "BY", "REASON"),
    whole=3,
    cells=lambda row: (
        str(row.id),
        row.state,
        _when(row.finished_at),
        row.conversation,
        row.requested_by,
        row.reason or "",
    ),
)
DELIVERIES: _Listing[listings.Delivery] = _Listing(
    name="deliveries",
    fetch=listings.deliveries,
    headers=("GUID", "STATE", "AT (UTC)", "WHAT"),
    whole=3,
    cells=lambda row: (
        row.guid,
        row.state,
        _when(row.received_at),
        _joined(row.event, row.action, row.conversation, row.error),
    ),
)
