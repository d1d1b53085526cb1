"""What a person sees while something is away, by how long it is: the table in docs/operate.md.

What is away with its process or its machine has tests of its own: the database in `test_processes_postgres`, another
node in `test_processes_workers`, missed webhooks in `test_missed_deliveries`, clocks in `tests/integration/test_clock`.
"""

import re
from dataclasses import dataclass

import pytest

from bot.inbox import decider
from bot.simulated.github.faults import DropBefore, FailBefore, Fault
from bot.tree.clone import fetch
from bot.tree.git.errors import GitError, GitProblem
from tests.support.world import World

MINUTES, DAY = 15 * 60, 24 * 3600 + 60
MET = "exists (select from deliveries where attempts > 0)"
PUT_BACK = "exists (select from turns where state = 'queued' and not_before is not null)"
GIVEN_UP = """exists (select from deliveries where state = 'failed')
             or exists (select from turns where finished_at is not null)"""
WAITS = "Waiting. GitHub does not answer. The next try is at "
NOT_PUBLISHED = "Waiting. The agent is done, but its work could not be published. GitHub does not answer. "


@dataclass(frozen=True)
class Away:
    """A part of GitHub that is away, how the bot shows that it `met` it, what the thread shows, and what comes then."""

    part: str
    method: str
    path: str
    fault: Fault
    met: str
    shown: str | None
    after_a_day: str


API = Away(
    *("GitHub's API", "*", "/repositories/*", FailBefore(503), MET, None),
    "The bot tried for a day to ask GitHub about this, without success. Write it again. Its operator can repeat it ",
)
FETCH = Away(
    *("git fetch", "*", "*/info/refs", DropBefore(), PUT_BACK, WAITS),
    "**Failed:** GitHub does not answer. The bot tried for a day: `git fetch: ",
)
PUSH = Away(
    *("git push", "*", "*/git-receive-pack", FailBefore(503), PUT_BACK, NOT_PUBLISHED),
    "The commits could not be pushed to `threadtree/issue-1`: `git push: ",
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of the engine is tried again by the real clock."""
    monkeypatch.setattr(decider, "backoff_seconds", lambda _: 1.0)


@pytest.mark.parametrize("away", [API, FETCH, PUSH], ids=lambda one: one.part)
async def test_a_part_of_github_that_is_away_for_a_day_ends_the_request_with_the_reason(
    world: World, away: Away
) -> None:
    issue = await world.maria.opens_issue("Longer than that", "@threadtree-bot /help")
    await issue.hears()  # of a repository that GitHub never told of, nothing is written
    world.faults.add(away.fault, method=away.method, path=away.path, times=None)
    asked = await issue.says("@threadtree-bot write a.txt: one\nsay Done.")
    await world.until(away.met)
    if away.shown is None:
        assert not issue.unread
    else:
        await issue.sees(away.shown)
    world.clock.move(DAY)
    await world.until(GIVEN_UP)
    world.faults.clear()
    world.clock.move(MINUTES)
    *_, answer = await issue.hears_all()
    assert away.after_a_day in answer
    if away is API:
        await asked.gets("😕")
    # Nothing of it is in the way of the next request, which brings what was not pushed.
    await issue.says("@threadtree-bot write b.txt: two\nsay Next.")
    *_, answer = await issue.hears_all()
    assert "Next." in answer
    assert ("a.txt" in await world.files("threadtree/issue-1")) == (away is PUSH)


async def test_graphql_that_is_away_holds_up_nothing_and_the_answer_says_what_the_agent_did_not_see(
    world: World,
) -> None:
    issue = await world.maria.opens_issue("Short or long")
    world.faults.add(FailBefore(502), method="POST", path="/graphql", times=None)
    await issue.says("@threadtree-bot write a.txt: one\nsay Done.")
    answer = await issue.hears("Done.", "The thread could not be read from GitHub, so the agent saw the request only.")
    assert "1 file +1 −0" in answer


async def test_a_model_that_takes_no_requests_is_waited_for_for_an_hour(world: World) -> None:
    issue = await world.maria.opens_issue("Overloaded")
    await issue.says("@threadtree-bot busy 529")
    await issue.sees("Waiting. The agent's model takes no requests at the moment. The agent continues at ")
    await world.until(PUT_BACK)
    (first,) = await world.turns("not_before")
    world.clock.move(20)
    await world.until(f"exists (select from turns where not_before > '{first.isoformat()}')")
    world.clock.move(3700)
    *_, answer = await issue.hears_all()
    gave_up = "so the bot tries no more. The last try: `The model is busy.`"
    assert re.search(rf"\*\*Failed:\*\* The agent's model took no requests for 1 h \d min, {gave_up}", answer)
    assert "Write `/retry` to run the request again." in answer


async def test_a_request_waits_while_the_disk_is_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise GitError(GitProblem.DISK_FULL, "fetch", "fatal: write error: No space left on device")

    with monkeypatch.context() as while_full:
        while_full.setattr(fetch, "fetch", full)
        issue = await world.maria.opens_issue("Full")
        await issue.says("@threadtree-bot say Done.")
        await issue.sees("Waiting. The disk of the bot's machine is full. Its operator must free space. The next try ")
        await world.until(PUT_BACK)
    world.clock.move(MINUTES)
    assert "Done." in (await issue.hears_all())[-1]
