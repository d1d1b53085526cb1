"""The way in and out: the login page with the token and with GitHub, and the sign-out."""

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog
from starlette.responses import Response

from bot.operator.api.calls import CallError
from bot.operator.dashboard.login import CALLBACK, COOKIE, SIGN_IN_COOKIE, SIGN_IN_WITHIN, VALID_FOR
from bot.operator.dashboard.visits import PageView, Visit

if TYPE_CHECKING:
    from bot.operator.dashboard.access import Access

_log = structlog.get_logger()
# A path of ours with at most one id: what comes after `next=` may be anybody's.
_OWN_PATH: Final = re.compile(r"/(?:[a-z]+(?:/[A-Za-z0-9-]{1,64})?)?")


async def _login_page(visit: Visit, status: int = 200, problem: str | None = None) -> Response:
    return visit.page("login.html", status=status, next=_next(visit), problem=problem, login=visit.login)


async def _with_token(visit: Visit) -> Response:
    form = await visit.form()
    cookie = visit.login.with_token(form.get("token", ""))
    if cookie is None:
        status = 429 if visit.login.is_guessed_at else 401
        return await _login_page(visit, status, "This is not the ADMIN_TOKEN.")
    return _enter(visit, cookie, _next(visit))


def _enter(visit: Visit, cookie: str, path: str) -> Response:
    answer = visit.redirect(_own(path))
    visit.keep(answer, COOKIE, cookie, int(VALID_FOR / timedelta(seconds=1)))
    return answer


async def _to_github(visit: Visit) -> Response:
    """Lead to GitHub, which leads back to `_from_github`."""
    if visit.login.access is None:
        raise CallError(404, "There is no sign-in with GitHub here: GITHUB_CLIENT_ID is not set.")
    cookie, state, verifier = visit.login.begin(_next(visit))
    answer = visit.redirect(visit.login.access.sign_in.address(state, verifier))
    visit.keep(answer, SIGN_IN_COOKIE, cookie, int(SIGN_IN_WITHIN / timedelta(seconds=1)))
    return answer


async def _from_github(visit: Visit) -> Response:
    """Let in whom GitHub names, where they are an operator or a viewer."""
    query, access = visit.request.query_params, visit.login.access
    begun = visit.login.begun(visit.request.cookies.get(SIGN_IN_COOKIE, ""), query.get("state", ""))
    if access is None or begun is None:
        return await _login_page(
            visit, 403, "This browser did not begin this sign-in, or began it long ago. Begin again."
        )
    if "code" not in query:
        return await _login_page(visit, 403, "GitHub was not allowed to tell who you are.")
    verifier, path = begun
    answer = await _named_by_github(visit, access, query["code"], verifier, path)
    visit.drop(answer, SIGN_IN_COOKIE)
    return answer


async def _named_by_github(visit: Visit, access: "Access", code: str, verifier: str, path: str) -> Response:
    from bot.github.errors import GitHubError, Refused, Transient

    try:
        login, person_id = await access.sign_in.person(code, verifier)
        may_enter = await access.may_enter(login, person_id)
    except Transient:
        return await _login_page(visit, 503, "GitHub does not answer. Try again in a minute.")
    except GitHubError as problem:
        _log.warning("sign-in-refused", problem=str(problem))
        why = "did not accept the code" if isinstance(problem, Refused) else "refused to tell who you are"
        return await _login_page(visit, 403, f"GitHub {why}. Begin again.")
    if not may_enter:
        return await _login_page(visit, 403, f"{login} is not among those who may look here. Ask who runs this bot.")
    return _enter(visit, visit.login.of_person(login), path)


def _next(visit: Visit) -> str:
    """Return where the browser wanted to go."""
    return _own(visit.request.query_params.get("next", "/"))


def _own(path: str) -> str:
    return path if _OWN_PATH.fullmatch(path) else "/"


async def _sign_out(visit: Visit) -> Response:
    visit.login.sign_out(visit.cookie)
    answer = visit.redirect("/login")
    visit.drop(answer, COOKIE)
    return answer


ENTRANCE: Final = (
    PageView("GET", "/login", _login_page, is_open=True),
    PageView("POST", "/login", _with_token, is_open=True),
    PageView("GET", "/login/github", _to_github, is_open=True),
    PageView("GET", CALLBACK, _from_github, is_open=True),
    PageView("POST", "/logout", _sign_out),
)
