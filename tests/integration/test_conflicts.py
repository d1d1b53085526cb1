"""Of the bot's pull requests, a conflict with the base is told once: real rows, asked of a simulated GitHub."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from bot.care.conflicts import tell_of_conflicts
from bot.github.auth import TokenCredentials
from bot.github.client import GitHub
from bot.github.graphql import Answer
from bot.model import Repository
from bot.simulated.github.faults import FailBefore
from bot.simulated.github.model import Pull
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub
from bot.store.conversations import save_codebase
from bot.store.database import Pool, database
from bot.turn import pull_request_rows as rows
from tests.support.clock import HandMovedClock

TOLD = (
    "This pull request conflicts with `main`, so it cannot be merged as it is. Write `/update`: it merges `main` into "
    "the branch, and the agent resolves the conflicts."
)


@dataclass
class Own:
    """A pull request of the bot, and what asks GitHub about it."""

    pool: Pool
    simulated: SimulatedGitHub
    github: GitHub
    clock: HandMovedClock
    repository: Repository
    maria: Person
    pull: Pull

    async def push(self, branch: str, content: str, file: str = "cart.py") -> None:
        await self.maria.push(self.pull.repository, branch, {file: content}, "By hand")

    async def is_asked(self) -> int:
        """Let an hour pass and GitHub be asked until it knows; return how often it was said that it conflicts."""
        self.clock.move(3600)
        await self.ask()  # GitHub tries the merge
        self.clock.move(61)
        await self.ask()
        return len(await self.said())

    async def ask(self) -> None:
        await tell_of_conflicts(self.pool, self.github, self.clock)

    async def said(self) -> list[str]:
        return [row["content"] for row in await self.pool.fetch("select content from outbox order by id")]

    async def check_at(self) -> datetime | None:
        at: datetime | None = await self.pool.fetchval("select check_at from pull_requests")
        return at


@pytest.fixture
async def own(database_url: str, tmp_path: Path) -> AsyncIterator[Own]:
    clock = HandMovedClock()
    async with (
        database(database_url, size=4) as pool,
        SimulatedGitHub.running(tmp_path / "github", clock) as simulated,
        httpx.AsyncClient() as http,
    ):
        shop = await simulated.create_repository("acme/shop", {"README.md": "# shop\n"})
        maria = simulated.person("maria")
        await maria.push(shop, "threadtree/issue-1", {"cart.py": "total = 0\n"}, "Work", "main")
        pull = await maria.open_pull(shop, head="threadtree/issue-1", title="Empty carts")
        github = GitHub(
            api_url=simulated.api_url,
            graphql_url=simulated.graphql_url,
            credentials=TokenCredentials(simulated.bot_token),
            http=http,
            clock=clock,
            sleep=clock.sleep,
        )
        repository = Repository("github.example", shop.id, "acme", "shop")
        async with pool.acquire() as connection:
            await save_codebase(connection, repository)
            await rows.adopt(connection, repository, pull.number, pull.head_ref, 1, pull.title, "")
        yield Own(pool, simulated, github, clock, repository, maria, pull)


async def test_a_conflict_is_told_once_while_it_lasts_and_never_twice_of_one_head(own: Own) -> None:
    assert await own.is_asked() == 0
    await own.push("main", "total = None\n")
    assert await own.is_asked() == 1
    await own.push("threadtree/issue-1", "more = 1\n", "more.py")
    assert await own.is_asked() == 1, "it is the same conflict"
    await own.push("main", "total = 0\n")
    assert await own.is_asked() == 1
    await own.push("main", "total = -1\n")
    assert await own.is_asked() == 2, "it went, and came again at a later head"
    await own.push("main", "total = 0\n")
    await own.is_asked()
    await own.push("main", "total = -1\n")
    assert await own.is_asked() == 2, "of this head it was told"
    assert await own.said() == [TOLD] * 2
    [thread] = await own.pool.fetch("select number, kind, title, state from conversations")
    assert tuple(thread) == (own.pull.number, "pull", "Empty carts", "open"), "nobody had asked anything there"


async def test_what_github_does_not_know_or_tell_is_asked_again_soon_and_a_closed_one_no_more(own: Own) -> None:
    await own.push("main", "total = None\n")
    await own.ask()
    assert not own.simulated.requests, "not yet"
    own.clock.move(61)
    await own.ask()
    assert not await own.said(), "GitHub does not know it yet"
    await own.ask()
    assert len(own.simulated.requests) == 1, "it is asked a minute later"
    own.clock.move(61)
    own.simulated.faults.add(FailBefore(502, "Bad Gateway"), times=None)
    await own.ask()
    own.simulated.faults.release()
    own.simulated.faults.clear()
    own.clock.move(61)
    await own.ask()
    assert await own.said() == [TOLD]
    own.simulated.faults.add(FailBefore(404, "Not Found"), method="POST", path="*/graphql", times=None)
    await own.push("main", "total = 0\n")
    await own.is_asked()
    await own.push("main", "total = -1\n")
    await own.push("threadtree/issue-1", "more = 1\n", "more.py")
    assert await own.is_asked() == 2, "REST tells it too"

    await own.maria.close(own.pull)
    own.clock.move(3600)
    await own.ask()
    assert await own.check_at() is None
    async with own.pool.acquire() as connection:
        await rows.check_soon(connection, own.repository, own.clock(), None)
        assert await own.check_at() is None, "another one was closed"
        await rows.check_soon(connection, own.repository, own.clock(), own.pull.number)
    assert await own.check_at() is not None, "it is open again"


async def test_closes_that_follow_each_other_do_not_put_the_question_off(own: Own) -> None:
    await own.ask()
    for _ in range(3):
        own.clock.move(30)
        async with own.pool.acquire() as connection:
            await rows.check_soon(connection, own.repository, own.clock(), None)
    await own.ask()
    assert own.simulated.requests


async def test_one_that_vanished_holds_no_others_back(own: Own) -> None:
    async with own.pool.acquire() as connection:
        await rows.adopt(connection, own.repository, 999, "threadtree/issue-9", 9, None, "")
    await own.push("main", "total = None\n")
    await own.is_asked()
    assert await own.said() == [TOLD]


async def test_where_graphql_tells_something_else_rest_is_asked(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object, **__: object) -> Answer:
        return Answer({}, {})

    monkeypatch.setattr(own.github, "ask", ask)
    await own.push("main", "total = None\n")
    assert await own.is_asked() == 1
