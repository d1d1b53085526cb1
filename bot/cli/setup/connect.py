"""The two ways to connect: a GitHub App, or a token and the webhook of one repository. Both can be run again."""

import asyncio
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import NoReturn
from urllib.parse import urlsplit

from pydantic import SecretStr

from bot.cli.setup.arrival import Say, answering, first_delivery, logged, reminding
from bot.cli.setup.dotenv_file import EnvFile
from bot.cli.setup.manifest import finished, in_the_browser, manifest
from bot.files import replace_file
from bot.github.client import NOWHERE, WEBHOOK_PATH, Hook, events_of
from bot.github.errors import NotFound, Refused, Unauthenticated
from bot.github.registration import SOON, MadeApp, Registration, TokenFacts, convert
from bot.github.transport import Transport
from bot.model import Repository
from bot.sandbox.outbound import Outbound
from bot.serve.base import CannotStartError, redactor_of
from bot.serve.parts import GITHUB_TIMEOUT, Surroundings, open_client
from bot.settings import POLL_SECONDS, Need, Settings, load, read
from bot.settings_values import base_url, is_loopback
from bot.tasks import concurrently

KEY_SETTINGS = ("GITHUB_PRIVATE_KEY", "GITHUB_PRIVATE_KEY_PATH")
OF_AN_APP = (
    *("GITHUB_APP_ID", *KEY_SETTINGS, "GITHUB_WEBHOOK_SECRET"),
    *("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET", "GITHUB_TOKEN"),
)
"""What is set when an App is made, and what must be empty then."""
OF_A_TOKEN = ("GITHUB_TOKEN", "GITHUB_APP_ID", *KEY_SETTINGS)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Connecting:
    """The settings before, the file that gets the new ones, and `say`, which tells the person each step."""

    settings: Settings
    file: EnvFile
    say: Say
    operators: str | None = None
    """Who may sign in to the dashboard of a new App's bot; by default its owner, if that is a person."""

    def webhook(self, url: str | None) -> str:
        """Return where the webhook is to lead: to the bot's address `url`, or nowhere without one."""
        return (NOWHERE if url is None else self.address(url)) + WEBHOOK_PATH

    def polling(self, url: str | None) -> dict[str, str]:
        """Return the setting with which deliveries are taken from GitHub's log, or without which they are not."""
        was = self.file.values.get("POLL_INTERVAL_SECONDS")
        if url is None:
            return {"POLL_INTERVAL_SECONDS": was or f"{POLL_SECONDS:g}"}
        return {"POLL_INTERVAL_SECONDS": ""} if was else {}

    def dashboard(self, url: str | None) -> dict[str, str]:
        """Return the settings of the dashboard that are not there yet: its token, and the address `url` of the bot."""
        token = {} if self.settings.admin_token else {"ADMIN_TOKEN": secrets.token_hex(32)}
        if url is None:
            return token
        address, was = self.address(url), self.settings.public_url
        if was is not None and was != address:
            self.say(f"PUBLIC_URL stays {was}. If people reach the dashboard at {address} now, set it to that.")
        return token if was is not None else token | {"PUBLIC_URL": address}

    def address(self, url: str) -> str:
        """Return the bot's public address as it was given, checked. Raises CannotStartError."""
        try:
            address = base_url(url).removesuffix(WEBHOOK_PATH)
        except ValueError as problem:
            raise CannotStartError(f"--url {problem}") from None
        local, github = (is_loopback(urlsplit(one).hostname or "") for one in (address, self.settings.github_api_url))
        if local and not github:
            raise CannotStartError(
                f"--url {url} is this machine's own, which GitHub cannot reach; give the public address, or for a "
                "trial that of a tunnel (docs/connect.md)."
            )
        return address

    def check_environment(self, names: Iterable[str]) -> None:
        """Raise CannotStartError where the environment would win over what is written for these names."""
        from_environment, _ = read(dotenv=None, needs=frozenset({Need.GITHUB}))
        if hidden := sorted(from_environment.variables.keys() & set(names)):
            raise CannotStartError(
                f"The environment sets {', '.join(hidden)}, which would win over .env; unset that, then run it again."
            )

    def keep(self, values: Mapping[str, str]) -> Settings:
        """Write the values, and the address of another GitHub than github.com; return the settings with them."""
        addresses = {}
        if "github_api_url" in self.settings.model_fields_set and "GITHUB_API_URL" not in self.file.values:
            addresses["GITHUB_API_URL"] = self.settings.github_api_url
        self.file.write({**values, **addresses})
        self.say(f"Written, for this user alone: {self.file.path}")
        return load(dotenv=self.file.path, needs=frozenset({Need.WEBHOOK_SECRET, Need.GITHUB}))

    async def app(self, url: str | None, organization: str | None, name: str | None, code: str | None) -> None:
        """Make the App in the browser, or from its `code`, keep its secrets, and wait for its first delivery.

        Without an address its deliveries are taken from GitHub's log.
        """
        webhook, home = self.webhook(url), f"http://{self.settings.host}:{self.settings.port}"
        home = home if url is None else self.address(url)
        self.check_environment(OF_AN_APP)
        owner = f"/organizations/{organization}" if organization else ""
        new_app_url = f"{self.settings.github_server_url}{owner}/settings/apps/new"
        name = name or (f"{organization}-threadtree" if organization else "threadtree")
        named = (self.operators or "", *self.settings.allowed_users)
        described = partial(
            manifest, name[:34], home, people=",".join(named), webhook=webhook, events=events_of(self.settings.platform)
        )
        if code is not None:
            app = await finished(self._finish, code)
        else:
            async with in_the_browser(described, new_app_url, self._finish) as browser:
                port = urlsplit(browser.link).port
                self.say(f"Open this page in your browser, and make the App: {browser.link}")
                self.say(
                    f"Is the browser on another machine? Run there first: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE\n"
                    "If GitHub leads it to a page that does not open, give that address to: threadtree setup --code"
                )
                app = await browser.made
        self.say(f"The App {app.slug} of {app.owner} is made.")
        await self.arrival(app.install_url, url, poll=url is None)

    async def _finish(self, code: str) -> MadeApp:
        """Make the App, and keep what GitHub tells once."""
        around = Surroundings()
        async with Outbound(*self.settings.outbound).client(GITHUB_TIMEOUT) as http:
            app = await convert(
                Transport(
                    http,
                    api_url=self.settings.github_api_url,
                    graphql_url=self.settings.github_graphql_url,
                    app=None,
                    clock=around.clock,
                    sleep=around.sleep,
                ),
                code,
            )
        key = self.file.path.with_name(f"github-app-{app.id}.pem")
        try:
            replace_file(key, app.pem.encode())
            self.keep(
                dict.fromkeys(self.file.set_among(OF_AN_APP), "")
                | {
                    "GITHUB_APP_ID": str(app.id),
                    "GITHUB_PRIVATE_KEY_PATH": str(key),
                    "GITHUB_WEBHOOK_SECRET": app.webhook_secret,
                }
                | self._sign_in(app)
            )
        except (OSError, CannotStartError) as problem:
            raise CannotStartError(
                f"The App {app.slug} is made, and its secrets could not be kept ({problem}). Delete it on GitHub "
                f"({app.html_url}), then run `threadtree setup` again."
            ) from problem
        return app

    def _sign_in(self, app: MadeApp) -> dict[str, str]:
        """Return the settings of the sign-in to the dashboard; none where nobody could."""
        people = self.file.values.get("DASHBOARD_OPERATORS") or self.operators
        people = people or (app.owner if app.owner_type == "User" else None)
        if people is None:
            return {}
        client = {"GITHUB_CLIENT_ID": app.client_id, "GITHUB_CLIENT_SECRET": app.client_secret}
        return {**client, "DASHBOARD_OPERATORS": people}

    async def arrival(self, install_url: str | None = None, url: str | None = None, *, poll: bool = False) -> None:
        """Wait until the App of the settings is installed and a delivery arrived, or with `poll` is in GitHub's log.

        First lead its webhook to `url`, or nowhere.
        """
        file = EnvFile(self.file.path)  # a new App has been written there
        if changed := ({} if url is None and not poll else self.polling(url)) | self.dashboard(url):
            file.write(changed)
        settings = load(dotenv=self.file.path, needs=frozenset({Need.WEBHOOK_SECRET, Need.GITHUB}))
        around, before = Surroundings(), frozenset[int]()
        async with (
            open_client(Registration, settings, around, redactor_of(settings)) as github,
            self._reminded() as reminder,
        ):
            if install_url is None:
                app = await github.app_page()
                install_url = app.install_url
                self.say(f"The App {app.slug} of {app.owner} is set up in .env.")
            webhook = self.webhook(url) if url or poll else None
            if webhook and await github.app_webhook_url() != webhook:
                before = frozenset(one.id for one in await logged(github, None))
                await github.lead_app_webhook(webhook)
                self.say(f"Its webhook leads to {webhook} now.")
            reminder.cancel()
            await self._arrived(settings, github, None, before, install_url)
            mention = (await github.identity()).mention
        self._next(settings, mention)

    async def token(self, token: str, full_name: str, url: str | None) -> None:
        """Check the token, keep it, make or update the repository's webhook, and wait for its first delivery.

        Without an address deliveries are taken from GitHub's log.
        """
        webhook = self.webhook(url)
        if not _REPOSITORY.fullmatch(full_name):
            raise CannotStartError(f"{full_name!r} is no repository; give it as OWNER/REPO.")
        self.check_environment((*OF_A_TOKEN, "GITHUB_WEBHOOK_SECRET"))
        given = {"github_token": SecretStr(token), "github_app_id": None, "github_private_key": None}
        settings = self.settings.model_copy(update=given)
        async with (
            open_client(Registration, settings, Surroundings(), redactor_of(settings)) as github,
            self._reminded() as reminder,
        ):
            try:
                facts = await github.token_facts()
            except Unauthenticated as refusal:
                why = f"GitHub does not accept the token ({refusal}); make a new one (docs/connect.md)."
                raise CannotStartError(why) from None
            self._tell(facts)
            repository = await self._repository(github, full_name)
            secret = self.file.values.get("GITHUB_WEBHOOK_SECRET") or secrets.token_hex(32)
            others = dict.fromkeys(self.file.set_among(OF_A_TOKEN), "")
            new = {"GITHUB_TOKEN": token, "GITHUB_WEBHOOK_SECRET": secret}
            settings = self.keep(others | new | self.polling(url) | self.dashboard(url))
            known = list(self.settings.webhook_repos)
            is_ours = full_name.lower() in map(str.lower, known)
            hook, before = await self._webhook(github, repository, webhook, secret, is_ours=is_ours)
            if not is_ours:
                EnvFile(self.file.path).write({"WEBHOOK_REPOS": ",".join([*known, full_name])})
            reminder.cancel()
            await self._arrived(settings, github, hook, before, None)
        self._next(settings, facts.login)

    def _reminded(self) -> AbstractAsyncContextManager["asyncio.Task[NoReturn]"]:
        return concurrently(reminding(lambda: "Waiting for GitHub's answer.", self.say, asyncio.sleep))

    def _tell(self, facts: TokenFacts) -> None:
        rights = "fine-grained" if facts.scopes is None else f"with the scopes {', '.join(facts.scopes) or 'none'}"
        ends = "it never expires"
        if facts.expires_at is not None:
            ends = f"it expires on {facts.expires_at.astimezone(UTC):%Y-%m-%d}"
            ends += ", soon: make a new one" if facts.expires_at - datetime.now(UTC) < SOON else ""
        self.say(f"The token works as {facts.login}, {rights}; {ends}.")
        if facts.lacks_repo:
            raise CannotStartError("The token lacks the scope `repo`; add it on GitHub, or make a new one.")

    async def _repository(self, github: Registration, full_name: str) -> Repository:
        owner, name = full_name.split("/")
        try:
            repository = await github.repository(self.settings.platform, owner, name)
            missing = await github.missing_rights(owner, name)
        except NotFound:
            raise CannotStartError(
                f"GitHub shows the token no repository {full_name}; correct the name, or give the account and its "
                "token access: an invitation has to be accepted."
            ) from None
        if missing:
            raise CannotStartError(f"The account lacks write access to {full_name}; give it the role Write there.")
        return repository

    async def _webhook(
        self, github: Registration, repository: Repository, url: str, secret: str, *, is_ours: bool
    ) -> tuple[Hook, frozenset[int]]:
        """Return the webhook, made or updated, with the deliveries that it sent before."""
        try:
            known = [one.id for one in await github.webhooks(repository)]
            before = {one.id for hook in known for one in await logged(github, (repository, hook))}
            made = await github.put_webhook(repository, url, secret, is_ours=is_ours)
        except (NotFound, Refused) as refusal:
            if isinstance(refusal, Refused) and refusal.status == 422:
                raise CannotStartError(f"GitHub does not take a webhook to {url} ({refusal}); correct --url.") from None
            page = f"{self.settings.github_server_url}/{repository.full_name}/settings/hooks/new"
            raise CannotStartError(
                f"This token may not make webhooks in {repository.full_name}: that takes an administrator of the "
                "repository, and `Webhooks: write` or the classic scope `repo`. The rest is done. An administrator can "
                f"add the webhook: {page} with the payload URL {url}, the content type application/json, the secret "
                f"GITHUB_WEBHOOK_SECRET of .env, and the events {', '.join(events_of(repository.platform))}."
            ) from None
        self.say(f"The webhook of {repository.full_name} leads to {url}.")
        return (repository, made), frozenset(before)

    async def _arrived(
        self, settings: Settings, github: Registration, hook: Hook | None, before: frozenset[int], install: str | None
    ) -> None:
        if settings.poll_interval_seconds is not None:
            self.say("A delivery is awaited in GitHub's log. Ctrl-C ends the wait; `threadtree setup` goes on with it.")
            first = await first_delivery(github, hook, before, install, self.say, asyncio.sleep, is_polled=True)
            self.say(f"GitHub's log of deliveries can be read ({first.event}): no address is needed.")
            return
        secret = settings.github_webhook_secret
        async with answering(settings, secret.get_secret_value() if secret else "") as port:
            by = "" if port else "the program on "
            self.say(
                f"GitHub's first delivery is awaited by {by}{settings.host}:{port or settings.port}. "
                "Ctrl-C ends the wait; `threadtree setup` goes on with it."
            )
            first = await first_delivery(github, hook, before, install, self.say, asyncio.sleep, is_polled=False)
        self.say(f"The first delivery arrived ({first.event}, {first.status_code}): address and secret are right.")

    def _next(self, settings: Settings, mention: str) -> None:
        where = settings.public_url or f"http://{settings.host}:{settings.port}"
        people = f", or as {', '.join(settings.dashboard_operators)} on GitHub" if settings.github_client_id else ""
        self.say(f"Once the bot runs, its dashboard is at {where} (sign in with ADMIN_TOKEN of .env{people}).")
        self.say(
            "Next: `threadtree doctor` says what is missing, `threadtree serve` starts the bot. Then write on an "
            f"issue: @{settings.bot_name or mention} what does this repository do?"
        )
