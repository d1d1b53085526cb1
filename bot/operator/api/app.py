"""`/api`: who may call, which endpoint it is, what it answers; and the OpenAPI document of the same endpoints."""

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import version
from typing import Any, Final

import orjson
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bot.operator.api.calls import CALL_SECONDS, UNANSWERED, WITH_TOKEN, Caller, CallError, Calls, Endpoint
from bot.operator.api.changes import CHANGES
from bot.operator.api.events import NAMES, News
from bot.operator.api.lists import READ
from bot.operator.api.rows import Error, Row, to_json

ENDPOINTS: Final = (*READ, *CHANGES)
LARGEST_BODY_BYTES: Final = 4096


def api_routes(calls: Calls, token: str, news: News) -> list[BaseRoute]:
    """Return the routes of the API for those who have the `token`."""

    async def answer(endpoint: Endpoint[Any, Any], request: Request) -> Response:
        async with asyncio.timeout(CALL_SECONDS):
            asked = endpoint.parse(request.path_params, await _given(request))
            return _json(await calls.run(endpoint, asked, Caller("API", WITH_TOKEN)), endpoint.status)

    routes = [
        *(Route(one.path, partial(answer, one), methods=[one.method]) for one in ENDPOINTS),
        Route("/events", news.stream, methods=["GET"]),
        Route("/openapi.json", _document, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(PROBLEMS, _problem))
    app.router.redirect_slashes = False
    guarded = _Guarded(app, token)
    return [Route("/api", guarded), Mount("/api", guarded)]


PROBLEMS: Final = (HTTPException, CallError, ClientDisconnect, *UNANSWERED)
"""What ends a request to the API or for a page without its answer."""


def explained(problem: Exception) -> tuple[int, str]:
    """Return the status and the sentence of one of the PROBLEMS."""
    match problem:
        case CallError():
            return problem.status, problem.sentence
        case HTTPException():
            return problem.status_code, f"{problem.detail}."
        case ClientDisconnect():
            return 400, "The client is gone."
        case _:
            return 503, "The database does not answer in time."


async def _problem(_: Request, problem: Exception) -> Response:
    return _refusal(*explained(problem), getattr(problem, "headers", None))


async def _given(request: Request) -> Mapping[str, Any]:
    """Return the parameters of the query, or of a change the fields of its body. Raises CallError."""
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise CallError(400, f"{name[:64]} is given twice.")
        given[name] = value
    if request.method in ("GET", "HEAD"):
        return given
    if given:
        raise CallError(400, f"There is no parameter {next(iter(given))[:64]!r} here.")
    try:
        body = orjson.loads(await read_body(request) or b"{}")
    except ValueError:
        raise CallError(400, "The body is not JSON.") from None
    if not isinstance(body, dict):
        raise CallError(400, "The body must be an object.")
    return body


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises CallError where it is large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            raise CallError(413, f"The body is larger than {LARGEST_BODY_BYTES} bytes.")
    return body


class _Guarded:
    """An app for those who send the token: `Authorization: Bearer TOKEN`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["type"] == "http" and not self._may(dict(scope["headers"]).get(b"authorization", b"")):
            answer = _refusal(401, "Send the ADMIN_TOKEN as a bearer token.", {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _may(self, given: bytes) -> bool:
        scheme, _, token = given.partition(b" ")
        # Compare digests, so that the time tells nothing of the token, not even its length.
        fits = hmac.compare_digest(_digest(token.strip()), self._digest)
        return fits and scheme.lower() == b"bearer"


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    safe = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(to_json(content), status, safe, "application/json")


def _refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    again = {"Retry-After": "5"} if status == 503 else {}
    return _json(Error(error=sentence), status, {**again, **(headers or {})})


async def _document(_: Request) -> Response:
    return _json(openapi())


@cache
def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    models = {endpoint.answer for endpoint in ENDPOINTS} | {Error}
    found, schemas = models_json_schema(
        [(model, "serialization") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template="#/components/schemas/{model}",
    )

    def content(words: str, model: type[Row]) -> dict[str, Any]:
        return {"description": words, "content": {"application/json": {"schema": found[model, "serialization"]}}}

    def refusals(unavailable: str) -> dict[str, Any]:
        return {"4XX": content("What the caller can correct", Error), "503": content(unavailable, Error)}

    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        done = {str(endpoint.status): content("Done" if endpoint.status == 200 else "Asked", endpoint.answer)}
        answers = {**done, **refusals("The database does not answer")}
        described = {**_words(endpoint), **_asked(endpoint), "responses": answers}
        paths.setdefault(f"/api{endpoint.path}", {})[endpoint.method.lower()] = described
    stream = {"description": "A stream that does not end", "content": {"text/event-stream": {"schema": {}}}}
    events = {"200": stream, **refusals("Too many listen")}
    paths["/api/events"] = {"get": {"summary": f"Server-Sent Events: {', '.join(NAMES)}", "responses": events}}
    token = {"type": "http", "scheme": "bearer", "description": "ADMIN_TOKEN"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Threadtree", "version": version("threadtree")},
        "security": [{"token": []}],
        "components": {"securitySchemes": {"token": token}, "schemas": schemas["$defs"]},
        "paths": paths,
    }


def _words(endpoint: Endpoint[Any, Any]) -> dict[str, str]:
    words = endpoint.words
    return {"summary": words.title} | ({"description": words.consequence} if words.consequence else {})


def _asked(endpoint: Endpoint[Any, Any]) -> dict[str, Any]:
    """Return what the document says of an endpoint's parameters, or of its body."""
    asked = endpoint.asks.model_json_schema()
    if endpoint.method == "POST" and "{" not in endpoint.path:
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": asked}}}}
    parameters = []
    for name, schema in asked["properties"].items():
        in_path = f"{{{name}}}" in endpoint.path
        place = {"in": "path", "required": True} if in_path else {"in": "query"}
        parameters.append({"name": name, **place, "schema": schema})
    return {"parameters": parameters}
