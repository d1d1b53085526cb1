"""REST: users, repositories, branches and the app."""

from functools import partial

from starlette.responses import Response

from bot.simulated.github.app import App
from bot.simulated.github.errors import RefusedError, not_found
from bot.simulated.github.git import NO_COMMIT
from bot.simulated.github.model import Push, User
from bot.simulated.github.payloads import timestamp
from bot.simulated.github.rest_call import Call, answer
from bot.simulated.github.world import World

# `permission` for each role; only `role_name` distinguishes maintain and triage.
LEGACY_PERMISSION = {"maintain": "write", "triage": "read"}


async def get_authenticated_user(call: Call) -> Response:
    if call.caller.is_installation:
        raise RefusedError(403, "Resource not accessible by integration")
    return answer(call.payloads.user(call.user) | {"name": call.user.login, "email": None})


async def get_user(call: Call) -> Response:
    return answer(call.payloads.user(call.world.find_user(call.text("login"))))


async def get_user_by_id(call: Call) -> Response:
    """https://docs.github.com/rest/users/users#get-a-user-using-their-id"""
    account = call.number("account_id")
    found = next((user for user in call.world.users.values() if user.id == account), None)
    if found is None:
        raise not_found()
    return answer(call.payloads.user(found))


async def get_repository(call: Call) -> Response:
    repository = call.repository()
    permission = "none" if call.caller.user is None else repository.permission_of(call.caller.user)
    return answer(call.payloads.full_repository(repository, permission))


async def list_own_repositories(call: Call) -> Response:
    """https://docs.github.com/rest/repos/repos#list-repositories-for-the-authenticated-user"""
    mine = [
        one for one in call.world.repositories.values() if one.owner is call.user or call.user.id in one.permissions
    ]
    return call.paginate(mine, lambda one: call.payloads.full_repository(one, one.permission_of(call.user)))


async def list_installed_repositories(call: Call) -> Response:
    """https://docs.github.com/rest/apps/installations#list-repositories-accessible-to-the-app-installation"""
    if not call.caller.is_installation:
        raise RefusedError(403, "You must authenticate with an installation access token")
    there = list(call.world.repositories.values())
    shown = [call.payloads.repository(one) for one in call.on_page(there)]
    return answer({"total_count": len(there), "repositories": shown})


async def get_permission(call: Call) -> Response:
    """https://docs.github.com/rest/collaborators/collaborators#get-repository-permissions-for-a-user"""
    repository = call.repository()
    call.world.demand(repository, call.user, "write", "Must have push access to view collaborator permission.")
    user = call.world.find_user(call.text("login"))
    role = repository.permission_of(user)
    permission = LEGACY_PERMISSION.get(role, role)
    return answer({"permission": permission, "role_name": role, "user": call.payloads.user(user)})


async def get_branch(call: Call) -> Response:
    repository, name = call.repository(), call.text("branch")
    commit = (await repository.git.branches()).get(name)
    if commit is None:
        raise RefusedError(404, "Branch not found")
    url = f"{call.payloads.api_url}/repos/{repository.full_name}/commits/{commit}"
    is_classic = name in repository.protected_branches
    # Under any rule a branch counts as protected.
    protected = is_classic or bool(repository.rules_of(name))
    commit_of = {"sha": commit, "url": url}
    protection = {"enabled": is_classic}
    return answer({"name": name, "commit": commit_of, "protected": protected, "protection": protection})


async def get_branch_rules(call: Call) -> Response:
    """https://docs.github.com/rest/repos/rules#get-rules-for-a-branch"""
    rules = call.repository().rules_of(call.text("branch"))
    return answer([{"type": rule.type, "parameters": dict(rule.parameters)} for rule in rules])


async def get_ref(call: Call) -> Response:
    repository, name = call.repository(), call.text("branch")
    commit = (await repository.git.branches()).get(name)
    if commit is None:
        raise not_found()
    url = f"{call.payloads.api_url}/repos/{repository.full_name}/git"
    target = {"type": "commit", "sha": commit, "url": f"{url}/commits/{commit}"}
    return answer({"ref": f"refs/heads/{name}", "url": f"{url}/refs/heads/{name}", "object": target})


async def get_app(call: Call) -> Response:
    return answer(call.payloads.app_object(as_app(call)))


async def get_repository_installation(call: Call) -> Response:
    app = as_app(call)
    repository = call.named_repository()
    if repository is None or not app.installed:
        raise not_found()
    account = call.payloads.user(repository.owner)
    permissions = call.payloads.app_object(app)["permissions"]
    about = {"id": app.installation_id, "app_id": app.id, "app_slug": app.slug, "account": account}
    return answer(about | {"permissions": permissions})


async def get_organisation_installation(call: Call) -> Response:
    app = as_app(call)
    return answer({"id": app.installation_id, "app_id": app.id, "account": {"login": call.text("org")}})


async def get_team(call: Call) -> Response:
    """https://docs.github.com/rest/teams/teams#get-a-team-by-name"""
    if call.caller.user is None or f"{call.text('org')}/{call.text('slug')}" not in call.world.teams:
        raise not_found()
    return answer({"slug": call.text("slug"), "organization": {"login": call.text("org")}})


async def get_team_membership(call: Call) -> Response:
    """https://docs.github.com/rest/teams/members#get-team-membership-for-a-user"""
    members = call.world.teams.get(f"{call.text('org')}/{call.text('slug')}", ())
    if call.caller.user is None or call.world.find_user(call.text("login")).id not in members:
        raise not_found()
    return answer({"state": "active", "role": "member"})


async def list_installations(call: Call) -> Response:
    app = as_app(call)
    found = [{"id": app.installation_id, "app_id": app.id, "account": {"login": app.owner}}] if app.installed else []
    return answer(found)


async def create_installation_token(call: Call) -> Response:
    """https://docs.github.com/rest/apps/apps#create-an-installation-access-token-for-an-app"""
    app = as_app(call)
    if call.number("installation_id") != app.installation_id or not app.installed:
        raise not_found()
    token, expires_at = call.world.issue_installation_token(bot_account(call.world))
    permissions = call.payloads.app_object(app)["permissions"]
    body = {"token": token, "expires_at": timestamp(expires_at), "permissions": permissions}
    return answer(body | {"repository_selection": "all"}, 201)


def as_app(call: Call) -> App:
    """Return the app if the request carries its valid JSON web token, else 401."""
    if call.world.app is None or call.caller.app_jwt is None:
        raise RefusedError(401, "A JSON web token could not be decoded")
    call.world.app.verify(call.caller.app_jwt, call.world.clock().timestamp())
    return call.world.app


def bot_account(world: World) -> User:
    """Return the bot's account."""
    return world.user("threadtree-bot") if world.app is None else world.user(world.app.login, "Bot")


async def list_activity(call: Call) -> Response:
    """https://docs.github.com/rest/repos/repos#list-repository-activities"""
    repository, ref = call.repository(), call.request.query_params.get("ref")
    call.world.demand(repository, call.user, "read", "Not Found")
    found = [push for push in reversed(repository.pushes) if ref in (None, push.ref)]
    return call.paginate(found, partial(_activity, call))


def _activity(call: Call, push: Push) -> dict[str, object]:
    return {
        "ref": push.ref,
        "before": push.before or NO_COMMIT,
        "after": push.after or NO_COMMIT,
        "timestamp": timestamp(push.at),
        "activity_type": "push",
        "actor": call.payloads.user(push.pusher),
    }
