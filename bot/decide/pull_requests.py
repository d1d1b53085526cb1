"""What GitHub is asked about a pull request before a worktree is chosen for it."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import structlog

from bot.github.answers import PullFacts
from bot.github.client import GitHub
from bot.github.errors import GitHubError
from bot.handlers.choose_worktree import PullRequestHead
from bot.model import Repository

YOUNG_PULL_SECONDS = 60
CLOSING_REFERENCES_WAITS_SECONDS = (3.0, 5.0)
"""GitHub links a new pull request to its issues a little later: asked again within 10 s, then it means none."""

_log = structlog.get_logger()


async def pull_head(github: GitHub, repository: Repository, pull: PullFacts) -> PullRequestHead:
    """Whose head it is, and whether that branch may be pushed to. Raises GitHubError."""
    same = pull.head_repository_id == repository.id
    protected = same and (pull.head_ref == pull.default_branch or await github.is_protected(repository, pull.head_ref))
    return PullRequestHead(pull.number, pull.head_ref, pull.head_sha, same, protected)


async def closed_issues(
    github: GitHub,
    repository: Repository,
    pull: PullFacts,
    clock: Callable[[], datetime],
    sleep: Callable[[float], Awaitable[None]],
) -> tuple[int, ...]:
    """The issues of this repository that the pull request closes; a failure means none, never an error."""
    for wait in (*CLOSING_REFERENCES_WAITS_SECONDS, None):
        try:
            found = await github.closing_issues(repository, pull.number)
        except GitHubError as problem:
            _log.warning("closing-references-unknown", pull=pull.number, problem=str(problem))
            found = ()
        numbers = tuple(issue.number for issue in found if issue.repository_id == repository.id)
        young = clock() - pull.created_at < timedelta(seconds=YOUNG_PULL_SECONDS)
        if numbers or wait is None or not young:
            return numbers
        await sleep(wait)
    return ()
