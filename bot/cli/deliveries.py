"""`threadtree deliveries replay GUID`."""

import asyncio
from typing import assert_never

import typer

from bot.cli.listings import Connect
from bot.store.replay import Replay, replay


def add_replay(deliveries: typer.Typer, connect: Connect) -> None:
    """Adds the command to the group `deliveries`; its exit status is 1 when there is nothing to run."""

    @deliveries.command("replay", help="Handle a stored delivery once more; what it did before is not done twice.")
    def replay_one(guid: str) -> None:
        async def done() -> Replay:
            async with connect() as connection:
                return await replay(connection, guid)

        match asyncio.run(done()):
            case "replayed":
                typer.echo(f"{guid} is handled again.")
            case "waiting":
                typer.echo(f"{guid} is waiting to be handled already.")
            case "unknown":
                _give_up(f"There is no delivery {guid}: `threadtree deliveries list` shows them.")
            case "nothing-to-run":
                _give_up(f"{guid} cannot be run: it meant nothing to the bot, or its body is no longer kept.")
            case other:
                assert_never(other)


def _give_up(sentence: str) -> None:
    typer.echo(sentence, err=True)
    raise typer.Exit(1)
