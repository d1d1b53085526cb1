"""The simulated GitHub as one server in the caller's event loop, and the handle that tests use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bot.simulated.github import repository_acts
from bot.simulated.github.app import App
from bot.simulated.github.errors import RefusedError, not_found
from bot.simulated.github.faults import Faults
from bot.simulated.github.git import Files
from bot.simulated.github.git_http import GitHttp
from bot.simulated.github.graphql import GraphQL
from bot.simulated.github.lfs import Lfs
from bot.simulated.github.model import Account, Permission, Repository, User
from bot.simulated.github.new_app import NewApps
from bot.simulated.github.pages import Pages
from bot.simulated.github.payloads import Payloads
from bot.simulated.github.person import Person
from bot.simulated.github.pull_acts import Acts
from bot.simulated.github.rest import rest_routes
from bot.simulated.github.rest_accounts import bot_account
from bot.simulated.github.rest_call import refusal
from bot.simulated.github.rest_checks import end_checks
from bot.simulated.github.serving import listen, serving
from bot.simulated.github.sign_in import Client, SignIn
from bot.simulated.github.traffic import LoggedRequest, Traffic
from bot.simulated.github.uploads import Uploads, upload
from bot.simulated.github.webhooks import ContentType, Delivery, Hook, Webhooks
from bot.simulated.github.world import World

T = TypeVar("T")
BOT_LOGIN = "threadtree-bot"
WAIT_SECONDS = 120.0
LAST_EVENTS = 10


class SimulatedGitHub:
    """GitHub on 127.0.0.1: REST, GraphQL, git over HTTP and webhooks; tests can read all of its state."""

    def __init__(self, directory: Path, clock: Callable[[], datetime], port: int, installation_id: int | None) -> None:
        self.port = port
        self.server_url = f"http://127.0.0.1:{port}"
        app = None if installation_id is None else App.create(BOT_LOGIN, installation_id)
        self.world = World(directory, clock, app)
        self._webhooks = Webhooks(clock, self.world.next_id, self.world.changes)
        self._acts = Acts(self.world, Payloads(self.server_url, app), self._webhooks)
        self.bot_token = "" if app is not None else self.world.issue_token(self.bot)
        self._git = GitHttp(self._acts)
        self._sign_in, self.new_apps = SignIn(self.world), NewApps(self._acts)
        routes = [*self._sign_in.routes(), *self.new_apps.routes()]
        application = _application(self._acts, self._git, self.new_apps, self._rate_limit, routes)
        self.traffic = Traffic(application, self.world, self.faults)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        directory: Path,
        clock: Callable[[], datetime],
        port: int = 0,
        *,
        installation_id: int | None = None,
        webhooks_at_once: int = 1,
    ) -> AsyncIterator["SimulatedGitHub"]:
        """Serve until the block ends. With `installation_id` the bot is a GitHub App, without it the bot has a token.

        `directory` holds the bare repositories; `clock` gives every timestamp; port 0 means any free port. One webhook
        at a time arrives in order; the real GitHub sends many at once.
        """
        with listen(port) as listener:
            github = cls(directory, clock, listener.getsockname()[1], installation_id)
            async with serving(github.traffic, listener):
                sending = asyncio.create_task(github._webhooks.run(webhooks_at_once))
                try:
                    yield github
                finally:
                    github.traffic.close()
                    await github._git.close()
                    sending.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await sending

    @property
    def bot(self) -> User:
        return bot_account(self.world)

    @property
    def api_url(self) -> str:
        return self.server_url

    @property
    def graphql_url(self) -> str:
        return f"{self.server_url}/graphql"

    @property
    def app_id(self) -> int:
        return self._app.id

    @property
    def app_private_key_pem(self) -> str:
        return self._app.private_key_pem

    @property
    def faults(self) -> Faults:
        return self._webhooks.faults

    @property
    def deliveries(self) -> list[Delivery]:
        """Return every attempt to deliver a webhook, oldest first."""
        return self._webhooks.log

    @property
    def requests(self) -> list[LoggedRequest]:
        """Return every request to the API and to git, oldest first."""
        return self.traffic.requests

    @property
    def webhook_timeout_seconds(self) -> float:
        """Seconds that a receiver may take: ten, as on GitHub, unless a test shortens it."""
        return self._webhooks.timeout_seconds

    @webhook_timeout_seconds.setter
    def webhook_timeout_seconds(self, seconds: float) -> None:
        self._webhooks.timeout_seconds = seconds

    @property
    def latency_seconds(self) -> float:
        """Seconds that pass before a request is handled: of every one, git's included."""
        return self.traffic.latency_seconds

    @latency_seconds.setter
    def latency_seconds(self, seconds: float) -> None:
        self.traffic.latency_seconds = seconds

    @property
    def late_closing_references(self) -> bool:
        """Whether new pull requests list no closing issues until their `closing_references_indexed` is set."""
        return self.world.late_closing_references

    @late_closing_references.setter
    def late_closing_references(self, late: bool) -> None:
        self.world.late_closing_references = late

    async def create_repository(
        self,
        full_name: str,
        files: Files | None = None,
        default_branch: str = "main",
        *,
        private: bool = True,
        bot_permission: Permission = "write",
    ) -> Repository:
        """Create a repository with one commit by its owner; the bot may write there."""
        repository = await self.world.create_repository(full_name, default_branch=default_branch, private=private)
        repository.allow(self.bot, bot_permission)
        first = {"README.md": f"# {repository.name}\n"} if files is None else files
        await self._acts.push(repository.owner, repository, default_branch, first, "Initial commit")
        return repository

    def upload(
        self, content: bytes, name: str | None = None, *, private: bool = False, store_url: str | None = None
    ) -> str:
        """Return the address of a new attachment, an image if it has no name; `store_url` is where it redirects to."""
        store_url = store_url or self.server_url
        return upload(self.world, self.server_url, content, name, private=private, store_url=store_url).address

    async def fork(self, repository: Repository, owner: Account) -> Repository:
        """Copy the repository to another account."""
        fork = await self.world.create_repository(
            f"{owner.login}/{repository.name}",
            default_branch=repository.default_branch,
            private=repository.private,
            parent=repository,
        )
        await fork.git.run("fetch", "--quiet", str(repository.git.path), "+refs/heads/*:refs/heads/*")
        return fork

    async def rename_repository(self, repository: Repository, name: str) -> None:
        """Send repository.renamed; the old name redirects."""
        repository_acts.rename(self._acts, repository, name)

    def delete_repository(self, repository: Repository) -> None:
        """Delete the repository, and send repository.deleted."""
        repository_acts.delete(self._acts, repository)

    async def transfer_repository(self, repository: Repository, owner: Account) -> None:
        """Send repository.transferred; the old name redirects."""
        repository_acts.transfer(self._acts, repository, owner)

    @property
    def client(self) -> Client:
        """The App with which people sign in on other sites."""
        return self._sign_in.client

    def put_in_team(self, team: str, *logins: str) -> None:
        """Make the team `org/slug` of these people."""
        self.world.teams[team] = {self.world.user(login).id for login in logins}

    def person(self, login: str) -> Person:
        """Return the person of this login; their account is created on first use."""
        return Person(self.world.user(login), self._acts)

    def end_checks(
        self,
        repository: Repository,
        sha: str,
        conclusions: Mapping[str, str],
        log: str = "",
        source: Repository | None = None,
    ) -> None:
        """Let checks of a commit, by their names, end so; an empty conclusion: it runs. `source` is a fork's.
        `waiting`: for an approval.
        """
        end_checks(self._acts, repository, sha, conclusions, log, source)

    def set_webhook(
        self,
        url: str,
        secret: str,
        content_type: ContentType = "json",
        *,
        anew: bool = False,
        events: tuple[str, ...] = ("*",),
    ) -> Hook:
        """Deliver these events from now on, in all repositories, to this address.

        The webhook is edited. Made `anew`, it has a log of its own, and the one before cannot be read any more.
        """
        app = self.world.app
        return self._webhooks.set_hook(url, secret, content_type, None if app is None else app.id, events, anew=anew)

    @property
    def hook(self) -> Hook | None:
        return self._webhooks.hook

    def remove_webhook(self) -> None:
        """Deliver nothing any more."""
        self._webhooks.hook = None

    async def redeliver(self, guid: str) -> None:
        """Deliver again with the same GUID, and wait for the answer."""
        self.redeliver_later(guid)
        await self.settled()

    def redeliver_later(self, guid: str) -> None:
        """Queue a delivery again with the same GUID."""
        self._webhooks.redeliver(guid)

    async def settled(self, timeout: float = WAIT_SECONDS) -> None:
        """Wait until all webhooks sent so far, except held ones, were answered."""
        await self.wait_for(lambda: self._webhooks.settled, timeout)

    async def wait_for(self, predicate: Callable[[], T], timeout: float = WAIT_SECONDS) -> T:
        """Return the predicate's first true value, checked after every change. TimeoutError has the last events."""
        try:
            return await self.world.changes.wait_for(predicate, timeout)
        except TimeoutError as error:
            raise TimeoutError(f"not within {timeout} s\n{self._last_events()}") from error

    def clone_url(self, repository: Repository) -> str:
        return f"{self.server_url}/{repository.full_name}.git"

    @property
    def _app(self) -> App:
        if self.world.app is None:
            raise ValueError("the bot is no GitHub App here: start the simulation with an installation_id")
        return self.world.app

    def _last_events(self) -> str:
        """Return the end of each log, to find out why an event did not happen."""
        threads = (thread for repository in self.world.repositories.values() for thread in repository.threads.values())
        comments = sorted((comment for thread in threads for comment in thread.comments), key=lambda found: found.id)
        lines = [repr(comment) for comment in comments]
        sent = [f"webhook {d.event} {d.action}: {d.status_code} {d.status}" for d in self.deliveries]
        asked = [f"{request.method} {request.path}: {request.status}" for request in self.requests]
        return "\n".join([*lines[-LAST_EVENTS:], *sent[-LAST_EVENTS:], *asked[-LAST_EVENTS:]])

    async def _rate_limit(self, request: Request) -> Response:
        return await self.traffic.rate_limit_endpoint(request)


def _application(
    acts: Acts,
    git: GitHttp,
    new_apps: NewApps,
    rate_limit: Callable[[Request], Awaitable[Response]],
    pages: list[Route],
) -> Starlette:
    routes = [
        Route("/graphql", GraphQL(acts).endpoint, methods=["POST"]),
        Route("/rate_limit", rate_limit, methods=["GET"]),
        *rest_routes(acts, new_apps),
        *pages,
        *Pages(acts).routes(),
        *Uploads(acts.world).routes(),
        *Lfs(acts.world).routes(),
        Route("/{owner}/{repo}.git/{path:path}", git.endpoint, methods=["GET", "POST"]),
    ]
    return Starlette(
        routes=routes, exception_handlers={404: _unknown_path, 405: _unknown_path, RefusedError: _unknown_path}
    )


async def _unknown_path(_request: Request, _error: Exception) -> Response:
    return refusal(not_found())
