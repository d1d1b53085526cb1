"""`review = "opened"`: each pull request of a person is reviewed once, because the default branch asks."""

import json

from bot.rules import CONFIG_PATH
from bot.thread.notices import VARIABLES_WITHHELD
from bot.verbs.review.words import ASKED_NO_MORE, WHY_OPENED
from tests.end_to_end.conftest import Worlds
from tests.end_to_end.test_confirmed_requests import forge
from tests.end_to_end.test_variables import knows_a_secret
from tests.support.world import Talk, World


async def chooses(world: World, review: str) -> Talk:
    """Push the rule, and let a request bring it about."""
    await world.maria.pushes("main", {CONFIG_PATH: f'review = "{review}"\n'})
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot say Hi.")
    await issue.hears("Hi.")
    return issue


async def test_each_pull_request_is_reviewed_once_when_it_is_opened_or_ready(world: World) -> None:
    knows_a_secret(world)
    await chooses(world, "opened")
    fork = await world.github.fork(world.repository, world.olaf.user)
    await world.olaf.pushes("idea", {"idea.txt": "mine\n"}, to=fork)
    theirs = await world.olaf.opens_pull("An idea", "Look at @maria.", head="idea", fork=fork)
    answer, _ = await theirs.reviewed("I have read your request", VARIABLES_WITHHELD)
    assert WHY_OPENED in answer
    assert "[.threadtree/config.toml's request]" in answer
    await world.olaf.pushes("idea", {"idea.txt": "new\n"}, to=fork)
    await world.olaf.person.close(theirs.thread)
    await world.maria.person.reopen(theirs.thread)
    await world.quiet()

    await world.maria.pushes("fix", {"a.txt": "a\n"}, base="main")
    person = world.maria.person
    draft = await person.open_pull(world.repository, head="fix", title="Draft", draft=True)
    drafted = world.listen(draft, world.maria)
    robot = world.someone("robot", "Bot")
    world.repository.allow(robot.user, "write")
    await robot.pushes("bump", {"b.txt": "b\n"}, base="main")
    bump = await robot.opens_pull("Bump", head="bump")
    await world.quiet()
    assert drafted.from_bot == bump.from_bot == []
    kinds = [(json.loads(one["ask"])["verb"], one["state"]) for one in await world.turns()]
    assert kinds == [("work", "done"), ("review", "done")]

    # GitHub's word counts: it is a draft.
    pull = {"number": draft.number, "title": "Draft", "closed_at": None, "draft": False}
    await forge(world, "pull_request", action="ready_for_review", pull_request=pull)
    await world.quiet()
    assert drafted.from_bot == []

    await person.readies(draft)
    await drafted.reviewed("I have read your request")
    await drafted.says("/review")
    await drafted.reviewed("I have read your request")
    assert len(await world.turns()) == 4


async def test_a_rule_that_is_gone_by_then_asks_nothing_and_an_own_request_is_no_second_one(world: World) -> None:
    await chooses(world, "opened")
    await world.maria.pushes("one", {"a.txt": "a\n"}, base="main")
    asked = await world.maria.opens_pull("One", "@threadtree-bot /review", head="one")
    await asked.reviewed("maria's request")
    await world.quiet()
    assert len(await world.turns()) == 2
    await world.maria.pushes("main", {CONFIG_PATH: None})
    await world.maria.pushes("two", {"b.txt": "b\n"}, base="main")
    late = await world.maria.opens_pull("Two", head="two")
    await late.hears("**Not started:**", ASKED_NO_MORE)


async def test_the_budget_of_the_day_holds(a_world: Worlds) -> None:
    async with a_world({"MAX_COST_USD_PER_REPOSITORY_PER_DAY": "1"}) as world:
        issue = await chooses(world, "opened")
        await issue.says("@threadtree-bot cost 2\nsay Dear.")
        await issue.hears("Dear.")
        await world.maria.pushes("fix", {"a.txt": "a\n"}, base="main")
        pull = await world.maria.opens_pull("Fix", head="fix")
        await pull.hears("**Not started:**", "$2.00", "$1.00")
