"""`threadtree sessions|turns|deliveries list`: a table for people, `--json` for scripts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Generic, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bot.store import listings
from bot.store.database import Connection

Connect = Callable[[], AbstractAsyncContextManager[Connection]]
"""Opens a connection to the bot's database, whichever it is."""

ROWS_FOR_PEOPLE: Final = 50

Json = Annotated[bool, typer.Option("--json", help="All fields of all rows, as a JSON array.")]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help=f"Only the newest so many; by default {ROWS_FOR_PEOPLE}, or all with --json."),
]
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class _Listing(Generic[Row]):
    """One list: where its rows come from, and the columns that people get of them."""

    name: str
    help: str
    fetch: Callable[[Connection, int | None], Awaitable[list[Row]]]
    headers: tuple[str, ...]
    whole: int
    """So many columns, from the left, are never broken over lines: they are copied from."""
    cells: Callable[[Row], tuple[str, ...]]


def mount(app: typer.Typer, connect: Connect) -> dict[str, typer.Typer]:
    """Adds `NAME list` to `app` for these lists and gives the groups by name, for further commands of theirs."""
    groups = {
        _SESSIONS.name: _group(_SESSIONS, connect),
        _TURNS.name: _group(_TURNS, connect),
        _DELIVERIES.name: _group(_DELIVERIES, connect),
    }
    for name, group in groups.items():
        app.add_typer(group, name=name)
    return groups


def _group(listing: _Listing[Row], connect: Connect) -> typer.Typer:
    group = typer.Typer(help=listing.help, no_args_is_help=True)

    @group.callback()
    def keep_the_subcommand() -> None:
        """Without a callback, typer makes a group's only command the group itself."""

    @group.command("list", help=listing.help)
    def list_rows(json: Json = False, limit: Limit = None) -> None:
        async def rows() -> list[Row]:
            async with connect() as connection:
                return await listing.fetch(connection, limit if json or limit else ROWS_FOR_PEOPLE + 1)

        found = asyncio.run(rows())
        if json:
            typer.echo(orjson.dumps(found, option=orjson.OPT_UTC_Z | orjson.OPT_INDENT_2))
        else:
            _show(listing, found, limit or ROWS_FOR_PEOPLE)

    return group


def _show(listing: _Listing[Row], rows: Sequence[Row], limit: int) -> None:
    if not rows:
        typer.echo(f"No {listing.name} yet.", err=True)
        return
    print_table(listing.headers, listing.whole, [listing.cells(row) for row in rows[:limit]])
    if len(rows) > limit:
        typer.echo(f"There are more than these {limit}: --limit N shows N.", err=True)


def print_table(headers: Sequence[str], whole: int, rows: Iterable[Sequence[str]]) -> None:
    """Prints a table on stdout; the first `whole` columns are never broken over lines: they are copied from."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for place, header in enumerate(headers):
        table.add_column(header, no_wrap=place < whole, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _when(time: datetime | None) -> str:
    return time.astimezone(UTC).strftime("%m-%d %H:%M") if time else ""


def _joined(*words: str | None) -> str:
    return " ".join(word for word in words if word)


_SESSIONS: _Listing[listings.Session] = _Listing(
    name="sessions",
    help="The agents' contexts, one active per conversation.",
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
_TURNS: _Listing[listings.Turn] = _Listing(
    name="turns",
    help="The requests to the agent and how they ended.",
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
_DELIVERIES: _Listing[listings.Delivery] = _Listing(
    name="deliveries",
    help="The webhooks that were received.",
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
