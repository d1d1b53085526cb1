"""Images and files that people attach: an address at the server leads to a signed one, where the bytes are.

https://docs.github.com/get-started/writing-on-github/working-with-advanced-formatting/attaching-files
"""

import uuid
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from bot.simulated.github.auth import authenticate
from bot.simulated.github.errors import RefusedError, not_found
from bot.simulated.github.model import Upload
from bot.simulated.github.rest_call import refusal
from bot.simulated.github.world import World

SIGNATURE = "signature=let-me-in"


def upload(world: World, server_url: str, content: bytes, name: str | None, *, private: bool, store_url: str) -> Upload:
    """Keep a file under a new address; without a name it is an image."""
    key = uuid.uuid4()
    path = f"assets/{key}" if name is None else f"files/{world.next_id()}/{name}"
    kept = Upload(f"{server_url}/user-attachments/{path}", f"{store_url}/stored-uploads/{key}", content, private)
    world.uploads.append(kept)
    return kept


def rendered(world: World, body: str) -> str:
    """Return the HTML of a text, as far as attachments go: images of private repositories have signed addresses."""
    for one in world.uploads:
        if one.private and "/assets/" in one.address:
            body = body.replace(f"![]({one.address})", f'<img src="{one.store}?{SIGNATURE}&amp;jwt=x">')
    return f"<p>{body}</p>"


class Uploads:
    """The routes of what was uploaded."""

    def __init__(self, world: World) -> None:
        self._world = world

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/user-attachments/{path:path}", self._address, methods=["GET"]),
            Route("/stored-uploads/{key}", self._store, methods=["GET"]),
        ]

    async def _address(self, request: Request) -> Response:
        """Redirect to the bytes. No token opens an image of a private repository; a file takes one."""
        try:
            user = authenticate(self._world, request.headers.get("authorization")).user
            one = next(one for one in self._world.uploads if unquote(one.address).endswith(request.url.path))
            if one.private and (user is None or "/assets/" in one.address):
                raise not_found()
        except StopIteration:
            return refusal(not_found())
        except RefusedError as refused:
            return refusal(refused)
        return RedirectResponse(f"{one.store}?{SIGNATURE}", 302)

    async def _store(self, request: Request) -> Response:
        """Serve the bytes for a signed address; like S3, refuse one that comes with credentials as well."""
        one = next((one for one in self._world.uploads if one.store.endswith(request.url.path)), None)
        if one is None or SIGNATURE not in request.url.query:
            return refusal(not_found())
        if "authorization" in request.headers:
            return refusal(RefusedError(400, "Only one auth mechanism allowed"))
        return Response(one.content, media_type="application/octet-stream")
