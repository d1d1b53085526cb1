"""The demo's story, chapter by chapter."""

from bot.demo import main_job, nothing_is_lost
from bot.demo.pair import Pair
from bot.demo.report import Report
from bot.demo.stage import Stage


async def tell(pair: Pair, report: Report) -> None:
    """Tell every step in order. Raises StoryBrokeError at the first event that does not happen."""
    stage = await Stage.set_up(pair, report)
    await main_job.tell(stage)
    await nothing_is_lost.tell(stage)
