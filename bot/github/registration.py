"""What only `threadtree setup` and `doctor` ask of GitHub: making an App, webhooks, and what a credential is worth."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

from pydantic import AliasPath, Field

from bot.github.answers import read
from bot.github.client import PER_PAGE, GitHub, Hook, events_of, repository_of
from bot.github.transport import Transport
from bot.model import Repository

SOON = timedelta(days=14)
"""A token that expires within this time is to be replaced."""
MOST_LOOKED_AT = 1000
"""So many repositories that GitHub lists are looked through for those that are wanted."""


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

    @property
    def lacks_repo(self) -> bool:
        """Whether its scopes show that it may not write to repositories."""
        return self.scopes is not None and not {"repo", "public_repo"} & set(self.scopes)


async def convert(api: Transport, code: str) -> MadeApp:
    """Return the App for the code of a manifest; GitHub takes a code once, within an hour. Raises GitHubError."""
    answer = await api.post("/app-manifests/{code}/conversions", {"code": code}, data={})
    return read(MadeApp, answer)


class Registration(GitHub):
    """GitHub as `threadtree setup` and `doctor` see it."""

    async def token_facts(self) -> TokenFacts:
        """Return whose the personal token is, and what is known of it. Raises Unauthenticated."""
        me = await self.identity()
        scopes = self._api.token_scopes
        known = None if scopes is None else [scope for one in scopes.split(",") if (scope := one.strip())]
        return TokenFacts(me.login, known, self._api.token_expires_at)

    async def seen(self, platform: str, wanted: Callable[[str], bool], most: int) -> tuple[list[Repository], bool]:
        """Return repositories that the bot may push to and whose full name is `wanted`, and whether that is all.

        At most `most` are returned, of at most MOST_LOOKED_AT that GitHub lists: of a token those pushed last first.
        """
        found, looked = list[Repository](), 0
        async with aclosing(self._listed()) as listed:
            async for one, installation_id in listed:
                looked += 1
                if one["permissions"]["push"] and wanted(one["full_name"]):
                    found.append(repository_of(platform, one, installation_id))
                if len(found) > most or looked > MOST_LOOKED_AT:
                    return found[:most], False
        return found, True

    async def _listed(self) -> AsyncGenerator[tuple[Any, int | None], None]:
        """Yield the repositories that GitHub lists for the token, or for each installation of the App.

        https://docs.github.com/rest/repos/repos#list-repositories-for-the-authenticated-user
        https://docs.github.com/rest/apps/installations#list-repositories-accessible-to-the-app-installation
        """
        size = {"per_page": PER_PAGE}
        if not self.is_app:
            own: dict[str, str | int] = {"sort": "pushed", **size}
            async for one in self._api.getiter("/user/repos{?sort,per_page}", own, oauth_token=self._tokens.personal):
                yield one, None
            return
        for installation in await self._of_app("/app/installations{?per_page}", **size):
            token = await self._tokens.of_installation(installation["id"])
            async for one in self._api.getiter(
                "/installation/repositories{?per_page}", size, oauth_token=token, iterable_key="repositories"
            ):
                # What an installation may do there, its permissions tell.
                yield {**one, "permissions": {"push": True}}, installation["id"]

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
