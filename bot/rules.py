"""The rules of a repository's requests: the operator's settings, and what the repository chose within them.

DESIGN.md §5: the environment, and `.threadtree/config.toml`.
"""

from dataclasses import dataclass, replace
from typing import Literal

from bot.model import AutoPullRequest
from bot.network.rules import Destination

RequirePlan = Literal["never", "outsiders", "always"]
"""Whose requests are planned first and carried out once a person approved the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for the requests of one repository, or of all where none chose anything.

    `agents` are those that can be asked, `agent` is the one for a conversation that chose none, `model` is that one's.
    Caps are in US dollars, None for none. `decided` are the names of the rules that the operator set: a repository can
    only make them narrower.
    """

    agents: tuple[str, ...]
    agent: str
    model: str | None = None
    instructions: str = ""
    allowed: tuple[str, ...] = ()
    auto_pull_request: AutoPullRequest = "never"
    require_plan: RequirePlan = "never"
    setup: bool = False
    check: bool = True
    autofix: bool = False
    max_fix_attempts: int = 3
    network: frozenset[Destination] = frozenset()
    bare_commands: bool = True
    max_cost_usd_per_turn: float | None = None
    max_cost_usd_per_repository_per_day: float | None = None
    decided: frozenset[str] = frozenset()

    @property
    def worker(self) -> tuple[str, str | None]:
        """The agent and its model."""
        return self.agent, self.model


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a conversation's people chose: its agent, and a model of that agent; None for the usual ones."""

    agent: str | None = None
    model: str | None = None

    def within(self, rules: Rules, asked: str | None = None) -> Rules:
        """Return the rules with the agent and the model of a request, which may itself name the agent `asked`.

        What cannot be asked by now is passed over. A model belongs to the agent it was chosen for.
        """
        agent = next((name for name in (asked, self.agent) if name in rules.agents), None) or rules.agent
        usual = rules.model if agent == rules.agent else None
        return replace(rules, agent=agent, model=(self.model if agent == self.agent else None) or usual)
