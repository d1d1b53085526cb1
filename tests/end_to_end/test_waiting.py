"""A request that meets a problem that passes waits for a time that its comment names, and then runs."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from bot.node import room
from bot.sandbox.net.model_answers import ModelAnswers
from bot.simulated.github.faults import FailBefore, Held, PrimaryRateLimit
from bot.thread.tracking import MODEL_REFUSES
from bot.turn import asking
from tests.end_to_end.conftest import Worlds
from tests.support.world import World

PERMISSION = "*/collaborators/*/permission"
FETCH = "*/info/refs"
PUSH = "*/git-receive-pack"
PUT_BACK = "exists (select from turns where state = 'queued' and not_before is not null)"


async def test_a_request_waits_while_git_cannot_reach_github(world: World) -> None:
    issue = await world.maria.opens_issue("Bad weather")
    world.faults.add(FailBefore(503), path=FETCH)
    await issue.says("@threadtree-bot say hello")

    await issue.sees("Waiting. GitHub does not answer. The next try is at ")
    assert await world.turns("state", "started_at") == [("queued", None)]
    world.clock.move(60)
    assert "hello" in "".join(await issue.hears_all())

    # The wait ends with `/stop`, which leaves a request that has not begun.
    world.faults.add(FailBefore(503), path=FETCH)
    await issue.says("@threadtree-bot say again")
    await world.until(PUT_BACK)
    await issue.says("@threadtree-bot say last")
    await issue.sees("The first one waits. GitHub does not answer. The next try is at ")
    await issue.says("/status")
    await issue.sees("A request waits. GitHub does not answer. The next try is at ")
    await issue.says("/stop")
    stopped, last, status = await issue.hears_all()
    assert "**Stopped** by `maria`." in stopped
    assert "\n2. [maria's request](" in status
    assert "last" in last
    assert await world.turns("state", "reason") == [("done", None), ("stopped", "Stopped by maria."), ("done", None)]


async def test_githubs_limit_of_requests_holds_all_requests_until_it_resets(world: World) -> None:
    first, second = [await world.maria.opens_issue(title) for title in ("First", "Second")]
    gate = world.gate()
    await first.says(f"@threadtree-bot wait {gate}\nsay Finished.")
    await first.sees_working()
    await first.says("@threadtree-bot say after the limit")
    await first.sees("Queued. One request is ahead")
    world.faults.add(PrimaryRateLimit(reset_after=600), path=PERMISSION)
    gate.open()
    await world.until(PUT_BACK)
    assert await world.database.fetchval("select count(*) from writers where held_until is not null") == 1

    await second.says("@threadtree-bot say elsewhere")
    await world.until("(select count(*) from turns) = 3")
    assert (await world.turns("state"))[1:] == ["queued", "queued"]

    world.clock.move(610)
    heard = "".join(await first.hears_all())
    assert "Finished." in heard
    assert "after the limit" in heard
    assert "elsewhere" in "".join(await second.hears_all())
    held = await world.database.fetchval("select not_before - created_at > '5 minutes' from turns where id = 2")
    assert held


async def test_an_agent_at_its_models_usage_limit_continues_when_the_vendor_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reached(ModelAnswers):
        """The answers of a model that refuses the first request; the scripted agent has no model."""

        until = world.clock() + timedelta(hours=3)

    monkeypatch.setattr(asking, "ModelAnswers", Reached)
    issue = await world.maria.opens_issue("Too much")
    await issue.says("@threadtree-bot write draft.txt: half\nfail The limit is reached")
    await issue.sees("Waiting. The usage limit of the agent's model is reached. The agent continues at ")
    assert await world.turns("state", "resuming") == [("queued", True)]

    monkeypatch.undo()
    world.clock.move(3 * 3600 + 60)
    # The same request again, in the files as they were left.
    answers = "".join(await issue.hears_all())
    assert "**Failed:**" in answers
    assert "interrupted" not in answers


async def test_the_running_comment_says_that_the_model_refuses_and_that_it_does_not_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ModelAnswers] = []

    class Heard(ModelAnswers):
        """The answers to a turn's agent; the scripted one has no model."""

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            heard.append(self)

    monkeypatch.setattr(asking, "ModelAnswers", Heard)
    issue, gate = await world.maria.opens_issue("Overloaded"), world.gate()
    await issue.says(f"@threadtree-bot wait {gate}\nsay Done.")
    await issue.sees_working()
    world.clock.move(700)  # by now the comment changes once a minute
    (answers,) = heard
    answers.begin("/v1/messages", 529, {})
    await issue.sees(MODEL_REFUSES)
    answers.begin("/v1/messages", 200, {})
    # A change of the agent's plan would wait for a minute now.
    await world.github.wait_for(lambda: MODEL_REFUSES not in issue.from_bot[0].body, 50)
    gate.open()
    assert "Done." in "".join(await issue.hears_all())


async def test_a_turn_whose_clock_ends_while_the_model_refuses_waits(
    a_world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refuses(ModelAnswers):
        """The answers of a model that refuses each request."""

        refuses = True

    monkeypatch.setattr(asking, "ModelAnswers", Refuses)
    async with a_world({"TURN_TIMEOUT_SECONDS": "1"}) as world:
        issue = await world.maria.opens_issue("Overloaded")
        await issue.says(f"@threadtree-bot wait {world.gate()}")
        await issue.sees("Waiting. The agent's model takes no requests at the moment. The agent continues at ")
        await issue.says("/stop")
        assert "**Stopped** by `maria`." in "".join(await issue.hears_all())


async def test_a_push_that_meets_a_passing_trouble_is_tried_again_without_the_agent(world: World) -> None:
    issue = await world.maria.opens_issue("Late")
    world.faults.add(FailBefore(503), path=PUSH, times=2)
    await issue.says("@threadtree-bot write a.txt: one\nsay I wrote a.txt.")

    await issue.sees(
        "Waiting. The agent is done, but its work could not be published. GitHub does not answer. The next try"
    )
    await world.until(PUT_BACK)
    (first,) = await world.turns()
    world.clock.move(20)
    await world.until(f"exists (select from turns where not_before > '{first['not_before'].isoformat()}')")
    (second,) = await world.turns()
    assert second["waiting_since"] == first["waiting_since"]  # the whole wait has a limit
    world.clock.move(120)
    (answer,) = await issue.hears_all()
    assert "I wrote a.txt." in answer
    assert "1 step of the agent" in answer
    assert "**Changed** [`threadtree/issue-1`]" in answer
    assert "[!NOTE]" not in answer  # its own files and commits are nothing unusual
    assert (await world.files("threadtree/issue-1"))["a.txt"] == "one"
    (done,) = await world.turns()
    assert (done["state"], done["cut_offs"]) == ("done", 0)
    # The waits are no work.
    assert done["started_at"] > done["created_at"] + timedelta(seconds=30)


async def test_stop_ends_the_wait_of_a_push_and_shows_the_answer(world: World) -> None:
    issue = await world.maria.opens_issue("Late")
    world.faults.add(FailBefore(503), path=PUSH, times=None)
    await issue.says("@threadtree-bot write a.txt: one\nsay I wrote a.txt.")
    await world.until(PUT_BACK)

    await issue.says("/stop")
    (answer,) = await issue.hears_all()
    assert "I wrote a.txt." in answer
    assert "1 step of the agent" in answer
    assert "**Stopped** by `maria`." in answer
    (worktree,) = await world.worktrees()
    assert world.text_of(worktree["path"], "a.txt") == "one\n"

    # The next request pushes it.
    world.faults.clear()
    await issue.says("@threadtree-bot say next")
    await issue.hears("next")
    assert (await world.files("threadtree/issue-1"))["a.txt"] == "one"


async def test_a_stop_is_heard_while_github_is_asked_whether_the_branch_is_protected(world: World) -> None:
    answers = asyncio.Event()
    world.faults.add(Held(answers), path="*/branches/*", times=None)
    issue = await world.maria.opens_issue("Slow")
    await issue.says("@threadtree-bot write a.txt: one\nsay I wrote a.txt.")
    await world.until("exists (select from turns where answer is not null)")
    began = asyncio.get_running_loop().time()
    await issue.says("/stop")
    await issue.hears("I wrote a.txt.", "**Stopped** by `maria`.")
    assert asyncio.get_running_loop().time() - began < 14, "an answer is waited for longer"
    answers.set()
    await world.quiet()


async def test_a_request_that_waited_runs_in_its_repository_under_the_new_name(world: World) -> None:
    issue = await world.maria.opens_issue("Renamed")
    world.faults.add(FailBefore(503), path=FETCH)
    await issue.says("@threadtree-bot write a.txt: one\nsay done")
    await world.until(PUT_BACK)
    await issue.sees("Waiting.")

    await world.maria.pushes("trunk", {"later.txt": "later\n"})
    world.repository.default_branch = "trunk"
    await world.github.rename_repository(world.repository, "store")
    # The old name is another repository's now, which the bot must not take for this one.
    other = await world.github.create_repository("acme/shop")
    await world.database.execute("update codebases set updated_at = updated_at - interval '2 minutes'")
    world.clock.move(90)
    answer = (await issue.hears_all())[-1]
    assert "/acme/store/tree/threadtree/issue-1" in answer
    assert (await world.files("threadtree/issue-1")).keys() == {"README.md", "later.txt", "a.txt"}
    assert list(await other.git.branches()) == ["main"]
    assert await world.database.fetchval("select name || ' ' || folder from codebases") == "store acme/shop"


async def test_a_new_worktree_waits_while_the_disk_is_short(a_world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world({"DISK_RESERVE_GB": "1"}) as world:
        used, new = [await world.maria.opens_issue(title) for title in ("Used", "New")]
        await used.says("@threadtree-bot say hello")
        await used.hears_all()
        monkeypatch.setattr(room, "free_bytes", lambda _: 10**9 - 1)

        await new.says("@threadtree-bot say at last")

        await new.sees("Waiting. The disk of the bot's machine is nearly full, so no new worktree is made. ")
        await used.says("@threadtree-bot say again")
        await used.sees("again")
        monkeypatch.undo()
        world.clock.move(900)
        assert "at last" in "".join(await new.hears_all())
        await used.hears_all()


async def test_a_repository_that_the_bot_may_not_see_now_declines_nobody(world: World) -> None:
    issue = await world.maria.opens_issue("Private", "@threadtree-bot /help")
    await issue.hears()
    world.faults.add(FailBefore(404, "Not Found"), times=None)
    asked = await issue.says("@threadtree-bot say hello")
    await world.until("exists (select from deliveries where state = 'failed')")
    world.faults.clear()

    why = await world.database.fetchval("select error from deliveries where state = 'failed'")
    assert why == "NotFound: acme/shop was deleted, or the bot may not see it"
    world.clock.move(600)
    await issue.hears("The bot could not handle this. Its operator can repeat it with `threadtree deliveries replay ")
    await asked.gets("😕")
