"""A GitHub for the demo and the tests: state in memory, real git repositories on disk, real HTTP."""

from bot.simulated.github.model import Comment, Issue, Pull, Repository, Review, ReviewComment, User
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub
from bot.simulated.github.webhooks import Delivery

__all__ = [
    "Comment",
    "Delivery",
    "Issue",
    "Person",
    "Pull",
    "Repository",
    "Review",
    "ReviewComment",
    "SimulatedGitHub",
    "User",
]
