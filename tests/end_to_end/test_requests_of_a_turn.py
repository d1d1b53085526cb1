"""What a turn asks of GitHub: each request is a moment in which a person waits, and counts to an hour's limit."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from bot.agents.process import AgentProcess
from bot.reply import pacing
from bot.run import progress
from bot.simulated.github.faults import Held
from bot.simulated.github.traffic import LoggedRequest
from tests.support.world import Talk, World

NEW_THREAD = ["GET issues/N"]
"""A thread that the bot does not know: its close may have been handled before."""
FETCH = "GET git info/refs?service=git-upload-pack"
UNTIL_THE_AGENT_WORKS = [
    "GET collaborators/maria/permission",
    "GET collaborators/maria/permission",
    FETCH,
    "GET issues/comments/ID",
    "PATCH issues/comments/ID",
    "POST graphql",
    "POST issues/N/comments",
    "POST issues/comments/ID/reactions",
]
KNOWN_BRANCH = ["GET branches/threadtree/issue-N"]
"""Whether it is protected: GitHub has the branch since the first turn."""
UNTIL_THE_ANSWER = [
    FETCH,  # of all branches, while the agent works
    "GET git info/refs?service=git-receive-pack",
    "GET pulls",
    "PATCH issues/comments/ID",
    "POST git git-receive-pack",
]
MOST_IN_A_ROW = 2
LATENCY_SECONDS = 2.0
"""More than a loaded machine takes to ask for what is asked at once."""


def named(request: LoggedRequest) -> str:
    """Return a request in words in which numbers do not matter."""
    path = request.path.removeprefix("/repos/acme/shop/").replace("/acme/shop.git/", "git ").removeprefix("/")
    parts = [part if not part.isdigit() else "ID" if int(part) > 1000 else "N" for part in path.split("/")]
    service = f"?{request.query}" if request.query.startswith("service=") else ""
    return f"{request.method} {'/'.join(parts)}{service}".replace("issue-2", "issue-N")


def difference(asked: list[LoggedRequest], wanted: list[str]) -> str:
    """Return the requests that were not wanted, and those that were missing."""
    found = Counter(map(named, asked))
    unwanted, missing = found - Counter(wanted), Counter(wanted) - found
    return "\n".join([*(f"not wanted: {one}" for one in unwanted), *(f"missing: {one}" for one in missing)])


def in_a_row(requests: list[LoggedRequest]) -> list[LoggedRequest]:
    """Return the longest row of requests of which each began after the one before had its answer."""
    rows: list[list[LoggedRequest]] = []
    for request in sorted(requests, key=lambda one: one.ended):
        before = max((row for row in rows if row[-1].ended <= request.began), key=len, default=[])
        rows.append([*before, request])
    return max(rows, key=len)


def fetches_since(world: World, known: int) -> list[LoggedRequest]:
    """Return the requests that begin a fetch."""
    return [one for one in world.github.requests[known:] if named(one) == FETCH]


def is_for_people(request: LoggedRequest) -> bool:
    """Return whether it writes to the thread: nothing waits for that."""
    return request.method in {"POST", "PATCH"} and "/comments" in request.path


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
    for first, later in ((NEW_THREAD, []), ([], KNOWN_BRANCH)):
        await world.quiet()
        known, fetched, gate = len(world.github.requests), asyncio.Event(), world.gate()
        world.faults.add(Held(fetched), path="*/info/refs")
        read = len(issue.from_bot)
        await issue.says(f"@threadtree-bot wait {gate}\nwrite {gate.path.name}.txt: hello")
        await world.github.wait_for(lambda: len(issue.from_bot) > read)  # noqa: B023 - it is waited for here
        fetched.set()
        await issue.sees_working()
        fetches = await world.github.wait_for(lambda: fetches_since(world, known)[1:])  # noqa: B023
        asked_early = "branches/threadtree"  # while the agent starts, as the second fetch
        before = [one for one in world.github.requests[known:] if asked_early not in one.path and one not in fetches]
        gate.open()
        await issue.hears("1 file +")
        await world.quiet()
        after = [one for one in world.github.requests[known:] if one not in before]

        assert difference(before, [*first, *UNTIL_THE_AGENT_WORKS]) == "", "until the agent works"
        assert difference(after, [*later, *UNTIL_THE_ANSWER]) == "", "until the answer"


async def test_the_agent_starts_after_two_requests_in_a_row(
    world: World, issue: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Callable[..., object] = AgentProcess.start
    started: list[float] = []

    def noted(*given: object) -> object:
        started.append(asyncio.get_running_loop().time())
        world.github.latency_seconds = 0
        return start(*given)

    monkeypatch.setattr(AgentProcess, "start", noted)
    await world.quiet()
    for number in (1, 2):
        world.github.latency_seconds = LATENCY_SECONDS
        known = len(world.github.requests)
        await issue.says(f"@threadtree-bot write {number}.txt: hello")
        await issue.hears("1 file +")
        await world.quiet()
        asked = [one for one in world.github.requests[known:] if one.ended <= started[-1] and not is_for_people(one)]
        row = [named(one) for one in in_a_row(asked)]
        assert len(row) <= MOST_IN_A_ROW, row
        assert len(started) == number
