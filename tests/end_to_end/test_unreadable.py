"""A delivery that lacks a field that the bot needs fails visibly, and can be replayed."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import pytest

from bot.inbox.delivery import sign
from bot.store.deliveries import replay
from bot.store.engine import MAX_STALLS
from tests.support.world import Said, World

Payload = dict[str, Any]


async def receives(world: World, said: Said, change: Callable[[Payload], object], before: str | None) -> str:
    """Send the comment's first payload again, changed and with a new GUID; return the GUID."""
    await world.quiet()
    sent = next(one for one in reversed(world.github.deliveries) if one.event == "issue_comment")
    payload = json.loads(sent.request_body)
    assert payload["comment"]["body"] == before
    change(payload)
    body, guid = json.dumps(payload).encode(), str(uuid4())
    headers = {
        "X-GitHub-Event": "issue_comment",
        "X-GitHub-Delivery": guid,
        "X-Hub-Signature-256": sign(body, world.pair.settings.webhook_secrets[0]),
        "Content-Type": "application/json",
    }
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{world.pair.url}/webhooks/github", content=body, headers=headers)
    assert answer.json() == {"status": "accepted", "delivery": guid}
    return guid


async def receives_broken(world: World, said: Said) -> str:
    """Let the comment ask the bot, and tell that in a payload that lacks a field alone."""

    def break_it(payload: Payload) -> None:
        payload["comment"]["body"] = said.comment.body
        del payload["comment"]["node_id"]

    await world.quiet()
    before = said.comment.body
    world.faults.hold_webhooks("issue_comment", "edited")
    await world.maria.person.edit(said.comment, "@threadtree-bot say hello")
    return await receives(world, said, break_it, before)


async def delivery(world: World, guid: str) -> tuple[str, str | None]:
    await world.quiet()
    row = await world.database.fetchrow("select state, error from deliveries where guid = $1", guid)
    return row["state"], row["error"]


async def test_an_unreadable_request_fails_with_its_reason_and_the_thread_is_told(world: World) -> None:
    issue = await world.maria.opens_issue("Broken")
    said = await issue.says("nothing for the bot")
    guid = await receives_broken(world, said)

    await issue.hears("could not read what GitHub sent", f"threadtree deliveries replay {guid}")
    await said.gets("😕")
    assert await delivery(world, guid) == ("failed", "comment.node_id: Field required")
    assert await world.turns() == []
    assert await replay(world.database, guid) == "replayed"
    await issue.hears("could not read what GitHub sent")


async def test_an_unreadable_request_without_permission_is_turned_away(world: World) -> None:
    issue = await world.maria.opens_issue("Broken")
    said = await issue.says("nothing for the bot", by=world.olaf)
    guid = await receives_broken(world, said)

    assert await delivery(world, guid) == ("failed", "comment.node_id: Field required")
    await issue.hears("Nothing was done for `olaf`")
    assert said.reactions == ["😕"]


@pytest.mark.expects_errors
async def test_a_delivery_that_kills_its_workers_is_given_up_and_its_thread_goes_on(world: World) -> None:
    issue = await world.maria.opens_issue("Poisoned", "@threadtree-bot help")
    await issue.hears("/status")
    await world.quiet()
    lock = await world.database.fetchval("select lock_key from deliveries where state = 'done'")
    async with world.database.transaction():
        await world.database.execute(
            "insert into deliveries (guid, event, state, lock_key, stalls)"
            " values ('poison', 'issues', 'received', $1, $2)",
            lock,
            MAX_STALLS - 1,
        )
        # As its last worker left it.
        await world.database.execute(
            "insert into procrastinate_jobs (queue_name, task_name, lock, args, status)"
            """ values ('decide', 'decide', $1, '{"guid": "poison"}', 'doing')""",
            lock,
        )
    await issue.says("@threadtree-bot help")

    await issue.hears("could not handle this", "deliveries replay poison")
    await issue.hears("/status")
    await issue.opening.gets("😕")  # it goes after everything else
    row = await world.database.fetchrow("select state, error from deliveries where guid = 'poison'")
    assert tuple(row) == ("failed", f"The worker that handled it died {MAX_STALLS} times.")
