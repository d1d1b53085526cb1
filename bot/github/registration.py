"""What only `threadtree setup` asks of GitHub: making an App, making webhooks, and what a token is worth."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Annotated

from pydantic import AliasPath, Field

from bot.github.answers import read
from bot.github.client import GitHub, Hook, events_of
from bot.github.transport import Transport
from bot.model import Repository


@dataclass(frozen=True, slots=True)
class AppPage:
    """A GitHub App: its id, its name in addresses, its public page, and whose it is: a User's or an Organization's."""

    id: int
    slug: str
    html_url: str
    owner: Annotated[str, Field(validation_alias=AliasPath("owner", "login"))]
    owner_type: Annotated[str, Field(validation_alias=AliasPath("owner", "type"))]

    @property
    def install_url(self) -> str:
        """Where a person chooses the repositories: github.com and Enterprise Server differ in the App's own page."""
        return f"{self.html_url}/installations/new"


@dataclass(frozen=True, slots=True)
class MadeApp(AppPage):
    """A new App with its secrets, which GitHub tells once.

    https://docs.github.com/rest/apps/apps#create-a-github-app-from-a-manifest
    """

    client_id: str
    client_secret: str = field(repr=False)
    webhook_secret: str = field(repr=False)
    pem: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What GitHub tells about a personal token: `scopes` is None for a fine-grained one, which lists none."""

    login: str
    scopes: Sequence[str] | None
    expires_at: datetime | None


async def convert(api: Transport, code: str) -> MadeApp:
    """Return the App for the code of a manifest; GitHub takes a code once, within an hour. Raises GitHubError."""
    answer = await api.post("/app-manifests/{code}/conversions", {"code": code}, data={})
    return read(MadeApp, answer)


class Registration(GitHub):
    """GitHub as `threadtree setup` sees it."""

    async def token_facts(self) -> TokenFacts:
        """Return whose the personal token is, and what is known of it. Raises Unauthenticated."""
        me = await self.identity()
        scopes = self._api.token_scopes
        known = None if scopes is None else [scope for one in scopes.split(",") if (scope := one.strip())]
        return TokenFacts(me.login, known, self._api.token_expires_at)

    async def put_webhook(self, repository: Repository, url: str, secret: str, *, is_ours: bool) -> int:
        """Make the repository's webhook for this address, or bring the one that is there up to date; return its id.

        It is the one with this address; or the only one that leads to a bot, where the bot `is_ours` that it leads to:
        its log goes on. https://docs.github.com/rest/repos/webhooks#create-a-repository-webhook. Raises NotFound or
        Refused without the right to.
        """
        config = {"url": url, "content_type": "json", "secret": secret, "insecure_ssl": "0"}
        data = {"config": config, "events": list(events_of(repository.platform)), "active": True}
        there = await self.webhooks(repository)
        known = next((hook.id for hook in there if hook.url == url), None)
        if known is None and is_ours and len(there) == 1:
            known = there[0].id
        if known is None:
            made: int = (await self._post(repository, "/hooks", {"name": "web", **data}))["id"]
            return made
        await self._below(repository, partial(self._api.patch, data=data), "/hooks/{id}", id=known)
        return known

    async def app_page(self) -> AppPage:
        """Return the App that these credentials are of."""
        return read(AppPage, await self._of_app("/app"))

    async def lead_app_webhook(self, url: str) -> None:
        """Lead the App's webhook to another address.

        https://docs.github.com/rest/apps/webhooks#update-a-webhook-configuration-for-an-app
        """
        edit = partial(self._api.patch, data={"url": url, "content_type": "json"})
        await self._api.as_app(lambda jwt: edit("/app/hook/config", jwt=jwt))

    async def installed_for(self) -> list[str]:
        """Return the accounts that the App is installed for."""
        return [one["account"]["login"] for one in await self._of_app("/app/installations")]

    async def deliver_something(self, hook: Hook | None, latest: int | None) -> None:
        """Let GitHub send a ping from a repository's webhook, or the App's `latest` delivery once more.

        https://docs.github.com/rest/repos/webhooks#ping-a-repository-webhook; an App's webhook has no such request.
        """
        send = partial(self._api.post, data={})
        if hook is not None:
            await self._of_hook(hook, send, "/pings")
        elif latest is not None:
            await self._of_hook(None, send, "/deliveries/{delivery}/attempts", delivery=latest)
