"""Several agents: a thread changes its agent and its model, and a label names one."""

import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bot.demo.pair import SCRIPTED_AGENT
from tests.end_to_end.conftest import Worlds
from tests.end_to_end.test_confirmed_requests import forge, thread, unmoved, written
from tests.support.world import World


@pytest.fixture
async def world(a_world: Worlds, tmp_path: Path) -> AsyncIterator[World]:
    """Yield a bot with two agents: the scripted one as `custom`, and again as the program of a preset."""
    program = tmp_path / "programs" / "claude-agent-acp"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {SCRIPTED_AGENT} "$@"\n')
    program.chmod(0o755)
    settings = {
        "AGENT": "custom, claude-acp",
        "ANTHROPIC_API_KEY": "sk-ant-of-this-test",
        "PATH": f"{program.parent}:{Path(shlex.split(sys.executable)[0]).parent}:/usr/local/bin:/usr/bin:/bin",
    }
    async with a_world(settings) as world:
        yield world


async def test_a_thread_changes_its_agent_and_its_model_and_goes_on_with_what_was_answered(world: World) -> None:
    issue = await world.maria.opens_issue("Colours")
    await issue.says("@threadtree-bot remember blue\nsay Blue it is.")
    await issue.hears("Blue it is.")

    await issue.says("/agent claude-acp\n@threadtree-bot recall\necho prompt\nenv")
    await issue.hears("From the next request on, `claude-acp` with its own default model is asked on this thread.")
    said = await issue.hears("The agent is `claude-acp` now.", "I remember: nothing.", "Blue it is.")
    assert "ANTHROPIC_API_KEY" in said
    assert "ANTHROPIC_MODEL" not in said

    await issue.says("/model claude-opus-4-5\n/status")
    await issue.hears("`claude-acp` with the model `claude-opus-4-5` is asked")
    await issue.hears("The next request goes to it, with the model `claude-opus-4-5`")
    await issue.says("@threadtree-bot remember green\nenv")
    await issue.hears("ANTHROPIC_MODEL")

    await issue.says("@threadtree-bot /agent custom please")
    await issue.hears("The choice of the model `claude-opus-4-5` ended: it was for `claude-acp`.")
    await issue.says("@threadtree-bot recall\necho prompt")
    await issue.hears("The agent is `custom` now.", "I remember: nothing.", "I will remember green.")
    await issue.says("@threadtree-bot env")
    assert "ANTHROPIC_" not in await issue.hears("THREADTREE_OUT")
    ended = [("custom", "agent-changed"), ("claude-acp", "agent-changed"), ("custom", None)]
    assert await world.sessions("agent", "end_reason") == ended


async def test_a_name_that_cannot_be_chosen_changes_nothing(world: World) -> None:
    issue = await world.maria.opens_issue("Colours")
    await issue.says("/agent hal")
    await issue.hears("There is no agent `hal` here. Choose with `/agent custom` or `/agent claude-acp`.")
    await issue.says("/agent CLAUDE-ACP\n/model a{b}")
    await issue.hears("`claude-acp` with its own default model is asked")
    await issue.hears("`a{b}` cannot be a model's name.")
    await issue.says("/agent\n/model opus\n/model default\n/agent default")
    await issue.hears("`/agent default` takes that back. Choose with `/agent custom`.")
    await issue.hears("with the model `opus`")
    await issue.hears("with its own default model")
    await issue.hears("From the next request on, `custom` with")
    await issue.says("/agent claude-acp", by=world.olaf)
    await issue.hears("Nothing was done for `olaf`")
    assert await world.database.fetchval("select agent from conversations") is None


async def test_an_agent_that_is_gone_is_named_once(world: World) -> None:
    issue = await world.maria.opens_issue("Colours")
    await issue.says("/agent claude-acp")
    await issue.hears()
    await world.database.execute("update conversations set agent = 'gemini', model = 'pro'")
    await issue.says("@threadtree-bot say One.")
    await issue.hears("The agent `gemini` is not available any more, so `custom` did this.")
    await issue.says("@threadtree-bot say Two.")
    assert "gemini" not in await issue.hears("Two.")


async def test_a_label_asks_with_the_agent_that_it_names(world: World) -> None:
    body = "@threadtree-bot say Hello."
    issue = await world.maria.opens_issue("Hello", body, labels=["threadtree", "threadtree:claude-acp"])
    await issue.hears("Hello.")
    await world.quiet()
    assert len(await world.turns()) == 1

    other = await world.maria.opens_issue("Hello", "env")
    await world.maria.person.label(other.thread, "Threadtree:Claude-ACP")
    await other.hears("ANTHROPIC_API_KEY")
    await world.maria.person.label(other.thread, "threadtree:hal")
    await other.hears("There is no agent `hal` here.")
    await other.opening.gets("😕")
    await other.says("@threadtree-bot env")
    assert "ANTHROPIC_API_KEY" not in await other.hears("The agent is `custom` now.")


async def test_a_label_for_an_agent_that_nobody_added_is_refused(world: World) -> None:
    issue = await world.maria.opens_issue("Wrong total", "env")
    await world.maria.person.label(issue.thread, "threadtree")
    await issue.hears("PATH")
    world.clock.move(120)
    own = written(issue.opening, issue.thread.body or "", "maria", world) | thread(issue)
    await forge(world, "issues", action="labeled", issue=own, label={"name": "threadtree:claude-acp"})
    await unmoved(world, 1)


async def test_an_agent_of_ones_own_lists_its_models_uses_one_and_names_a_wrong_one(a_world: Worlds) -> None:
    async with a_world({"AGENT_COMMAND": f"{SCRIPTED_AGENT} --models"}) as world:
        issue = await world.maria.opens_issue("Colours")
        await issue.says("@threadtree-bot say Hi.")
        await issue.hears("Hi.")
        await issue.says("/model")
        await issue.hears("`custom` with its own default model is asked", "It offers small, large-2.")
        await issue.says("/model large-2\n@threadtree-bot recall")
        await issue.hears("`custom` with the model `large-2` is asked")
        await issue.hears("I remember: the model large-2.")
        await issue.says("/model huge\n@threadtree-bot recall")
        await issue.hears("`custom` with the model `huge`")
        await issue.hears("**Failed:**", "The agent has no model huge. It offers small, large-2.")
        await issue.says("/model default\n/retry")
        await issue.hears("its own default model")
        await issue.hears("I remember: the model large-2.")


async def test_an_agent_without_models_says_so(world: World) -> None:
    issue = await world.maria.opens_issue("Colours")
    await issue.says("/model opus\n@threadtree-bot recall")
    await issue.hears("`custom` with the model `opus` is asked")
    await issue.hears("**Failed:**", "The agent offers no choice of models, so not opus.")
