"""Git LFS: the batch API, and the store of objects behind it, which is on another host and takes no token.

https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md
"""

import hashlib
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bot.simulated.github.auth import authenticate
from bot.simulated.github.errors import RefusedError
from bot.simulated.github.model import Repository
from bot.simulated.github.world import World

STORE_TOKEN = "RemoteAuth let-me-in"  # noqa: S105
_MEDIA_TYPE = "application/vnd.git-lfs+json"


class Lfs:
    """The routes of Git LFS."""

    def __init__(self, world: World) -> None:
        self._world = world

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/{owner}/{repo}.git/info/lfs/objects/batch", self._batch, methods=["POST"]),
            Route("/stored-lfs/{id:int}/{oid}", self._download, methods=["GET"]),
            Route("/stored-lfs/{id:int}/{oid}", self._upload, methods=["PUT"]),
            Route("/{owner}/{repo}.git/info/lfs/verify", self._verify, methods=["POST"]),
        ]

    async def _batch(self, request: Request) -> Response:
        asked = await request.json()
        repository = self._allowed(request, "write" if asked["operation"] == "upload" else "read")
        if isinstance(repository, Response):
            return repository
        objects = [self._described(request, repository, asked["operation"], one) for one in asked["objects"]]
        return _answer({"transfer": "basic", "objects": objects})

    def _allowed(self, request: Request, permission: str) -> Repository | Response:
        try:
            user = authenticate(self._world, request.headers.get("authorization")).user
        except RefusedError:
            user = None
        repository = self._world.repository("{owner}/{repo}".format(**request.path_params))
        if user is None:
            unauthorized = _answer({"message": "Credentials needed"}, 401)
            unauthorized.headers["LFS-Authenticate"] = 'Basic realm="GitHub"'
            return unauthorized
        if repository is None or not repository.may(user, "read"):
            return _answer({"message": "Not Found"}, 404)
        if permission == "write" and not repository.may(user, "write"):
            return _answer({"message": "You must have push access"}, 403)
        return repository

    def _described(
        self, request: Request, repository: Repository, operation: str, wanted: dict[str, Any]
    ) -> dict[str, Any]:
        known = repository.lfs.get(wanted["oid"])
        described = {"oid": wanted["oid"], "size": wanted["size"]}
        # Addresses of its own, whatever name a proxy in front of it has.
        port = request.scope["server"][1]
        store = f"http://localhost:{port}/stored-lfs/{repository.id}/{wanted['oid']}"
        action = {"href": store, "header": {"Authorization": STORE_TOKEN}, "expires_in": 3600}
        if operation == "upload":
            verify = f"http://127.0.0.1:{port}{request.url.path.removesuffix('objects/batch')}verify"
            headers = {"Authorization": request.headers["authorization"]}
            actions = {"upload": action, "verify": {"href": verify, "header": headers}}
            return described if known is not None else described | {"actions": actions}
        if known is None:
            return described | {"error": {"code": 404, "message": "Object does not exist on the server"}}
        return described | {"actions": {"download": action}}

    async def _download(self, request: Request) -> Response:
        if request.headers.get("authorization") != STORE_TOKEN:
            return _answer({"message": "Only one auth mechanism allowed"}, 400)
        content = self._stored(request).lfs.get(request.path_params["oid"])
        return Response(content, media_type="application/octet-stream") if content is not None else Response("", 404)

    async def _upload(self, request: Request) -> Response:
        content = await request.body()
        if request.headers.get("authorization") != STORE_TOKEN:
            return _answer({"message": "Only one auth mechanism allowed"}, 400)
        if hashlib.sha256(content).hexdigest() != request.path_params["oid"]:
            return _answer({"message": "The content is not what its name says"}, 422)
        self._stored(request).lfs[request.path_params["oid"]] = content
        return Response("")

    async def _verify(self, request: Request) -> Response:
        asked = await request.json()
        repository = self._allowed(request, "write")
        if isinstance(repository, Response):
            return repository
        is_there = len(repository.lfs.get(asked["oid"], b"")) == asked["size"]
        return _answer({}, 200 if is_there else 404)

    def _stored(self, request: Request) -> Repository:
        return next(one for one in self._world.repositories.values() if one.id == request.path_params["id"])


def _answer(body: dict[str, Any], status: int = 200) -> JSONResponse:
    return JSONResponse(body, status, media_type=_MEDIA_TYPE)
