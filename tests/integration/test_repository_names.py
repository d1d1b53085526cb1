"""A payload names a repository, it does not describe it: what is written of it is GitHub's answer, found by id."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.github.auth import AppCredentials, TokenCredentials
from bot.github.client import GitHub
from bot.github.errors import NotFound
from bot.model import Repository
from bot.node.repository_names import named, of_this_minute
from bot.simulated.github.model import Repository as SimulatedRepository
from bot.simulated.github.server import SimulatedGitHub
from bot.store.database import Pool, database
from tests.support.clock import HandMovedClock

INSTALLATION = 77
STALE = "update codebases set updated_at = updated_at - interval '2 minutes'"


@dataclass
class Ground:
    """A bot that has worked in acme/shop, and knows nothing of mallory/evil."""

    pool: Pool
    simulated: SimulatedGitHub
    github: GitHub
    shop: SimulatedRepository
    evil: SimulatedRepository

    @property
    def known(self) -> Repository:
        """Return acme/shop as GitHub tells it."""
        installation = INSTALLATION if self.github.is_app else None
        return Repository("github.example", self.shop.id, "acme", "shop", "main", installation)

    async def asked(self) -> list[str]:
        """Return the paths that were asked for since the last time."""
        paths = [one.path for one in self.simulated.requests if "access_tokens" not in one.path]
        self.simulated.requests.clear()
        return paths

    async def rows(self) -> list[tuple[Any, ...]]:
        columns = "repository_id, owner, name, default_branch, installation_id, folder"
        return [tuple(row) for row in await self.pool.fetch(f"select {columns} from codebases order by 1")]  # noqa: S608


@pytest.fixture(params=["token", "app"])
async def ground(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> AsyncIterator[Ground]:
    is_app, clock = request.param == "app", HandMovedClock()
    installation = INSTALLATION if is_app else None
    async with (
        database(database_url, size=2) as pool,
        SimulatedGitHub.running(tmp_path / "github", clock, installation_id=installation) as simulated,
        httpx.AsyncClient() as http,
    ):
        app = AppCredentials(str(simulated.app_id), simulated.app_private_key_pem) if is_app else None
        github = GitHub(
            api_url=simulated.api_url,
            graphql_url=simulated.graphql_url,
            credentials=app or TokenCredentials(simulated.bot_token),
            http=http,
            clock=clock,
            sleep=clock.sleep,
        )
        shop, evil = [await simulated.create_repository(name) for name in ("acme/shop", "mallory/evil")]
        made = Ground(pool, simulated, github, shop, evil)
        assert await named(pool, github, replace(made.known, installation_id=4711)) == made.known
        await made.asked()
        yield made


@pytest.mark.parametrize(
    "said",
    [
        {"owner": "mallory", "name": "evil"},
        {"owner": "mallory"},
        {"name": "nothing"},
        {"default_branch": "planted"},
        {"owner": "mallory", "name": "evil", "default_branch": "planted", "installation_id": 4711},
    ],
    ids=str,
)
async def test_what_a_payload_says_of_a_repository_is_not_believed(ground: Ground, said: dict[str, Any]) -> None:
    before = await ground.rows()
    assert await named(ground.pool, ground.github, replace(ground.known, **said)) == ground.known
    assert await ground.rows() == before
    by_id = f"/repositories/{ground.shop.id}"
    assert await ground.asked() == [*([f"{by_id}/installation"] if ground.github.is_app else []), by_id]


async def test_a_payload_that_says_what_is_known_or_less_asks_nothing(ground: Ground) -> None:
    for said in ground.known, replace(ground.known, default_branch=None), replace(ground.known, installation_id=None):
        assert await named(ground.pool, ground.github, said) == ground.known
    # Of a personal token it means nothing; of an App it is asked for, and the answer counts.
    assert await named(ground.pool, ground.github, replace(ground.known, installation_id=4711)) == ground.known
    assert bool(await ground.asked()) == ground.github.is_app


async def test_of_a_repository_that_github_does_not_show_nothing_is_written(ground: Ground) -> None:
    before = await ground.rows()
    for said in replace(ground.known, id=4711), Repository("github.example", 4711, "mallory", "evil", "main", 77):
        with pytest.raises(NotFound, match=rf"{said.full_name} was deleted, or the bot may not see it"):
            await named(ground.pool, ground.github, said)
    ground.simulated.delete_repository(ground.shop)
    with pytest.raises(NotFound):
        await named(ground.pool, ground.github, replace(ground.known, name="store"))
    assert await ground.rows() == before


async def test_a_renamed_repository_keeps_its_folder_and_its_old_name_is_another_one(ground: Ground) -> None:
    await ground.simulated.rename_repository(ground.shop, "store")
    reclaimed = await ground.simulated.create_repository("acme/shop")
    ground.shop.default_branch = "trunk"
    now = replace(ground.known, name="store", default_branch="trunk")
    # Who signs an event with the old name is not contradicted by the row, until GitHub is asked.
    assert await named(ground.pool, ground.github, ground.known) == ground.known
    assert await of_this_minute(ground.pool, ground.github, ground.known) == ground.known
    await ground.pool.execute(STALE)
    assert await of_this_minute(ground.pool, ground.github, ground.known) == now
    assert await named(ground.pool, ground.github, replace(ground.known, id=reclaimed.id)) == replace(
        ground.known, id=reclaimed.id
    )
    # An event from before the rename is late.
    assert await named(ground.pool, ground.github, ground.known) == now
    installation = ground.known.installation_id
    assert await ground.rows() == [
        (ground.shop.id, "acme", "store", "trunk", installation, "acme/shop"),
        (reclaimed.id, "acme", "shop", "main", installation, f"acme/shop-{reclaimed.id}"),
    ]


async def test_a_repository_with_another_owner_has_another_installation(ground: Ground) -> None:
    await ground.simulated.transfer_repository(ground.shop, ground.simulated.person("umbrella"))
    if ground.simulated.world.app is not None:
        ground.simulated.world.app = replace(ground.simulated.world.app, installation_id=INSTALLATION + 1)
    now = replace(ground.known, owner="umbrella", installation_id=INSTALLATION + 1 if ground.github.is_app else None)
    await ground.pool.execute(STALE)
    assert await of_this_minute(ground.pool, ground.github, ground.known) == now
    assert [row[1:5] for row in await ground.rows()] == [("umbrella", "shop", "main", now.installation_id)]
