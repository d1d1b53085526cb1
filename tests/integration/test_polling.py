"""What the reading of GitHub's log of deliveries costs, and that no round passes over anything."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bot.demo.pair import settings_for
from bot.github.client import NOWHERE, WEBHOOK_PATH, GitHub
from bot.inbox import recovery_rows as recoveries
from bot.inbox.recover import Recovery, pause
from bot.redaction import Redactor
from bot.serve.parts import Surroundings, open_client
from bot.simulated.github.faults import SecondaryRateLimit
from bot.simulated.github.server import SimulatedGitHub
from bot.store.database import Pool
from tests.support.clock import HandMovedClock

POLL_SECONDS = 5.0


@asynccontextmanager
async def polled(
    pool: Pool, directory: Path, repositories: int, *, is_app: bool = False
) -> AsyncIterator[tuple[SimulatedGitHub, Recovery, HandMovedClock]]:
    clock, names = HandMovedClock(), [f"acme/shop{number}" for number in range(repositories)]
    async with SimulatedGitHub.running(directory, clock, installation_id=77 if is_app else None) as github:
        for name in names:
            await github.create_repository(name, bot_permission="admin")
        github.set_webhook(NOWHERE + WEBHOOK_PATH, "x")
        more = {"GITHUB_APP_ID": str(github.app_id), "GITHUB_PRIVATE_KEY": github.app_private_key_pem} if is_app else {}
        settings = settings_for(github, directory / "data", os.environ["PATH"], **more)
        async with open_client(GitHub, settings, Surroundings(clock, clock.sleep), Redactor(())) as client:
            yield github, recovery_of(pool, client, settings.platform, clock, names), clock


def recovery_of(pool: Pool, client: GitHub, platform: str, clock: HandMovedClock, names: list[str]) -> Recovery:
    return Recovery(pool, client, platform, clock, names, seldom_seconds=300, poll_seconds=POLL_SECONDS)


@pytest.mark.parametrize(("repositories", "is_app"), [(1, False), (10, False), (1, True)])
async def test_an_idle_hour_counts_almost_nothing(pool: Pool, tmp_path: Path, repositories: int, is_app: bool) -> None:
    async with polled(pool, tmp_path, repositories, is_app=is_app) as (github, recovery, clock):
        await recovery.round_if_due()
        asked = len(github.requests)
        for _ in range(24):
            clock.move(POLL_SECONDS)
            await recovery.round_if_due()
        statuses = [one.status for one in github.requests[asked:]]
        # The first round counts: with ten logs the next one is later.
        assert (set(statuses), len(statuses)) == ({304}, (24 if repositories == 1 else 22) * repositories)

        clock.move(7 * 60)
        await recovery.round_if_due()
        assert [one.status for one in github.requests[asked + len(statuses) :]] == (
            [200] if is_app else [304] * repositories
        ), "an App asks with a token of its own, which GitHub's entity tags are of"


async def test_two_nodes_read_as_often_as_one(pool: Pool, tmp_path: Path) -> None:
    async with polled(pool, tmp_path, 1) as (github, one, clock):
        another = recovery_of(pool, one.github, one.platform, clock, list(one.named))
        await one.round_if_due()
        asked = len(github.requests)
        await another.round_if_due()
        assert len(github.requests) == asked
        clock.move(POLL_SECONDS)
        await another.round_if_due()
        asked = len(github.requests)
        await one.round_if_due()
        assert len(github.requests) == asked


async def test_a_page_that_was_not_noted_is_noted_though_it_is_unchanged(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with polled(pool, tmp_path, 1) as (github, recovery, clock):
        await recovery.round_if_due()
        shop = next(iter(github.world.repositories.values()))
        await github.person("maria").open_issue(shop, "Greet people")
        await github.settled()

        async def is_away(*_: Any) -> None:
            raise ConnectionError("the database is away")

        clock.move(POLL_SECONDS)
        with monkeypatch.context() as broken:
            broken.setattr(recoveries, "note_missed", is_away)
            with pytest.raises(ConnectionError):
                await recovery.round_if_due()
        await recovery.round_if_due()
        assert github.requests[-2].status == 304
        assert await pool.fetchval("select count(*) from deliveries") == 1


async def test_a_limit_of_github_is_obeyed_by_all_nodes(pool: Pool, tmp_path: Path) -> None:
    async with polled(pool, tmp_path, 3) as (github, recovery, clock):
        await recovery.round_if_due()
        github.faults.add(SecondaryRateLimit(retry_after=120), path="*/deliveries", times=1)
        clock.move(POLL_SECONDS)
        asked = len(github.requests)
        await recovery.round_if_due()
        assert len(github.requests) == asked + 1, "the limit is of the other repositories, too"
        for _ in range(3):
            clock.move(30)
            await recovery_of(pool, recovery.github, recovery.platform, clock, list(recovery.named)).round_if_due()
        assert len(github.requests) == asked + 1
        clock.move(30)
        await recovery.round_if_due()
        assert len(github.requests) > asked + 3


async def test_what_was_asked_at_a_clock_that_is_ahead_is_not_lost(pool: Pool, tmp_path: Path) -> None:
    async with polled(pool, tmp_path, 1) as (github, recovery, clock):
        await recovery.github.identity()
        recovery.clock = lambda: clock() + timedelta(hours=1)
        recovery.github._api._clock = recovery.clock
        await recovery.github.rate_limit()
        await recovery.round_if_due()
        shop = next(iter(github.world.repositories.values()))
        await github.person("maria").open_issue(shop, "Greet people")
        await github.settled()
        clock.move(POLL_SECONDS)
        await recovery.round_if_due()
        assert await pool.fetchval("select count(*) from deliveries") == 1


@pytest.mark.parametrize(
    ("asked", "counted", "left", "seconds"),
    [
        (1, 0, 1.0, 5.0),
        (1, 1, 1.0, 5.0),
        (10, 0, 1.0, 5.0),
        (10, 10, 1.0, 14.4),  # 2,500 an hour, where GitHub never says that a log is unchanged
        (50, 0, 1.0, 10.0),  # 300 a minute
        (1, 0, 0.2, 300.0),
    ],
)
def test_an_interval_that_githubs_limits_do_not_carry_is_widened(
    asked: int, counted: int, left: float, seconds: float
) -> None:
    assert pause(POLL_SECONDS, 300, asked, counted, left) == pytest.approx(seconds)
