"""`threadtree setup` as an operator runs it: a process, a browser, a reverse proxy, and a GitHub over HTTP."""

import asyncio
import html
import json
import os
import re
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NoReturn
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from dotenv import dotenv_values
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typer.testing import CliRunner

from bot.cli.main import app
from bot.cli.running import explained
from bot.cli.setup.arrival import first_delivery
from bot.cli.setup.manifest import Browser, manifest
from bot.github.client import APP_EVENTS, APP_PERMISSIONS, NOWHERE, GitHub
from bot.github.errors import NotFound, Transient
from bot.github.registration import MadeApp, Registration
from bot.serve.base import CannotStartError, redactor_of
from bot.serve.parts import Surroundings, open_client
from bot.settings import Need, load
from bot.simulated.github import serving
from bot.simulated.github.server import SimulatedGitHub
from bot.tasks import concurrently
from tests.support.fork_server import Forked, fork
from tests.support.patience import PATIENCE_SECONDS, until_true

BEFORE = "# Mine.\nAGENT=codex  # for now\n\nGITHUB_TOKEN=\nexport GITHUB_WEBHOOK_SECRET=\n# The end."
LINK = r"(http://127\.0\.0\.1:\d+/\S{20,})"
ARRIVED = r"The first delivery arrived \(\w+, 202\)"


@dataclass
class Clock:
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Proxy:
    """The reverse proxy with the bot's public address: it leads to the port that set-up names, once it does."""

    url: str
    port: asyncio.Future[int]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        async with httpx.AsyncClient(trust_env=False) as client:
            target = f"http://127.0.0.1:{await asyncio.shield(self.port)}{request.url.path}"
            try:
                answer = await client.post(target, content=await request.body(), headers=dict(request.headers))
            except httpx.TransportError:
                answer = httpx.Response(502)
        await Response(answer.content, answer.status_code)(scope, receive, send)


@dataclass
class Running:
    """A running `threadtree setup`, and what it has printed."""

    process: Forked
    proxy: Proxy
    said: str = ""

    async def read(self) -> None:
        await asyncio.gather(*(self._read(stream) for stream in (self.process.stdout, self.process.stderr)))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.said += line.decode()
            if (found := re.search(r"127\.0\.0\.1:(\d+)\. Ctrl-C", self.said)) and not self.proxy.port.done():
                self.proxy.port.set_result(int(found[1]))

    async def says(self, pattern: str) -> str:
        await until_true(lambda: re.search(pattern, self.said) is not None or self.process.returncode is not None)
        found = re.search(pattern, self.said)
        assert found, self.said
        return found[1] if found.groups() else found[0]

    async def ends(self) -> int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.process.wait()


@dataclass
class Operator:
    """A person with a folder, on the machine of the bot, and with a browser."""

    folder: Path
    github: SimulatedGitHub
    clock: Clock
    proxy: Proxy
    environment: dict[str, str]
    running: list[tuple[Running, "asyncio.Task[None]"]] = field(default_factory=list)

    @property
    def env(self) -> Path:
        return self.folder / ".env"

    @property
    def values(self) -> dict[str, str | None]:
        return dotenv_values(self.env, interpolate=False)

    async def starts(self, *arguments: str, stdin: str = "", **variables: str) -> Running:
        process = await fork(
            ("-m", "bot", "setup", *arguments), {**self.environment, **variables}, self.folder, stdin.encode()
        )
        one = Running(process, self.proxy)
        self.running.append((one, asyncio.create_task(one.read())))
        return one

    async def runs(self, *arguments: str, stdin: str = "", **variables: str) -> tuple[int, str]:
        """Run it to its end; return its status and what it printed."""
        one = await self.starts(*arguments, stdin=stdin, **variables)
        status = await one.ends()
        await self.running[-1][1]
        return status, one.said

    async def browses(
        self, command: Running, *, org: str | None = None, url: str | None = None, webhook: str | None = None
    ) -> httpx.Response:
        """Make the App in the browser, on the page that the command names, and return the last page."""
        async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as browser:
            action, manifest = await form_on(browser, await command.says(LINK))
            where = f"/organizations/{org}/settings/apps/new" if org else "/settings/apps/new"
            assert action.startswith(f"{self.github.server_url}{where}?state=")
            asked = json.loads(manifest)
            assert asked["default_permissions"] == {**APP_PERMISSIONS, **({"members": "read"} if org else {})}
            assert asked["callback_urls"] == [f"{url or self.proxy.url}/login/callback"]
            assert asked["default_events"] == list(APP_EVENTS)
            assert asked["hook_attributes"]["url"] == (webhook or f"{url or self.proxy.url}/webhooks/github")
            return await browser.post(action, data={"manifest": manifest})

    async def installs(self) -> None:
        made = self.github.world.app
        assert made is not None
        async with httpx.AsyncClient(trust_env=False) as browser:
            await browser.post(f"{self.github.server_url}/apps/{made.slug}/installations/new")


async def form_on(browser: httpx.AsyncClient, link: str) -> tuple[str, str]:
    """Return where the page's form leads, and the manifest in it."""
    page = (await browser.get(link)).raise_for_status().text
    found = re.search(r'action="([^"]+)">.*?value="([^"]+)"', page, re.DOTALL)
    assert found
    return html.unescape(found[1]), html.unescape(found[2])


@asynccontextmanager
async def an_operator(tmp_path: Path, api: str = "") -> AsyncIterator[Operator]:
    clock, folder = Clock(), tmp_path / "bot"
    folder.mkdir()
    listener = serving.listen(0)
    proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}", asyncio.get_running_loop().create_future())
    async with SimulatedGitHub.running(tmp_path / "github", clock) as github, serving.serving(proxy, listener):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PORT": "0",
            "GITHUB_API_URL": github.api_url + api,
        }
        operator = Operator(folder, github, clock, proxy, environment)
        try:
            yield operator
        finally:
            if not proxy.port.done():
                proxy.port.set_result(9)
            for one, reading in operator.running:
                if one.process.returncode is None:
                    os.kill(one.process.pid, signal.SIGKILL)
                await one.process.wait()
                await reading


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    async with an_operator(tmp_path) as one:
        yield one


def only_for_its_owner(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_an_app_is_made_in_the_browser_and_its_first_delivery_arrives(tmp_path: Path) -> None:
    api, org = "/api/v3", "acme"
    async with an_operator(tmp_path, api) as operator:
        operator.env.write_text(BEFORE)
        operator.env.chmod(0o644)
        command = await operator.starts("--url", operator.proxy.url, "--org", org, "--operators", "acme/web")
        page = await operator.browses(command, org=org)
        slug = "acme-threadtree"
        assert page.url.path == f"/apps/{slug}/installations/new"
        await command.says("Waiting until the App is installed: .*/installations/new")
        await operator.installs()
        await command.says(ARRIVED)
        assert await command.ends() == 0
        assert f"@{slug} what does this repository do?" in command.said

        values, made = operator.values, operator.github.world.app
        assert made is not None
        key = Path(values["GITHUB_PRIVATE_KEY_PATH"] or "")
        pem = key.read_text()  # noqa: ASYNC240
        assert operator.env.read_text().startswith(
            "# Mine.\nAGENT=codex  # for now\n\nGITHUB_TOKEN=\nexport GITHUB_WEBHOOK_SECRET="
        )
        assert "\n# The end.\nGITHUB_APP_ID=" in operator.env.read_text()
        assert (values["GITHUB_APP_ID"], pem) == (str(made.id), made.private_key_pem)
        assert (values["GITHUB_API_URL"], values["AGENT"]) == (operator.github.api_url + api, "codex")
        assert (values["DASHBOARD_OPERATORS"], values["PUBLIC_URL"]) == ("acme/web", operator.proxy.url)
        there = (
            f"its dashboard is at {operator.proxy.url} (sign in with ADMIN_TOKEN of .env, or as acme/web on GitHub)."
        )
        assert there in command.said
        assert only_for_its_owner(operator.env)
        assert only_for_its_owner(key)
        assert sorted(path.name for path in operator.folder.iterdir()) == [".env", key.name]
        for secret in ("GITHUB_WEBHOOK_SECRET", "GITHUB_CLIENT_SECRET", "ADMIN_TOKEN"):
            assert (values[secret] or "") not in command.said
            assert len(values[secret] or "") >= 20
        assert "PRIVATE KEY" not in command.said
        settings = load({"HOME": str(tmp_path)}, dotenv=operator.env, needs=frozenset({Need.GITHUB}))
        async with open_client(GitHub, settings, Surroundings(), redactor_of(settings)) as github:
            assert await github.app_lacks() == ()
            assert (await github.identity()).mention == slug


async def test_a_wait_that_was_stopped_goes_on_and_a_new_address_is_set(operator: Operator) -> None:
    command = await operator.starts("--url", "http://127.0.0.1:9")
    await operator.browses(command, url="http://127.0.0.1:9")
    await operator.installs()
    await command.says(r"the last delivery failed: .*no answer")
    os.kill(command.process.pid, signal.SIGINT)
    assert await command.ends() == 130
    await command.says("`threadtree setup` goes on with it")

    operator.proxy.port = asyncio.get_running_loop().create_future()
    status, said = await operator.runs("--url", operator.proxy.url)
    assert f"Its webhook leads to {operator.proxy.url}/webhooks/github now." in said
    assert "The first delivery arrived" in said
    assert status == 0
    status, said = await operator.runs()
    assert (status, "The first delivery arrived" in said) == (0, True)
    moved = await operator.starts("--url", "http://127.0.0.1:9")
    await moved.says("Waiting for the first delivery|the last delivery failed")
    assert "The first delivery arrived" not in moved.said, "what arrived at the address before does not count"


async def test_a_page_answers_its_own_browser_once(operator: Operator) -> None:
    command = await operator.starts("--url", operator.proxy.url)
    address, key = (await command.says(LINK)).rsplit("/", 1)
    async with httpx.AsyncClient(trust_env=False) as stranger:
        assert (await stranger.get(f"{address}/")).status_code == 404
        assert (await stranger.get(f"{address}/{key}", headers={"host": "rebound.example.org"})).status_code == 400
        assert (await stranger.get(f"{address}/made?code=mine&state=guessed")).status_code == 400
    assert not operator.env.exists()


async def test_githubs_answer_counts_once_but_for_an_outage() -> None:
    answers = [Transient("request", None, "GitHub cannot be reached"), NotFound("Not Found")]
    codes = []

    async def finish(code: str) -> MadeApp:
        codes.append(code)
        raise answers.pop(0)

    browser = Browser(
        partial(
            manifest,
            "threadtree",
            "https://bot.example.org",
            people="",
            webhook="https://bot.example.org/hook",
            events=APP_EVENTS,
        ),
        "https://github.com/settings/apps/new",
        finish,
        80,
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(browser.app), base_url="http://127.0.0.1") as client:
        action, _ = await form_on(client, browser.link)
        answer = {"code": "abc", "state": parse_qs(urlsplit(action).query)["state"][0]}
        statuses = [(await client.get("/made", params=answer)).status_code for _ in range(3)]
        assert (statuses, codes) == ([503, 502, 400], ["abc", "abc"])
        assert (await client.get(browser.link)).status_code == 410
    with pytest.raises(CannotStartError, match="GitHub does not know this code"):
        await browser.made


async def test_a_code_is_pasted_where_the_browser_reaches_nothing(operator: Operator) -> None:
    command = await operator.starts("--url", operator.proxy.url)
    async with httpx.AsyncClient(trust_env=False) as browser:
        action, manifest = await form_on(browser, await command.says(LINK))
        lost = (await browser.post(action, data={"manifest": manifest})).headers["location"]
    os.kill(command.process.pid, signal.SIGTERM)
    await command.ends()
    operator.clock.now += timedelta(minutes=59)
    again = await operator.starts("--url", operator.proxy.url, "--code", stdin=f"{lost}\n")
    await again.says("Waiting until the App is installed")
    await operator.installs()
    await again.says(ARRIVED)
    assert await again.ends() == 0


async def test_an_old_code_and_a_wrong_answer_of_github_are_told_in_a_sentence(operator: Operator) -> None:
    paste = ("--url", operator.proxy.url, "--code")
    assert await operator.runs(*paste, stdin="0123456789abcdef\n") == (
        1,
        "threadtree: GitHub does not know this code: it was used before, or is older than an hour. "
        "Run `threadtree setup` again.\n",
    )
    assert "What was given holds no code" in (await operator.runs(*paste, stdin="\n"))[1]
    status, said = await operator.runs(*paste, stdin="0123456789abcdef\n", GITHUB_API_URL="http://127.0.0.1:9")
    assert (status, said) == (
        1,
        "threadtree: GitHub cannot be reached (ConnectError). Check GITHUB_API_URL and the network, then run it "
        "again.\n",
    )
    assert not operator.env.exists()


async def test_secrets_that_cannot_be_kept_are_told_with_the_way_out(operator: Operator) -> None:
    command = await operator.starts("--url", operator.proxy.url)
    await command.says(LINK)
    operator.folder.rename(operator.folder.with_name("moved"))
    assert (await operator.browses(command)).status_code == 502
    await command.says(r"The App threadtree is made, and its secrets could not be kept .*Delete it on GitHub")
    assert await command.ends() == 1


def test_what_is_given_wrongly_gets_one_sentence_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, variables, sentence in [
        (["--url", "bot.example.org"], {}, "--url must be an address like https://HOST/PATH"),
        (["--url", "http://bot.example.org"], {}, "--url uses plain http to another machine"),
        (["--url", "http://localhost:8000"], {"GITHUB_API_URL": "https://api.github.com"}, "GitHub cannot reach"),
        ([], {}, "--url is missing: the bot's public address."),
        (["acme/shop", "--url", "https://bot.example.org"], {}, "OWNER/REPO goes with --token"),
        (["--url", "https://bot.example.org"], {"GITHUB_TOKEN": "ghp_ofTheShell"}, "sets GITHUB_TOKEN, which would"),
        (["--token", "--url", "https://bot.example.org"], {}, "OWNER/REPO is missing."),
        (["--token", "shop", "--url", "https://bot.example.org"], {}, "'shop' is no repository; give it as OWNER"),
    ]:
        monkeypatch.chdir(tmp_path)
        for name, text in {"GITHUB_API_URL": "http://127.0.0.1:9", **variables}.items():
            monkeypatch.setenv(name, text)
        result = CliRunner().invoke(app, ["setup", *arguments], input="ghp_0123456789\n")
        told = explained(result.exception) if isinstance(result.exception, Exception) else None
        assert sentence in (result.output if told is None else told[0][0])
        assert result.exit_code != 0
        assert list(tmp_path.iterdir()) == []


async def test_what_is_set_already_is_replaced_only_on_request(operator: Operator) -> None:
    operator.env.write_text("GITHUB_TOKEN=ghp_before\nGITHUB_WEBHOOK_SECRET=before\n")
    status, said = await operator.runs("--url", operator.proxy.url)
    assert (status, said) == (
        2,
        "threadtree: .env sets GITHUB_WEBHOOK_SECRET, GITHUB_TOKEN; run it with --replace to replace that.\n",
    )
    command = await operator.starts("--url", operator.proxy.url, "--replace")
    await operator.browses(command)
    await operator.installs()
    await command.says(ARRIVED)
    assert operator.values["GITHUB_TOKEN"] == ""


async def test_a_token_is_checked_and_the_repositorys_webhook_made_and_updated(tmp_path: Path) -> None:
    async with an_operator(tmp_path) as operator:
        github = operator.github
        await github.create_repository("acme/shop", bot_permission="admin")
        ends = operator.clock.now + timedelta(days=30)
        token = github.world.issue_token(github.bot, "repo, read:org", ends)
        connect = ("--token", "acme/shop", "--url", operator.proxy.url)
        status, said = await operator.runs(*connect, stdin=f"{token}\n")
        assert (
            f"The token works as threadtree-bot, with the scopes repo, read:org; it expires on {ends:%Y-%m-%d}." in said
        )
        assert re.search(ARRIVED, said)
        assert status == 0
        secret, hook, before = operator.values["GITHUB_WEBHOOK_SECRET"], github.hook, operator.values
        assert (len(before["ADMIN_TOKEN"] or ""), before["PUBLIC_URL"]) == (64, operator.proxy.url)
        assert hook is not None
        assert (operator.values["GITHUB_TOKEN"], hook.secret, hook.events) == (token, secret, APP_EVENTS)
        assert only_for_its_owner(operator.env)
        assert token not in said
        assert (secret or "") not in said

        operator.proxy.port = asyncio.get_running_loop().create_future()
        status, said = await operator.runs(*connect)  # the token is the one in .env
        assert (status, operator.values) == (0, before), "what is there stays"
        assert github.hook is not None
        assert github.hook.id == hook.id


async def test_a_token_is_set_up_without_an_address_and_moves_to_one_and_back(operator: Operator) -> None:
    github = operator.github
    await github.create_repository("acme/shop", bot_permission="admin")
    token = github.world.issue_token(github.bot)
    status, said = await operator.runs("--token", "acme/shop", "--poll", stdin=f"{token}\n")
    assert f"The webhook of acme/shop leads to {NOWHERE}/webhooks/github." in said
    assert "GitHub's log of deliveries can be read (ping): no address is needed." in said
    assert "Next: `threadtree doctor` says what is missing, `threadtree serve` starts the bot." in said
    assert (status, operator.values["POLL_INTERVAL_SECONDS"], operator.values["WEBHOOK_REPOS"]) == (0, "5", "acme/shop")
    made = github.hook
    assert made is not None

    assert "its dashboard is at http://127.0.0.1:0 (" in said
    operator.env.write_text(operator.env.read_text() + "PUBLIC_URL=https://trees.example.org\n")
    status, said = await operator.runs("--token", "acme/shop", "--url", operator.proxy.url)
    assert "PUBLIC_URL stays https://trees.example.org." in said
    assert (status, operator.values["POLL_INTERVAL_SECONDS"], operator.values["WEBHOOK_REPOS"]) == (0, "", "acme/shop")
    assert github.hook is not None
    assert (github.hook.id, github.hook.url) == (made.id, f"{operator.proxy.url}/webhooks/github"), "its log goes on"

    status, said = await operator.runs("--token", "acme/shop", "--poll")
    assert (status, operator.values["POLL_INTERVAL_SECONDS"]) == (0, "5")
    assert (github.hook.id, github.hook.url) == (made.id, f"{NOWHERE}/webhooks/github")
    assert (await operator.runs("--token", "acme/shop"))[0] == 0, "it goes on as it was"
    assert (await operator.runs("--poll", "--url", operator.proxy.url))[0] == 2


async def test_what_is_waited_for_is_told_every_ten_seconds() -> None:
    class Silent(Registration):
        def __init__(self) -> None:
            pass

        async def logged_deliveries(self, *_: object) -> NoReturn:
            await asyncio.Event().wait()
            raise AssertionError

    async def pass_by(seconds: float) -> None:
        assert seconds == 10
        await (asyncio.Event().wait() if len(said) == 2 else asyncio.sleep(0))

    said = list[str]()
    waiting = first_delivery(Silent(), None, frozenset(), None, said.append, pass_by, is_polled=False)
    async with concurrently(waiting):
        await until_true(lambda: len(said) == 2)
    assert said == ["10 s: Waiting for GitHub's answer.", "20 s: Waiting for GitHub's answer."]


async def test_a_webhook_that_this_set_up_did_not_make_stays_where_it_leads(operator: Operator) -> None:
    github = operator.github
    await github.create_repository("acme/shop", bot_permission="admin")
    theirs = github.set_webhook("http://127.0.0.1:9/webhooks/github", "of another bot")
    token = github.world.issue_token(github.bot)
    assert (await operator.runs("--token", "acme/shop", "--poll", stdin=f"{token}\n"))[0] == 0
    assert github.hook is not None
    assert github.hook.id != theirs.id


async def test_an_app_is_made_without_an_address(operator: Operator) -> None:
    command = await operator.starts("--poll", PORT="8123")
    await operator.browses(command, url="http://127.0.0.1:8123", webhook=f"{NOWHERE}/webhooks/github")
    await operator.installs()
    await command.says(r"GitHub's log of deliveries can be read \(\w+\): no address is needed")
    assert await command.ends() == 0
    assert operator.values["POLL_INTERVAL_SECONDS"] == "5"

    status, said = await operator.runs("--url", operator.proxy.url)
    assert (status, operator.values["POLL_INTERVAL_SECONDS"]) == (0, "")
    assert f"Its webhook leads to {operator.proxy.url}/webhooks/github now." in said


async def test_a_token_that_is_not_enough_is_told_with_the_next_step(operator: Operator) -> None:
    github, connect = operator.github, ("--token", "acme/shop", "--url", operator.proxy.url)
    status, said = await operator.runs(*connect, stdin="ghp_0123456789\n")
    assert (status, "GitHub does not accept the token (Bad credentials); make a new one" in said) == (1, True)
    token = github.world.issue_token(github.bot, "gist")
    status, said = await operator.runs(*connect, stdin=f"{token}\n")
    assert (status, "The token lacks the scope `repo`" in said) == (1, True)
    token = github.world.issue_token(github.bot)
    status, said = await operator.runs(*connect, stdin=f"{token}\n")
    assert "fine-grained; it never expires" in said
    assert (status, "GitHub shows the token no repository acme/shop" in said) == (1, True)
    shop = await github.create_repository("acme/shop", bot_permission="read")
    status, said = await operator.runs(*connect, stdin=f"{token}\n")
    assert (status, "The account lacks write access to acme/shop" in said) == (1, True)
    assert not operator.env.exists()
    shop.allow(github.bot, "write")
    status, said = await operator.runs(*connect, stdin=f"{token}\n")
    assert f"{github.server_url}/acme/shop/settings/hooks/new" in said
    assert (status, operator.values["GITHUB_TOKEN"]) == (1, token)
    assert (operator.values["GITHUB_WEBHOOK_SECRET"] or "") not in said
