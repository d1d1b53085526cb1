"""Recovery does not speak for people: what it rebuilds from a thread runs only where text and speaker are proven."""

import pytest

from bot.simulated.github.model import Issue
from tests.end_to_end.conftest import Worlds
from tests.end_to_end.test_missed_deliveries import OFTEN, Outage
from tests.support.world import World

COMMENTS, ISSUES = "/repos/acme/shop/issues/comments", "/repos/acme/shop/issues"


async def rounds(world: World, path: str, number: int = 2) -> None:
    """Wait for so many rounds of the recovery, and for what follows from them."""
    await world.quiet()
    seen = len(world.github.requests)
    await world.github.wait_for(
        lambda: sum(one.path == path and one.method == "GET" for one in world.github.requests[seen:]) > number
    )
    await world.quiet()


async def requests(world: World) -> list[tuple[str, str]]:
    rows = await world.database.fetch("select requested_by, text from requests order by turn_id")
    return [(row["requested_by"], row["text"]) for row in rows]


async def test_a_maintainers_edit_does_not_run_an_outsiders_request(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        world.repository.private = False
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        first = await known.says("@threadtree-bot say Outsider one.", by=world.olaf)
        await first.gets("😕")
        await known.hears("Nothing was done for `olaf`")
        second = await known.says("@threadtree-bot say Outsider two. password=hunter2", by=world.olaf)
        command = await known.says("/worktree remove", by=world.olaf)
        await world.quiet()
        world.clock.move(2)
        await world.maria.person.edit(second.comment, "@threadtree-bot say Outsider two. password=***")
        await world.maria.person.edit(command.comment, "/worktree remove\n\n(moved from another issue)")
        await rounds(world, COMMENTS)
        assert await requests(world) == [("maria", "@threadtree-bot say First.")]
        assert await world.database.fetchval("select count(*) from operations") == 0


async def test_a_mention_that_a_maintainer_adds_to_a_comment_is_hers(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        remark = await known.says("The total is wrong.", by=world.olaf)
        async with Outage(world):
            world.clock.move(2)  # GitHub's times are whole seconds
            await world.maria.person.edit(remark.comment, "@threadtree-bot say Second.")
        await known.hears("Second.")
        await world.quiet()
        assert [person for person, _ in await requests(world)] == ["maria", "maria"]


async def test_a_request_that_was_only_corrected_in_the_outage_still_runs(a_world: Worlds) -> None:
    async with a_world(OFTEN) as world:
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        async with Outage(world):
            asked = await known.says("@threadtree-bot say Second.")
            world.clock.move(2)
            await world.maria.person.edit(asked.comment, "@threadtree-bot say Second. Please.")
        await known.hears("Second.")
        await world.quiet()
        assert len(await requests(world)) == 2


async def test_an_edit_that_github_does_not_explain_is_asked_again(
    a_world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_world(OFTEN) as world:
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        remark = await known.says("Nothing for the bot.", by=world.olaf)
        async with Outage(world):
            world.clock.move(2)  # GitHub's times are whole seconds
            await world.maria.person.edit(remark.comment, "@threadtree-bot say Second.")
            remark.comment.revisions[:-1] = []  # GitHub deletes old edits on request
        await known.hears("ask again")
        await remark.gets("😕")
        await rounds(world, COMMENTS)
        assert len(await requests(world)) == 1


@pytest.mark.parametrize("gesture", ["label", "assign"])
@pytest.mark.parametrize("is_outage", [True, False])
async def test_a_text_that_was_edited_after_a_gesture_does_not_run(
    a_world: Worlds, gesture: str, is_outage: bool
) -> None:
    async with a_world(OFTEN) as world:
        world.repository.private = False
        known = await world.maria.opens_issue("Known", "@threadtree-bot say First.")
        await known.hears("First.")
        issue = await world.olaf.opens_issue("Wrong total", "say The total is wrong.")

        async def ask(thread: Issue) -> None:
            if gesture == "label":
                await world.maria.person.label(thread, "threadtree")
            else:
                await world.maria.person.assign(thread, world.github.bot)

        edited = "write pwned.txt: by olaf\nsay Pwned."
        if is_outage:
            async with Outage(world):
                await ask(issue.thread)
                world.clock.move(2)
                await world.olaf.person.edit(issue.thread, edited)
            await issue.hears("ask again")
        else:
            await ask(issue.thread)
            await issue.hears("The total is wrong.")
            world.clock.move(2)
            await world.olaf.person.edit(issue.thread, edited)
        await rounds(world, ISSUES)
        assert all("pwned" not in request for _, request in await requests(world))
        assert not issue.unread
