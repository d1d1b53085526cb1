"""REST: checks of a commit and the logs of their jobs."""

from collections.abc import Mapping

from starlette.responses import RedirectResponse, Response

from bot.simulated.github.errors import not_found
from bot.simulated.github.model import Check, Repository
from bot.simulated.github.pull_acts import Acts
from bot.simulated.github.rest_call import Call, answer


async def list_check_runs(call: Call) -> Response:
    checks = call.repository().checks.get(call.text("sha"), [])
    return answer({"total_count": len(checks), "check_runs": [_check_run(check) for check in call.on_page(checks)]})


async def list_check_suites(call: Call) -> Response:
    """Each app that may write checks has a suite: one that checks nothing waits for ever."""
    repository, sha = call.repository(), call.text("sha")
    checks = repository.checks.get(sha, [])
    is_over = sha not in repository.busy_suites and all(check.status == "completed" for check in checks)
    ours = {"id": 1, "status": "completed" if is_over else "in_progress", "latest_check_runs_count": len(checks)}
    idle = {"id": 2, "status": "queued", "latest_check_runs_count": 0}
    return answer({"total_count": 2, "check_suites": [ours, idle]})


async def list_workflow_runs(call: Call) -> Response:
    """A commit's checks are the jobs of one run."""
    repository, sha = call.repository(), call.request.query_params["head_sha"]
    checks = repository.checks.get(sha, [])
    is_over = sha not in repository.busy_suites and all(check.conclusion for check in checks)
    run = {"id": checks[0].id, "name": "CI", "status": "completed" if is_over else "queued"} if checks else None
    return answer({"total_count": len(checks[:1]), "workflow_runs": [run] if run else []})


async def list_jobs(call: Call) -> Response:
    run = call.number("run_id")
    jobs = next((checks for checks in call.repository().checks.values() if checks and checks[0].id == run), [])
    keys = ("id", "name", "status", "conclusion")
    shown = [{key: _check_run(job)[key] for key in keys} for job in call.on_page(jobs)]
    return answer({"total_count": len(jobs), "jobs": shown})


async def get_combined_status(call: Call) -> Response:
    states = call.repository().statuses.get(call.text("sha"), {})
    found = [{"context": name, "state": state, "description": None} for name, state in states.items()]
    return answer({"state": "pending", "statuses": call.on_page(found), "total_count": len(found)})


async def get_job_log(call: Call) -> Response:
    """GitHub redirects to a store that knows no accounts: whoever has the address may read."""
    repository, job_id = call.repository(), call.number("job_id")
    _check(repository, job_id)
    return RedirectResponse(f"{call.payloads.api_url}/stored-logs/{repository.id}/{job_id}", 302)


async def get_stored_log(call: Call) -> Response:
    """The store itself. It refuses credentials, which are not its own."""
    repository = call.world.repositories.get(call.number("stored_for"))
    if repository is None or call.request.headers.get("authorization"):
        raise not_found()
    return Response(_check(repository, call.number("job_id")).log, media_type="text/plain")


def _check(repository: Repository, job_id: int) -> Check:
    for checks in repository.checks.values():
        for check in checks:
            if check.id == job_id:
                return check
    raise not_found()


def end_checks(
    acts: Acts, repository: Repository, sha: str, conclusions: Mapping[str, str], log: str, source: Repository | None
) -> None:
    """Let checks of a commit end so, or run where the conclusion is empty; send what GitHub sends for each that ends.

    `source`: the fork that the commit is from.
    """
    for name, conclusion in conclusions.items():
        repository.report_check(sha, check := Check(acts.world.next_id(), name, conclusion, log=log))
        if check.status == "completed":
            acts.emit(
                "check_run",
                repository,
                repository.owner,
                action="completed",
                check_run=_check_run(check) | {"head_sha": sha, "pull_requests": []},
            )
    if all(check.status == "completed" for check in repository.checks[sha]):
        about = {"id": acts.world.next_id(), "head_sha": sha, "status": "completed", "conclusion": None}
        suite = about | {"app": {"slug": "github-actions"}, "pull_requests": []}
        acts.emit("check_suite", repository, repository.owner, action="completed", check_suite=suite)
        run = about | {"name": "CI", "head_repository": acts.payloads.repository(source or repository)}
        acts.emit("workflow_run", repository, repository.owner, action="completed", workflow_run=run)


def _check_run(check: Check) -> dict[str, object]:
    return {
        "id": check.id,
        "name": check.name,
        "status": check.status,
        "conclusion": check.conclusion if check.status == "completed" else None,
        "app": {"slug": "github-actions"},
        "output": {"title": check.title or None, "summary": check.summary or None},
    }
