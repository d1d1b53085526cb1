"""The rows that tell figures and ends: what was spent, what became of pull requests, how checks ended."""

from datetime import date, datetime
from typing import Literal

from pydantic import Json, computed_field

from bot.operator.api.rows import Row
from bot.thread.outcome import Check

OutcomeState = Literal["merged", "closed", "reverted"]


class Costs(Row):
    """What the turns of one repository, or of one person, cost on one day (UTC): that of their end, else today."""

    COLUMNS = ("day", "name", "turns", "without_cost", "tokens", "cost_usd")
    EMPTY = "No turn has run in these days."

    day: date
    codebase: str | None
    person: str | None = None
    """Who asked, by the login; then `codebase` is null."""
    turns: int
    untold: int
    """Those whose cost is not known."""
    cost_usd: float | None
    tokens: int | None

    @property
    def name(self) -> str:
        return self.person or self.codebase or ""

    @property
    def without_cost(self) -> int:
        return self.untold


class Outcome(Row):
    """What became of a pull request to whose branch the bot pushed."""

    id: int
    pull_request: str
    title: str
    codebase: str
    branch: str
    state: OutcomeState
    """`reverted`: merged, and taken back by another pull request."""
    check: Json[Check] | None
    """How the check of the last push ended."""
    rewritten: bool
    """People pushed after the bot's last push."""
    reverted_by: str | None
    opened_at: datetime
    closed_at: datetime
    seconds_to_merge: float | None
    agent: str | None
    model: str | None
    turns: int
    """The requests on its thread or branch."""
    cost_usd: float | None
    """What these cost, as far as it is known."""
    tokens: int | None


class CheckedTurn(Row):
    """A turn whose result was checked."""

    turn: int
    check: Check


class Checks(Row):
    """How the last checks of a repository ended, at most a hundred, the latest first."""

    codebase: str
    checked: int
    passed: int
    latest: Json[list[CheckedTurn]]


class OutcomeSums(Row):
    """What became of pull requests of one repository, agent and model."""

    codebase: str
    agent: str | None
    model: str | None
    closed: int
    """All that were closed, of which `merged` were merged, and of these some `reverted`, some `rewritten`."""
    merged: int
    reverted: int
    rewritten: int
    seconds_to_merge: float | None
    """Half of the merged ones took at most so long."""
    cost_usd: float | None
    untold: int
    """Those without a known cost."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def cost_usd_per_merge(self) -> float | None:
        """Return the cost of all requests, also of those whose pull request was not merged, for each merge."""
        return self.cost_usd / self.merged if self.cost_usd is not None and self.merged else None
