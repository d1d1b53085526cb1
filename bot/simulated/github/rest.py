"""The routes of the REST API."""

import hashlib

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from bot.simulated.github import rest_accounts as accounts
from bot.simulated.github import rest_checks as checks
from bot.simulated.github import rest_git as git
from bot.simulated.github import rest_hooks as hooks
from bot.simulated.github import rest_issues as issues
from bot.simulated.github import rest_pulls as pulls
from bot.simulated.github import rest_reviews as reviews
from bot.simulated.github.auth import authenticate
from bot.simulated.github.errors import RefusedError
from bot.simulated.github.new_app import NewApps
from bot.simulated.github.pull_acts import Acts
from bot.simulated.github.rest_call import Call, Handler, refusal

Table = list[tuple[str, str, Handler]]

TOP: Table = [
    ("GET", "/user", accounts.get_authenticated_user),
    ("GET", "/users/{login}", accounts.get_user),
    ("GET", "/users/{login}/ssh_signing_keys", git.list_signing_keys),
    ("GET", "/user/emails", git.list_addresses),
    ("GET", "/user/repos", accounts.list_own_repositories),
    ("GET", "/installation/repositories", accounts.list_installed_repositories),
    ("GET", "/user/{account_id}", accounts.get_user_by_id),
    ("GET", "/orgs/{org}/installation", accounts.get_organisation_installation),
    ("GET", "/orgs/{org}/teams/{slug}", accounts.get_team),
    ("GET", "/orgs/{org}/teams/{slug}/memberships/{login}", accounts.get_team_membership),
    ("GET", "/app", accounts.get_app),
    ("GET", "/app/installations", accounts.list_installations),
    ("POST", "/app/installations/{installation_id}/access_tokens", accounts.create_installation_token),
    ("GET", "/app/hook/config", hooks.get_app_hook),
    ("PATCH", "/app/hook/config", hooks.update_app_hook),
    ("GET", "/app/hook/deliveries", hooks.list_app_deliveries),
    ("GET", "/app/hook/deliveries/{delivery_id}", hooks.get_app_delivery),
    ("POST", "/app/hook/deliveries/{delivery_id}/attempts", hooks.redeliver_app_delivery),
    ("GET", "/stored-logs/{stored_for}/{job_id}", checks.get_stored_log),
]

IN_REPOSITORY: Table = [
    ("GET", "", accounts.get_repository),
    ("GET", "/installation", accounts.get_repository_installation),
    ("GET", "/collaborators/{login}/permission", accounts.get_permission),
    ("GET", "/branches/{branch:path}", accounts.get_branch),
    ("GET", "/rules/branches/{branch:path}", accounts.get_branch_rules),
    ("GET", "/git/ref/heads/{branch:path}", accounts.get_ref),
    ("POST", "/git/commits", git.create_commit),
    ("GET", "/commits", git.list_commits),
    ("GET", "/commits/{sha}", git.get_commit),
    ("GET", "/contents/{path:path}", git.get_content),
    ("GET", "/issues", issues.list_issues),
    ("POST", "/issues", issues.create_issue),
    ("GET", "/issues/comments/{comment_id}", issues.get_comment),
    ("PATCH", "/issues/comments/{comment_id}", issues.update_comment),
    ("DELETE", "/issues/comments/{comment_id}", issues.delete_comment),
    ("GET", "/issues/{number}", issues.get_issue),
    ("PATCH", "/issues/{number}", issues.update_issue),
    ("GET", "/issues/{number}/comments", issues.list_comments),
    ("POST", "/issues/{number}/comments", issues.create_comment),
    ("GET", "/issues/{number}/dependencies/blocked_by", issues.list_blockers),
    ("GET", "/issues/{number}/labels", issues.list_labels),
    ("POST", "/issues/{number}/labels", issues.add_labels),
    ("DELETE", "/issues/{number}/labels/{name}", issues.remove_label),
    ("POST", "/issues/{number}/assignees", issues.add_assignees),
    ("GET", "/pulls", pulls.list_pulls),
    ("POST", "/pulls", pulls.create_pull),
    ("GET", "/pulls/comments/{comment_id}", pulls.get_review_comment),
    ("PATCH", "/pulls/comments/{comment_id}", pulls.update_review_comment),
    ("DELETE", "/pulls/comments/{comment_id}", pulls.delete_review_comment),
    ("GET", "/pulls/{number}", pulls.get_pull),
    ("PATCH", "/pulls/{number}", pulls.update_pull),
    ("PUT", "/pulls/{number}/merge", pulls.merge_pull),
    ("GET", "/pulls/{number}/files", pulls.list_files),
    ("GET", "/compare/{span:path}", pulls.compare),
    ("GET", "/activity", accounts.list_activity),
    ("GET", "/commits/{sha}/check-runs", checks.list_check_runs),
    ("GET", "/commits/{sha}/check-suites", checks.list_check_suites),
    ("GET", "/actions/runs", checks.list_workflow_runs),
    ("GET", "/actions/runs/{run_id}/jobs", checks.list_jobs),
    ("GET", "/commits/{sha}/status", checks.get_combined_status),
    ("GET", "/actions/jobs/{job_id}/logs", checks.get_job_log),
    ("GET", "/pulls/{number}/comments", pulls.list_review_comments),
    ("POST", "/pulls/{number}/comments/{comment_id}/replies", pulls.create_reply),
    ("GET", "/pulls/{number}/reviews", pulls.list_reviews),
    ("POST", "/pulls/{number}/reviews", reviews.create_review),
    ("GET", "/pulls/{number}/reviews/{review_id}", pulls.get_review),
    ("GET", "/pulls/{number}/reviews/{review_id}/comments", pulls.list_comments_of_review),
    ("GET", "/hooks", hooks.list_hooks),
    ("POST", "/hooks", hooks.create_hook),
    ("PATCH", "/hooks/{hook_id}", hooks.update_hook),
    ("POST", "/hooks/{hook_id}/pings", hooks.ping_hook),
    ("GET", "/hooks/{hook_id}/deliveries", hooks.list_hook_deliveries),
    ("GET", "/hooks/{hook_id}/deliveries/{delivery_id}", hooks.get_hook_delivery),
    ("POST", "/hooks/{hook_id}/deliveries/{delivery_id}/attempts", hooks.redeliver_hook_delivery),
]

REACTIONS = {
    "/issues/{number}/reactions": issues.reactions(issues.issue_target),
    "/issues/comments/{comment_id}/reactions": issues.reactions(issues.issue_comment_target),
    "/pulls/comments/{comment_id}/reactions": issues.reactions(issues.review_comment_target),
}


def rest_routes(acts: Acts, new_apps: NewApps) -> list[Route]:
    """Return every route; a repository is reached by its name and by its id."""
    inside = list(IN_REPOSITORY)
    for path, (list_them, create, delete) in REACTIONS.items():
        inside += [("GET", path, list_them), ("POST", path, create), ("DELETE", f"{path}/{{reaction_id}}", delete)]
    converting: Table = [("POST", "/app-manifests/{code}/conversions", new_apps.convert)]
    prefixed = [
        (method, f"{prefix}{path}", handler)
        for prefix in ("/repositories/{repository_id}", "/repos/{owner}/{repo}")
        for method, path, handler in inside
    ]
    return [_route(acts, method, path, handler) for method, path, handler in [*TOP, *converting, *prefixed]]


def _route(acts: Acts, method: str, path: str, handler: Handler) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            caller = authenticate(acts.world, request.headers.get("authorization"))
            call = Call(request, caller, acts)
            return _moved(call) or _unless_known(request, await handler(call))
        except RefusedError as refused:
            return refusal(refused)

    return Route(path, endpoint, methods=[method])


def _unless_known(request: Request, found: Response) -> Response:
    """Answer 304 to a GET that names the entity tag of what it would get: a tag is of one token."""
    if request.method != "GET" or found.status_code != 200:
        return found
    tagged = bytes(found.body) + request.headers.get("authorization", "").encode()
    tag = found.headers["etag"] = f'W/"{hashlib.sha256(tagged).hexdigest()}"'
    return Response(status_code=304, headers={"etag": tag}) if request.headers.get("if-none-match") == tag else found


def _moved(call: Call) -> Response | None:
    """Redirect from a repository's old name to its id (301, or 307 where the method must stay)."""
    parts = call.request.path_params
    if "repo" not in parts or call.caller.app_jwt is not None:
        return None
    asked = f"{parts['owner']}/{parts['repo']}"
    repository = call.repository()
    if repository.full_name.lower() == asked.lower():
        return None
    rest = call.request.url.path.removeprefix(f"/repos/{asked}")
    location = f"{call.payloads.api_url}/repositories/{repository.id}{rest}"
    return RedirectResponse(location, 301 if call.request.method == "GET" else 307)
