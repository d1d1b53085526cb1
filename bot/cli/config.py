"""`threadtree config …`: the settings, and the rules that hold for one repository."""

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from bot.care import upkeep_rows as upkeep
from bot.cli.calls import print_json, print_table
from bot.cli.options import Json, command_group
from bot.cli.running import fail, run_on_node
from bot.model import Repository
from bot.node.context import NodeContext
from bot.node.repository_rules import before, config_in, stored
from bot.operator.api import listings
from bot.rules import (
    CONFIG_PATH,
    KEYS,
    MAX_CONFIG_BYTES,
    MOST_STANDING,
    NO_RULES,
    RULE_OF,
    SETTINGS,
    Found,
    Rules,
    counting,
    read_config,
    stored_config,
    within,
)
from bot.serve.parts import rules_of
from bot.settings import SERVE, Settings, doubtful_names, load, read
from bot.store.scope import EVERYTHING
from bot.thread import repository_rules as words
from bot.thread.formatting import one_line, plain, truncate
from bot.tree import GitError

config = command_group()
_OTHER_SETTINGS = {"agent": "agent", "model": "agent_model"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a repository's file, the value that holds, and who chose it."""

    key: str
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What the repository's file asks again and again. `next` is None while it is paused, `problem` says why."""

    line: int
    every: str
    ask: str
    person: str
    next: datetime | None
    conversation: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Shown:
    """What holds for a repository, what it asks by itself, and what is wrong in its file."""

    repository: str
    rules: list[Setting]
    standing: list[Asked]
    problems: list[str]


@config.command("check")
def check_settings(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", exists=True, dir_okay=False)] = None,
) -> None:
    """Check the settings as `serve` does at its start, and start nothing; or a repository's .threadtree/config.toml."""
    if file is not None:
        _check_rules(file)
        return
    for line in doubtful_names():
        typer.echo(f"threadtree: {line}", err=True)
    load(needs=SERVE)
    typer.echo("The settings are right. `threadtree doctor` tries what they name.")


def _check_rules(file: Path) -> None:
    with file.open("rb") as opened:
        found = read_config(opened.read(MAX_CONFIG_BYTES + 1))
    problems = found.problems if found.config else (f"{found.problems[0]} {words.UNREADABLE}",)
    if not problems:
        typer.echo(f"The rules in {file} are right.")
        return
    for problem in problems:
        typer.echo(f"threadtree: {file}: {plain(problem)}", err=True)
    raise typer.Exit(1)


@config.command("show")
def show_rules(repository: Annotated[str, typer.Argument(metavar="OWNER/REPO")], json: Json = False) -> None:
    """Print what holds for a repository's requests, and where each value comes from."""
    settings, _ = read(needs=SERVE)
    shown = run_on_node(lambda ctx: shown_rules(ctx, settings, repository))
    if json:
        print_json(shown)
        return
    print_table(("KEY", "VALUE", "FROM"), 1, [(one.key, _written(one.value), one.source) for one in shown.rules])
    if shown.standing:
        typer.echo()
        asked = [
            (str(one.line), one.every, _moment(one.next), one.person, one.conversation or "-", _what(one))
            for one in shown.standing
        ]
        print_table(("LINE", "EVERY", "NEXT", "AS", "LAST THREAD", "ASK"), 5, asked)
    for problem in shown.problems:
        typer.echo(f"threadtree: {CONFIG_PATH}: {problem}", err=True)


async def shown_rules(ctx: NodeContext, settings: Settings, full_name: str) -> Shown:
    """Return what holds for the repository of this name, by this node's clone, or else by what was read last."""
    repository = await upkeep.codebase_named(ctx.pool, urlsplit(ctx.server_url).netloc, full_name)
    if repository is None:
        fail(f"The bot knows no repository {full_name!r}; name it as OWNER/REPO. It knows those that asked it once.", 2)
    known = await stored(ctx.pool, repository)
    found = await _in_clone(ctx, repository)
    operators = rules_of(settings)
    if found is None:
        chosen, wrong = stored_config(known.config), tuple((known.config_problem or "").splitlines())
    else:
        chosen, wrong = counting(found, before(known))
    rules, beyond = within(operators, chosen)
    lines = found.lines if found else {}
    problems = [*wrong]
    problems += [words.beyond(key, lines[key], *why) for key, why in beyond.items() if key in lines]
    given = chosen.model_dump(exclude_none=True).keys() - beyond.keys()
    keys = [key for key in KEYS if key not in NO_RULES]
    sources = {key: _source(key, operators, settings, key in given, lines.get(key)) for key in keys}
    values = [Setting(key, _value(rules, key), source) for key, source in sources.items()]
    return Shown(repository.full_name, values, await _standing(ctx, settings, repository), list(map(plain, problems)))


async def _standing(ctx: NodeContext, settings: Settings, repository: Repository) -> list[Asked]:
    async with ctx.pool.acquire() as connection:
        found = await listings.standing(connection, EVERYTHING, repository.full_name, MOST_STANDING)
    asked = [Asked(**{one.name: row[one.name] for one in fields(Asked)}) for row in found]
    if settings.standing:
        return [replace(one, problem=plain(one.problem) if one.problem else None) for one in asked]
    return [replace(one, next=None, problem="STANDING=false") for one in asked]


async def _in_clone(ctx: NodeContext, repository: Repository) -> Found | None:
    """Return what the file says in this node's clone, as it was fetched last; None without a clone."""
    folder = await upkeep.folder_of(ctx.pool, repository)
    clone = ctx.clone(folder) if folder else None
    if clone is None or not clone.path.is_dir() or repository.default_branch is None:
        return None
    try:
        return (await config_in(clone, repository.default_branch))[1]
    except GitError as problem:
        fail(f"The clone of {repository.full_name} cannot be read: {problem}")


def _moment(at: datetime | None) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if at else "paused"


def _what(asked: Asked) -> str:
    return truncate(one_line(asked.problem or asked.ask))


def _source(key: str, operators: Rules, settings: Settings, is_chosen: bool, line: int | None) -> str:
    rule = RULE_OF.get(key, key)
    setting = SETTINGS.get(rule) or _OTHER_SETTINGS.get(key)
    if is_chosen:
        return f"{CONFIG_PATH}, line {line}" if line else CONFIG_PATH
    if key == "network" and key in operators.decided:
        return "environment, AGENT_NETWORK"
    return f"environment, {setting.upper()}" if setting in settings.model_fields_set and setting else "default"


def _value(rules: Rules, key: str) -> object:
    value = getattr(rules, RULE_OF.get(key, key))
    if value == () and key == "allowed":
        return "admin and maintain"
    if key == "network":
        return sorted(f"{one.host}:{one.port}" for one in rules.network)
    return list(value) if isinstance(value, tuple) else value


def _written(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else words.as_written(value)
