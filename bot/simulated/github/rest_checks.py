"""REST: checks of a commit and the logs of their jobs."""

from starlette.responses import RedirectResponse, Response

from bot.simulated.github.errors import not_found
from bot.simulated.github.model import Check, Repository
from bot.simulated.github.rest_call import Call, answer


async def list_check_runs(call: Call) -> Response:
    checks = call.repository().checks.get(call.text("sha"), [])
    return answer({"total_count": len(checks), "check_runs": [_check_run(check) for check in checks]})


async def get_combined_status(call: Call) -> Response:
    call.repository()
    return answer({"state": "pending", "statuses": []})


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


def _check_run(check: Check) -> dict[str, object]:
    return {
        "id": check.id,
        "name": check.name,
        "status": "completed",
        "conclusion": check.conclusion,
        "app": {"slug": "github-actions"},
        "output": {"title": check.title or None, "summary": check.summary or None},
    }
