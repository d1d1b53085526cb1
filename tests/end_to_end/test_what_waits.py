"""What waits for a person, from the thread to all places that tell it, until it is done on GitHub."""

from typing import Any

from bot.store.scope import EVERYTHING
from bot.thread.pull_requests import edited_by_hand
from bot.turn import waits_rows
from tests.end_to_end.conftest import Worlds
from tests.end_to_end.test_confirmed_requests import forge, thread
from tests.end_to_end.test_notify import a_receiver
from tests.support.patience import until_true
from tests.support.world import World


async def waits(world: World) -> list[tuple[int, str]]:
    await world.quiet()
    found = await waits_rows.listed(world.database, 50, None, None, EVERYTHING, None)
    return [(row["turn"], row["waits_for"]) for row in found]


async def test_a_plan_and_then_its_pull_request_wait_until_they_are_done(a_world: Worlds) -> None:
    async with a_receiver() as receiver, a_world({"NOTIFY_URL": receiver.url}) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot\n/plan say The plan:\nsay write a.txt: one")
        await issue.hears("The plan:")
        assert await waits(world) == [(1, "approve")]
        await issue.says("/status")
        await issue.hears("- The plan of turn 1 waits for `/approve`\n")
        await issue.says("/approve")
        await issue.hears("**Changed**")
        assert await waits(world) == []

        await world.maria.pushes("by-hand", {"other.txt": "other\n"})
        other = await world.maria.opens_pull("By hand", head="by-hand")
        at, here = f"{world.clock():%Y-%m-%dT%H:%M:%SZ}", {"id": world.repository.id}
        user = {"login": "maria", "id": world.maria.user.id, "type": "User"}
        said = {"node_id": "x", "body": "", "user": user, "created_at": at, "updated_at": at}
        head = {"ref": "threadtree/issue-1", "sha": "0" * 40, "repo": here}
        about = {**thread(other), **said, "head": head}
        await forge(world, "pull_request", action="opened", pull_request=about)
        assert await waits(world) == [], "GitHub says that it is of another branch"

        pull = await world.maria.opens_pull("Greet people", head="threadtree/issue-1")
        assert await waits(world) == [(2, "review")]
        await issue.says("/status")
        await issue.hears(f"- Pull request #{pull.number} waits for a review\n", f"- Pull request #{pull.number}\n")
        review = {"id": 4711, **said, "state": "approved", "submitted_at": at}
        await forge(
            world, "pull_request_review", action="submitted", pull_request={**about, **thread(pull)}, review=review
        )
        await world.olaf.person.review(pull.pull, "Nice", "approved")
        assert await waits(world) == [(2, "review")], "nobody, and somebody without write access"
        await world.maria.person.review(pull.pull, None, "approved")
        assert await waits(world) == []

        await pull.says("@threadtree-bot write a.txt: two")
        await pull.hears("**Changed**")
        assert await waits(world) == [(3, "review")], "what was pushed since"
        await pull.merges()
        assert await waits(world) == []

        await until_true(lambda: len(receiver.got) == 4)
        first, *others = receiver.got
        assert (first["event"], first["waits_for"]) == ("needs-person", "approve")
        assert "acme/shop#1: the plan for maria waits for `/approve`." in str(first["text"])
        told: list[tuple[Any, ...]] = [(one["turn"], one["event"], one["waits_for"]) for one in others]
        assert told == [(2, "answer", None), (2, "needs-person", "review"), (3, "answer", "review")]
        assert str(others[1]["url"]).endswith(f"/acme/shop/pull/{pull.number}")


async def test_on_a_pull_request_of_a_person_remarks_need_a_mention_and_its_text_stays_theirs(world: World) -> None:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot write a.txt: one")
    await issue.hears("**Changed**")
    pull = await world.maria.opens_pull("Greet people", "My own words.", head="threadtree/issue-1")
    await world.quiet()
    await pull.reviews("write a.txt: one by one")
    await pull.reviews("@threadtree-bot write a.txt: two")
    answer = await pull.hears("**Changed** [`threadtree/issue-1`]")
    assert edited_by_hand(pull.number) not in answer, "it was theirs from the beginning"
    assert (pull.pull.title, pull.pull.body) == ("Greet people", "My own words.")
    assert await waits(world) == [(2, "review")]
