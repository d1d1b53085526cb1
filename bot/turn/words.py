"""Whether words may be worked on: as they are, with the repository's variables, or once a plan of them is approved.

DESIGN.md §4, Authority. Asked of whatever is asked, before anything is done with it: of a turn, whether it is new, a
retry, or carries out what was approved, and of a message into a turn that runs.
"""

from dataclasses import dataclass, field
from typing import Literal

from bot.rules import RequirePlan, Rules
from bot.store.turns import ClaimedTurn
from bot.turn.confirm import may_all_ask
from bot.turn.context import TurnContext
from bot.turn.kind import Confirmed


@dataclass(frozen=True, slots=True)
class Leave:
    """What may be done with words: `variables`, whether the work on them may have the repository's; `planned_first`,
    because of an outsider's words or as all others; None where they may be worked on as they are.
    """

    variables: bool
    planned_first: Literal["outsiders", "all"] | None = None


def leave(rule: RequirePlan, *, by_outsider: bool, at_fork: bool, goes_on: bool) -> Leave:
    """Return what may be done with words. Pure.

    `by_outsider`: somebody who may not ask has a say in it. `at_fork`: the code is a fork's head. `goes_on`: the words
    follow a plan that is open, whose readers go on in words of their own.
    """
    planned: Literal["outsiders", "all"] | None = None
    if rule != "never" and by_outsider:
        planned = "outsiders"
    elif rule == "always" and not goes_on:
        planned = "all"
    return Leave(not (by_outsider or at_fork), planned)


@dataclass(slots=True)
class Asked:
    """A request as GitHub confirmed it: a turn's own, or that of a message to the agent of `turn`.

    `turn_id` is the request's own turn; `turn.ask` is what it asks.
    """

    ctx: TurnContext
    turn: ClaimedTurn
    turn_id: int
    confirmed: Confirmed
    _by_outsider: bool | None = field(default=None, init=False)

    async def by_outsider(self) -> bool:
        """Return whether somebody who may not ask has a say in it; GitHub is asked once. Raises GitHubError."""
        if self._by_outsider is None:
            kind = self.ctx.verbs.kind_of(self.turn.ask)
            self._by_outsider = await kind.of_outsider(self.ctx, self.turn) or not await may_all_ask(
                self.ctx, self.turn, self.confirmed.authors
            )
        return self._by_outsider

    async def leave(self, rules: Rules, *, goes_on: bool = False) -> Leave:
        """Return what may be done with its words by these rules. Raises GitHubError."""
        at_fork, by_outsider = self.turn.ask.pinned_sha is not None, await self.by_outsider()
        return leave(rules.require_plan, by_outsider=by_outsider, at_fork=at_fork, goes_on=goes_on)
