"""`threadtree demo`."""

import logging
import sys

from bot.cli.running import run, stop_signals
from bot.demo.command import run_demo
from bot.settings import search_path


def play(*, keep: bool, json: bool) -> None:
    """Play the story; exit status 1 if a check did not hold."""

    async def played() -> bool:
        return await run_demo(search_path(), stop_signals(), keep=keep, json=json)

    if not run(played(), logging.ERROR):
        sys.exit(1)
