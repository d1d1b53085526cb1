"""The vendors' APIs as one server on 127.0.0.1, in the caller's event loop."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from bot.simulated.github.serving import listen, serving
from tests.support.models import gemini
from tests.support.models.anthropic import Messages
from tests.support.models.bedrock import Invoke
from tests.support.models.gemini import GenerateContent
from tests.support.models.openai import ChatCompletions, Responses
from tests.support.models.script import Answer, Hang, Refuse, next_step
from tests.support.models.wire import Api, Asked, Told, told

MODELS = ("claude-sonnet-4-5", "gpt-5", "gemini-2.5-pro")


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request as received; `headers` with lower-case names."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class SimulatedModels:
    """The models of all vendors. `url` has no path: a vendor's base URL is below it (`anthropic_url` and so on)."""

    url: str
    requests: list[LoggedRequest] = field(default_factory=list)
    only_key: str | None = None
    """The only one with which it lists its models; None for any."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, port: int = 0) -> AsyncIterator["SimulatedModels"]:
        """Serve until the block ends; port 0 means any free port."""
        with listen(port) as listener:
            models = cls(f"http://127.0.0.1:{listener.getsockname()[1]}")
            async with serving(models._application(), listener):
                try:
                    yield models
                finally:
                    models._closing.set()

    @property
    def anthropic_url(self) -> str:
        return self.url

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def gemini_url(self) -> str:
        return self.url

    def _application(self) -> Starlette:
        def route(path: str, api: Api) -> Route:
            async def endpoint(request: Request) -> Response:
                return await self._answer(request, api)

            return Route(path, endpoint, methods=["POST"])

        apis = [
            Route("/v1/messages/count_tokens", self._count_tokens, methods=["POST"]),
            route("/v1/messages", Messages()),
            route("/v1/responses", Responses()),
            route("/v1/chat/completions", ChatCompletions()),
            route("/v1beta/models/{call:path}", GenerateContent()),
            route("/model/{call:path}", Invoke()),
            route("/v1/projects/{call:path}", Messages()),
            Route("/v1/models", self._models),
        ]
        return Starlette(
            routes=[
                *apis,
                Mount("/gateway", routes=apis),
                Route("/{path:path}", self._not_here, methods=["GET", "HEAD", "POST", "PUT", "DELETE"]),
            ]
        )

    async def _answer(self, request: Request, api: Api) -> Response:
        body = await self._body(request)
        asked = api.read(request.url.path, body)
        if request.url.path.endswith(":countTokens"):
            return JSONResponse({"totalTokens": asked.input_tokens})
        step = next_step(asked.conversation, has_tools=bool(asked.tools))
        match step:
            case Hang():
                await self._gone(request)
                return Response(status_code=503)
            case Refuse(status=status, retry_after=seconds):
                headers = {"retry-after": seconds} if seconds else {}
                return JSONResponse(api.error(status, f"The prompt asked for status {status}."), status, headers)
            case Answer():
                answer = told(next(self._numbers), step, asked)
                return _in_form(api, asked, gemini.as_json(answer) if gemini.wants_json(body) else answer)
            case _:
                assert_never(step)

    async def _gone(self, request: Request) -> None:
        """Wait until the agent disconnects, or the server closes."""
        closing = asyncio.create_task(self._closing.wait())
        hung_up = asyncio.create_task(_hung_up(request))
        await asyncio.wait({closing, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        for task in (closing, hung_up):
            task.cancel()
        await asyncio.gather(closing, hung_up, return_exceptions=True)

    async def _count_tokens(self, request: Request) -> Response:
        asked = Messages().read(request.url.path, await self._body(request))
        return JSONResponse({"input_tokens": asked.input_tokens})

    async def _models(self, request: Request) -> Response:
        await self._body(request)
        if self.only_key is not None and self.only_key not in request.headers.get("authorization", ""):
            return JSONResponse({"error": {"message": "Incorrect API key provided"}}, 401)
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]})

    async def _not_here(self, request: Request) -> Response:
        await self._body(request)
        return JSONResponse({"error": {"message": f"There is no {request.url.path} here."}}, 404)

    async def _body(self, request: Request) -> dict[str, Any]:
        body = await request.body()
        self.requests.append(LoggedRequest(request.method, request.url.path, dict(request.headers), body))
        try:
            value = json.loads(body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _in_form(api: Api, asked: Asked, answer: Told) -> Response:
    if asked.streams:
        media_type = api.media_type if isinstance(api, Invoke) else "text/event-stream"
        return StreamingResponse(api.events(asked, answer), media_type=media_type)
    return JSONResponse(api.whole(asked, answer))
