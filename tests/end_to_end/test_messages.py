"""A message while the agent works: told to it where its protocol takes one, a turn of its own elsewhere."""

import asyncio
import sys

import pytest

from bot.simulated.github.faults import Held
from tests.end_to_end.conftest import Worlds
from tests.end_to_end.test_confirmed_requests import NOT_SHOWN, busy
from tests.support.patience import eventually

TAKES_MESSAGES = {"AGENT_COMMAND": f"{sys.executable} -m bot.simulated.agent --resume --steering"}


async def test_a_message_reaches_the_running_agent_and_one_answer_names_both(a_world: Worlds) -> None:
    async with a_world(TAKES_MESSAGES) as world:
        world.repository.allow(world.olaf.user, "write")
        issue = await world.maria.opens_issue("Greeting")
        gate = world.gate()
        await issue.says(f"@threadtree-bot wait {gate}\nwrite hello.txt: Hello\nsay Done.")
        await issue.sees_working()

        message = await issue.says("@threadtree-bot say With a comma.\nappend log.txt: told", by=world.olaf)
        await message.gets("👀")
        await issue.sees("[olaf added](")
        await issue.sees("Given to the agent that works on [maria's request](")
        assert await world.turns("state") == ["running", "done"]
        await issue.says("/status")
        await issue.hears("Working on [maria's request](", ", with 1 message added for ", "No requests queued.")
        gate.open()

        await issue.hears("With a comma.", "Done.", "[maria's request](", "with [olaf's message](", "turn 1")
        await world.quiet()
        # The answer takes the place of both tracking comments.
        assert len(issue.from_bot) == 2
        assert {"hello.txt", "log.txt"} <= (await world.files("threadtree/issue-1")).keys()
        assert await world.turns("reason") == [None, "Given to the agent of turn 1, which was at work."]


async def test_what_comes_with_a_stop_is_one_step_and_not_told_to_the_agent_that_stops(a_world: Worlds) -> None:
    async with a_world(TAKES_MESSAGES) as world:
        issue = await world.maria.opens_issue("Greeting")
        await issue.says("@threadtree-bot write a.txt: one\nhang")
        await issue.sees_working()

        await issue.says("/stop\n@threadtree-bot say Instead.")
        await issue.hears("**Stopped** by `maria`.")
        await issue.hears("Instead.", "turn 2")
        assert await world.turns("state") == ["stopped", "done"]
        assert await world.turns("is_told") == [False, False]

        # Nothing runs now: the answer to the request is the only one.
        await issue.says("/stop\n@threadtree-bot say Again.")
        await issue.hears("Again.")


async def test_a_message_behind_another_request_or_with_a_command_waits_for_its_turn(a_world: Worlds) -> None:
    async with a_world(TAKES_MESSAGES) as world:
        issue = await world.maria.opens_issue("Greeting")
        gate = world.gate()
        await issue.says(f"@threadtree-bot wait {gate}\nsay First.")
        await issue.sees_working()

        await issue.says("/status\n@threadtree-bot say Second.")
        await issue.hears("Working on [maria's request](")
        await issue.says("@threadtree-bot say Third.")
        await issue.sees("Queued. 2 requests are ahead of this one.")
        assert await world.turns("state") == ["running", "queued", "queued"]
        gate.open()

        for words in ("First.", "Second.", "Third."):
            await issue.hears(words, "[maria's request](")
        assert not any(await world.turns("is_told"))


async def test_what_is_asked_after_the_session_ended_waits_for_the_next_one(a_world: Worlds) -> None:
    async with a_world(TAKES_MESSAGES) as world:
        issue = await world.maria.opens_issue("Greeting")
        gate = await busy(world, issue)
        await issue.says("/reset-context")
        await issue.hears("AI context reset.")
        await issue.says("@threadtree-bot say Second.")
        await issue.sees("Queued. One request is ahead of this one.")
        gate.open()

        await issue.hears("First.")
        await issue.hears("Second.")
        assert not any(await world.turns("is_told"))


async def test_a_retry_repeats_what_was_added_to_the_request(a_world: Worlds) -> None:
    async with a_world(TAKES_MESSAGES) as world:
        issue = await world.maria.opens_issue("Greeting")
        await issue.says("@threadtree-bot save prompt prompt.txt\nhang")
        await issue.sees_working()
        await issue.says("@threadtree-bot use tabs")
        await issue.sees("[maria added](")
        await issue.says("/stop")
        await issue.hears("**Stopped** by `maria`.", "with [maria's message](")
        await issue.says("/retry")
        await world.until("exists (select from steps where turn_id = 3 and words = 'Edit prompt.txt')")
        await issue.says("/stop")
        await issue.hears("**Stopped** by `maria`.", "with [maria's message](")
        (worktree,) = await world.worktrees("path")
        prompt = world.text_of(worktree, "prompt.txt")
        assert prompt is not None
        assert "# Added to the request" in prompt
        assert "@maria wrote:\n\n@threadtree-bot use tabs" in prompt


ANEW = """
with ended as (update sessions set active = false, ended_at = now(), end_reason = 'node-lost')
update turns set state = 'queued', claim = null, worker = null, session_id = null where state = 'running'
"""
"""Another node took the turn over."""
TWICE = "update turns set claim = gen_random_uuid(), worker = 'gone', cut_offs = 1 where state = 'running'"
"""Its process is gone for the second time."""


@pytest.mark.parametrize("loses", [ANEW, TWICE], ids=["anew", "twice"])
async def test_what_was_told_is_asked_again_or_ends_with_its_request(a_world: Worlds, loses: str) -> None:
    async with a_world(TAKES_MESSAGES) as world:
        issue = await world.maria.opens_issue("Greeting")
        await issue.says("@threadtree-bot save prompt prompt.txt\nhang")
        await issue.sees_working()
        await issue.says("@threadtree-bot use tabs")
        await issue.sees("Given to the agent that works on [maria's request](")
        (worktree,) = await world.worktrees("path")
        first = world.text_of(worktree, "prompt.txt")
        await world.database.execute(loses)
        if loses == ANEW:

            async def told_anew() -> str:
                now = world.text_of(worktree, "prompt.txt") or ""
                return now if now != first else ""

            prompt = await eventually(told_anew)
            assert "# Added to the request" in prompt
            assert "@maria wrote:\n\n@threadtree-bot use tabs" in prompt
            await issue.says("/stop")
        end = "**Stopped** by `maria`." if loses == ANEW else "**Interrupted:**"
        await issue.hears(end, "[maria's request](", "with [maria's message](")
        await world.quiet()
        assert not any("One answer follows for both" in comment.body for comment in issue.from_bot)


async def test_what_github_does_not_confirm_is_told_to_no_agent(a_world: Worlds) -> None:
    async with a_world(TAKES_MESSAGES) as world:
        issue = await world.maria.opens_issue("Greeting")
        gate = await busy(world, issue)
        world.repository.allow(world.github.person("rosa"), "write")
        at_once, shown = asyncio.Event(), asyncio.Event()
        at_once.set()
        for event in (at_once, shown):  # it is read when it is decided, and before the agent is told
            world.faults.add(Held(event), method="GET", path="*/issues/comments/*")
        asked = await issue.says("@threadtree-bot say Mine, too.")
        await world.until("exists (select from requests where joins is not null)")
        world.clock.move(2)
        await world.github.person("rosa").edit(asked.comment, "@threadtree-bot say FORGED.")
        shown.set()
        await issue.says("@threadtree-bot say Mine.")
        await issue.sees("Queued. 2 requests are ahead of this one.")
        gate.open()

        assert "FORGED" not in await issue.hears("First.")
        await issue.hears("**Not started:**", NOT_SHOWN)
        await issue.hears("Mine.")
        assert not any(await world.turns("is_told"))
