"""A running simulation with one repository, a person who may write to it, and a receiver of its webhooks."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from bot.simulated.github import Person, Repository, SimulatedGitHub
from bot.simulated.github.serving import listen, serving
from tests.support.github import SECRET, Clock, Receiver, bearer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def github(tmp_path: Path, clock: Clock) -> AsyncIterator[SimulatedGitHub]:
    async with SimulatedGitHub.running(tmp_path / "github", clock) as running:
        yield running


@pytest.fixture
async def receiver(github: SimulatedGitHub) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    receiver.open.set()
    with listen(0) as listener:
        receiver.url = f"http://127.0.0.1:{listener.getsockname()[1]}/webhooks/github"
        application = Starlette(routes=[Route("/webhooks/github", receiver.endpoint, methods=["POST"])])
        async with serving(application, listener):
            github.set_webhook(receiver.url, SECRET)
            yield receiver


@pytest.fixture
async def shop(github: SimulatedGitHub) -> Repository:
    return await github.create_repository("acme/shop", files={"README.md": "# Shop\n", "src/cart.py": "total = 0\n"})


@pytest.fixture
def maria(github: SimulatedGitHub, shop: Repository) -> Person:
    maria = github.person("maria")
    shop.allow(maria, "write")
    return maria


@pytest.fixture
async def api(github: SimulatedGitHub) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=github.api_url, headers=bearer(github.bot_token)) as client:
        yield client
