"""`threadtree uninstall`: what this node has is shown, and deleted once the operator agreed."""

from typing import Annotated

import typer
from rich.filesize import decimal

from bot.care.asked import Pruning
from bot.care.prune import prune
from bot.cli.running import answered, fail, run, run_on_node
from bot.locks import is_locked
from bot.node import rescue_rows as rescues
from bot.node.context import NodeContext
from bot.node.room import spaces
from bot.sandbox import trash
from bot.settings import Settings, load

_KEPT = ("repos", "kept")
_STAYS = """What stays:
  on GitHub  branches, pull requests, comments; the App or webhook, which you delete there
  here       .env, the App's key, the program: delete them yourself"""


def uninstall(
    keep_rescues: Annotated[
        bool,
        typer.Option("--keep-rescues", help="Rescue what is not on GitHub, and keep the clones with all rescues."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete what this node has in DATA_DIR, the embedded database too, after it was shown."""
    settings = load()
    if not settings.data_dir.is_dir():
        fail(f"There is nothing in DATA_DIR {settings.data_dir}.", 2)
    _require_stopped(settings)
    rescued = run_on_node(_rescues)
    typer.echo(f"What is deleted, in {settings.data_dir}:")
    for what, repository, size in spaces(settings.data_dir):
        if size and not (keep_rescues and what in ("clones", "kept")):
            typer.echo(f"  {decimal(size):>10}  {what} {repository or ''}".rstrip())
    lost = (
        "are kept; what is not on GitHub is rescued too"
        if keep_rescues
        else "are deleted, with all work that is not on GitHub"
    )
    typer.echo(f"Rescues: {rescued}. They {lost}.\n{_STAYS}")
    if settings.database_url is not None:
        typer.echo("  database   the one that DATABASE_URL names, with its rows")
    if not yes:
        answered(lambda: typer.confirm("Delete it?", abort=True))
    if keep_rescues:
        run_on_node(_rescue_all)
    _require_stopped(settings)
    if left := run(_delete(settings, _KEPT if keep_rescues else ())):
        fail(f"Not deleted: {', '.join(left)}. Delete it yourself.")
    typer.echo(f"Deleted. {'Rescues are in ' + str(settings.data_dir / 'repos') if keep_rescues else ''}".rstrip())


def _require_stopped(settings: Settings) -> None:
    """A suspended worker runs too. The embedded database has no user but those that run."""
    users = settings.data_dir / "postgres" / "users.lock"
    locks = [*settings.data_dir.glob("workers/*.lock"), *([users] if users.exists() else [])]
    if any(map(is_locked, locks)):
        fail("A worker or another process of this node runs: stop it first.")


async def _rescues(ctx: NodeContext) -> int:
    async with ctx.pool.acquire() as connection:
        return sum(one.node == ctx.node for one in await rescues.latest(connection))


async def _rescue_all(ctx: NodeContext) -> None:
    report = await prune(ctx, load().retention, Pruning(older_than="0s", force=True))
    if left := [*report.skipped, *report.errors]:
        fail(f"Nothing is deleted: {left[0].path} cannot be rescued now ({left[0].why}).")


async def _delete(settings: Settings, kept: tuple[str, ...]) -> list[str]:
    """Delete what is in DATA_DIR; return what is left of it."""
    places = [place for place in settings.data_dir.iterdir() if place.name not in kept]
    for place in places:
        await trash.delete(place)
    return [str(place) for place in places if place.exists()]
