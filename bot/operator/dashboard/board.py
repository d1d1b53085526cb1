"""The board: what runs, waits for a person, is in review, and was merged lately, one card for each thread."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from bot.operator.api import board_rows, listings
from bot.operator.api.figures import Outcome
from bot.operator.api.lists import tell_why
from bot.operator.api.rows import Turn, TurnAtWork, TurnForPeople
from bot.operator.dashboard.visits import Visit
from bot.store.database import Connection
from bot.store.scope import Scope

MOST_AT_WORK: Final = 20
MOST_CARDS: Final = 6
"""In each other lane."""
LATELY: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Lane:
    """The cards of a lane, and whether there are more."""

    cards: Sequence[Any]
    has_more: bool


async def board(visit: Visit) -> Mapping[str, Lane]:
    """Return the lanes. A thread and the pull request of its branch share one card, in the first lane that fits."""
    async with visit.calls.connection() as connection:
        scope, asked = visit.caller.scope, MOST_CARDS + MOST_AT_WORK
        working = await board_rows.at_work(connection, MOST_AT_WORK + 1, scope)
        waiting = await board_rows.for_people(connection, asked, scope, visit.caller.login)
        in_review = await open_pull_requests(connection, asked, scope)
        merged = await board_rows.merged(connection, asked, visit.now - LATELY, scope)
        running = [TurnAtWork.model_validate({**row, "plan": listings.plan_entries(row["plan"])}) for row in working]
        await tell_why(connection, running, visit.now)
    shown: set[str] = set()
    return {
        "running": _lane(running, shown, MOST_AT_WORK),
        "waiting": _lane(map(TurnForPeople.model_validate, waiting), shown),
        "review": _lane(in_review, shown),
        "merged": _lane(map(Outcome.model_validate, merged), shown),
    }


async def open_pull_requests(connection: Connection, limit: int, scope: Scope) -> list[TurnForPeople]:
    """Return the last request that pushed to each open pull request of the bot, the oldest first."""
    found = await board_rows.in_review(connection, limit, scope)
    return [
        TurnForPeople.model_validate({**row, "pull_request": f"{row['codebase']}#{row['number']}"}) for row in found
    ]


def _lane(found: Iterable[Turn | Outcome], shown: set[str], most: int = MOST_CARDS) -> Lane:
    """Return the first of those whose threads are not shown yet, and note these."""
    cards = list[Turn | Outcome]()
    for card in found:
        of = (card.pull_request, card.conversation) if isinstance(card, Turn) else (card.pull_request,)
        names = {name for name in of if name is not None}
        if not names & shown:
            cards.append(card)
        shown |= names
    return Lane(cards[:most], len(cards) > most)
