"""What the API tells and does, on the command line: its endpoints on the bot's database, with the same words."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import typer
from rich.filesize import decimal

from bot.api.calls import ApiContext, Call, CallError, check_address
from bot.api.changes import CHANGES
from bot.api.lists import READ
from bot.cli.listings import cost_of, print_json, print_table, text_of
from bot.cli.running import fail, run_on_database
from bot.settings import load
from bot.store.database import Connection

ENDPOINTS: Final = {f"{endpoint.method} {endpoint.path}": endpoint for endpoint in (*READ, *CHANGES)}
Columns = Mapping[str, Callable[[Mapping[str, Any]], object]]
CONVERSATIONS: Final[Columns] = {
    "ID": lambda row: row["id"],
    "CONVERSATION": lambda row: row["conversation"],
    "STATE": lambda row: row["state"],
    "BRANCH": lambda row: row["branch"],
    "PULL REQUESTS": lambda row: " ".join(row["pull_requests"]),
    "TURNS": lambda row: row["turns"],
    "COST": cost_of,
    "TITLE": lambda row: row["title"],
}
NODES: Final[Columns] = {
    "ID": lambda row: row["id"],
    "NAME": lambda row: row["name"],
    "STATE": lambda row: row["state"],
    "RUNNING": lambda row: row["running"],
    "WAITING": lambda row: row["queued"],
    "WORKTREES": lambda row: row["worktrees"],
    "ON DISK": lambda row: decimal(sum(row["disk"].values())) if row["disk"] else None,
    "LAST SIGN OF LIFE (UTC)": lambda row: row["heartbeat_at"],
}
COSTS: Final[Columns] = {
    "DAY": lambda row: row["day"],
    "REPOSITORY": lambda row: row["codebase"],
    "TURNS": lambda row: row["turns"],
    "WITHOUT A COST": lambda row: row["untold"],
    "TOKENS": lambda row: row["tokens"],
    "COST": cost_of,
}


def show_list(endpoint: str, columns: Columns, empty: str, *, json: bool, **query: str | None) -> None:
    """Print the items of a list: a table for people, or all fields of all items as JSON."""
    page = _ask(endpoint, {}, **query)
    items = page["items"]
    while json and page["next"] is not None and query.get("limit") is None:
        page = _ask(endpoint, {}, **query, after=str(page["next"]))
        items += page["items"]
    if json:
        print_json(items)
    elif items:
        cells = [[text_of(column(item)) for column in columns.values()] for item in items]
        print_table(columns, 2, cells, last_is_whole=True)
    else:
        typer.echo(empty, err=True)


def show_turn(turn: str, *, json: bool) -> None:
    """Print one turn with its request, plan and steps."""
    found = _ask("GET /turns/{id}", {"id": turn})
    if json:
        print_json(found)
        return
    told = ("conversation", "state", "reason", "waiting", "requested_by", "comment_url", "agent", "model", "tokens")
    times = ("created_at", "started_at", "finished_at")
    fields = {**{name: found[name] for name in (*told, *times)}, "cost": cost_of(found)}
    for name, value in fields.items():
        if value is not None:
            typer.echo(f"{name.replace('_', ' ')}: {text_of(value)}")
    parts: dict[str, Sequence[str]] = {
        "Request": ["Its text has expired."] if found["expired"] else [found["request"]],
        "Plan": [f"{entry['state']}: {entry['text']}" for entry in found["plan"]],
        "Steps": [f"{text_of(step['at'])}  {step['words']}" for step in found["steps"]],
        "Last words": [found["latest_words"]] if found["latest_words"] else [],
    }
    for title, lines in parts.items():
        if lines:
            typer.echo("\n".join(("", f"{title}:", *lines)))


def stop_turn(turn: str) -> None:
    """Stop a turn that runs or waits."""
    _ask("POST /turns/{id}/stop", {"id": turn})
    typer.echo(f"Turn {turn} is being stopped.")


def retry_turn(turn: str) -> None:
    """Ask the last unfinished turn of its thread again."""
    answer = _ask("POST /turns/{id}/retry", {"id": turn})
    typer.echo(f"Turn {turn} is asked again, as delivery {answer['delivery']}.")


def _ask(name: str, path: Mapping[str, str], **query: str | None) -> Any:
    """Return the endpoint's answer; what the operator gave wrongly ends the command with one sentence."""
    endpoint, settings = ENDPOINTS[name], load()
    ctx = ApiContext(settings.platform, settings.github_server_url, settings.data_dir, partial(datetime.now, UTC))

    async def called(connection: Connection) -> object:
        given = [(key, value) for key, value in query.items() if value is not None]
        return await endpoint.handler(Call(connection, ctx, check_address(endpoint, path, given)))

    try:
        return run_on_database(called)
    except CallError as problem:
        fail(problem.sentence, 2 if problem.status == 400 else 1)
