"""`/api`: who may call, which endpoint it is, what it answers; and the OpenAPI document of the same endpoints."""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bot.api import schemas
from bot.api.calls import CALL_SECONDS, UNANSWERED, CallError, Calls, Endpoint, check
from bot.api.endpoints import ENDPOINTS, routes_of
from bot.api.events import EVENTS, News


def api_routes(calls: Calls, token: str, news: News) -> list[BaseRoute]:
    """Return the routes of the API for those who have the `token`."""

    async def answer(endpoint: Endpoint, request: Request) -> Response:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return _json(await calls.run(endpoint, await check(endpoint, request), "API"), endpoint.status)
        except CallError as problem:
            return _refusal(problem.status, problem.sentence)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except UNANSWERED:
            return _refusal(503, "The database does not answer in time.", {"Retry-After": "5"})

    routes = [
        *routes_of(ENDPOINTS.values(), answer),
        Route("/events", news.stream, methods=["GET"]),
        Route("/openapi.json", _document, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _as_json})
    app.router.redirect_slashes = False
    guarded = _Guarded(app, token)
    return [Route("/api", guarded), Mount("/api", guarded)]


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
        # Of digests, so that the time tells nothing of the token, not even its length.
        fits = hmac.compare_digest(_digest(token.strip()), self._digest)
        return fits and scheme.lower() == b"bearer"


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps(content, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)
    safe = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(body, status, safe, "application/json")


def _refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    return _json({"error": sentence}, status, headers)


async def _as_json(_: Request, problem: Exception) -> Response:
    """Answer an unknown path or a wrong method as the endpoints answer."""
    if not isinstance(problem, HTTPException):
        raise problem
    return _refusal(problem.status_code, f"{problem.detail}.", problem.headers)


async def _document(_: Request) -> Response:
    return _json(openapi())


@cache
def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS.values():
        paths.setdefault(f"/api{endpoint.path}", {})[endpoint.method.lower()] = _operation(endpoint)
    paths["/api/events"] = {"get": EVENTS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Threadtree", "version": version("threadtree")},
        "security": [{"token": []}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "ADMIN_TOKEN"}}
        },
        "paths": paths,
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": [*_in_path(endpoint), *_in_query(endpoint)],
        "responses": {
            str(endpoint.status): _described("Done" if endpoint.status == 200 else "Asked", endpoint.answer),
            "4XX": _described("What the caller can correct", schemas.ERROR),
            "503": _described("The database does not answer", schemas.ERROR),
        },
    }
    if endpoint.body:
        fields = {name: {**schemas.TEXT, "description": words} for name, words in endpoint.body.items()}
        content = {"application/json": {"schema": schemas.record(**fields)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _described(words: str, schema: schemas.Schema) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _in_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    kinds = {"id": schemas.INTEGER, "guid": schemas.TEXT}
    return [{"name": name, "in": "path", "required": True, "schema": kinds[name]} for name in names]


def _in_query(endpoint: Endpoint) -> list[dict[str, Any]]:
    known = {
        "after": (schemas.TEXT, "`next` of the page before"),
        "limit": (schemas.INTEGER, "the rows of a page, at most 200"),
        "days": (schemas.INTEGER, "up to today, at most 366"),
        "repo": (schemas.TEXT, "only this repository's, as owner/name"),
        "state": (schemas.one_of(*endpoint.states), "only those in this state"),
    }
    return [
        {"name": name, "in": "query", "schema": known[name][0], "description": known[name][1]}
        for name in endpoint.query
    ]
