"""The dashboard in a real browser: a turn followed live, changes with their question, every page on every screen.

`SCREENSHOTS=FOLDER make test ARGS=tests/end_to_end/test_dashboard_browser.py` leaves pictures of the pages there.
"""

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Dialog, Page, Request, ViewportSize, async_playwright, expect

from bot.operator.dashboard.app import VIEWS
from bot.simulated.github.server import SimulatedGitHub
from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKEN = "a-token-of-the-tests-long-enough"
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
PATIENCE_MILLISECONDS = 60_000
DESK: ViewportSize = {"width": 1280, "height": 800}
SMALL: ViewportSize = {"width": 390, "height": 844}
TELEPHONE: ViewportSize = {"width": 360, "height": 740}
SCREENS: tuple[tuple[ViewportSize, Literal["light", "dark"]], ...] = ((DESK, "light"), (TELEPHONE, "dark"))
LIVE = "<img src=http://elsewhere.test/x onerror=alert(1)><script>alert(1)</script>"
# What an agent or a stranger can write, in every column of text that they reach.
HOSTILE = """
update requests set ask = jsonb_set(ask, '{by,login}', '"LIVE"');
update turns set agent = 'LIVE', model = 'LIVE', reason = 'LIVE', plan = '{pending LIVE}';
update conversations set title = 'LIVE';
update worktrees set branch = 'LIVE' where state <> 'removed';
update nodes set name = 'LIVE';
update turns set answer = 'LIVE', notices = '{LIVE}', read = '{LIVE}';
insert into steps (turn_id, place, words, output) select id, 900, 'LIVE', 'LIVE' from turns
""".replace("LIVE", LIVE)
FAIL = """
-- The oldest delivery was handled, so that nothing is done when it is replayed.
update deliveries set state = 'failed', error = $1 where seq = (select min(seq) from deliveries) returning guid
"""


@dataclass
class Tab:
    """A page of the browser, and what went wrong in it."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)

    async def opens(self, path: str) -> None:
        await self.page.goto(self.url + path)

    async def signs_in(self, token: str = TOKEN) -> None:
        await self.page.get_by_label("Token").fill(token)
        await self.page.get_by_role("button", name="Sign in").click()

    async def signs_in_with_github(self, login: str) -> None:
        """Go to GitHub, agree there as this person, and come back."""
        await self.page.get_by_role("link", name="Sign in with GitHub").click()
        await self.page.get_by_role("link", name=login, exact=True).click()
        await expect(self.page.get_by_role("button", name="Sign out")).to_be_visible()
        self.problems[:] = [one for one in self.problems if "/login/oauth/authorize?" not in one]

    async def sees(self, *words: str) -> None:
        for some in words:
            await expect(self.page.locator("main")).to_contain_text(some)

    async def is_shown(self, name: str) -> None:
        """Leave a picture of the page for a person, if asked: pictures take a third of the longest test."""
        if folder := os.environ.get("SCREENSHOTS"):
            await self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    async def presses(self, words: str) -> None:
        await self.page.get_by_role("button", name=words, exact=True).click()

    def _requested(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.problems.append(f"a request to {request.url}")

    async def _asked(self, dialog: Dialog) -> None:
        self.problems.append(f"a script ran: {dialog.message}")
        await dialog.dismiss()

    def watch(self) -> None:
        self.page.on("request", self._requested)
        self.page.on("dialog", self._asked)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on(
            "console", lambda said: self.problems.append(said.text) if said.type in ("error", "warning") else None
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Yield the one browser of these tests."""
    if shutil.which(CHROMIUM) is None:
        pytest.fail("The dashboard is tested in a browser: install Debian's package `chromium`.")
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        await running.close()


@asynccontextmanager
async def tab_of(browser: Browser, url: str, *, signed_in: bool = True, **options: Any) -> AsyncIterator[Tab]:
    """Open a tab of a browser without cookies; at the end nothing may have gone wrong in it."""
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    tab = Tab(await context.new_page(), url)
    tab.watch()
    if signed_in:
        await tab.opens("/login")
        await tab.signs_in()
        await tab.sees("Overview")
    yield tab
    assert tab.problems == []
    await context.close()


async def test_a_request_is_followed_from_start_to_end_and_stopped_without_a_reload(
    browser: Browser, a_world: Worlds
) -> None:
    async with a_world({"ADMIN_TOKEN": TOKEN}) as world, tab_of(browser, world.pair.url, signed_in=False) as tab:
        page = tab.page
        await tab.opens("/turns")
        await tab.signs_in("wrong")
        await tab.sees("This is not the ADMIN_TOKEN.")
        tab.problems.clear()  # the browser tells of the status 401
        await tab.signs_in()
        await expect(page).to_have_url(re.compile("/turns$"))
        await tab.opens("/")
        await tab.sees("Overview")
        await page.evaluate("window.isSameDocument = true")

        issue = await world.maria.opens_issue(LIVE)
        gates = [world.gate(), world.gate()]
        await issue.says(
            f"@threadtree-bot plan Read {LIVE} | Test\nsay I read {LIVE}.\nwrite b.txt: {LIVE}\ncommit Add {LIVE}\n"
            f"wait {gates[0]}\nsay I test.\nwait {gates[1]}\nsay **Finished.**\nsay Commit: Add a file"
        )
        await tab.sees("acme/shop#1", "maria", f"Read {LIVE}", f"I read {LIVE}.", f"Wait for {gates[0]}")
        await expect(page.locator("main").get_by_text(re.compile(r"\d s\b")).first).to_be_visible()
        await tab.is_shown("running")
        async with tab_of(browser, tab.url) as other:
            await other.opens("/turns/1")
            await other.page.get_by_text(re.compile("output, ")).first.click()
            await other.sees("file changed, 1 insertion")
            gates[0].open()
            await other.sees("I test.", f"Wait for {gates[1]}", "file changed, 1 insertion")
        await tab.sees("I test.", f"Wait for {gates[1]}")
        gates[1].open()
        await expect(page.get_by_role("region", name="Running")).not_to_contain_text("acme/shop#1")
        assert await page.evaluate("window.isSameDocument"), "the page was loaded again"
        await issue.hears("Finished.")
        await page.get_by_role("link", name=re.compile("^plan Read")).first.click()
        await expect(page.locator(".answer strong")).to_have_text("Finished.")
        await tab.sees(f"Add {LIVE}", f"added: {LIVE}", "diff on GitHub", "read: the title")
        await expect(page.locator(".said.answer")).not_to_contain_text("Commit:")
        await tab.is_shown("done")
        assert await live_elements(page) == []

        second = world.gate()
        await issue.says(f"@threadtree-bot write a.txt: <b>\nwait {second}")
        await tab.opens("/")
        await page.get_by_role("link", name=re.compile("^write a.txt")).first.click()
        await tab.sees("running", f"Wait for {second}")
        await page.evaluate("window.isSameDocument = true")
        async with tab_of(browser, tab.url) as other:
            await other.opens("/turns/2")
            await other.page.locator("#stop").click()
            await other.sees("Stop turn 2?")
            await other.is_shown("stop")
            await other.presses("Stop it")
            await other.sees("Turn 2 is being stopped.")
        await tab.sees("stopped", "Stopped by the operator.", "Ask again")
        assert await page.evaluate("window.isSameDocument"), "the page was loaded again"
        await issue.hears("**Stopped** by the operator.")
        second.open()
        await tab.is_shown("stopped")
        assert await live_elements(page) == []

        await tab.presses("Sign out")
        await expect(page).to_have_url(re.compile("/login$"))
        await tab.opens("/turns/2")
        await expect(page).to_have_url(re.compile("/login"))


async def worked_on(world: World) -> Talk:
    """Return a thread whose worktree has work that GitHub lacks, beside a delivery that failed."""
    issue = await world.maria.opens_issue("Slow work")
    await issue.says("@threadtree-bot write a.txt: one\nsay Written.")
    await issue.hears("Written.")
    [worktree] = await world.worktrees("path")
    write(worktree, "by-hand.txt", "not committed\n")
    return issue


def write(worktree: str, name: str, text: str) -> None:
    """Leave a file in the worktree, as a person does."""
    Path(worktree, name).write_text(text)


async def test_a_worktree_is_reset_and_restored_and_a_delivery_replayed(browser: Browser, a_world: Worlds) -> None:
    async with a_world({"ADMIN_TOKEN": TOKEN}) as world:
        await worked_on(world)
        [worktree] = await world.worktrees("path")
        # Without JavaScript: every form and every page works as well.
        async with tab_of(browser, world.pair.url, java_script_enabled=False) as tab:
            await tab.opens("/worktrees")
            await tab.sees("acme/shop#1", "threadtree/issue-1")
            await tab.opens("/worktrees/1/reset")
            await tab.sees("Reset worktree 1?", "rescued first")
            await tab.is_shown("reset")
            await tab.presses("Reset it")
            await tab.sees("Worktree 1 will be reset.")
            await world.until("exists (select from turns where id = 2 and state = 'done')")
            assert world.text_of(worktree, "by-hand.txt") is None
            await tab.opens("/rescues")
            await tab.sees("acme/shop")
            await tab.is_shown("rescues")
            await tab.opens("/worktrees/1/restore")
            await tab.presses("Restore it")
            await world.until("exists (select from turns where id = 3 and state = 'done')")
            assert world.text_of(worktree, "by-hand.txt") == "not committed\n"
            await tab.opens("/turns/3")
            await tab.sees("restore", "done")
            await tab.opens("/worktrees")
            await tab.page.get_by_role("link", name="Prune: worktrees").click()
            await tab.page.get_by_label("Only what was not used").fill("0s")
            await tab.presses("Only show what would be removed")
            await world.until("exists (select from operations where kind = 'prune' and state = 'done')")
            await tab.page.reload()
            await tab.sees("What a prune would remove", "1 would be removed, 0 kept, 0 failed")
            await tab.is_shown("prune-shown")
            assert world.text_of(worktree, "by-hand.txt") == "not committed\n"
            await tab.presses("Remove these")
            await world.until("2 = (select count(*) from operations where kind = 'prune' and state = 'done')")
            await tab.page.reload()
            await tab.sees("1 removed, 0 kept, 0 failed")
            assert world.text_of(worktree, "by-hand.txt") is None

        guid = await world.database.fetchval(FAIL, "GitHub answered 502")
        async with tab_of(browser, world.pair.url) as tab:
            await tab.opens(f"/deliveries/{guid}")
            await tab.sees("GitHub answered 502")
            await tab.opens(f"/deliveries/{guid}/replay")
            await tab.presses("Replay it")
            await tab.sees(f"Delivery {guid} is handled again.")
            await world.until("not exists (select from deliveries where state in ('failed', 'received'))")
        await world.quiet()
        for talk in world.talks:
            await talk.hears_all()


async def test_every_page_fits_every_screen_and_runs_nothing_that_a_stranger_wrote(
    browser: Browser, a_world: Worlds
) -> None:
    async with a_world({"ADMIN_TOKEN": TOKEN}) as world:
        issue = await worked_on(world)
        await issue.says("/worktree reset")
        await issue.hears_all()
        gate = world.gate()
        await issue.says(f"@threadtree-bot wait {gate}")
        await issue.sees_working()
        await issue.says(f"@threadtree-bot say {LIVE}")
        await world.until("exists (select from turns where state = 'queued')")
        await world.database.execute(HOSTILE)
        guid = await world.database.fetchval(FAIL, LIVE)
        values = {"id": "1", "guid": guid, "owner": "acme", "name": "shop", "number": "1", "place": "1"}
        views = [view for view in VIEWS if view.method == "GET" and "{picture}" not in view.path]
        pages = [re.sub(r"{(\w+)}", lambda name: values[name[1]], view.path) for view in views]
        pages += ["/turns/2", "/turns/3", "/no-such-page"]
        grounds = set()
        async with tab_of(browser, world.pair.url) as tab:
            for path in pages:
                await tab.opens(path)
                assert await tab.page.locator("h1").count() == 1, path
                assert await live_elements(tab.page) == [], path
                name = path.strip("/").replace("/", "-").replace(guid, "guid") or "overview"
                # One load for both screens: that costs most.
                for size, scheme in SCREENS:
                    await tab.page.set_viewport_size(size)
                    await tab.page.emulate_media(color_scheme=scheme)
                    assert await fits(tab.page), f"{path} is wider than a screen of {size['width']}"
                    grounds.add(await tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
                    await tab.is_shown(f"{scheme}-{name}")
            tab.problems[:] = [one for one in tab.problems if not re.search("status of 40[34]", one)]
            await tab.page.set_viewport_size(DESK)
            await tab.opens("/")
            await reaches_stop_by_keyboard(tab)
        assert len(grounds) == len(SCREENS)
        await world.database.execute("update nodes set name = 'here'")
        gate.open()
        await world.quiet()
        await issue.hears_all()


async def test_people_sign_in_with_github_and_see_what_they_can_read_there(browser: Browser, a_world: Worlds) -> None:
    def sign_in(github: SimulatedGitHub) -> dict[str, str]:
        client = {"GITHUB_CLIENT_ID": github.client.id, "GITHUB_CLIENT_SECRET": github.client.secret}
        return {**client, "ADMIN_TOKEN": TOKEN, "DASHBOARD_OPERATORS": "olga", "DASHBOARD_VIEWERS": "acme/web"}

    async with a_world(sign_in) as world:
        # To a browser this is another site than GitHub, which is at 127.0.0.1.
        url = world.pair.url.replace("127.0.0.1", "localhost")
        world.github.client.callback_url = f"{url}/login/callback"
        secret = await world.github.create_repository("acme/secret", {"README.md": "# secret\n"})
        secret.allow(world.maria.user, "write")
        world.repository.allow(world.someone("victor").user, "read")
        world.someone("olga")
        world.github.put_in_team("acme/web", "victor")
        unseen = await world.maria.opens_issue("Unseen", repository=secret)
        await unseen.says("@threadtree-bot say Hidden.")
        await unseen.hears("Hidden.")
        issue = await world.maria.opens_issue("Seen")
        await issue.says("@threadtree-bot say Shown.")
        await issue.hears("Shown.")
        async with tab_of(browser, url, signed_in=False, viewport=DESK, color_scheme="light") as tab:
            await tab.opens("/turns")
            assert await fits(tab.page)
            await tab.is_shown("sign-in-desk")
        async with tab_of(browser, url, signed_in=False, viewport=SMALL, color_scheme="dark") as tab:
            await tab.opens("/turns")
            assert await fits(tab.page)
            await tab.is_shown("sign-in")
            await tab.signs_in_with_github("victor")
            await expect(tab.page).to_have_url(re.compile(f"{url}/turns$"))
            await tab.sees("say Shown.")
            await tab.opens("/turns/1")
            await tab.sees("Not found")
            await tab.opens("/")
            await tab.sees("No agent is at work.")
            await tab.page.evaluate("window.isSameDocument = true")
            gate = world.gate()
            await unseen.says("@threadtree-bot say Hidden as well.")
            await issue.says(f"@threadtree-bot plan Look around\nwait {gate}")
            await unseen.hears("Hidden as well.")
            await tab.sees("acme/shop#1", "Look around")
            assert await tab.page.evaluate("window.isSameDocument"), "the page was loaded again"
            await expect(tab.page.locator("main")).not_to_contain_text("acme/secret")
            await expect(tab.page.get_by_role("link", name=re.compile("Stop"))).to_have_count(0)
            assert await fits(tab.page)
            await tab.is_shown("viewer")
            await tab.presses("Sign out")
            await tab.signs_in_with_github("olga")
            await tab.sees("acme/secret", "acme/shop#1")
            await tab.is_shown("operator")
            await tab.page.get_by_role("link", name=re.compile("^Stop: turn")).click()
            await tab.presses("Stop it")
            await tab.sees("is being stopped.")
            tab.problems[:] = [one for one in tab.problems if "status of 404" not in one]
        gate.open()
        await issue.hears_all()


async def live_elements(page: Page) -> Any:
    """Return the elements that only foreign text can have brought."""
    return await page.evaluate("[...document.querySelectorAll('main img, script:not([src])')].map(e => e.outerHTML)")


async def fits(page: Page) -> bool:
    """Return whether nothing must be scrolled sideways."""
    return bool(await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


async def reaches_stop_by_keyboard(tab: Tab) -> None:
    """Press Tab until the link that stops the running turn has the focus, which must be seen."""
    focused: Any = None
    for _ in range(60):
        await tab.page.keyboard.press("Tab")
        focused = await tab.page.evaluate(
            "(e => ({id: e.id, words: e.innerText, outline: getComputedStyle(e).outlineStyle}))(document.activeElement)"
        )
        assert focused["outline"] != "none", f"the focus on {focused['words']!r} is not seen"
        if focused["id"].startswith("stop"):
            break
    assert focused["id"].startswith("stop")
    await tab.page.keyboard.press("Enter")
    await tab.sees("Stop turn")
