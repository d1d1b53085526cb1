"""GitHub Apps that people make: the pages for a manifest and for an installation, and what becomes of the code.

https://docs.github.com/apps/sharing-github-apps/registering-a-github-app-from-a-manifest
"""

import json
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from bot.simulated.github.app import App
from bot.simulated.github.errors import RefusedError, invalid, not_found
from bot.simulated.github.pull_acts import Acts
from bot.simulated.github.rest_accounts import bot_account
from bot.simulated.github.rest_call import Call, answer, refusal

CODE_LIFETIME = timedelta(hours=1)
LONGEST_NAME = 34


@dataclass(slots=True)
class NewApps:
    """The Apps that wait for their code to be exchanged."""

    acts: Acts
    taken_names: set[str] = field(default_factory=lambda: {"github"})
    _codes: dict[str, tuple[App, datetime]] = field(default_factory=dict)

    def routes(self) -> list[Route]:
        """Return the routes of the pages; the person who uses them is signed in."""
        return [
            Route("/settings/apps/new", self._create, methods=["POST"]),
            Route("/organizations/{org}/settings/apps/new", self._create, methods=["POST"]),
            Route("/apps/{slug}/installations/new", self._installation, methods=["GET"]),
            Route("/apps/{slug}/installations/new", self._install, methods=["POST"]),
        ]

    async def convert(self, call: Call) -> Response:
        """https://docs.github.com/rest/apps/apps#create-a-github-app-from-a-manifest"""
        found = self._codes.pop(call.text("code"), None)
        if found is None or call.world.clock() - found[1] > CODE_LIFETIME:
            raise not_found()
        app = found[0]
        hook = call.acts.webhooks.hook
        once = {
            "client_id": "Iv23liSimulated",
            "client_secret": secrets.token_hex(20),
            "webhook_secret": None if hook is None else hook.secret,
            "pem": app.private_key_pem,
        }
        return answer(call.payloads.app_object(app) | once, 201)

    async def _create(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        try:
            asked = json.loads(form.get("manifest", ""))
            name, hook, back = asked["name"], asked["hook_attributes"], asked["redirect_url"]
            permissions, events = asked["default_permissions"], asked["default_events"]
        except (ValueError, KeyError) as problem:
            return refusal(RefusedError(422, f"Invalid manifest: {problem}"))
        slug = name.lower().replace(" ", "-")
        if len(name) > LONGEST_NAME or slug in self.taken_names:
            return refusal(invalid("Integration", "name", "Name has already been taken"))
        world = self.acts.world
        world.app = self.acts.payloads.app = App.create(slug, world.next_id())
        world.app.permissions, world.app.events, world.app.installed = permissions, events, False
        org = request.path_params.get("org")
        world.app.owner, world.app.owner_type = org or "maria", "Organization" if org else "User"
        world.app.callback_urls = asked["callback_urls"]
        code = secrets.token_hex(20)
        self._codes[code] = world.app, world.clock()
        bot_account(world)
        made = self.acts.webhooks.set_hook(
            hook["url"], secrets.token_hex(20), "json", world.app.id, ("ping", "installation", *events), anew=True
        )
        self.acts.webhooks.ping(made)
        state = {"state": request.query_params["state"]} if "state" in request.query_params else {}
        return RedirectResponse(f"{back}?{urlencode({'code': code, **state})}", 302)

    async def _installation(self, request: Request) -> Response:
        self._app(request)
        return PlainTextResponse("Install it with a POST.")

    async def _install(self, request: Request) -> Response:
        app = self._app(request)
        app.installed = True
        installation = self.acts.payloads.installation() or {}
        owner = self.acts.payloads.user(self.acts.world.user(app.owner))
        payload = {"action": "created", "installation": installation | {"account": owner}, "sender": owner}
        self.acts.webhooks.emit("installation", payload, None)
        return PlainTextResponse("Installed.")

    def _app(self, request: Request) -> App:
        app = self.acts.world.app
        if app is None or app.slug != request.path_params["slug"]:
            raise not_found()
        return app
