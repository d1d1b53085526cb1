"""The dashboard over HTTP: who may enter, forms of other sites, headers, and text that agents and strangers wrote."""

import html
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from bot.operator.api.app import api_routes
from bot.operator.api.calls import ApiContext, Calls
from bot.operator.api.events import News
from bot.operator.dashboard.app import VIEWS, dashboard_routes
from bot.operator.dashboard.login import Login
from bot.store.database import Pool, database
from tests.support.asks import ask
from tests.support.past import A_PAST
from tests.support.postgres import execute

KEPT_FOR = (timedelta(days=180), timedelta(hours=1))
TOKEN = "a-token-of-the-tests-long-enough"
FAILED = "22222222-aaaa-4bbb-8ccc-dddddddddddd"
VALUES = {
    "id": "1",
    "guid": FAILED,
    "owner": "octo",
    "name": "hello",
    "number": "1",
    "place": "1",
    "picture": "1-x.png",
}
SCRIPT = "<script>alert(1)</script>"
# What an agent or a stranger can write, in every column of text that they reach.
HOSTILE = """
update requests set ask = jsonb_set(ask || '{"text": "do SCRIPT"}', '{by,login}', '"SCRIPT"');
update turns set agent = 'SCRIPT', model = 'SCRIPT',
                 reason = case when state = 'done' then null else 'because of SCRIPT' end;
update turns set state = 'running', claim = gen_random_uuid(), worker = 'w', started_at = now(), worktree_id = 1,
                 finished_at = null
where id = 2;
update conversations set title = 'SCRIPT';
update worktrees set branch = 'SCRIPT' where id = 1;
update deliveries set error = 'SCRIPT';
update turns set phase = 'SCRIPT' where id = 2;
update nodes set name = 'SCRIPT', disk = '{"kept": 4096, "database": 8192, "rescues": 9}', disk_measured_at = now(),
    kept = '[{"name": "SCRIPT", "bytes": 4096, "created_at": "2026-05-02T12:00:00Z"}]';
update steps set output = 'SCRIPT';
insert into steps (turn_id, place, words, output) select id, 2, 'SCRIPT', 'SCRIPT' from turns;
insert into rescues (worktree_id, ref, conversations, branch, files, commits, bytes, created_at)
values (1, 'refs/threadtree/rescue/1/1', '{9}', 'SCRIPT', 2, 1, 4096, '2026-05-02 12:00Z');
insert into operations (node, kind, details, requested_by, state, outcome, finished_at)
select id, 'drop', '{"rescue": 1}', 'SCRIPT', 'failed', 'SCRIPT', now() from nodes;
insert into audit (person, channel, action, target, codebase, details, outcome)
values ('SCRIPT', 'API', 'SCRIPT', 'SCRIPT', 'SCRIPT', '{"SCRIPT": "SCRIPT"}', 'SCRIPT');
""".replace("SCRIPT", SCRIPT)
CHANGED = """
select (select count(*) from operations), (select count(*) from deliveries), (select count(*) from outbox),
       (select max(updated_at) from worktrees), (select count(*) from deliveries where state = 'received'),
       (select count(*) from turns where state in ('running', 'queued'))
"""
POSTS = [view.path for view in VIEWS if view.method == "POST" and not view.is_open]
READS = [view.path for view in VIEWS if view.method == "GET" and not view.is_open and "{picture}" not in view.path]


def address(path: str) -> str:
    return re.sub(r"{(\w+)}", lambda name: VALUES[name[1]], path)


@pytest_asyncio.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    await execute(database_url, A_PAST, HOSTILE)
    async with database(database_url, size=4) as opened:
        yield opened


class Browser:
    """A browser that keeps cookies and follows nothing."""

    def __init__(self, pool: Pool, database_url: str, directory: Path, *, scheme: str = "http") -> None:
        self.now = datetime.now(UTC)
        ctx = ApiContext(
            "github.com", "https://github.com", directory, timedelta(days=180), timedelta(hours=1), lambda: self.now
        )
        calls, news = Calls(pool, ctx), News(database_url)
        app = Starlette(
            routes=[*api_routes(calls, TOKEN, news), *dashboard_routes(calls, Login(ctx.clock, TOKEN), news)]
        )
        transport = httpx.ASGITransport(app)
        self.client = httpx.AsyncClient(transport=transport, base_url=f"{scheme}://threadtree.test")

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.client.get(path, **more)

    async def post(self, path: str, **more: Any) -> httpx.Response:
        return await self.client.post(path, **more)

    async def sign_in(self, token: str = TOKEN, path: str = "/login") -> httpx.Response:
        return await self.post(path, data={"token": token})

    async def form_token(self) -> str:
        found = re.search(r'name="form_token" value="([0-9a-f]{64})"', (await self.get("/nodes")).text)
        assert found
        return found[1]


@pytest.fixture
def browser(pool: Pool, database_url: str, tmp_path: Path) -> Browser:
    return Browser(pool, database_url, tmp_path)


@pytest_asyncio.fixture
async def inside(browser: Browser) -> Browser:
    assert (await browser.sign_in()).status_code == 303
    return browser


def headers_are_safe(answer: httpx.Response) -> bool:
    policy = answer.headers["content-security-policy"]
    return (
        policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        and "unsafe" not in policy
        and answer.headers["x-content-type-options"] == "nosniff"
        and answer.headers["referrer-policy"] == "no-referrer"
        and answer.headers["cache-control"] == "no-store"
    )


async def test_a_stranger_is_sent_to_the_login_from_every_page_and_changes_nothing(
    browser: Browser, pool: Pool
) -> None:
    before = await pool.fetchrow(CHANGED)
    for cookie in (None, "x", "9999999999.x.y", TOKEN, "9999999999." + "0" * 64):
        if cookie:
            browser.client.cookies = httpx.Cookies({"threadtree": cookie})
        for view in VIEWS:
            if not view.is_open:
                answer = await browser.client.request(view.method, address(view.path))
                assert answer.status_code == 303, view
                assert answer.headers["location"].partition("?")[0] == "/login"
                assert headers_are_safe(answer)
        assert (await browser.get("/events")).status_code == 303
        assert (await browser.get("/nonsense")).status_code == 303
    for host in ("threadtree.test/login", "threadtree.test/login?", "x/static/", "/login", "login", "[", ""):
        for path in ("/", "/turns/1", "/events"):
            assert (await browser.get(path, headers={"Host": host})).status_code in (303, 400), host
    refreshing = await browser.get("/", headers={"HX-Request": "true"})
    assert (refreshing.status_code, refreshing.headers["hx-redirect"]) == (401, "/login")
    assert await pool.fetchrow(CHANGED) == before


async def test_a_page_shows_foreign_text_as_text_and_has_safe_headers(inside: Browser) -> None:
    for path in READS:
        answer = await inside.get(address(path), follow_redirects=True)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert headers_are_safe(answer)
        assert "<script>" not in answer.text
        assert " style=" not in answer.text
        assert not re.search(r"\son\w+=|javascript:", answer.text)
        links = re.findall(r'(?:href|src|action|hx-get|sse-connect)="([^"]*)"', answer.text)
        assert all(re.match(r"/(?!/)|#|https://github\.com/octo/|\?", link) for link in links), links


async def test_a_form_of_another_site_changes_nothing(inside: Browser, pool: Pool) -> None:
    for path in POSTS:
        await inside.sign_in()  # one of the forms signs out
        before = await pool.fetchrow(CHANGED)
        good = {"form_token": await inside.form_token()}
        for data in ({}, {"form_token": ""}, {"form_token": "0" * 64}, {"form_token": "é\udcff"[:1]}):
            assert (await inside.post(address(path), data=data)).status_code == 403
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "https://evil.test"},
            {"Origin": "http://["},
        ):
            assert (await inside.post(address(path), data=good, headers=headers)).status_code == 403
        assert (await inside.post(address(path), content=b"\xff")).status_code == 400
        assert (await inside.post(address(path), content=b"x" * 5000)).status_code == 413
        assert await pool.fetchrow(CHANGED) == before
        accepted = await inside.post(address(path), data=good, headers={"Sec-Fetch-Site": "same-origin"})
        assert accepted.status_code in (303, 400, 409), "400: a field is missing"


async def test_unknown_things_and_methods_are_told_on_a_page(inside: Browser) -> None:
    for path, status in (
        *(("/turns/99", 404), ("/turns/x", 404), ("/turns/%00", 404), ("/turns/99999999999999999999", 404)),
        *(("/worktrees/x/reset", 404), ("/deliveries/none", 404), ("/operations/99", 404), ("/nonsense", 404)),
        *(("/turns/1/pictures/1-x.png", 404), ("/turns/99/pictures/1-x.png", 404), ("/turns/x/pictures/x", 404)),
        *(("/turns/", 404), ("/static/nonsense", 404), ("/static/%2e%2e%2fapp.py", 404)),
        *(("/turns?state=nonsense", 400), ("/turns?repo=x", 400)),
        *(("/turns?after=x", 400), ("/turns?nonsense=1", 400)),
    ):
        answer = await inside.get(path)
        assert (answer.status_code, headers_are_safe(answer)) == (status, True), path
    for view in VIEWS:
        assert (await inside.client.request("PUT", address(view.path))).status_code == 405


async def test_pages_tell_what_a_turn_does_before_its_agent_and_what_is_kept_until_when(inside: Browser) -> None:
    for path in ("/", "/turns/2"):
        assert f'<p class="phase">{html.escape(SCRIPT)}</p>' in (await inside.get(path)).text
    rescues = (await inside.get("/rescues")).text
    assert "Kept without a worktree" in rescues
    assert rescues.count(">2026-10-29<") == 2


async def test_the_disk_is_that_of_the_command_line_with_the_database(inside: Browser) -> None:
    for path in ("/", "/nodes"):
        assert "12.3 kB" in (await inside.get(path)).text, "rescues are in the clones"


async def test_the_last_days_are_drawn_also_where_no_request_ran(inside: Browser, pool: Pool) -> None:
    assert "Last 14 days" not in (await inside.get("/")).text
    await pool.execute("update turns set finished_at = now(), started_at = null where id = 1")
    refused = (await inside.get("/")).text
    assert "1 turn, 100 % done" in refused
    assert "half within" not in refused
    await pool.execute("update turns set started_at = finished_at - interval '90 s' where id = 1")
    assert "half within 1 min 30 s" in (await inside.get("/")).text


BOARD = """
update conversations set pull_request = 4 where id = 2;
insert into pull_requests (platform, repository_id, number, branch, closes, titles, texts, check_at)
values ('github.com', 1, 4, 'threadtree/issue-1', 1, '{Mend}', '{}', now()),
       ('github.com', 2, 12, 'threadtree/issue-9', 9, '{Mend it}', '{}', now()),
       ('github.com', 2, 11, 'threadtree/issue-9', 9, '{Mend it,Greet people}', '{}', null);
insert into conversations (platform, repository_id, number, kind, title)
values ('github.com', 2, 20, 'issue', 'Export orders');
insert into turns (conversation_id, state, requested_by_id, started_at, finished_at, pushed_to, pushed_head,
                   queue_platform, queue_repository_id, cost_usd, outcome)
values (2, 'done', 7, now(), now(), 'threadtree/issue-1', 'aa', 'github.com', 1, 0.25, null),
       (null, 'done', 7, now(), now(), 'threadtree/issue-9', 'bb', 'github.com', 2, 0.5, null),
       (4, 'done', 7, now(), now(), null, null, 'github.com', 2, 0.75, '{"came": "question", "asked": true}');
insert into outcomes (platform, repository_id, number, branch, opened_at, closed_at, merged, rewritten)
values ('github.com', 2, 11, 'threadtree/issue-9', now() - interval '3 d', now() - interval '2 d', true, false),
       ('github.com', 2, 10, 'threadtree/issue-9', now() - interval '30 d', now() - interval '20 d', true, false);
"""
MORE = f"""
insert into conversations (platform, repository_id, number, kind, title)
select 'github.com', 2, n, 'issue', 'Thread ' || n from generate_series(100, 599) n;
insert into turns (conversation_id, state, requested_by_id, queue_platform, queue_repository_id, started_at,
                   finished_at, pushed_to, pushed_head)
select c.id, case when i = 20 and c.number < 200 then 'queued' else 'done' end, 8, 'github.com', 2, now(),
       case when i = 20 and c.number < 200 then null else now() end, 'threadtree/issue-' || c.number, 'cc'
from conversations c, generate_series(1, 20) i where c.number >= 100;
insert into requests (turn_id, conversation_id, ask)
select t.id, t.conversation_id, {ask("more", "bob", "issue")} from turns t left join requests r on r.turn_id = t.id
where r.turn_id is null;
insert into pull_requests (platform, repository_id, number, branch, closes, titles, texts, check_at)
select 'github.com', 2, n + 1000, 'threadtree/issue-' || n, n, '{{}}', '{{}}', now() from generate_series(200, 399) n;
insert into outcomes (platform, repository_id, number, branch, opened_at, closed_at, merged, rewritten)
select 'github.com', 2, n + 1000, 'threadtree/issue-' || n, now(), now(), true, false from generate_series(400, 599) n;
analyze;
"""  # noqa: S608 -- a test's own


def lanes(page: str) -> dict[str, str]:
    """Return the words of each lane of the board, without tags."""
    found = re.findall(r'<section class="lane" aria-labelledby="([\w-]+)">(.*?)</section>', page, re.DOTALL)
    return {name: " ".join(re.sub(r"<[^>]+>", " ", words).split()) for name, words in found}


async def test_the_board_shows_each_thread_once_in_the_first_lane_that_fits(inside: Browser, pool: Pool) -> None:
    await pool.execute(BOARD)
    await pool.execute(
        f"insert into requests (turn_id, conversation_id, ask) select t.id, t.conversation_id, {ask('push it')} "  # noqa: S608
        "from turns t left join requests r on r.turn_id = t.id where r.turn_id is null"
    )
    shown = lanes((await inside.get("/")).text)
    assert list(shown) == ["running", "for-you", "review", "merged"]
    assert shown["running"].startswith("Running 2 "), "what runs, and what waits in line"
    assert "octo/hello#4" in shown["running"]
    assert "octo/hello" not in shown["review"], "its pull request is worked on now"
    assert shown["for-you"].startswith("Waits for you 1 Export orders push it · octo/world#20 ")
    assert "Answer the question" in shown["for-you"]
    assert "question 0 s ago ada $0.75" in shown["for-you"]
    assert shown["review"].startswith("In review 1 push it")
    outcomes = re.sub(r"<[^>]+>", " ", (await inside.get("/outcomes")).text).split()
    assert re.search("Open Pull request Check Age .* octo/hello#4 .*Closed in the last", " ".join(outcomes))
    assert "Greet people octo/world#11" in " ".join(outcomes)
    assert "Greet people octo/world#11" in shown["merged"], "the title that the bot gave last"
    assert "octo/world#10" not in shown["merged"], "that was long ago"


async def test_checks_are_dots_and_a_share_of_each_repository(inside: Browser, pool: Pool) -> None:
    await pool.execute(BOARD)
    await pool.execute("""
        update turns set outcome = jsonb_build_object('came', 'changed', 'check', jsonb_build_object(
            'state', case id when 1 then 'failed' else 'passed' end, 'tests', 3, 'failed', 2, 'new', 1, 'skipped', 0,
            'seconds', 12)) where id in (1, 4)
    """)
    page = (await inside.get("/")).text
    assert '50 %<span class="sub brief">of 2</span>' in page
    assert re.findall(r'Turn (\d): </span><span class="check check-(\w+)"', page.replace("\n", "")) == [
        ("4", "passed"),
        ("1", "failed"),
    ]
    turn = (await inside.get("/turns/1")).text
    assert "check failed: 2 of 3 tests, 1 new, 12 s" in turn
    assert "state-failed" in turn, "done, and not green"


async def test_a_thread_and_its_pull_requests_are_one_story(inside: Browser, pool: Pool) -> None:
    await pool.execute(BOARD)
    await pool.execute("""
        insert into outcomes (platform, repository_id, number, branch, opened_at, closed_at, merged, rewritten)
        values ('github.com', 1, 4, 'threadtree/issue-1', '2026-05-01 10:07Z', '2026-05-01 10:20Z', true, false);
        update turns set created_at = '2026-05-01 10:06Z' where id = 2;
        delete from turns where id > 3
    """)
    for number in (1, 4):
        page = (await inside.get(f"/conversations/octo/hello/{number}", follow_redirects=True)).text
        told = re.findall(r'<li class="event-([\w-]+)">', page)
        assert told == ["running", "merged", "opened", "asked", "failed", "asked"], "done, but its check failed"
        assert "Mend was merged" in page
    unasked = await inside.get("/conversations/octo/world/11")
    assert unasked.headers["location"] == "/conversations/3", "its pull request has no thread of its own yet"
    assert (await inside.get("/conversations/octo/world/13")).status_code == 404


async def test_the_board_asks_the_database_as_often_at_any_size(inside: Browser, pool: Pool) -> None:
    async def asked() -> list[str]:
        statements: list[str] = []
        opened = [await pool.acquire() for _ in range(4)]
        for connection in opened:
            connection.add_query_logger(lambda record: statements.append(record.query))
        for connection in opened:
            await pool.release(connection)
        page = (await inside.get("/")).text
        for connection in [await pool.acquire() for _ in range(4)]:
            connection._con._query_loggers.clear()
            await pool.release(connection)
        assert "</html>" in page
        return statements

    few = await asked()
    await pool.execute(MORE)
    many = await asked()
    assert len(many) == len(set(many)), "nothing is asked for each of several"
    assert set(many) <= set(few)
    page = (await inside.get("/")).text
    assert "20+" in lanes(page)["running"]
    assert page.count('class="card"') <= 20 + 3 * 6


async def test_a_prune_is_shown_first_and_done_from_the_page_that_shows_it(inside: Browser, pool: Pool) -> None:
    form = (await inside.get("/worktrees/prune?older_than=30d&kind=branch")).text
    assert 'name="older_than" value="30d"' in form
    assert "<option selected>branch</option>" in form
    assert '<button class="primary" name="dry_run" value="true">' in form
    token = await inside.form_token()
    asked = {"form_token": token, "older_than": "30d", "repo": "", "kind": "branch", "dry_run": "true"}
    answer = await inside.post("/worktrees/prune", data=asked)
    page = answer.headers["location"]
    assert "Remove these" not in (await inside.get(page)).text, "the node has not said yet what would go"
    line = {"id": 1, "path": SCRIPT, "why": SCRIPT, "bytes": 4096}
    report = {"dry_run": True, "deleted": [line], "skipped": [], "errors": [], "bytes_reclaimed": 4096, "aborted": None}
    ended = "update operations set state = 'done', outcome = 'It ended.', finished_at = now(), report = $1"
    await pool.execute(f"{ended} where node is not null", json.dumps(report))
    shown = (await inside.get(page)).text
    assert "would remove" in shown
    assert "Remove these" in shown
    assert "<script>" not in shown
    given = dict(re.findall(r'<input type="hidden" name="(\w+)" value="(\w+)">', shown))
    assert given == {"form_token": token, "older_than": "30d", "kind": "branch"}
    assert (await inside.post("/worktrees/prune", data=given)).status_code == 303
    details = await pool.fetchval("select details from operations order by id desc limit 1")
    assert json.loads(details) == {"older_than": "30d", "kind": "branch"}


async def test_an_orphan_has_a_row_and_is_removed_or_restored_after_a_question(inside: Browser, pool: Pool) -> None:
    path = "worktrees/octo/hello/stray"
    orphan = await pool.fetchval("insert into orphans select id, $1 from nodes limit 1 returning id", path)
    listed = (await inside.get("/worktrees")).text
    token = await inside.form_token()
    for verb in ("restore", "remove"):
        address = f"/worktrees/{orphan}/{verb}"
        assert f'href="{address}"' in listed
        assert f"{path}, an orphan on the node" in (await inside.get(address)).text
        asked = await inside.post(address, data={"form_token": token})
        assert f"{verb.capitalize()} an orphan" in (await inside.get(asked.headers["location"])).text


async def test_signing_in_and_out(browser: Browser) -> None:
    assert (await browser.sign_in("wrong")).status_code == 401
    answer = await browser.sign_in(path="/login?next=/turns/1")
    assert answer.headers["location"] == "/turns/1"
    cookie = answer.headers["set-cookie"]
    assert all(words in cookie for words in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=43200"))
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    for path in (
        *("//evil.test", "//evil", "//2130706433", "///x", "https://evil.test", "/\\evil.test"),
        *("/turns\r\n", "javascript:x"),
    ):
        answer = await browser.sign_in(path=str(httpx.URL("/login", params={"next": path})))
        assert answer.headers["location"] == "/"
    kept = httpx.Cookies(browser.client.cookies)
    assert (await browser.get("/turns")).status_code == 200
    await browser.post("/logout", data={"form_token": await browser.form_token()})
    assert not browser.client.cookies
    browser.client.cookies = kept
    assert (await browser.get("/turns")).status_code == 303, "the cookie is no longer valid"


async def test_a_cookie_is_secure_over_https_and_ends(pool: Pool, database_url: str, tmp_path: Path) -> None:
    browser = Browser(pool, database_url, tmp_path, scheme="https")
    assert "Secure" in (await browser.sign_in()).headers["set-cookie"]
    behind = Browser(pool, database_url, tmp_path)
    answer = await behind.post("/login", data={"token": TOKEN}, headers={"X-Forwarded-Proto": "https"})
    assert "Secure" in answer.headers["set-cookie"]
    assert (await browser.get("/")).status_code == 200
    browser.now = datetime.fromtimestamp(browser.now.timestamp() + 12 * 3600 + 1, UTC)
    assert (await browser.get("/")).status_code == 303


async def test_many_wrong_tokens_are_refused_and_the_right_one_always_enters(browser: Browser) -> None:
    answers = [(await browser.sign_in("wrong")).status_code for _ in range(12)]
    assert answers == [401] * 10 + [429] * 2
    assert (await browser.sign_in()).status_code == 303, "strangers must not keep the operator out"
    browser.now = datetime.fromtimestamp(browser.now.timestamp() + 60, UTC)
    assert (await browser.sign_in("wrong")).status_code == 401
