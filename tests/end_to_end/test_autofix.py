"""CI of the bot's own pull requests: failing checks of what it pushed start a turn, within limits."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bot.simulated.github.model import Pull
from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World

WORK = "@threadtree-bot write cart.py: total = 0\nmend append cart.py: again"
SETTINGS = {"AUTOFIX": "true", "AUTO_PULL_REQUEST": "ready"}


@pytest.fixture
async def world(a_world: Worlds) -> AsyncIterator[World]:
    async with a_world(SETTINGS) as world:
        yield world


async def asked(world: World, words: str = WORK) -> Talk:
    """Let maria ask for a change on an issue, whose pull request the bot opens."""
    issue = await world.maria.opens_issue("Empty carts", "The total is None.")
    await issue.says(words)
    await issue.hears("**Changed**", "[Pull request #2]")
    await world.quiet()
    return issue


def pull_of(world: World) -> Pull:
    return world.repository.pulls[0]


def ci(world: World, log: str = "", sha: str | None = None, **conclusions: str) -> str:
    """Let the checks of the pull request's head end so; return the head."""
    head = sha or pull_of(world).head_sha
    world.github.end_checks(world.repository, head, conclusions, log)
    return head


async def fixes(world: World) -> list[Any]:
    return [turn for turn in await world.turns() if turn["mends"] is not None]


async def test_two_attempts_and_the_checks_pass_which_is_said_by_an_edit(world: World) -> None:
    issue = await asked(world, f"{WORK}\\nsave prompt {world.directory}/prompt")
    first = ci(world, "x" * 9000 + "AssertionError: None", tests="failure", lint="success")
    heard = await issue.hears(f"`tests` fails on [`{first[:7]}`](", "Attempt 1 of 3 to mend that.", "**Changed**")
    assert f"/acme/shop/commit/{first})" in heard
    prompt = (world.directory / "prompt").read_text()
    assert "AssertionError: None" in prompt
    assert "x" * 4001 not in prompt
    await world.quiet()

    second = ci(world, tests="failure", lint="success")
    assert second != first
    await issue.hears(f"`tests` fails on [`{second[:7]}`](", "Attempt 2 of 3")
    await world.quiet()
    comments = len(issue.from_bot)
    ci(world, tests="success", lint="neutral")
    assert (await issue.hears("Attempt 2 of 3")).partition("\n\n<!--")[0].endswith("**Checks pass now.**")

    assert len(issue.from_bot) == comments
    assert [(turn["requested_by"], turn["mends"], turn["context"]) for turn in await fixes(world)] == [
        ("maria", first, "tests"),
        ("maria", second, "tests"),
    ]
    ci(world, tests="success")
    await world.quiet()
    assert not issue.unread, "it is said once"
