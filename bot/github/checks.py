"""The checks and statuses of a commit: how they ended, and the logs of those that failed. All raise GitHubError.

https://docs.github.com/rest/checks/runs#list-check-runs-for-a-git-reference,
https://docs.github.com/rest/checks/suites#list-check-suites-for-a-git-reference and
https://docs.github.com/rest/commits/statuses#get-the-combined-status-for-a-specific-reference
"""

import re
from collections.abc import Set
from contextlib import suppress
from typing import Any

from bot.github.client import PER_PAGE, GitHub
from bot.github.errors import GitHubError, NotFound, Refused
from bot.github.thread import Checks, FailedCheck, Gaps
from bot.json_values import storable
from bot.model import Repository

MOST_LOGS = 3
LOG_BYTES = 4_000
_COMMIT = "/commits/{sha}"
_MOST_RUNS = 20
_MOST_PAGES = 10
"""GitHub lists the check runs of the newest thousand suites at most."""
_FAILED = {"failure", "timed_out", "error"}
_GREEN = {"success", "neutral", "skipped"}
_ACTIONS = "github-actions"
_JOB = re.compile(r"/job/([0-9]+)")
"""In a run's page; where that names none, the id of the job is that of the run."""


async def read_checks(github: GitHub, repository: Repository, sha: str) -> Checks:
    """Return how the checks and statuses of a commit ended. A status that waits is not waited for, nor a job that waits
    for a person's approval.

    A server that does not know suites or statuses (404) has none.
    """
    runs, are_of_all, unread = await _runs(github, repository, sha)
    are_all = are_of_all and not unread
    ends = [(run["name"], run.get("conclusion")) for run in runs]
    states = {run["status"] for run in runs}
    running = bool(states - {"completed", "waiting"})
    if not running and are_all and "waiting" not in states:
        # Between a job and the next one that needs it, none runs. Each app has a suite, also one that checks nothing.
        path = f"{_COMMIT}/check-suites"
        suites, unread = await _listed(github, repository, path, "check_suites", if_there=True, sha=sha)
        are_all = not unread
        running = any(one["status"] != "completed" and one.get("latest_check_runs_count") for one in suites)
    if not running:
        try:
            statuses, unread = await _statuses(github, repository, sha)
            ends += [(one["context"], one["state"]) for one in statuses]
            are_all = are_all and not unread
        except Refused:
            are_all = False
    failed = frozenset(storable(name) for name, end in ends if end in _FAILED)
    green = not running and bool(ends) and all(end in _GREEN | _FAILED for _, end in ends)
    return Checks(running, failed, green, is_part=not are_all)


async def read_failed_checks(
    github: GitHub, repository: Repository, sha: str | None, gaps: Gaps, names: Set[str] | None = None
) -> tuple[FailedCheck, ...]:
    """Return the checks and statuses of a commit that failed, of these names; the first few with the end of their logs.

    None for all names; nothing of no commit.
    """
    if sha is None:
        return ()
    runs, _, unread = await _runs(github, repository, sha)
    gaps.some(unread, unread + len(runs), "checks")
    failed = [run for run in runs if run.get("conclusion") in _FAILED and (names is None or run["name"] in names)]
    checks = [await _failed_check(github, repository, run, with_log=at < MOST_LOGS) for at, run in enumerate(failed)]
    gaps.some(len(checks) - MOST_LOGS, len(checks), "logs of failing checks")
    with suppress(Refused):
        statuses, unread = await _statuses(github, repository, sha)
        gaps.some(unread, unread + len(statuses), "statuses")
        checks += [
            FailedCheck(one["context"], one.get("description") or "", "")
            for one in statuses
            if one["state"] in _FAILED and (names is None or one["context"] in names)
        ]
    return tuple(checks)


async def _runs(github: GitHub, repository: Repository, sha: str) -> tuple[list[Any], bool, int]:
    """Return the check runs of a commit, whether these are of all apps, and how many there are beside them.

    A fine-grained token cannot have the right to read checks. The jobs of GitHub Actions, which it may read, are check
    runs with the same names and ids: https://docs.github.com/rest/actions/workflow-jobs
    """
    try:
        found, unread = await _listed(github, repository, f"{_COMMIT}/check-runs", "check_runs", sha=sha)
    except (NotFound, Refused):
        found = list[Any]()
        runs, unread = await _listed(github, repository, "/actions/runs", "workflow_runs", head_sha=sha)
        # Of each run that is not looked at there is at least one job.
        unread += max(0, len(runs) - _MOST_RUNS)
        for run in runs[:_MOST_RUNS]:
            path = "/actions/runs/{run}/jobs"
            jobs, unread_jobs = await _listed(github, repository, path, "jobs", run=str(run["id"]))
            unread += unread_jobs
            found += jobs if run["status"] == "completed" else [*jobs, {**run, "conclusion": None}]
        return found, False, unread
    return found, True, unread


async def _statuses(github: GitHub, repository: Repository, sha: str) -> tuple[list[Any], int]:
    return await _listed(github, repository, f"{_COMMIT}/status", "statuses", if_there=True, sha=sha)


async def _listed(
    github: GitHub, repository: Repository, path: str, key: str, *, if_there: bool = False, **of: str
) -> tuple[list[Any], int]:
    """Return the items of a list that is a part of GitHub's answer, page by page, and how many are on further pages.

    `if_there`: none of a 404.
    """
    get, found = github.get_if_there if if_there else github.get, list[Any]()
    total = 0
    for page in range(1, _MOST_PAGES + 1):
        more = {"page": str(page)} if page > 1 else {}
        answer = await get(repository, f"{path}{{?head_sha,per_page,page}}", per_page=str(PER_PAGE), **of, **more)
        found += (answer or {key: []})[key]
        if len(found) < page * PER_PAGE:
            return found, 0
        total = answer["total_count"]
    return found, max(0, total - len(found))


async def _failed_check(github: GitHub, repository: Repository, run: Any, *, with_log: bool) -> FailedCheck:
    output = run.get("output") or {}
    summary = "\n".join(filter(None, (output.get("title"), output.get("summary"))))
    # The log of a job of GitHub Actions, else what its app says of the run:
    # https://docs.github.com/rest/actions/workflow-jobs#download-job-logs-for-a-workflow-run
    log = (output.get("text") or "")[-LOG_BYTES:] if with_log else ""
    if with_log and (run.get("app") or {}).get("slug", _ACTIONS) == _ACTIONS:
        job = _JOB.search(run.get("details_url") or "")
        with suppress(GitHubError):  # the token may not read logs: the summary has to do
            path, of = "/actions/jobs/{id}/logs", job[1] if job else str(run["id"])
            log = await github.get_end_of_text(repository, path, LOG_BYTES, id=of)
    return FailedCheck(run["name"], summary, log)
