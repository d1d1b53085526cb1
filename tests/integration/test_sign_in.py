"""Signing in to the dashboard with GitHub, over HTTP: who enters, what they see, and for how long."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from bot.github.auth import AppCredentials, Credentials, TokenCredentials
from bot.github.client import GitHub
from bot.github.people import SignIn
from bot.operator.api.app import api_routes
from bot.operator.api.calls import ApiContext, Calls
from bot.operator.api.events import News
from bot.operator.dashboard.access import FRESH, OLDEST, Access, forget_unnamed
from bot.operator.dashboard.app import VIEWS, dashboard_routes
from bot.operator.dashboard.login import Login
from bot.simulated.github.faults import FailBefore
from bot.simulated.github.model import Repository
from bot.simulated.github.server import SimulatedGitHub
from bot.store.database import Pool, database
from tests.support.clock import HandMovedClock
from tests.support.past import A_PAST
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import execute

TOKEN = "a-token-of-the-tests-long-enough"
ADDRESS = "http://threadtree.test"
CALLBACK = f"{ADDRESS}/login/callback"
HIDDEN = "seen-by-those-of-world-only"
# The rows of octo/world in every list, and what the nodes keep of it.
OF_WORLD = """
update requests set ask = ask || '{"text": "HIDDEN"}' where turn_id = 3;
update turns set worktree_id = 2, agent = 'HIDDEN' where id = 3;
update conversations set title = 'HIDDEN' where id = 3;
update worktrees set branch = 'HIDDEN' where id = 2;
update nodes set heartbeat_at = now(), disk = '{"clones": 4096}', disk_measured_at = now(),
    kept = '[{"name": "HIDDEN", "bytes": 4096, "created_at": "2026-05-02T12:00:00Z"}]';
insert into turns (conversation_id, state, requested_by_id, started_at, finished_at, cost_usd)
values (3, 'done', 8, now(), now(), 77.77);
insert into requests (turn_id, conversation_id, ask) select 4, 3, ask from requests where turn_id = 3;
insert into steps (turn_id, place, words, output) values (3, 1, 'HIDDEN', 'HIDDEN');
insert into sessions (conversation_id, agent) values (3, 'HIDDEN');
insert into orphans (node, path) values ('here', 'worktrees/octo/world/stray'), ('here', 'worktrees/HIDDEN/x/stray');
insert into rescues (worktree_id, ref, conversations, branch)
values (2, 'refs/threadtree/rescue/2/1', '{9}', 'HIDDEN'), (1, 'refs/threadtree/rescue/1/1', '{1}', 'seen');
insert into operations (node, kind, requested_by) values ('here', 'prune', 'HIDDEN');
insert into deliveries (guid, event, conversation, lock_key, state, error)
values ('of-world', 'issue_comment', 'octo/world#9', 'PLATFORM/WORLD#9', 'failed', 'HIDDEN'),
       ('of-none', 'ping', null, null, 'dead', 'HIDDEN'),
       -- It was called so once; the name is another repository's now.
       ('of-another', 'issue_comment', 'octo/hello#1', 'PLATFORM/WORLD#1', 'failed', 'HIDDEN');
"""
OWN = {"id": "1", "guid": "22222222-aaaa-4bbb-8ccc-dddddddddddd", "owner": "octo", "name": "hello", "number": "1"}
OWN["place"] = "1"
FOREIGN = (
    *("/conversations/3", "/conversations/octo/world/9", "/turns/3", "/turns/4", "/turns/3/changes"),
    *("/turns/3/steps/1", "/deliveries/of-world", "/deliveries/of-none", "/deliveries/of-another"),
    *("/turns/3/pictures/1-x.png", "/operations/1"),
)
READS = [view.path for view in VIEWS if view.method == "GET" and not (view.is_open or view.for_operators)]
READS.remove("/operations/{id}")
READS.remove("/turns/{id}/pictures/{picture}")  # there is none
CHANGES = [(view.method, view.path) for view in VIEWS if view.for_operators]


def address(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda name: OWN[name[1]], path)


class Site:
    """The bot's pages, its GitHub, and the people of both."""

    def __init__(self, github: SimulatedGitHub, pool: Pool, dsn: str, directory: Path, clock: HandMovedClock) -> None:
        self.github, self.clock, self.pool, self.dsn, self.directory = github, clock, pool, dsn, directory
        self.repositories: list[Repository] = []
        self.operators: tuple[str, ...] = ("olga",)
        self.viewers: tuple[str, ...] = ("victor", "acme/web")
        self.news = News(dsn)

    def app(self, http: httpx.AsyncClient) -> Starlette:
        platform = urlsplit(self.github.server_url).netloc
        kept = (timedelta(days=180), timedelta(hours=1))
        calls = Calls(self.pool, ApiContext(platform, self.github.server_url, self.directory, *kept, self.clock))
        credentials: Credentials = TokenCredentials(self.github.bot_token)
        if self.github.world.app is not None:
            credentials = AppCredentials(str(self.github.app_id), self.github.app_private_key_pem)
        client = GitHub(
            api_url=self.github.api_url,
            graphql_url=self.github.graphql_url,
            credentials=credentials,
            http=http,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        sign_in = SignIn(client, self.github.server_url, self.github.client.id, self.github.client.secret)
        self.access = Access(sign_in, calls, self.operators, self.viewers)
        self.login = Login(self.clock, TOKEN, self.access)
        pages = dashboard_routes(calls, self.login, self.news)
        return Starlette(routes=[*api_routes(calls, TOKEN, self.news), *pages])

    def may_read(self, login: str, *names: str) -> None:
        """Let the person read these repositories and no others."""
        for repository in self.repositories:
            person = self.github.person(login)
            repository.allow(person, "read" if repository.name in names else "none")


class Browser:
    """A browser that keeps cookies and follows nothing."""

    def __init__(self, site: Site, app: Starlette, scheme: str = "http") -> None:
        self.site = site
        transport = httpx.ASGITransport(app)
        self.client = httpx.AsyncClient(transport=transport, base_url=f"{scheme}://threadtree.test")

    async def get(self, path: str, status: int | None = 200) -> httpx.Response:
        answer = await self.client.get(path)
        assert status in (None, answer.status_code), f"{path}: {answer.status_code} {answer.text}"
        return answer

    async def begins(self, path: str = "/") -> str:
        """Press the button, and return the address on GitHub."""
        began = await self.get(f"/login/github?next={path}", 303)
        return began.headers["location"]

    async def agrees(self, address: str, login: str) -> str:
        """Agree on GitHub as this person, nobody: do not; return the address that it leads back to."""
        async with httpx.AsyncClient() as outside:
            agreed = await outside.get(f"{address}&as={login}")
        assert agreed.headers["location"].startswith(f"{CALLBACK}?"), agreed.text
        return agreed.headers["location"].removeprefix(ADDRESS)

    async def signs_in(self, login: str, path: str = "/") -> httpx.Response:
        return await self.get(await self.agrees(await self.begins(path), login), None)

    async def form_token(self) -> str:
        found = re.search(r'name="form_token" value="([0-9a-f]{64})"', (await self.get("/nodes")).text)
        assert found
        return found[1]


@pytest.fixture
def installation_id() -> int | None:
    return None


@pytest_asyncio.fixture
async def site(database_url: str, tmp_path: Path, installation_id: int | None) -> AsyncIterator[Site]:
    clock = HandMovedClock()
    async with SimulatedGitHub.running(tmp_path / "github", clock, installation_id=installation_id) as github:
        hello, world = [await github.create_repository(f"octo/{name}", {"a": "b"}) for name in ("hello", "world")]
        github.client.callback_url = CALLBACK
        platform = urlsplit(github.server_url).netloc
        rows = A_PAST
        for number, repository in ((1, hello), (2, world)):
            rows = rows.replace(f"'github.com', {number},", f"'{platform}', {repository.id},")
            rows = rows.replace(f"'github.com/{number}#", f"'{platform}/{repository.id}#")
        of_world = OF_WORLD.replace("HIDDEN", HIDDEN).replace("PLATFORM", platform).replace("/WORLD", f"/{world.id}")
        await execute(database_url, rows, of_world)
        async with database(database_url, size=4) as pool:
            await pool.execute("update codebases set installation_id = $1", installation_id)
            made = Site(github, pool, database_url, tmp_path, clock)
            made.repositories = [hello, world]
            for login in ("olga", "victor", "wanda", "otto"):
                made.may_read(login, *(() if login == "otto" else ("hello",)))
            github.put_in_team("acme/web", "wanda")
            yield made
            await made.news.close()


@pytest_asyncio.fixture
async def app(site: Site) -> AsyncIterator[Starlette]:
    async with httpx.AsyncClient() as http:
        yield site.app(http)


@pytest.fixture
def browser(site: Site, app: Starlette) -> Browser:
    return Browser(site, app)


@pytest_asyncio.fixture
async def viewer(browser: Browser) -> Browser:
    assert (await browser.signs_in("victor")).headers["location"] == "/"
    return browser


async def test_an_operator_enters_with_github_sees_everything_and_acts(browser: Browser, site: Site) -> None:
    assert "Sign in with GitHub" in (await browser.get("/login")).text
    answer = await browser.signs_in("olga", "/turns/3")
    assert (answer.status_code, answer.headers["location"]) == (303, "/turns/3")
    page = await browser.get("/turns/3")
    assert HIDDEN in page.text
    assert ">olga<" in page.text
    form = {"form_token": await browser.form_token()}
    assert (await browser.client.post("/worktrees/1/reset", data=form)).status_code == 303
    asked = await site.pool.fetchval("select requested_by from requests order by turn_id desc limit 1")
    assert asked == "olga, by the dashboard"
    recorded = await site.pool.fetchrow("select person, channel, action, target from audit")
    assert tuple(recorded or ()) == ("olga", "dashboard", "reset", "worktree 1")
    assert "worktree 1" in (await browser.get("/audit?person=olga")).text
    assert "Nothing matches." in (await browser.get("/audit?since=2099-01-01")).text


async def test_a_login_that_another_account_has_by_now_enters_no_more(browser: Browser, site: Site) -> None:
    for login in ("olga", "victor"):
        assert (await browser.signs_in(login)).status_code == 303
        assert (await browser.signs_in(login)).status_code == 303
        del site.github.world.users[login]
        site.github.put_in_team("acme/web", login)
        reclaimed = Browser(site, browser.client._transport.app)  # type: ignore[attr-defined]
        assert (await reclaimed.signs_in(login)).status_code == 403
        await reclaimed.get("/turns", 303)
    async with site.pool.acquire() as connection:
        await forget_unnamed(connection, ["olga"])
    assert (await browser.signs_in("victor")).status_code == 303, "the setting did not name him meanwhile"
    assert (await browser.signs_in("olga")).status_code == 403


async def test_a_viewer_sees_nothing_of_a_repository_that_they_cannot_read(viewer: Browser) -> None:
    for path in READS:
        queries = [""]
        if path == "/turns":
            found = ("search=seen", "search=bob", "search=octo/world%239", "state=queued", "search=two", "state=done")
            queries += [f"?{one}" for one in (*found, "repo=octo/world")]
        elif "{" not in path and path not in ("/", "/nodes", "/costs"):
            queries += ["?repo=octo/world", "?repo=octo/hello"]
        for query in queries:
            answer = await viewer.client.get(address(path) + query, follow_redirects=True)
            assert answer.status_code == 200, answer.text
            shown = re.sub(r'value="octo/world(#9)?"', "", answer.text)
            for words in (HIDDEN, "octo/world", "$77.77", "stray"):
                assert words not in shown, f"{path}{query} shows {words}"
            assert re.findall(r'<form[^>]* method="post" action="([^"]*)"', shown) == ["/logout"]
            assert "/reset" not in shown


async def test_a_viewer_sees_what_they_can_read(viewer: Browser, site: Site) -> None:
    for path, words in {
        "/": "octo/hello",
        "/turns": "octo/hello#1",
        "/turns?search=one": "octo/hello#1",
        "/turns/1": "one",
        "/conversations": "octo/hello#4",
        "/worktrees": "threadtree/issue-1",
        "/rescues": "refs/threadtree/rescue/1/1",
        "/deliveries": "GitHub answered 502",
        "/costs?days=366": "octo/hello",
        "/nodes": "alive",
    }.items():
        assert words in (await viewer.get(path)).text, path
    site.may_read("victor", "hello", "world")
    site.clock.move(FRESH.total_seconds() + 1)
    assert HIDDEN in (await viewer.get("/turns/3")).text
    await viewer.get("/operations/1", 404)  # it is of a node, not of a repository


async def test_a_thing_of_another_repository_is_not_there(viewer: Browser) -> None:
    for path in FOREIGN:
        assert HIDDEN not in (await viewer.get(path, 404)).text


async def test_a_viewer_changes_nothing(viewer: Browser, site: Site) -> None:
    for method, path in CHANGES:
        form = {"form_token": await viewer.form_token(), "conversation": "octo/hello#1"}
        answer = await viewer.client.request(method, address(path), data=form if method == "POST" else None)
        assert answer.status_code == 403
        assert "Only operators" in answer.text
        assert await site.pool.fetchval("select (select count(*) from turns) + (select count(*) from operations)") == 5
        assert (await viewer.client.get("/api/turns")).status_code == 401, "the cookie is no token"


async def test_a_viewer_hears_only_of_what_they_can_read_and_only_as_long_as_they_may(
    viewer: Browser, site: Site
) -> None:
    cookie = viewer.client.cookies["threadtree"]
    answer: Any = site.news.streamed(lambda: site.login.scope(cookie))
    events = answer.body_iterator
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await anext(events) == b": listening\n\n"
        claim = "update turns set state = 'running', claim = gen_random_uuid(), finished_at = null where id = any ($1)"
        await site.pool.execute(claim, [3])
        await site.pool.execute("update turns set latest_words = 'x' where id = 3")
        await site.pool.execute("update worktrees set state = 'reserved' where id = 2")
        await site.pool.execute("update operations set state = 'done', outcome = '', finished_at = now()")
        await site.pool.execute("update worktrees set state = 'removing' where id = 1")
        assert b"worktree-removing" in await anext(events)
        site.access._viewers = ()
        site.clock.move(FRESH.total_seconds() + 1)
        await site.pool.execute("update worktrees set state = 'removed' where id = 1")
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_who_is_no_longer_named_or_cannot_read_any_more_sees_nothing_within_minutes(
    viewer: Browser, site: Site
) -> None:
    assert "octo/hello" in (await viewer.get("/turns")).text
    site.may_read("victor")
    site.clock.move(FRESH.total_seconds() + 1)
    assert "octo/hello" not in (await viewer.get("/turns")).text
    await viewer.get("/turns/1", 404)
    site.access._viewers = ("acme/web",)
    site.clock.move(FRESH.total_seconds() + 1)
    assert (await viewer.get("/turns", 303)).headers["location"] == "/login?next=/turns"


async def test_a_member_of_a_team_enters_until_they_leave_it(browser: Browser, site: Site) -> None:
    assert (await browser.signs_in("wanda")).status_code == 303
    assert "octo/hello" in (await browser.get("/turns")).text
    site.github.put_in_team("acme/web")
    site.clock.move(FRESH.total_seconds() + 1)
    await browser.get("/turns", 303)


@pytest.mark.parametrize("installation_id", [77])
async def test_an_app_asks_with_its_installations_tokens(browser: Browser, site: Site) -> None:
    assert (await browser.signs_in("wanda")).status_code == 303
    assert "octo/hello" in (await browser.get("/turns")).text
    await browser.get("/turns/3", 404)
    assert (await browser.signs_in("otto")).status_code == 403


async def test_while_github_is_away_the_last_answer_counts_for_some_minutes_and_then_nothing_is_shown(
    viewer: Browser, site: Site
) -> None:
    assert "octo/hello" in (await viewer.get("/turns")).text
    site.github.faults.add(FailBefore(), path="/repositories/*", times=None)
    site.clock.move(FRESH.total_seconds() + 1)
    assert "octo/hello" in (await viewer.get("/turns")).text
    site.clock.move(OLDEST.total_seconds())
    assert "GitHub has not told" in (await viewer.get("/turns", 503)).text
    other = Browser(site, viewer.client._transport.app)  # type: ignore[attr-defined]
    assert (await other.signs_in("olga")).status_code == 303
    assert HIDDEN in (await other.get("/turns")).text, "an operator who is named needs no answer"
    site.github.faults.clear()
    assert "octo/hello" in (await viewer.get("/turns")).text


async def test_who_is_neither_operator_nor_viewer_gets_no_cookie(browser: Browser) -> None:
    answer = await browser.signs_in("otto")
    assert answer.status_code == 403
    assert "otto is not among those who may look here" in answer.text
    assert "threadtree" not in browser.client.cookies


async def test_a_sign_in_ends_only_in_the_browser_that_began_it_and_once(
    browser: Browser, site: Site, app: Starlette
) -> None:
    other = Browser(site, app)
    back = await other.agrees(await other.begins(), "olga")
    assert (await browser.get(back, 403)).headers.get("set-cookie") is None, "no cookie of a sign-in"
    await browser.begins()
    refused = await browser.get(back, 403)
    assert "This browser did not begin this sign-in" in refused.text
    assert "threadtree" not in browser.client.cookies
    assert (await other.get(back, 303)).headers["location"] == "/"
    await other.get(back, 403)
    assert "threadtree-sign-in" not in other.client.cookies
    again = await browser.agrees(await browser.begins(), "olga")
    state = parse_qs(urlsplit(again).query)["state"][0]
    for wrong in (f"/login/callback?code=x&state={state}x", "/login/callback?code=x", "/login/callback?state="):
        await browser.get(wrong, 403)
    stolen = parse_qs(urlsplit(back).query)["code"][0]
    await browser.get(f"/login/callback?code={stolen}&state={state}", 403)


async def test_a_code_of_another_browser_s_sign_in_is_refused_by_github(
    browser: Browser, site: Site, app: Starlette
) -> None:
    other = Browser(site, app)
    code = parse_qs(urlsplit(await other.agrees(await other.begins(), "olga")).query)["code"][0]
    own = parse_qs(urlsplit(await browser.begins()).query)
    assert own["code_challenge_method"] == ["S256"]
    assert "redirect_uri" not in own
    assert "scope" not in own
    answer = await browser.get(f"/login/callback?code={code}&state={own['state'][0]}", 403)
    assert "GitHub did not accept the code" in answer.text


async def test_a_sign_in_that_takes_too_long_or_is_cancelled_leads_back_to_the_login(
    browser: Browser, site: Site
) -> None:
    back = await browser.agrees(await browser.begins(), "")
    assert "GitHub was not allowed to tell who you are." in (await browser.get(back, 403)).text
    back = await browser.agrees(await browser.begins(), "olga")
    site.clock.move(11 * 60)
    assert "Begin again" in (await browser.get(back, 403)).text


async def test_while_github_is_away_nobody_signs_in_with_it(browser: Browser, site: Site) -> None:
    back = await browser.agrees(await browser.begins(), "olga")
    site.github.faults.add(FailBefore(), path="/login/oauth/access_token", times=None)
    assert "GitHub does not answer" in (await browser.get(back, 503)).text
    site.github.faults.clear()
    site.github.faults.add(FailBefore(), path="/orgs/*", times=None)
    assert (await browser.signs_in("wanda")).status_code == 503, "nobody knows whether she is in the team"
    await browser.client.post("/login", data={"token": TOKEN})
    await browser.get("/turns/3")


async def test_cookies_are_out_of_reach_and_end(browser: Browser, site: Site, app: Starlette) -> None:
    secure = Browser(site, app, "https")
    back = await secure.agrees(await secure.begins(), "olga")
    kept = httpx.Cookies(secure.client.cookies)
    secure.client.cookies.set("threadtree", "fixed-by-a-stranger", domain="threadtree.test")
    answer = await secure.get(back, 303)
    cookies = answer.headers.get_list("set-cookie")
    assert all("HttpOnly" in one and "SameSite=lax" in one and "Secure" in one for one in cookies)
    assert any(one.startswith("threadtree=") and "Max-Age=43200" in one for one in cookies)
    assert site.github.client.secret not in str(cookies) + str(kept)
    own = secure.client.cookies["threadtree"]
    assert own != "fixed-by-a-stranger"
    await browser.signs_in("olga")
    assert browser.client.cookies["threadtree"] != own
    for forged in (own.replace(".olga.", ".otto."), own.replace(".olga.", ".."), kept["threadtree-sign-in"]):
        browser.client.cookies = httpx.Cookies({"threadtree": forged})
        await browser.get("/turns", 303)
    browser.client.cookies = httpx.Cookies({"threadtree": own})
    await browser.get("/turns")
    site.clock.move(12 * 3600)
    await browser.get("/turns", 303)
