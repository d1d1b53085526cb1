"""Whether somebody may ask the bot in a repository, asked of GitHub (DESIGN.md §4, Authority)."""

from collections.abc import Sequence

from bot.github.client import GitHub
from bot.github.people import is_one_of
from bot.model import Actor, Repository
from bot.thread.authority import (
    NOT_CHOSEN,
    NOT_LISTED,
    ONLY_MAINTAINERS,
    Allowed,
    Denied,
    Policy,
    before_asking_github,
    by_permission,
)


async def may_ask(
    github: GitHub,
    policy: Policy,
    person: Actor,
    repository: Repository,
    *,
    allowed: Sequence[str] | None = None,
) -> Allowed | Denied:
    """Return whether the person may ask: by the lists, the live permission, and the teams in the lists.

    `allowed` is the repository's own list of logins and teams, in lower case: None for all, empty for those with admin
    or maintain. Raises GitHubError: an answer that GitHub does not give is no permission.
    """
    verdict = before_asking_github(policy, person, repository)
    if verdict is not None:
        return verdict
    permission, login = await github.permission(repository, person)
    verdict = by_permission(permission)
    if isinstance(verdict, Allowed):
        if policy.allowed_users and not await is_one_of(github, policy.allowed_users, login):
            return NOT_LISTED
        if allowed and not await is_one_of(github, allowed, login):
            return NOT_CHOSEN
        if allowed is not None and not allowed and verdict.permission not in ("admin", "maintain"):
            return ONLY_MAINTAINERS
    return verdict
