"""`threadtree backup DIR` and `restore DIR`: this node and the database, saved while they run, and brought back."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from bot.care.backup import back_up, require_restorable
from bot.care.backup import restore as bring_back
from bot.cli.running import database_url, run
from bot.node.variables import FOLDER
from bot.settings import Need, load

_SECRETS = "secrets"


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An empty or new folder, best on another disk.")],
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Save .env, the App's key and repositories' variables too.")
    ] = False,
) -> None:
    """Save the database and this node's files while the bot runs; no secrets of `.env` unless asked for."""
    settings = load().with_data_dir()

    async def saved() -> list[str]:
        async with database_url(settings) as dsn:
            return await back_up(dsn, settings.data_dir, folder)

    for line in run(saved(), log_level=settings.log_level):
        typer.echo(line, err=True)
    if with_secrets:
        (folder / _SECRETS).mkdir(mode=0o700)
        key = load(needs=frozenset({Need.GITHUB})).github_private_key_path
        for file in filter(Path.is_file, filter(None, (Path(".env"), key))):
            shutil.copy2(file, folder / _SECRETS / file.name)
        if (variables := settings.data_dir / FOLDER).is_dir():
            shutil.copytree(variables, folder / _SECRETS / FOLDER)
    typer.echo(
        f"Saved in {folder}. {'It holds secrets' if with_secrets else 'Not in it: .env, keys, values of `env set`'}."
    )


def restore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a backup.", file_okay=False)],
) -> None:
    """Bring a backup to an empty DATA_DIR and an empty database. Stop the bot of the machine that was saved first."""
    settings = load()

    async def restored() -> None:
        require_restorable(settings.data_dir, folder)
        async with database_url(settings) as dsn:
            await bring_back(dsn, settings.data_dir, folder)

    run(restored(), log_level=settings.log_level)
    if (variables := folder / _SECRETS / FOLDER).is_dir():
        shutil.copytree(variables, settings.data_dir / FOLDER)
    typer.echo(f"Restored to {settings.data_dir}. `threadtree serve` goes on from there.")
