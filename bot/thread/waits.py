"""What waits for a person, in words."""

from dataclasses import dataclass
from typing import Final, Literal

WaitsFor = Literal["approve", "answer", "retry", "review"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn about which a person has to do something; `pull_request` is the one to be reviewed."""

    turn_id: int
    waits_for: WaitsFor
    pull_request: int | None

    @property
    def line(self) -> str:
        """The line of `/status`."""
        return _LINES[self.waits_for].format(turn=self.turn_id, pull_request=self.pull_request)


_LINES: Final = {
    "approve": "The plan of turn {turn} waits for `/approve`",
    "answer": "The question of turn {turn} waits for an answer: mention the bot in a comment",
    "retry": "Turn {turn} did not work out: it waits for `/retry`, or for another request",
    "review": "Pull request #{pull_request} waits for a review",
}
NEEDS: Final = {
    "approve": "the plan for {} waits for `/approve`",
    "answer": "the agent has a question for {}",
    "retry": "the check of {}'s request fails",
    "review": "the pull request of {}'s request waits for a review",
}
"""What is told outside GitHub of a turn that did not fail, with the login of the person who asked."""
