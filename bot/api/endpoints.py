"""All endpoints, and their routes: also the command line and the dashboard call them by their method and path."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from bot.api.changes import CHANGES
from bot.api.lists import READ

if TYPE_CHECKING:  # the command line has no use for it
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

ENDPOINTS: Final = {f"{endpoint.method} {endpoint.path}": endpoint for endpoint in (*READ, *CHANGES)}


class _Addressed(Protocol):
    """One method on one path."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...


T = TypeVar("T", bound=_Addressed)


def routes_of(addressed: Iterable[T], answer: Callable[[T, "Request"], Awaitable["Response"]]) -> list["Route"]:
    """Return a route for each path, with all its methods. HEAD is answered like GET, without the body."""
    from starlette.routing import Route

    by_path: dict[str, dict[str, T]] = {}
    for one in addressed:
        by_path.setdefault(one.path, {})[one.method] = one

    def route(path: str, methods: dict[str, T]) -> Route:
        async def answered(request: "Request") -> "Response":
            return await answer(methods["GET" if request.method == "HEAD" else request.method], request)

        return Route(path, answered, methods=list(methods))

    return [route(path, methods) for path, methods in by_path.items()]
