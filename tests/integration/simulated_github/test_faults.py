"""The faults of the simulated GitHub."""

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from bot.simulated.github import Person, Repository, SimulatedGitHub
from bot.simulated.github.faults import (
    DropAfter,
    DropBefore,
    FailAfter,
    FailBefore,
    PrimaryRateLimit,
    SecondaryRateLimit,
)
from bot.simulated.github.serving import TRANSPORT, listen, serving
from tests.support.github import Clock


async def test_an_error_before_the_write_stores_nothing_and_one_after_it_stores(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    issue = await maria.open_issue(shop, "Talk")
    path = "/repos/acme/shop/issues/1/comments"
    github.faults.add(FailBefore(502), method="POST", path="/repos/*/issues/*/comments")
    assert (await api.post(path, json={"body": "one"})).status_code == 502
    assert issue.comments == []
    github.faults.add(FailAfter(502), method="POST", path="/repos/*/issues/*/comments")
    assert (await api.get(path)).status_code == 200
    assert (await api.post(path, json={"body": "two"})).status_code == 502
    assert [comment.body for comment in issue.comments] == ["two"]
    assert (await api.post(path, json={"body": "three"})).status_code == 201


async def test_a_dropped_connection_gives_no_answer_whether_it_was_written_or_not(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    issue = await maria.open_issue(shop, "Talk")
    path = "/repos/acme/shop/issues/1/comments"
    github.faults.add(DropBefore(), path=path)
    github.faults.add(DropAfter(), path=path)
    for expected in (0, 1):
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await api.post(path, json={"body": "one"})
        assert len(issue.comments) == expected
    await github.wait_for(lambda: len(github.requests) == 2)
    assert [request.status for request in github.requests] == [None, None]


async def test_rate_limits_look_like_githubs(
    github: SimulatedGitHub, shop: Repository, api: httpx.AsyncClient, clock: Clock
) -> None:
    github.faults.add(SecondaryRateLimit(retry_after=7))
    secondary = await api.get("/user")
    assert (secondary.status_code, secondary.headers["retry-after"]) == (403, "7")
    assert "secondary rate limit" in secondary.json()["message"]
    github.faults.add(PrimaryRateLimit(reset_after=90, status=429))
    primary = await api.get("/user")
    assert (primary.status_code, primary.headers["x-ratelimit-remaining"]) == (429, "0")
    assert int(primary.headers["x-ratelimit-reset"]) == int(clock.now.timestamp()) + 90


async def test_an_idle_connection_is_left_to_its_client_to_close() -> None:
    kept = httpx.Limits().keepalive_expiry
    kept_by_server: list[float] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        kept_by_server.append(scope[TRANSPORT].get_protocol().timeout_keep_alive)
        await PlainTextResponse("")(scope, receive, send)

    with listen(0) as listener:
        async with serving(application, listener), httpx.AsyncClient() as client:
            await client.get(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert kept is not None
    assert kept_by_server[0] > kept
