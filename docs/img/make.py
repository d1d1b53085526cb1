"""Make the pictures of this folder: play the demo, and photograph its pages with Chromium.

    apt-get install chromium fonts-noto-color-emoji    # once
    .venv/bin/pip install pillow
    make pictures

The demo is the one that people see; it is not shortened, and no page is edited.
"""

import asyncio
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import cast

from PIL import Image, ImageDraw, ImageFont
from playwright.async_api import Page, async_playwright

from bot.demo import main_job, nothing_is_lost, waits_for_you
from bot.demo.command import choose_sandbox
from bot.demo.pair import running_bot, settings_for
from bot.demo.report import Report
from bot.demo.stage import Stage
from bot.logs import configure_logs
from bot.postgres.embedded import embedded_postgres
from bot.settings import read
from bot.simulated.github.model import Comment, Issue
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub
from bot.store.migrate import migrate

FOLDER = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT, STRIP = 960, 560, 40
SAYS = {
    1: "A person mentions the bot, and is heard within two seconds",
    5: "A request in a repository with a check",
    8: "/plan asks for a plan first",
}
ANSWERS = {
    1: "The answer: what changed, and where to look",
    5: "The host ran the repository's check on what it pushed",
    7: "A check that fails is told, with the names of the tests",
    8: "The plan waits for /approve; no file was changed",
}


@dataclass
class Film:
    """Pictures of a page, each with words below and its time."""

    page: Page
    frames: list[Image.Image] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    async def takes(self, url: str, words: str, seconds: float, *, bottom: bool = False) -> None:
        await self.page.goto(url)
        if bottom:
            await self.page.evaluate(
                "document.querySelector('#posts')?.lastElementChild?.scrollIntoView({block: 'end'})"
            )
        taken = Image.open(BytesIO(await self.page.screenshot())).convert("RGB")
        frame = Image.new("RGB", (WIDTH, HEIGHT + STRIP), "#1f2328")
        frame.paste(taken.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS), (0, 0))
        ImageDraw.Draw(frame).text((16, HEIGHT + 9), words, "white", ImageFont.load_default(18))
        self.frames.append(frame)
        self.times.append(int(seconds * 1000))

    def save(self, path: Path) -> None:
        first, *others = self.frames
        first.save(path, save_all=True, append_images=others, duration=self.times, loop=0, quality=60, method=6)


@dataclass
class Filmed(Stage):
    """The demo's stage, with a camera beside it."""

    film: Film | None = None

    def at(self, thread: Issue) -> str:
        return f"{self.github.server_url}/acme/shop/issues/{thread.number}"

    async def says(self, person: Person, thread: Issue, words: str) -> Comment:
        comment = await Stage.says(self, person, thread, words)
        if self.film and thread.number in SAYS and len(thread.comments) == 1:
            await self.github.wait_for(lambda: bool(comment.reactions), 60)
            await self.film.takes(self.at(thread), SAYS[thread.number], 1.5)
            if thread.number == 1:
                await self.github.wait_for(lambda: any("- [" in one.body for one in thread.comments), 60)
                await self.film.takes(self.at(thread), "One comment follows the work", 1.5, bottom=True)
        return comment

    async def answer(self, thread: Issue, turn: int) -> Comment:
        comment = await Stage.answer(self, thread, turn)
        if self.film and thread.number in ANSWERS and turn in {1, 10, 12, 13}:
            await self.film.takes(self.at(thread), ANSWERS[thread.number], 2.2, bottom=True)
        return comment


async def main() -> None:
    configure_logs(level="error")
    report = Report(json=False)
    with tempfile.TemporaryDirectory(prefix="threadtree-pictures-") as name:
        folder, path = Path(name), read(dotenv=None)[0].path
        sandboxed = choose_sandbox("auto", folder, path, report)
        token = secrets.token_hex(16)
        async with (
            embedded_postgres(folder / "postgres", None) as dsn,
            SimulatedGitHub.running(folder / "github", lambda: datetime.now(UTC)) as github,
            async_playwright() as playwright,
        ):
            await migrate(dsn)
            settings = settings_for(github, folder / "data", path, ADMIN_TOKEN=token, **sandboxed)
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            async with running_bot(github, settings, dsn) as pair:
                stage = cast(Filmed, await Filmed.set_up(pair, report))
                stage.film = film = Film(page)
                for story in (main_job, nothing_is_lost, waits_for_you):
                    await story.tell(stage)
                if not report.held:
                    raise SystemExit("The demo does not hold.")
                await page.goto(f"{pair.url}/login")
                await page.get_by_label("Token").fill(token)
                await page.get_by_role("button", name="Sign in").click()
                await page.wait_for_url(f"{pair.url}/")
                await page.set_viewport_size({"width": 1280, "height": 1280 * HEIGHT // WIDTH})
                await film.takes(pair.url, "The dashboard: what runs, what waits for whom", 2.2)
                await film.takes(f"{pair.url}/turns/12", "Each request has a page: check, cost, steps, changes", 2)
                await film.takes(
                    f"{pair.url}/conversations/acme/shop/1", "A thread and its pull request, as one story", 2
                )
                film.save(FOLDER / "demo.webp")
                await page.set_viewport_size({"width": 1280, "height": 800})
                await page.goto(pair.url)
                await small(page.screenshot, FOLDER / "board.png")
                await page.set_viewport_size({"width": 840, "height": 900})
                await page.goto(f"{github.server_url}/acme/shop/issues/5")
                last = await page.locator("#posts > article").nth(2).bounding_box()
                height = last["y"] + last["height"] + 16 if last else 900
                clip = {"x": 0, "y": 0, "width": 840, "height": height}
                await small(page.screenshot, FOLDER / "answer.png", clip=clip)
            await browser.close()
    for file in sorted(FOLDER.iterdir()):
        print(file.name, file.stat().st_size)  # noqa: T201


async def small(take: Callable[..., Awaitable[bytes]], path: Path, **options: object) -> None:
    """Save a screenshot with 128 colours."""
    Image.open(BytesIO(await take(**options))).convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
