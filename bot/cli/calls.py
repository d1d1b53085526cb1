"""What the API tells and does, on the command line: its endpoints on the bot's database, with the same words."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

import typer
from rich.filesize import decimal

from bot.api.calls import MOST_ROWS, ApiContext, Call, CallError, check_address
from bot.api.endpoints import ENDPOINTS
from bot.cli.listings import ROWS_FOR_PEOPLE, print_json, print_table, tell_of_more, text_of
from bot.cli.running import fail, run_on_database
from bot.messages.formatting import format_count, format_dollars, format_duration
from bot.settings import load
from bot.store.database import Connection

Row = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Table:
    """A list for people: its columns, of which the first `whole` are never wrapped, and what an empty one says."""

    empty: str
    whole: int
    columns: Mapping[str, Callable[[Row], object]]


def _duration(row: Row) -> str | None:
    """Return how long a turn took, or has run until now."""
    if row["started_at"] is None:
        return None
    return format_duration((row["finished_at"] or datetime.now(UTC)) - row["started_at"])


def _cost(row: Row) -> str | None:
    """Return the cost in dollars; None where the agent tells none."""
    return None if row["cost_usd"] is None else format_dollars(row["cost_usd"])


def _joined(*words: str | None) -> str:
    return " ".join(word for word in words if word)


def _what(rescue: Row) -> str:
    """Return what a rescue holds."""
    counts = [(rescue["files"], "file"), (rescue["commits"], "commit")]
    words = [format_count(count, noun) for count, noun in counts if count] or ["the whole directory"]
    return ", ".join([*words, *(["restored"] if rescue["restored_at"] else [])])


_TABLES: Final = {
    "sessions": _Table(
        "No sessions yet.",
        2,
        {
            "ID": lambda row: row["id"],
            "LAST (UTC)": lambda row: row["last_active_at"],
            "CONVERSATION": lambda row: row["conversation"],
            "AGENT": lambda row: row["agent"],
            "STATE": lambda row: "active" if row["active"] else _joined("ended:", row["end_reason"]),
        },
    ),
    "turns": _Table(
        "No turns yet.",
        3,
        {
            "ID": lambda row: row["id"],
            "STATE": lambda row: row["state"],
            "ENDED (UTC)": lambda row: row["finished_at"],
            "CONVERSATION": lambda row: row["conversation"],
            "BY": lambda row: row["requested_by"],
            "TOOK": lambda row: _joined(_duration(row), _cost(row), row["agent"]),
            "REASON": lambda row: row["waiting"] or row["phase"] or row["reason"],
        },
    ),
    "deliveries": _Table(
        "No deliveries yet.",
        3,
        {
            "GUID": lambda row: row["guid"],
            "STATE": lambda row: row["state"],
            "AT (UTC)": lambda row: row["received_at"],
            "WHAT": lambda row: _joined(row["event"], row["action"], row["conversation"], row["error"]),
        },
    ),
    "conversations": _Table(
        "No conversations yet.",
        2,
        {
            "ID": lambda row: row["id"],
            "CONVERSATION": lambda row: row["conversation"],
            "STATE": lambda row: row["state"],
            "BRANCH": lambda row: row["branch"],
            "PULL REQUESTS": lambda row: " ".join(row["pull_requests"]),
            "TURNS": lambda row: row["turns"],
            "COST": _cost,
            "TITLE": lambda row: row["title"],
        },
    ),
    "rescues": _Table(
        "Nothing was rescued or kept.",
        3,
        {
            "ID": lambda row: row["id"],
            "SIZE": lambda row: decimal(row["bytes"]),
            "EXPIRES (UTC)": lambda row: row["expires_at"],
            "OF": lambda row: " ".join(row["conversations"]) or row["codebase"],
            "WHAT": _what,
            "NODE": lambda row: row["node"],
            "KEPT AS": lambda row: row["name"],
        },
    ),
    "nodes": _Table(
        "No worker has started yet.",
        2,
        {
            "ID": lambda row: row["id"],
            "NAME": lambda row: row["name"],
            "STATE": lambda row: row["state"],
            "RUNNING": lambda row: row["running"],
            "WAITING": lambda row: row["queued"],
            "WORKTREES": lambda row: row["worktrees"],
            "ON DISK": lambda row: decimal(sum(row["disk"].values())) if row["disk"] else None,
            "LAST SIGN OF LIFE (UTC)": lambda row: row["heartbeat_at"],
        },
    ),
    "costs": _Table(
        "No request has ended in these days.",
        2,
        {
            "DAY": lambda row: row["day"],
            "REPOSITORY": lambda row: row["codebase"],
            "TURNS": lambda row: row["turns"],
            "WITHOUT A COST": lambda row: row["untold"],
            "TOKENS": lambda row: row["tokens"],
            "COST": _cost,
        },
    ),
}


def show_list(name: str, *, json: bool, limit: int | None = None, **query: str | None) -> None:
    """Print the newest items of a list of the API: a table of at most ROWS_FOR_PEOPLE, or all fields of all as JSON."""
    most = limit if json or limit else ROWS_FOR_PEOPLE + 1
    items = run_calls(lambda connection: items_of(connection, name, most, **query))
    show_items(name, items, json=json, limit=limit, filtered=bool(query.get("repo") or query.get("state")))


def show_items(name: str, items: Sequence[Row], *, json: bool, limit: int | None, filtered: bool) -> None:
    """Print the first items."""
    table, shown = _TABLES[name], items[: limit or ROWS_FOR_PEOPLE]
    if json:
        print_json(items[:limit])
    elif items:
        cells = [[text_of(column(item)) for column in table.columns.values()] for item in shown]
        print_table(table.columns, table.whole, cells, last_is_whole=True)
        tell_of_more(items, shown)
    else:
        typer.echo("Nothing matches." if filtered else table.empty, err=True)


async def items_of(
    connection: Connection, name: str, most: int | None = None, **query: str | None
) -> list[dict[str, Any]]:
    """Return the newest `most` items of a list, all without one. Raises CallError."""
    items: list[dict[str, Any]] = []
    pages = "limit" in ENDPOINTS[f"GET /{name}"].query
    after = None
    while most is None or len(items) < most:
        limit = {"limit": str(MOST_ROWS if most is None else min(MOST_ROWS, most - len(items)))} if pages else {}
        page = await _call(connection, f"GET /{name}", {}, **query, **limit, after=after)
        items += page["items"]
        after = page["next"]
        if after is None:
            break
    return items


def show_turn(turn: str, *, json: bool) -> None:
    """Print one turn with its request, plan and steps."""
    found = _ask("GET /turns/{id}", {"id": turn})
    if json:
        print_json(found)
        return
    why = ("conversation", "state", "reason", "waiting", "phase", "requested_by", "comment_url")
    facts = ("agent", "model", "tokens", "created_at", "started_at", "finished_at")
    fields = {**{name: found[name] for name in (*why, *facts)}, "cost": _cost(found)}
    for name, value in fields.items():
        if value is not None:
            typer.echo(f"{name.replace('_', ' ')}: {text_of(value)}")
    parts: dict[str, Sequence[str]] = {
        "Request": ["Its text has expired."] if found["expired"] else [found["request"]],
        "Plan": [f"{entry['state']}: {entry['text']}" for entry in found["plan"]],
        "Steps": [f"{step['at'].astimezone(UTC):%H:%M:%S}  {step['words']}" for step in found["steps"]],
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


def _ask(name: str, path: Mapping[str, str]) -> Any:
    """Return the endpoint's answer; what the operator gave wrongly ends the command with one sentence."""
    return run_calls(lambda connection: _call(connection, name, path))


def run_calls(work: Callable[[Connection], Awaitable[T]]) -> T:
    """Run a command that makes calls; what the operator gave wrongly ends it with one sentence."""
    try:
        return run_on_database(work)
    except CallError as problem:
        fail(problem.sentence, 2 if problem.status == 400 else 1)


async def _call(connection: Connection, name: str, path: Mapping[str, str], **query: str | None) -> Any:
    endpoint, settings = ENDPOINTS[name], load()
    kept_for, clock = timedelta(days=settings.rescue_expiry_days), partial(datetime.now, UTC)
    ctx = ApiContext(settings.platform, settings.github_server_url, settings.data_dir, kept_for, clock)
    given = [(key, value) for key, value in query.items() if value is not None]
    return await endpoint.handler(Call(connection, ctx, check_address(endpoint, path, given), "command line"))
