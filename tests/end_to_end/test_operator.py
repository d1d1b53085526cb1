"""An operator with the API: what it asks is carried out by the worker and told on the thread."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from bot.serve import worker
from tests.end_to_end.conftest import Worlds
from tests.support.world import World

TOKEN = "a-token-of-the-tests"


async def test_an_operator_makes_a_worktree_watches_a_turn_stops_and_retries_it(
    a_world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "DISK_SECONDS", 0.2)
    async with a_world({"ADMIN_TOKEN": TOKEN}) as world:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=f"{world.pair.url}/api", headers=headers, timeout=60) as api:
            issue = await world.maria.opens_issue("Slow work")
            asked = (await api.post("/worktrees", json={"conversation": f"acme/shop#{issue.number}"})).json()
            await world.until("exists (select from turns where state = 'done')")
            delivery = (await api.get(f"/deliveries/{asked['delivery']}")).json()
            assert (delivery["state"], delivery["event"]) == ("done", "operator")
            [made] = (await api.get("/worktrees")).json()["items"]
            assert (made["state"], made["conversations"]) == ("ready", ["acme/shop#1"])

            await api.post("/worktrees", json={"conversation": "acme/shop#404"})
            await world.until("exists (select from deliveries where error = 'GitHub shows the bot no acme/shop#404.')")

            async with api.stream("GET", "/events") as events:
                gate = world.gate()
                told = asyncio.create_task(heard_until(events, "I wait."))
                await issue.says(f"@threadtree-bot plan Read | Wait\nsay I wait.\nwait {gate}\nsay Finished.")
                heard = await told
                assert (heard["turn-started"]["turn"], heard["turn-started"]["state"]) == (2, "running")
                assert heard["turn-progress"]["turn"] == heard["turn-step"]["turn"] == 2
                assert heard["turn-step"]["words"].startswith("Wait for")
                assert heard["turn-progress"]["plan"][0] == {"state": "completed", "text": "Read"}
                assert (await api.post("/turns/2/stop")).status_code == 202
                await issue.hears("**Stopped** by the operator.")
                gate.open()
                assert (await api.post("/turns/2/retry")).status_code == 202
                await issue.hears("Finished.")

            await world.until("exists (select from counters where name = 'threadtree_github_rate_remaining')")
            await world.until("exists (select from counters where name = 'threadtree_acknowledgement_seconds_bucket')")
            await world.until("exists (select from nodes where (disk ->> 'worktrees')::bigint > 0)")
            figures = (await api.get(f"{world.pair.url}/metrics")).text
            assert 'threadtree_turns_ended_total{agent="custom",state="stopped"} 1.0' in figures
            assert 'threadtree_worktrees{node="here",state="ready"} 1.0' in figures
            assert 'threadtree_github_requests_total{status="200"}' in figures
            assert 'threadtree_disk_free_bytes{node="here"}' in figures
            assert await world.turns("state", "requested_by") == [("stopped", "maria"), ("done", "maria")]

            old = {"older_than": "0s", "repo": "acme/shop"}
            shown = await pruned(world, api, **old, dry_run=True)
            assert [one["id"] for one in shown["report"]["deleted"]] == [made["id"]]
            assert shown["report"]["deleted"][0]["bytes"] > 0
            assert (await api.get("/worktrees")).json()["items"][0]["state"] == "ready", "nothing was removed"
            done = await pruned(world, api, **old)
            assert done["report"]["deleted"][0]["id"] == made["id"]
            assert done["outcome"].startswith("1 removed, 0 kept, 0 failed; ")
            assert (await api.get("/worktrees")).json()["items"][0]["state"] == "removed"


async def test_commands_on_threads_and_what_an_operator_asks_are_recorded_once_each(a_world: Worlds) -> None:
    async with a_world({"ADMIN_TOKEN": TOKEN}) as world:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(base_url=f"{world.pair.url}/api", headers=headers, timeout=60) as api:
            issue = await world.maria.opens_issue("Work")
            await issue.says("@threadtree-bot write a.txt: one\nsay Written.")
            await issue.hears("Written.")
            await issue.says("/worktree reset\n/worktree list")
            await issue.hears_all()
            gate = world.gate()
            await issue.says(f"@threadtree-bot wait {gate}\nsay Finished.")
            await issue.sees_working()
            assert (await api.post("/turns/3/stop")).status_code == 202
            await issue.hears("**Stopped** by the operator.")
            gate.open()
            assert (await api.post("/turns/3/retry")).status_code == 202
            await issue.hears("Finished.")
            await issue.says("/stop")
            await issue.hears_all()
            found = (await api.get("/audit")).json()["items"]
        told = [(one["person"], one["channel"], one["action"], one["target"], one["codebase"]) for one in found]
        assert told == [
            ("maria", "thread", "stop", "acme/shop#1", "acme/shop"),
            ("admin-token", "API", "retry", "turn 3", "acme/shop"),
            ("admin-token", "API", "stop", "turn 3", "acme/shop"),
            ("maria", "thread", "worktree reset", "acme/shop#1", "acme/shop"),
        ]
        assert [one["outcome"] for one in found[:3]] == ["answered on the thread", "done", "done"]
        assert found[3]["outcome"].startswith("The worktree was reset. It is now on threadtree/issue-1-2, which starts")


async def pruned(world: World, api: httpx.AsyncClient, **asked: object) -> dict[str, Any]:
    """Ask for a prune, and return the operation of the one node once it has ended."""
    [operation] = (await api.post("/worktrees/prune", json=asked)).json()["operations"]
    await world.until(f"exists (select from operations where id = {operation} and finished_at is not null)")
    found: dict[str, Any] = (await api.get(f"/operations/{operation}")).json()
    return found


async def heard_until(events: httpx.Response, latest_words: str) -> dict[str, Any]:
    """Return what the last event of each name tells, once the agent has taken a step and said these words."""
    lines, heard = events.aiter_lines(), dict[str, Any]()
    async for line in lines:
        if line.startswith("event: "):
            heard[line.removeprefix("event: ")] = json.loads((await anext(lines)).removeprefix("data: "))
        if "turn-step" in heard and heard.get("turn-progress", {}).get("latest_words") == latest_words:
            return heard
    raise AssertionError("the stream ended")


async def test_a_listener_does_not_delay_the_end_of_the_process(a_world: Worlds) -> None:
    async with AsyncExitStack() as outlives:
        async with a_world({"ADMIN_TOKEN": TOKEN}) as world:
            api = await outlives.enter_async_context(httpx.AsyncClient(base_url=world.pair.url, timeout=60))
            headers = {"Authorization": f"Bearer {TOKEN}"}
            events = await outlives.enter_async_context(api.stream("GET", "/api/events", headers=headers))
            lines = events.aiter_lines()
            assert await anext(lines) == ": listening"
        assert [line async for line in lines if line] == [], "the stream was ended, not cut off"
