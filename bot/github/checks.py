"""The checks and statuses of a commit: how they ended, and the logs of those that failed. All raise GitHubError.

https://docs.github.com/rest/checks/runs#list-check-runs-for-a-git-reference,
https://docs.github.com/rest/checks/suites#list-check-suites-for-a-git-reference and
https://docs.github.com/rest/commits/statuses#get-the-combined-status-for-a-specific-reference
"""

from collections.abc import Set
from typing import Any

from bot.github.client import PER_PAGE, GitHub
from bot.github.errors import GitHubError
from bot.github.thread import Checks, FailedCheck
from bot.json_values import storable
from bot.model import Repository

MOST_LOGS = 3
LOG_BYTES = 4_000
_MOST_PAGES = 10
"""GitHub lists the check runs of the newest thousand suites at most."""
_FAILED = {"failure", "timed_out", "error"}
_GREEN = {"success", "neutral", "skipped"}


async def read_checks(github: GitHub, repository: Repository, sha: str) -> Checks:
    """Return how the checks and statuses of a commit ended. A status that waits is not waited for, nor a job that waits
    for a person's approval.
    """
    runs = await _listed(github, repository, sha, "check-runs")
    ends = [(run["name"], run["conclusion"]) for run in runs]
    states = {run["status"] for run in runs}
    running = bool(states - {"completed", "waiting"})
    if not running and "waiting" not in states:
        # Between a job and the next one that needs it, none runs. Each app has a suite, also one that checks nothing.
        suites = await _listed(github, repository, sha, "check-suites")
        running = any(one["status"] != "completed" and one["latest_check_runs_count"] for one in suites)
    if not running:
        ends += [(one["context"], one["state"]) for one in await _listed(github, repository, sha, "status")]
    failed = frozenset(storable(name) for name, end in ends if end in _FAILED)
    return Checks(running, failed, green=not running and bool(ends) and all(end in _GREEN for _, end in ends))


async def read_failed_checks(
    github: GitHub, repository: Repository, sha: str | None, names: Set[str] | None = None
) -> tuple[FailedCheck, ...]:
    """Return the checks and statuses of a commit that failed, of these names; the first few with the end of their logs.

    None for all names; nothing of no commit.
    """
    if sha is None:
        return ()
    runs = await _listed(github, repository, sha, "check-runs")
    failed = [run for run in runs if run["conclusion"] in _FAILED and (names is None or run["name"] in names)]
    checks = [await _failed_check(github, repository, run, with_log=at < MOST_LOGS) for at, run in enumerate(failed)]
    checks += [
        FailedCheck(one["context"], one["description"] or "", "")
        for one in await _listed(github, repository, sha, "status")
        if one["state"] in _FAILED and (names is None or one["context"] in names)
    ]
    return tuple(checks)


async def _listed(github: GitHub, repository: Repository, sha: str, what: str) -> list[Any]:
    """Return all items of a list that is a part of GitHub's answer, page by page."""
    key = {"status": "statuses"}.get(what, what.replace("-", "_"))
    path, found = f"/commits/{{sha}}/{what}{{?per_page,page}}", list[Any]()
    for page in range(1, _MOST_PAGES + 1):
        more = {"page": str(page)} if page > 1 else {}
        answer = await github.get(repository, path, sha=sha, per_page=str(PER_PAGE), **more)
        found += answer[key]
        if len(answer[key]) < PER_PAGE:
            break
    return found


async def _failed_check(github: GitHub, repository: Repository, run: Any, *, with_log: bool) -> FailedCheck:
    output = run["output"]
    summary = "\n".join(filter(None, (output["title"], output["summary"])))
    # The log of a job of GitHub Actions; its id is that of the check run:
    # https://docs.github.com/rest/actions/workflow-jobs#download-job-logs-for-a-workflow-run
    log = ""
    if with_log and (run.get("app") or {}).get("slug") == "github-actions":
        try:
            log = await github.get_end_of_text(repository, "/actions/jobs/{id}/logs", LOG_BYTES, id=str(run["id"]))
        except GitHubError:
            log = ""  # the token may not read logs: the summary has to do
    return FailedCheck(run["name"], summary, log)
