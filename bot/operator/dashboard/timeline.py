"""The timeline of a thread: requests, answers with their checks, pull requests, and how those ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from bot.operator.api import thread_rows
from bot.operator.api.lists import tell_why
from bot.operator.api.rows import Turn
from bot.operator.dashboard.visits import Visit

MOST_TURNS: Final = 50
ASKED: Final = {"work": "asked", "plan": "asked for a plan", "review": "asked for a review", "fix": "had it mended"}
"""What a person did who made a request of this kind; of the others, the verb is told."""


@dataclass(frozen=True, slots=True)
class Event:
    """What happened: a request was asked or ended, or a pull request was opened, merged or closed."""

    at: datetime
    kind: Literal["asked", "ended", "opened", "merged", "closed", "reverted"]
    turn: Turn | None = None
    pull: int | None = None
    words: str = ""


async def timeline(visit: Visit, conversation_id: int) -> Sequence[Event]:
    """Return what happened, the latest first; of the oldest requests there may be more."""
    async with visit.calls.connection() as connection:
        found = await thread_rows.turns(connection, conversation_id, MOST_TURNS, visit.caller.scope)
        pulls = await thread_rows.pull_requests(connection, conversation_id)
        turns = list(map(Turn.model_validate, found))
        await tell_why(connection, turns, visit.now)
    events = [Event(turn.created_at, "asked", turn, words=ASKED.get(turn.verb, turn.verb)) for turn in turns]
    events += [Event(turn.finished_at or visit.now, "ended", turn) for turn in turns]
    for pull in pulls:
        of = {"pull": pull["number"], "words": pull["title"] or ""}
        if pull["opened_at"] is not None:
            events.append(Event(pull["opened_at"], "opened", **of))
        if pull["closed_at"] is not None:
            events.append(Event(pull["closed_at"], "merged" if pull["merged"] else "closed", **of))
        if pull["reverted_by"] is not None:
            events.append(Event(pull["closed_at"], "reverted", pull=pull["reverted_by"]))
    # At the same moment what was asked last comes on top.
    return sorted(events, key=lambda event: (event.at, event.turn.id if event.turn else 0), reverse=True)
