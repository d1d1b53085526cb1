"""What GitHub is asked about a pull request before a worktree is chosen for it."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import structlog

from bot.github.client import GitHub
from bot.github.errors import GitHubError
from bot.handlers.choose_worktree import PullRequestHead
from bot.model import Repository

YOUNG_PULL_SECONDS = 60
CLOSING_REFERENCES_WAITS_SECONDS = (3.0, 5.0)
"""GitHub links a new pull request to its issues a little later: asked again within 10 s, then it means none."""

_log = structlog.get_logger()

Clock = Callable[[], datetime]
Sleep = Callable[[float], Awaitable[None]]


async def look_up_pull_request(
    github: GitHub, repository: Repository, number: int, clock: Clock, sleep: Sleep
) -> PullRequestHead:
    """Return whose head it is, whether that branch may be pushed to, and the issues it closes. Raises GitHubError."""
    pull = await github.pull(repository, number)
    is_same = pull.head_repository_id == repository.id
    is_protected = is_same and (
        pull.head_ref == pull.default_branch or await github.is_protected(repository, pull.head_ref)
    )
    closes = await _closed_issues(github, repository, number, pull.created_at, clock, sleep) if is_same else ()
    return PullRequestHead(pull.head_ref, pull.head_sha, is_same, is_protected, closes)


async def _closed_issues(
    github: GitHub, repository: Repository, number: int, created_at: datetime, clock: Clock, sleep: Sleep
) -> tuple[int, ...]:
    """Return the issues of this repository that the pull request closes; a failure means none, never an error."""
    for wait in (*CLOSING_REFERENCES_WAITS_SECONDS, None):
        try:
            found = await github.closing_issues(repository, number)
        except GitHubError as problem:
            _log.warning("closing-references-unknown", pull=number, problem=str(problem))
            found = ()
        numbers = tuple(issue.number for issue in found if issue.repository_id == repository.id)
        is_young = clock() - created_at < timedelta(seconds=YOUNG_PULL_SECONDS)
        if numbers or wait is None or not is_young:
            return numbers
        await sleep(wait)
    return ()
