"""What the API tells and does, on the command line: its endpoints on the bot's database, with the same words.

Lists are a table for people, and with `--json` an array for scripts.
"""

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, get_args

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bot.care.asked import Asked, SessionPruning
from bot.cli.options import Json, Limit, Repo, State, command_group
from bot.cli.processes import recover
from bot.cli.running import fail, run_on_database
from bot.operator.api import audit_rows, changes, lists
from bot.operator.api.calls import MOST_ROWS, A, Call, Caller, CallError, Endpoint, R, answered
from bot.operator.api.rows import Row, WholeTurn, to_json
from bot.serve.base import api_context
from bot.settings import load
from bot.store.database import Connection
from bot.thread.formatting import format_dollars, one_line

ROWS_FOR_PEOPLE: Final = 50
UNLIMITED: Final = 10_000
"""More columns than any line has."""
TurnId = Annotated[str, typer.Argument(metavar="ID", help="Its id in `turns list`.")]

sessions, turns, deliveries = command_group(), command_group(), command_group()
conversations, nodes, audit = command_group(), command_group(), command_group()


def option(asked: type[Asked], name: str) -> Any:
    """Return the option of a field, in its words."""
    return typer.Option(f"--{name.replace('_', '-')}", help=f"{asked.model_fields[name].title}.")


def _list_command(group: typer.Typer, name: str, description: str) -> None:
    @group.command("list", help=f"List {description}, the newest first.")
    def list_rows(json: Json = False, limit: Limit = None, repository: Repo = None, state: State = None) -> None:
        show_list(name, json=json, limit=limit, repo=repository, state=state)


_list_command(sessions, "sessions", "the agents' contexts")
_list_command(turns, "turns", "the turns, what they cost, what was asked and how they ended")
_list_command(deliveries, "deliveries", "the webhooks that were received")
_list_command(conversations, "conversations", "the conversations with their branch, pull requests and cost")


@nodes.command("list")
def list_nodes(json: Json = False, state: State = None) -> None:
    """List the nodes, what they do and what takes their disk."""
    show_list("nodes", json=json, state=state)


def print_json(rows: object) -> None:
    """Print rows, or one of them, with all fields."""
    typer.echo(to_json(rows, orjson.OPT_INDENT_2))


def print_rows(rows: Sequence[Row], more_than_shown: bool = False) -> None:
    """Print rows of one kind as a table."""
    kind = type(rows[0])
    cells = [[_cell(row, name) for name in kind.COLUMNS] for row in rows]
    print_table(map(_heading, kind.COLUMNS), kind.WHOLE, cells, last_is_whole=True)
    if more_than_shown:
        typer.echo(f"There are more than these {len(rows)}: --limit N shows N.", err=True)


def print_table(
    headers: Iterable[str], whole: int, rows: Iterable[Sequence[str | Text]], *, last_is_whole: bool = False
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
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    console.print(table)


def _cell(row: Row, name: str) -> Text:
    text = text_of(row, name)
    return Text(text, no_wrap=True, overflow="ellipsis") if name in row.CUT else Text(text)


def _heading(name: str) -> str:
    is_time = name.endswith("_at")
    words = name.removesuffix("_at").removesuffix("_usd").replace("_", " ").upper()
    return f"{words} (UTC)" if is_time else words


def text_of(row: Row, name: str) -> str:
    """Return an attribute of a row for people: a time to the minute, in UTC."""
    match getattr(row, name):
        case None:
            return ""
        case datetime() as at:
            return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"
        case float() as dollars:
            return format_dollars(dollars)
        case list() as several:
            return " ".join(several)
        case value:
            return str(value)


def show_list(name: str, *, json: bool, limit: int | None = None, **query: str | None) -> None:
    """Print the newest items of a list of the API: a table of at most ROWS_FOR_PEOPLE, or all fields of all as JSON."""
    most = limit if json or limit else ROWS_FOR_PEOPLE + 1
    with correctable():
        items = run_on_database(lambda connection: items_of(connection, name, most, **query))
    filtered = any(query.get(name) for name in ("repo", "state", "person", "since"))
    show_items(name, items, json=json, limit=limit, filtered=filtered)


def show_items(name: str, items: Sequence[Row], *, json: bool, limit: int | None, filtered: bool) -> None:
    """Print the first items."""
    most = limit or ROWS_FOR_PEOPLE
    if json:
        print_json(items[:limit])
    elif items:
        print_rows(items[:most], len(items) > most)
    else:
        (row,) = get_args(lists.LISTS[name].answer.model_fields["items"].annotation)
        typer.echo("Nothing matches." if filtered else row.EMPTY, err=True)


async def items_of(connection: Connection, name: str, most: int | None = None, **query: str | None) -> list[Any]:
    """Return the newest `most` items of a list, all without one. Raises CallError."""
    listing, items, after = lists.LISTS[name], list[Any](), None
    pages = "limit" in listing.asks.model_fields
    while most is None or len(items) < most:
        limit = {"limit": MOST_ROWS if most is None else min(MOST_ROWS, most - len(items))} if pages else {}
        page = await call(connection, listing, {}, **query, **limit, after=after)
        items += page.items
        after = page.next
        if after is None:
            break
    return items


@turns.command("show")
def show_turn(turn: TurnId, json: Json = False) -> None:
    """Print one turn with its request, plan, steps and cost, and why it ended."""
    found = _ask(lists.turn, {"id": turn})
    if json:
        print_json(found)
    else:
        _print_turn(found)


def _print_turn(turn: WholeTurn) -> None:
    names = ("conversation", "state", "reason", "waiting", "phase", "requested_by", "comment_url")
    more = ("agent", "model", "tokens", "created_at", "started_at", "finished_at", "cost_usd")
    for name in (*names, *more):
        if text := text_of(turn, name):
            typer.echo(f"{name.replace('_', ' ')}: {text}")
    parts: dict[str, Sequence[str]] = {
        "Request": ["Its text has expired." if turn.request is None else turn.request],
        "Plan": [f"{entry.state}: {entry.text}" for entry in turn.plan],
        "Steps": [f"{step.at.astimezone(UTC):%H:%M:%S}  {one_line(step.words)}" for step in turn.steps],
        "Last words": [turn.latest_words] if turn.latest_words else [],
    }
    for title, lines in parts.items():
        if lines:
            typer.echo("\n".join(("", f"{title}:", *lines)))


@turns.command("stop")
def stop_turn(turn: TurnId) -> None:
    """Stop a turn that runs or waits."""
    _change(changes.stop_turn, {"id": turn})


@turns.command("retry")
def retry_turn(turn: TurnId) -> None:
    """Ask again what the last turn of its conversation was asked, unless that turn is done."""
    _change(changes.retry_turn, {"id": turn})


@deliveries.command("replay")
def replay_delivery(guid: str) -> None:
    """Handle a stored delivery once more. What it did before is not done twice."""
    _change(changes.replay_delivery, {"guid": guid})


deliveries.command("recover")(recover)


@audit.command("list")
def list_audit(
    json: Json = False,
    limit: Limit = None,
    repository: Repo = None,
    person: Annotated[str | None, typer.Option(help="Only this login's, or admin-token's.")] = None,
    since: Annotated[str | None, typer.Option(help="Only since this day or time, in UTC: 2026-05-01.")] = None,
) -> None:
    """List who stopped, reset, removed, restored or replayed what, the newest first."""
    show_list("audit", json=json, limit=limit, repo=repository, person=person, since=since)


def waiting(json: Json = False, limit: Limit = None, repository: Repo = None) -> None:
    """List what waits for a person, the oldest first: plans, questions, what failed, pull requests to review."""
    show_list("waiting", json=json, limit=limit, repo=repository)


def costs(
    json: Json = False,
    days: Annotated[int, typer.Option(min=1, max=366)] = 30,
    repository: Repo = None,
    by: Annotated[Literal["repository", "person"], typer.Option(help="Whose sums.")] = "repository",
) -> None:
    """Print what turns cost, by day (UTC) and repository, or person."""
    show_list("costs", json=json, days=str(days), repo=repository, by=by)


@sessions.command("prune")
def prune_sessions(
    older_than: Annotated[str | None, option(SessionPruning, "older_than")] = None,
    repo: Annotated[str | None, option(SessionPruning, "repo")] = None,
    dry_run: Annotated[bool, option(SessionPruning, "dry_run")] = False,
    json: Json = False,
) -> None:
    """Delete sessions that ended longer ago than SESSION_TTL_SECONDS."""
    _change(changes.prune_sessions, {}, json=json, older_than=older_than, repo=repo, dry_run=dry_run)


def _change(change: Endpoint[A, R], path: Mapping[str, str], *, json: bool = False, **given: object) -> None:
    """Ask for a change, and say so in its words."""
    answer = _ask(change, path, logs=True, **given)
    if json:
        print_json(answer)
    else:
        typer.echo(change.words.asked.format(answer=answer, **path))


def _ask(endpoint: Endpoint[A, R], path: Mapping[str, str], *, logs: bool = False, **given: object) -> R:
    with correctable():
        return run_on_database(lambda connection: call(connection, endpoint, path, **given), logs=logs)


@contextmanager
def correctable() -> Iterator[None]:
    """End the command with one sentence where the operator can correct something.

    Exit status 2 says that something was given wrongly or is not there, 1 that it cannot be done now.
    """
    try:
        yield
    except CallError as problem:
        fail(problem.sentence, 1 if problem.status == 409 else 2)


def unix_user() -> str:
    """Return the name of this process' user, for the record of who did what."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return f"command line ({name})"


async def record(connection: Connection, action: str, target: str, codebase: str | None = None, **more: Any) -> None:
    """Record what this process' user did; `more` are further fields of the entry."""
    await audit_rows.record(connection, audit_rows.Entry(unix_user(), "command line", action, target, codebase, **more))


async def call(connection: Connection, endpoint: Endpoint[A, R], path: Mapping[str, str], **given: object) -> R:
    """Return the API's answer to what is asked. Raises CallError."""
    asked = endpoint.parse(path, {name: value for name, value in given.items() if value is not None})
    return await answered(Call(connection, api_context(load()), Caller("command line", unix_user())), endpoint, asked)
