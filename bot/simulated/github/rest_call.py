"""One REST request and its answers, in GitHub's form."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response

from bot.simulated.github.auth import Caller
from bot.simulated.github.errors import RefusedError, not_found
from bot.simulated.github.model import Repository, User
from bot.simulated.github.payloads import Payloads
from bot.simulated.github.pull_acts import Acts
from bot.simulated.github.world import World

T = TypeVar("T")
DOCUMENTATION_URL = "https://docs.github.com/rest"
DEFAULT_PER_PAGE, MAX_PER_PAGE = 30, 100


@dataclass(frozen=True, slots=True)
class Call:
    """A request with what its handler needs."""

    request: Request
    caller: Caller
    acts: Acts

    @property
    def world(self) -> World:
        return self.acts.world

    @property
    def payloads(self) -> Payloads:
        return self.acts.payloads

    @property
    def user(self) -> User:
        """Return the caller; 401 if anonymous."""
        if self.caller.user is None:
            raise RefusedError(401, "Requires authentication")
        return self.caller.user

    def text(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def number(self, name: str) -> int:
        """Return a part of the path as a number, else 404."""
        value = self.text(name)
        if not value.isdecimal():
            raise not_found()
        return int(value)

    def repository(self) -> Repository:
        """Return the repository in the path, by name or by id, if the caller may read it, else 404."""
        return self.world.readable(self.named_repository(), self.caller.user)

    def named_repository(self) -> Repository | None:
        """Return the repository in the path, whoever may read it."""
        if "repository_id" in self.request.path_params:
            return self.world.repositories.get(self.number("repository_id"))
        return self.world.repository(f"{self.text('owner')}/{self.text('repo')}")

    async def json(self) -> dict[str, Any]:
        """Return the body, an object; 400 if it is not one."""
        try:
            body = orjson.loads(await self.request.body() or b"{}")
        except orjson.JSONDecodeError as error:
            raise RefusedError(400, "Problems parsing JSON") from error
        if not isinstance(body, dict):
            raise RefusedError(400, "Body should be a JSON object")
        return body

    async def body_text(self, name: str = "body") -> str:
        """Return one text of the body; 422 if it is missing or not a text."""
        return required_text(await self.json(), name)

    def paginate(self, items: Sequence[T], render: Callable[[T], Any]) -> Response:
        """Return the page for `page` and `per_page`, with a Link header to the others."""
        page, per_page = self._page()
        last = max(1, -(-len(items) // per_page))
        links: dict[str, int] = {}
        if page > 1:
            links |= {"prev": page - 1, "first": 1}
        if page < last:
            links |= {"next": page + 1, "last": last}
        link = ", ".join(f'<{self.url_with(page=number)}>; rel="{rel}"' for rel, number in links.items())
        return answer([render(item) for item in self.on_page(items)], headers={"Link": link} if link else None)

    def on_page(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items on the page that `page` and `per_page` name."""
        page, per_page = self._page()
        return items[(page - 1) * per_page : page * per_page]

    def _page(self) -> tuple[int, int]:
        query = self.request.query_params
        per_page = max(1, min(_integer(query.get("per_page"), DEFAULT_PER_PAGE), MAX_PER_PAGE))
        return max(1, _integer(query.get("page"), 1)), per_page

    def url_with(self, **changed: object) -> str:
        """Return this request's address with changed query parameters."""
        query = dict(self.request.query_params) | {name: str(value) for name, value in changed.items()}
        return f"{self.payloads.api_url}{self.request.url.path}?{urlencode(query)}"


Handler = Callable[[Call], Awaitable[Response]]


def answer(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(orjson.dumps(body), status, headers, media_type="application/json; charset=utf-8")


def empty() -> Response:
    return Response(status_code=204)


def refusal(refused: RefusedError) -> Response:
    """Return the REST API's answer for an error."""
    body: dict[str, Any] = {"message": refused.message}
    if refused.errors:
        body["errors"] = refused.errors
    body |= {"documentation_url": DOCUMENTATION_URL, "status": str(refused.status)}
    return answer(body, refused.status)


def required_text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        problem = f'nil is not a string. "{name}" wasn\'t supplied.'
        raise RefusedError(422, f"Invalid request.\n\n{problem}" if value is None else f"For '{name}', not a string.")
    return value


def optional_text(body: dict[str, Any], name: str) -> str | None:
    return None if body.get(name) is None else required_text(body, name)


def _integer(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default
