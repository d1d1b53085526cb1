"""The faults of the simulated GitHub."""

import asyncio

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
    GraphQLError,
    Latency,
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


@pytest.mark.parametrize("path", ["/graphql", "/acme/shop.git/git-receive-pack"])
async def test_a_client_that_leaves_in_the_middle_of_its_request_causes_no_error(
    github: SimulatedGitHub, shop: Repository, api: httpx.AsyncClient, path: str
) -> None:
    shop.allow(github.bot, "write")
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {api.headers['Authorization']}\r\n"
    _, client = await asyncio.open_connection("127.0.0.1", github.port)
    client.write(f"{head}Content-Type: application/x-git-receive-pack-request\r\nContent-Length: 9\r\n\r\n{{".encode())
    client.close()
    await github.wait_for(lambda: len(github.requests) == 1)
    assert not shop.git_lock.locked()


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


async def test_latency_and_graphql_errors_last_until_they_are_cleared(
    github: SimulatedGitHub, shop: Repository, api: httpx.AsyncClient
) -> None:
    github.faults.add(GraphQLError("Something went wrong"), path="/graphql", times=None)
    for _ in range(2):
        answer = await api.post("/graphql", json={"query": "{ viewer { login } }"})
        assert (answer.status_code, answer.json()["errors"][0]["message"]) == (200, "Something went wrong")
    github.faults.clear()
    assert "errors" not in (await api.post("/graphql", json={"query": "{ viewer { login } }"})).json()
    github.faults.add(Latency(30))
    with pytest.raises(httpx.TimeoutException):
        await api.get("/user", timeout=0.1)


async def test_every_request_takes_the_latency_git_s_included(
    github: SimulatedGitHub, shop: Repository, api: httpx.AsyncClient
) -> None:
    github.latency_seconds = 0.05
    await api.get("/user")
    await api.get("/acme/shop.git/info/refs?service=git-upload-pack")
    assert [request.ended - request.began >= 0.05 for request in github.requests] == [True, True]


async def test_a_wait_ends_with_the_change_or_at_the_deadline(
    github: SimulatedGitHub, shop: Repository, maria: Person, api: httpx.AsyncClient
) -> None:
    issue = await maria.open_issue(shop, "Talk")
    waiting = asyncio.create_task(github.wait_for(lambda: issue.comments_by(github.bot)))
    await api.post("/repos/acme/shop/issues/1/comments", json={"body": "On it"})
    assert [comment.body for comment in await waiting] == ["On it"]
    with pytest.raises(TimeoutError, match=r"<threadtree-bot on <acme/shop#1 open>: 'On it'>"):
        await github.wait_for(lambda: issue.state == "closed", timeout=0.05)


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
