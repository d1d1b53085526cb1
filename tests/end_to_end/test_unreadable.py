"""A delivery that lacks a field that the bot needs fails visibly, and can be replayed."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import pytest

from bot.inbox.delivery import sign
from bot.simulated.github.model import Comment
from bot.store.deliveries import replay
from bot.store.engine import MAX_STALLS
from tests.support.world import Said, World

Payload = dict[str, Any]


async def receives(world: World, said: Said, change: Callable[[Payload], object]) -> str:
    """Send the comment's payload again, changed and with a new GUID; return the GUID."""
    await world.quiet()
    sent = next(one for one in reversed(world.github.deliveries) if one.event == "issue_comment")
    payload = json.loads(sent.request_body)
    assert payload["comment"]["body"] == said.comment.body
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


async def delivery(world: World, guid: str) -> tuple[str, str | None]:
    await world.quiet()
    row = await world.database.fetchrow("select state, error from deliveries where guid = $1", guid)
    return row["state"], row["error"]


async def test_a_request_runs_without_the_fields_that_nothing_reads(world: World) -> None:
    def reduce(payload: Payload) -> None:
        comment, issue = payload["comment"], payload["issue"]
        comment["body"] = "@threadtree-bot say hello"
        payload["comment"] = {key: comment[key] for key in ("id", "node_id", "body", "user", "created_at")}
        payload["issue"] = {key: issue[key] for key in ("number", "title")}

    issue = await world.maria.opens_issue("Reduced")
    said = await issue.says("nothing for the bot")

    def reduce_and_ask(payload: Payload) -> None:
        reduce(payload)
        assert isinstance(said.comment, Comment)
        said.comment.original = payload["comment"]["body"]  # GitHub shows the text that it sent

    guid = await receives(world, said, reduce_and_ask)

    await issue.hears("hello")
    assert await delivery(world, guid) == ("done", None)


async def test_an_unreadable_request_fails_with_its_reason_and_the_thread_is_told(world: World) -> None:
    def break_it(payload: Payload) -> None:
        payload["comment"]["body"] = "@threadtree-bot say hello"
        del payload["comment"]["node_id"]

    issue = await world.maria.opens_issue("Broken")
    said = await issue.says("nothing for the bot")
    guid = await receives(world, said, break_it)

    await issue.hears("could not read what GitHub sent", f"threadtree deliveries replay {guid}")
    await said.gets("😕")
    assert await delivery(world, guid) == ("failed", "comment.node_id: Field required")
    assert await world.turns() == []
    assert await replay(world.database, guid) == "replayed"
    await issue.hears("could not read what GitHub sent")


async def test_an_unreadable_request_without_permission_is_turned_away(world: World) -> None:
    def break_it(payload: Payload) -> None:
        payload["comment"]["body"] = "@threadtree-bot say hello"
        del payload["comment"]["node_id"]

    issue = await world.maria.opens_issue("Broken")
    said = await issue.says("nothing for the bot", by=world.olaf)
    guid = await receives(world, said, break_it)

    assert await delivery(world, guid) == ("failed", "comment.node_id: Field required")
    await issue.hears("Nothing was done for `olaf`")
    assert said.reactions == ["😕"]


async def test_an_unreadable_comment_that_is_not_for_the_bot_fails_in_silence(world: World) -> None:
    issue = await world.maria.opens_issue("Broken")
    said = await issue.says("> @threadtree-bot\n\nnothing for the bot")
    guid = await receives(world, said, lambda payload: payload["comment"].pop("node_id"))

    assert await delivery(world, guid) == ("failed", "comment.node_id: Field required")
    assert (said.reactions, issue.from_bot) == ([], [])


async def test_a_payload_that_names_no_thread_fails(world: World) -> None:
    issue = await world.maria.opens_issue("Broken")
    said = await issue.says("nothing for the bot")
    guid = await receives(world, said, lambda payload: payload["issue"].pop("number"))

    assert await delivery(world, guid) == ("failed", "issue.number: Field required")
    assert (said.reactions, issue.from_bot) == ([], [])


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
