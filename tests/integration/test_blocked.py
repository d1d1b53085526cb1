"""What blocks an issue, as GitHub lists it, and what that means for a request there: it begins, waits or asks."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from bot.github.auth import TokenCredentials
from bot.github.client import GitHub
from bot.github.errors import Refused
from bot.model import Repository
from bot.simulated.github.faults import FailBefore
from bot.simulated.github.model import Issue
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub
from bot.store import turns
from bot.store.database import Pool
from bot.thread.formatting import plain
from bot.turn import blocked, waits_rows
from bot.turn.kind import Kind
from bot.turn.waiting import Blocked, MustWaitError
from bot.verbs import start
from tests.support.clock import HandMovedClock
from tests.support.turn_rows import NOON, TurnRows

STARTS = "`/start` begins it at once, `/stop` ends the wait."
ALL_THE_SAME = "/start begins this all the same, /stop ends it."


@dataclass
class Scene:
    """The issue #1 of acme/shop, where a request could begin, and others."""

    github: SimulatedGitHub
    client: GitHub
    pool: Pool
    clock: HandMovedClock
    maria: Person
    issues: list[Issue]
    abroad: Issue
    begun: Mapping[str, object] = field(default_factory=dict)
    kind: Kind[Any] = field(default_factory=lambda: Kind("work", waits_for_blockers=True))

    async def looks(self, kind: str = "issue") -> tuple[str, Blocked | None]:
        """Return what the answer would tell of the blockers of #1 if its request began, and for what it waits."""
        shop = self.issues[0].repository
        so_far = SimpleNamespace(**{"agent": None, "answer": None, "was_put_back": False, **self.begun})
        turn = SimpleNamespace(
            so_far=so_far,
            conversation=SimpleNamespace(id=1, number=1, kind=kind),
            worktree=SimpleNamespace(repository=Repository("github.example", shop.id, "acme", "shop")),
        )
        ctx = SimpleNamespace(pool=self.pool, github=self.client, server_url="https://gh", clock=self.clock)
        run = SimpleNamespace(ctx=ctx, turn=turn, kind=self.kind, notices=[])
        waits = None
        try:
            await blocked.hold(cast("Any", run))
        except MustWaitError as problem:
            waits = problem.wait.why
        assert waits is None or isinstance(waits, Blocked)
        return " ".join(run.notices), waits


@pytest.fixture
async def scene(pool: Pool, tmp_path: Path) -> AsyncIterator[Scene]:
    clock = HandMovedClock()
    async with SimulatedGitHub.running(tmp_path / "github", clock) as github, httpx.AsyncClient() as http:
        client = GitHub(
            api_url=github.api_url,
            graphql_url=github.graphql_url,
            credentials=TokenCredentials(github.bot_token),
            http=http,
            clock=clock,
            sleep=clock.sleep,
        )
        shop, lib = await github.create_repository("acme/shop"), await github.create_repository("other/lib")
        maria = github.person("maria")
        issues = [await maria.open_issue(shop, f"Issue {at}") for at in range(1, 14)]
        yield Scene(github, client, pool, clock, maria, issues, await maria.open_issue(lib, "Abroad"))


async def blocks(scene: Scene, *pairs: tuple[int, int]) -> None:
    """Let the first issue of each pair be blocked by the second."""
    for issue, blocker in pairs:
        await scene.maria.block(scene.issues[issue - 1], scene.issues[blocker - 1])


async def closes(scene: Scene, number: int, reason: str | None = None) -> None:
    await scene.maria.close(scene.issues[number - 1], reason=reason)


Case = tuple[list[tuple[int, int]], dict[int, str], str, str]
CASES: dict[str, Case] = {
    # who is blocked by whom, what was closed and why, what the answer tells, for what it waits
    "nothing": ([], {}, "", ""),
    "open": ([(1, 2)], {}, "", "Waiting for #2 (blocked by). It starts when that is closed."),
    "three": (
        [(1, 2), (1, 3), (1, 4)],
        {},
        "",
        "Waiting for #2, #3 and #4 (blocked by). It starts when those are closed.",
    ),
    "closed": ([(1, 2)], {2: "completed"}, "", ""),
    "one of two closed": ([(1, 2), (1, 3)], {2: "completed"}, "", "Waiting for #3 (blocked by)."),
    "not planned": (
        [(1, 2)],
        {2: "not_planned"},
        "",
        f"Waiting for your answer: #2, which blocks this issue, was closed as not planned. {ALL_THE_SAME}",
    ),
    "not planned and a duplicate": (
        [(1, 2), (1, 3), (1, 4)],
        {2: "not_planned", 3: "duplicate", 4: "completed"},
        "",
        f"Waiting for your answer: #2 and #3, which block this issue, were closed as not planned and as a duplicate. "
        f"{ALL_THE_SAME}",
    ),
    "not planned and open": ([(1, 2), (1, 3)], {2: "not_planned"}, "", "Waiting for #3 (blocked by)."),
    "itself": ([(1, 1)], {}, "This issue is blocked by itself, so the bot did not wait for it.", ""),
    "each other": ([(1, 2), (2, 1)], {}, "#2 is blocked by this issue in turn, so the bot did not wait for it.", ""),
    "a longer circle": (
        [(1, 2), (1, 3), (2, 4), (4, 1), (3, 4)],
        {},
        "#2 and #3 are blocked by this issue in turn, so the bot did not wait for them.",
        "",
    ),
    "a circle and another": ([(1, 2), (2, 1), (1, 3)], {}, "", "Waiting for #3 (blocked by)."),
    "a circle that a close has opened": (
        [(1, 2), (2, 3), (3, 1)],
        {3: "completed"},
        "",
        "Waiting for #2 (blocked by).",
    ),
    "a circle of others": ([(1, 2), (2, 3), (3, 2)], {}, "", "Waiting for #2 (blocked by)."),
    "a long row": ([(at, at + 1) for at in range(1, 13)], {}, "", "Waiting for #2 (blocked by)."),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_request_waits_for_what_can_still_be_done(scene: Scene, name: str) -> None:
    pairs, closed, told, waits = CASES[name]
    await blocks(scene, *pairs)
    for number, reason in closed.items():
        await closes(scene, number, reason)
    known = len(scene.github.requests)
    notices, found = await scene.looks()
    assert plain(notices) == told
    assert (found is None) == (waits == "")
    assert found is None or plain(found.words).startswith(waits)
    assert len(scene.github.requests) - known <= 1 + blocked.MOST_ASKED
    if not pairs:
        assert len(scene.github.requests) - known == 1


async def test_words_lead_to_the_issues_also_of_other_repositories(scene: Scene) -> None:
    await scene.maria.block(scene.issues[0], scene.issues[1])
    await scene.maria.block(scene.issues[0], scene.abroad)
    _, found = await scene.looks()
    links = "[#2](https://gh/acme/shop/issues/2) and [other/lib#1](https://gh/other/lib/issues/1)"
    then = "It starts when those are closed."
    assert found == Blocked(f"Waiting for {links} (blocked by). {then} {STARTS}", ("acme/shop#2", "other/lib#1"))


async def test_every_page_is_read_and_none_is_asked_for_conditionally(scene: Scene) -> None:
    for at in range(100):
        done = await scene.maria.open_issue(scene.issues[0].repository, f"Done {at}")
        await scene.maria.block(scene.issues[0], done)
        await scene.maria.close(done)
    await blocks(scene, (1, 2))
    for _ in range(2):
        _, found = await scene.looks()
        assert found is not None
        assert found.by == ("acme/shop#2",)
    lists = [one for one in scene.github.requests if one.path.endswith("/issues/1/dependencies/blocked_by")]
    assert [one.status for one in lists] == [200] * 4


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda scene: setattr(scene, "kind", Kind("update")), "issue"),  # what is done at once
        (lambda scene: setattr(scene, "begun", {"agent": "custom"}), "issue"),  # its agent has begun
        (lambda scene: setattr(scene, "begun", {"answer": "Done."}), "issue"),
        (lambda scene: None, "pull"),
    ],
)
async def test_what_has_begun_and_pull_requests_ask_github_nothing(
    scene: Scene, change: Callable[[Scene], None], kind: str
) -> None:
    await blocks(scene, (1, 2))
    change(scene)
    known = len(scene.github.requests)
    assert await scene.looks(kind) == ("", None)
    assert len(scene.github.requests) == known


async def test_a_server_without_such_relations_holds_up_nothing(scene: Scene) -> None:
    await blocks(scene, (1, 2))
    scene.clock.move(60)  # a new token's refusal would be passing
    scene.github.faults.add(FailBefore(404, "Not Found"), path="*/dependencies/blocked_by", times=None)
    assert await scene.looks() == ("", None)
    scene.github.faults.clear()
    scene.github.faults.add(FailBefore(403, "Forbidden"), path="*/dependencies/blocked_by", times=None)
    with pytest.raises(Refused):  # whether it is blocked is not known
        await scene.looks()


async def test_an_issue_that_the_bot_may_not_see_is_not_waited_for_and_said(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(*_: object, **__: object) -> list[Any]:
        return [None, {"id": 5, "number": 9}]

    monkeypatch.setattr(scene.client, "get_all", listed)
    words = "2 issues that the bot may not see block this one. It did not wait for that."
    assert await scene.looks() == (words, None)


async def test_a_request_that_asks_waits_for_a_person_until_somebody_starts_it(world: TurnRows) -> None:
    thread, _ = await world.home()
    asked = await world.ask(thread)

    async def looks(at: int, *, asks: bool) -> tuple[str | None, datetime | None]:
        now = NOON + timedelta(hours=at)
        turn = await world.claim(now=now)
        assert turn is not None
        until, by = now + blocked.AGAIN, ("octo/hello#2",)
        await turns.put_back(world.db, turn.claim, "x", until, now, None, (), goes_on=False, blocked_by=by, asks=asks)
        since = await world.db.fetchval("select since from waiting where turn_id = $1", asked)
        return await waits_rows.of_turn(world.db, asked), since

    assert await looks(0, asks=False) == (None, None)
    assert await looks(1, asks=True) == ("answer", NOON + timedelta(hours=1))
    await world.ask(thread)  # it stands in line, and answers nothing
    assert await looks(2, asks=True) == ("answer", NOON + timedelta(hours=1))
    assert await looks(3, asks=False) == (None, None)
    assert await looks(4, asks=True) == ("answer", NOON + timedelta(hours=4))
    begun = await start._begin(world.db, thread)
    assert begun is not None
    assert (begun[0].starts, begun[1]) == (True, asked)
    assert await waits_rows.of_turn(world.db, asked) is None
    assert await start._begin(world.db, await world.thread()) is None
