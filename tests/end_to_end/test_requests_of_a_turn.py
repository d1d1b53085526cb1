"""What a turn asks of GitHub: each request is a moment in which a person waits, and counts to an hour's limit."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import pytest

from bot.agents.process import AgentProcess
from bot.simulated.github.faults import Held
from bot.simulated.github.traffic import LoggedRequest
from bot.thread import pacing
from bot.turn import progress
from tests.support.world import Talk, World

NEW_THREAD = ["GET issues/N"]
"""A thread that the bot does not know: its close may have been handled before."""
OLD_NAMES = ["GET "]
"""What the repository is called, which git needs to know, where GitHub told it more than a minute ago."""
MINUTES_LATER = "update codebases set updated_at = updated_at - interval '2 minutes'"
FETCH = "GET git info/refs?service=git-upload-pack"
UNTIL_THE_AGENT_WORKS = [
    *("GET collaborators/maria/permission", "GET issues/comments/ID"),  # when it is decided
    *("GET collaborators/maria/permission", FETCH, "GET issues/comments/ID"),
    "GET issues/N/dependencies/blocked_by",
    *("PATCH issues/comments/ID", "POST graphql", "POST issues/N/comments", "POST issues/comments/ID/reactions"),
]
KNOWN_BRANCH = ["GET branches/threadtree/issue-N"]
"""Whether it is protected: GitHub has the branch since the first turn."""
UNTIL_THE_ANSWER = [
    FETCH,  # of all branches, while the agent works
    "GET ",  # the repository, for its default branch now, and the rules, right before the push
    "GET rules/branches/threadtree/issue-N",
    "GET git info/refs?service=git-receive-pack",
    "GET pulls",
    "PATCH issues/comments/ID",
    "POST git git-receive-pack",
]
SECOND_ROW = ("*/permission", "*/info/refs", "*/issues/comments/*", "*/dependencies/blocked_by", "/graphql")
"""Asked at once, when the request is known to be one; what is written for people is in no row."""


class Together(asyncio.Event):
    """Is set as soon as so many wait for it at the same time."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._missing = number

    async def wait(self) -> Literal[True]:
        self._missing -= 1
        if self._missing == 0:
            self.set()
        try:
            return await super().wait()
        finally:  # the client has left, or has its answer
            self._missing += 1


def named(request: LoggedRequest) -> str:
    """Return a request in words in which numbers do not matter."""
    path = re.sub("^/repositories/[0-9]+/?", "", request.path).replace("/acme/shop.git/", "git ").removeprefix("/")
    parts = [part if not part.isdigit() else "ID" if int(part) > 1000 else "N" for part in path.split("/")]
    service = f"?{request.query}" if request.query.startswith("service=") else ""
    return f"{request.method} {'/'.join(parts)}{service}".replace("issue-2", "issue-N")


def difference(asked: list[LoggedRequest], wanted: list[str]) -> str:
    """Return the requests that were not wanted, and those that were missing."""
    found = Counter(map(named, asked))
    unwanted, missing = found - Counter(wanted), Counter(wanted) - found
    return "\n".join([*(f"not wanted: {one}" for one in unwanted), *(f"missing: {one}" for one in missing)])


def fetches_since(world: World, known: int) -> list[LoggedRequest]:
    """Return the requests that begin a fetch."""
    return [one for one in world.github.requests[known:] if named(one) == FETCH]


@pytest.fixture
async def issue(world: World) -> Talk:
    """Return a thread that the bot does not know, in a repository that it knows."""
    warm = await world.maria.opens_issue("Warm", "@threadtree-bot write warm.txt: warm")
    await warm.hears("1 file +")
    return await world.maria.opens_issue("Greet people")


async def test_a_turn_makes_these_requests_and_no_other(
    world: World, issue: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the first words, that the agent works, and the answer: how long it takes makes no difference.
    monkeypatch.setattr(progress, "QUIET_SECONDS", 600)
    monkeypatch.setattr(pacing, "_PROGRESS_PAUSES", ((timedelta(days=1), timedelta(hours=1)),))
    for first, later in ((NEW_THREAD, []), (OLD_NAMES, KNOWN_BRANCH)):
        await world.quiet()
        if first is OLD_NAMES:
            await world.database.execute(MINUTES_LATER)
        known, fetched, gate = len(world.github.requests), asyncio.Event(), world.gate()
        world.faults.add(Held(fetched), path="*/info/refs")
        read = len(issue.from_bot)
        await issue.says(f"@threadtree-bot wait {gate}\nwrite {gate.path.name}.txt: hello")
        await world.github.wait_for(lambda: len(issue.from_bot) > read)  # noqa: B023 - it is waited for here
        fetched.set()
        await issue.sees_working()
        fetches = await world.github.wait_for(lambda: fetches_since(world, known)[1:])  # noqa: B023
        before = [one for one in world.github.requests[known:] if one not in fetches]
        gate.open()
        await issue.hears("1 file +")
        await world.quiet()
        after = [one for one in world.github.requests[known:] if one not in before]

        assert difference(before, [*first, *UNTIL_THE_AGENT_WORKS]) == "", "until the agent works"
        assert difference(after, [*later, *UNTIL_THE_ANSWER]) == "", "until the answer"


async def test_the_agent_starts_after_two_requests_in_a_row(
    world: World, issue: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above knows all requests until then. Each of them is asked before the others of its row are answered."""
    start: Callable[..., object] = AgentProcess.start
    rows: list[Together] = []
    started: list[bool] = []

    def noted(*given: object) -> object:
        started.append(all(row.is_set() for row in rows))
        return start(*given)

    monkeypatch.setattr(AgentProcess, "start", noted)
    for first in (["*/issues/[0-9]"], [f"/repositories/{world.repository.id}"]):
        await world.quiet()
        if first != ["*/issues/[0-9]"]:
            await world.database.execute(MINUTES_LATER)
        rows = [hold_together(world, "*/permission", "*/issues/comments/*", *first), hold_together(world, *SECOND_ROW)]
        await issue.says(f"@threadtree-bot write {len(started)}.txt: hello")
        await issue.hears("1 file +")
    assert started == [True, True]


def hold_together(world: World, *paths: str) -> Together:
    """Hold the next request to each of these paths until all of them are held."""
    together = Together(len(paths))
    for path in paths:
        world.faults.add(Held(together), method="POST" if path == "/graphql" else "GET", path=path)
    return together
