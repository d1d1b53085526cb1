"""`threadtree env …`: variables of one repository."""

import re
import sys
from collections.abc import Callable
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

import typer

from bot.agents.presets import model_variables
from bot.care import upkeep_rows as upkeep
from bot.cli.calls import print_json, print_table, record
from bot.cli.options import Json, command_group
from bot.cli.running import answered, fail, run_on_node
from bot.github.errors import NotFound
from bot.model import Repository
from bot.node.context import NodeContext
from bot.node.variables import MAX_BYTES, set_variable, set_variables, unset_variable
from bot.redaction import SHORTEST_SECRET
from bot.settings import Settings

T = TypeVar("T")
env = command_group()

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# With these a value would change what programs are, where they look, or how the sandbox works.
_NOT_FOR_OTHERS = re.compile(
    r"(LD|DYLD|GIT|THREADTREE|BASH|NPM_CONFIG)_.*|.*_PROXY|HOME|SHELL|USER|LOGNAME|TMPDIR|PWD|IFS|ENV"
    r"|NODE_(OPTIONS|EXTRA_CA_CERTS|USE_ENV_PROXY)|PYTHON(PATH|HOME|STARTUP)|PERL5(LIB|OPT)|RUBY(LIB|OPT)"
    r"|(REQUESTS|CURL)_CA_BUNDLE|CARGO_HTTP_CAINFO",
    re.IGNORECASE,
)
RepositoryName = Annotated[str, typer.Argument(metavar="OWNER/REPO")]
Name = Annotated[str, typer.Argument(metavar="NAME")]


@env.command("set")
def set_one(repository: RepositoryName, name: Name) -> None:
    """Set a variable of a repository's set-up script and agents to what stdin says, on this node."""
    if (why := refused_name(name)) is not None:
        fail(f"{name} {why}", 2)
    value = _value()
    if not value.strip() or "\0" in value or len(value.encode()) > MAX_BYTES:
        fail(f"The value on stdin must be a text of 1 to {MAX_BYTES} bytes: `threadtree env set … < FILE`.", 2)
    _on_repository(repository, lambda ctx, found: set_variable(ctx.data_dir, found, name, value), f"set {name}")
    if len("".join(value.split())) < SHORTEST_SECRET:
        typer.echo(f"Shorter than {SHORTEST_SECRET} characters, so it is not removed from what people read.", err=True)


@env.command("list")
def list_all(repository: RepositoryName, json: Json = False) -> None:
    """List a repository's variables on this node and when each was set, without their values."""
    found = _on_repository(repository, lambda ctx, known: set_variables(ctx.data_dir, known))
    if json:
        print_json(found)
    elif found:
        print_table(("NAME", "SET AT"), 1, [(one.name, f"{one.set_at:%Y-%m-%d %H:%M} UTC") for one in found])


@env.command("unset")
def unset_one(repository: RepositoryName, name: Name) -> None:
    """Delete a variable of a repository on this node."""
    if not _NAME.fullmatch(name) or not _on_repository(
        repository, lambda ctx, found: unset_variable(ctx.data_dir, found, name), f"unset {name}"
    ):
        fail(f"{repository} has no variable {name!r} here: `threadtree env list {repository}` shows them.", 2)


def refused_name(name: str) -> str | None:
    """Return why a variable of a repository may not have this name, None if it may."""
    own = {field.upper() for field in Settings.model_fields}
    if not _NAME.fullmatch(name):
        return "is no variable's name; use letters, digits and underscores."
    if name.upper() in own | model_variables():
        return "is a setting of the bot; choose another name."
    if _NOT_FOR_OTHERS.fullmatch(name):
        return "changes how programs or the sandbox work; set it in `.threadtree/setup` for what needs it."
    return None


def _value() -> str:
    """Return what stdin says, without the end of its last line; nothing for what is no text."""
    if sys.stdin.isatty():
        return str(answered(lambda: typer.prompt("Value", hide_input=True)))
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 2).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        return ""


def _on_repository(full_name: str, work: Callable[[NodeContext, Repository], T], change: str | None = None) -> T:
    """Do something for the repository that has this name now, by GitHub where the bot has credentials for it.

    A `change` is recorded in these words, unless it returned False.
    """

    async def done(ctx: NodeContext) -> T:
        owner, _, name = full_name.partition("/")
        platform = urlsplit(ctx.server_url).netloc
        try:
            if ctx.github is None:
                found = await upkeep.codebase_named(ctx.pool, platform, full_name)
            else:
                found = await ctx.github.repository(platform, owner, name) if owner and name else None
        except NotFound:
            found = None
        if found is None:
            fail(f"The bot sees no repository {full_name!r}; name it as OWNER/REPO, or give the bot access.", 2)
        result = work(ctx, found)
        if change and result is not False:
            await record(ctx.pool, f"env {change}", found.full_name, found.full_name, outcome="done")
        return result

    return run_on_node(done)
