"""`threadtree deliveries replay GUID`."""

from typing import assert_never

import typer

from bot.cli.running import fail, open_connection, run
from bot.store import deliveries as rows
from bot.store.deliveries import Replay


def replay(guid: str) -> None:
    """Handle a stored delivery again; exit status 1 when there is nothing to run."""

    async def replayed() -> Replay:
        async with open_connection() as connection:
            return await rows.replay(connection, guid)

    match run(replayed()):
        case "replayed":
            typer.echo(f"{guid} is handled again.")
        case "waiting":
            typer.echo(f"{guid} is waiting to be handled already.")
        case "unknown":
            fail(f"There is no delivery {guid}: `threadtree deliveries list` shows them.")
        case "nothing-to-run":
            fail(f"{guid} cannot be run: it meant nothing to the bot, or its body is no longer kept.")
        case other:
            assert_never(other)
