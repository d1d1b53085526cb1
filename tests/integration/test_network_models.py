"""The model proxy between a real HTTP client and a real upstream."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bot.agents.presets import ANTHROPIC, GEMINI, OPENAI
from bot.sandbox.net import models
from bot.sandbox.net.model_answers import ModelAnswers
from bot.sandbox.net.models import KeyMask, ModelRoute, model_proxy, swap_key
from bot.sandbox.net.sockets import connect_private, private_socket
from tests.support.network import site
from tests.support.patience import PATIENCE_SECONDS

REAL = "sk-real-" + "a1b2c3" * 6
DUMMY = "sk-dummy-" + "z9" * 16
JSON = {"content-type": "application/json"}
HEADER = {"x-api-key": DUMMY}


@asynccontextmanager
async def agent_of(
    directory: Path, upstream: str, answers: ModelAnswers | None = None, *, offline: bool = False
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an agent's HTTP client that connects only to the turn's model proxy."""
    path = directory / "model.sock"
    route = ModelRoute(
        upstream, REAL, "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", ANTHROPIC.endpoints, answers or ModelAnswers()
    )
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    with private_socket(path) as listener:
        async with (
            model_proxy(listener, route, DUMMY, offline=offline),
            httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1:19502", timeout=PATIENCE_SECONDS
            ) as client,
        ):
            yield client


class Upstream:
    """A model's server: it records requests and answers with exactly the configured bytes."""

    def __init__(self, *answer: bytes) -> None:
        self.requests: list[bytes] = []
        self.answer = answer or (response(b'{"ok": true}'),)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        self.requests.append(head + await reader.readexactly(length))
        for piece in self.answer:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    @property
    def head(self) -> str:
        [request] = self.requests
        return request.partition(b"\r\n\r\n")[0].decode().lower()


def response(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}"
    return head.encode() + b"Connection: close\r\n\r\n" + body


@pytest.mark.parametrize(
    ("headers", "query", "arrived"),
    [
        ({"Authorization": f"Bearer {DUMMY}"}, "", f"authorization: Bearer {REAL}"),
        ({"authorization": f"bearer {DUMMY}"}, "", f"authorization: Bearer {REAL}"),
        ({"X-Api-Key": DUMMY}, "", f"x-api-key: {REAL}"),
        ({"x-goog-api-key": DUMMY}, "?alt=sse", f"x-goog-api-key: {REAL}"),
    ],
)
async def test_the_turns_key_becomes_the_real_one_wherever_an_agent_puts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, headers: dict[str, str], query: str, arrived: str
) -> None:
    caplog.set_level("DEBUG")
    upstream = Upstream()
    async with site(upstream) as there, agent_of(tmp_path, f"{there.url}/base/") as agent:
        answer = await agent.post(f"/v1/messages{query}", headers=headers | JSON, content=b'{"model": "hi"}')
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert upstream.head.startswith(f"post /base/v1/messages{'?alt=sse' if query else ''} http/1.1")
    assert arrived.lower() in upstream.head
    assert DUMMY not in upstream.head
    assert REAL not in caplog.text
    assert f"host: 127.0.0.1:{there.port}" in upstream.head
    assert upstream.requests[0].endswith(b'\r\n\r\n{"model": "hi"}')


async def test_without_the_turns_key_or_with_another_beside_it_nothing_is_forwarded(tmp_path: Path) -> None:
    for headers, query in [
        ({}, ""),
        ({"x-api-key": "sk-of-the-attacker"}, ""),
        ({"x-api-key": REAL}, ""),
        ({"Authorization": DUMMY + "x"}, ""),
        ({"x-api-key": ""}, ""),
        ({"x-api-key": DUMMY, "Authorization": "Bearer sk-of-the-attacker"}, ""),
        ({"x-api-key": DUMMY}, "?key=sk-of-the-attacker"),
        ({"x-api-key": DUMMY}, "?%6bey=sk-of-the-attacker"),
        ({}, f"?key={DUMMY}"),
        ({"x-dummy": DUMMY}, ""),
    ]:
        upstream = Upstream()
        async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
            answer = await agent.post(f"/v1/messages{query}", headers=headers)
        assert answer.status_code == 401
        assert (upstream.requests, there.visits) == ([], 0)


async def test_an_answer_streams_to_the_agent_piece_by_piece(tmp_path: Path) -> None:
    received = asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"data: one\n\n")
        await asyncio.wait_for(received.wait(), PATIENCE_SECONDS)
        writer.write(b"data: two\n\n")

    async with (
        site(upstream) as there,
        agent_of(tmp_path, there.url) as agent,
        agent.stream("POST", "/v1/messages", headers=HEADER) as answer,
    ):
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"data: one\n\n"
        received.set()
        assert [piece async for piece in pieces] == [b"data: two\n\n"]


async def test_a_request_in_pieces_arrives_whole(tmp_path: Path) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"model":'
        yield b'"x"}'

    upstream = Upstream()
    async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
        answer = await agent.post("/v1/messages", headers=HEADER | JSON, content=body())
    assert answer.status_code == 200
    assert "content-length: 13" in upstream.head
    assert "transfer-encoding" not in upstream.head
    assert upstream.requests[0].endswith(b'{"model":"x"}')


async def test_cookies_and_the_hops_own_headers_pass_neither_way(tmp_path: Path) -> None:
    upstream = Upstream(
        response(b"{}", headers="Set-Cookie: a=b\r\nKeep-Alive: 5\r\nRequest-Id: r1\r\nRetry-After: 7\r\n")
    )
    sent = {"Cookie": "a=b", "Proxy-Authorization": "Basic eA==", "TE": "trailers", "Anthropic-Version": "2023-06-01"}
    async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
        answer = await agent.get("/v1/models", headers=HEADER | sent | {"Connection": "x-hop", "X-Hop": "1"})
    assert {line.split(":")[0] for line in upstream.head.split("\r\n")[1:]} == {
        *("host", "x-api-key", "accept", "accept-encoding", "user-agent", "anthropic-version"),
    }
    assert answer.headers["request-id"] == "r1"
    assert answer.headers["retry-after"] == "7"
    assert not {"set-cookie", "keep-alive"} & answer.headers.keys()


@pytest.mark.parametrize("encode", [bytes, gzip.compress])
@pytest.mark.parametrize(
    "status", ["200 OK", "401 Unauthorized", "500 Internal Server Error", "307 Temporary Redirect"]
)
async def test_an_upstream_that_repeats_the_key_does_not_tell_it(
    tmp_path: Path, encode: type[bytes], status: str
) -> None:
    body = encode(f'{{"error": "invalid key {REAL} or {REAL}"}}'.encode())
    headers = f"Location: https://evil.example/?key={REAL}\r\nX-Debug: {REAL}\r\n"
    headers += "Content-Encoding: gzip\r\n" if encode is gzip.compress else ""
    whole = response(body, status, headers)
    upstream = Upstream(*(whole[cut : cut + 5] for cut in range(0, len(whole), 5)))
    async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
        answer = await agent.post("/v1/messages", headers=HEADER | JSON, content=b"{}")
    masked = "*" * len(REAL)
    assert answer.status_code == int(status[:3])
    assert answer.json() == {"error": f"invalid key {masked} or {masked}"}
    assert REAL not in str(answer.headers)
    assert "location" not in answer.headers
    assert there.visits == 1


async def test_there_is_no_way_out_of_the_upstreams_path(tmp_path: Path) -> None:
    for target in [
        *("/base/../admin", "/%2e%2e/admin", "/v1/%252e%252e/%2e%2e/admin", "/..%2fadmin"),
        *("/..;/admin", "/\\..\\admin"),
    ]:
        upstream = Upstream()
        async with site(upstream) as there, agent_of(tmp_path, f"{there.url}/base"):
            assert (await by_hand(tmp_path, f"GET {target} HTTP/1.1\r\n"))[:12] == b"HTTP/1.1 403"
        assert upstream.requests == []


async def test_the_key_serves_for_no_other_requests(tmp_path: Path) -> None:
    for method, target in [
        *(("GET", "/v1/files"), ("POST", "/v1/files"), ("POST", "/v1/messages/batches")),
        *(("GET", "/v1/messages/batches"), ("DELETE", "/v1/models/claude"), ("PUT", "/v1/messages")),
        *(("GET", "/v1/models/.."), ("POST", "/v1/messages/"), ("POST", "/v1/responses"), ("GET", "/")),
    ]:
        upstream = Upstream()
        with capture_logs() as logs:
            async with site(upstream) as there, agent_of(tmp_path, there.url):
                answer = await by_hand(tmp_path, f"{method} {target}?a=b HTTP/1.1\r\nContent-Length: 0\r\n")
        assert answer.startswith(b"HTTP/1.1 403")
        assert upstream.requests == []
        assert [(log["method"], log["path"]) for log in logs if log["event"] == "model-request-refused"] == [
            (method, target)
        ]


def test_each_vendors_list_has_what_agents_need() -> None:
    for api, method, target, permitted in [
        (ANTHROPIC, b"POST", b"/v1/messages?beta=true", True),
        (ANTHROPIC, b"POST", b"/v1/messages/count_tokens", True),
        (OPENAI, b"POST", b"/v1/responses", True),
        (OPENAI, b"POST", b"/v1/chat/completions", True),
        (OPENAI, b"GET", b"/v1/responses/resp_1", False),
        (OPENAI, b"DELETE", b"/v1/responses/resp_1", False),
        (OPENAI, b"POST", b"/v1/batches", False),
        (OPENAI, b"GET", b"/v1/models/gpt-5", True),
        (GEMINI, b"POST", b"/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", True),
        (GEMINI, b"POST", b"/v1beta/models/gemini-2.5-pro:batchGenerateContent", False),
        (GEMINI, b"POST", b"/v1beta/files", False),
        (GEMINI, b"POST", b"/v1beta/models/x:batchGenerateContent:generateContent", False),
    ]:
        assert ModelRoute(api.upstream, REAL, api.base_url, api.key, api.endpoints).permits(method, target) is permitted


async def test_no_other_host_is_asked_whatever_the_target(tmp_path: Path) -> None:
    for target in ["http://evil.example/v1", "//evil.example/v1", "@evil.example/v1"]:
        upstream = Upstream()
        async with site(upstream) as there, agent_of(tmp_path, f"{there.url}/base"):
            await by_hand(tmp_path, f"GET {target} HTTP/1.1\r\n")
        assert [request.split(b" ")[1] for request in upstream.requests] == []


async def by_hand(directory: Path, lines: str, body: bytes = b"") -> bytes:
    """Return the proxy's answer to a raw request with the turn's key."""
    reader, writer = await connect_private(directory / "model.sock")
    writer.write(f"{lines}Host: evil.example\r\nx-api-key: {DUMMY}\r\n\r\n".encode() + body)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(tmp_path: Path) -> None:
    async with site(Upstream()) as there, agent_of(tmp_path, there.url):
        answer = await by_hand(
            tmp_path,
            "POST /v1/messages HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
            "Expect: 100-continue\r\n",
            b"{}",
        )
    assert answer.startswith(b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 200")


async def test_a_body_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MAX_BODY_BYTES", 1000)
    upstream = Upstream()
    async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
        answer = await agent.post("/v1/messages", headers=HEADER | JSON, content=b"x" * 300_000)
    assert answer.status_code == 413
    assert upstream.requests == []


async def test_bodies_under_way_together_are_over_the_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MAX_BODY_BYTES", 100)
    begun = asyncio.Event()
    body = b'{"model": "%s"}' % (b"x" * 60)

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:70]
        begun.set()
        await asyncio.Event().wait()

    upstream = Upstream()
    async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
        first = asyncio.create_task(agent.post("/v1/messages", headers=HEADER | JSON, content=slowly()))
        await begun.wait()
        while (refused := await agent.post("/v1/messages", headers=HEADER | JSON, content=body)).status_code == 200:
            pass
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        while (passed := await agent.post("/v1/messages", headers=HEADER | JSON, content=body)).status_code == 413:
            pass
    assert (refused.status_code, passed.status_code) == (413, 200)


@pytest.mark.parametrize(
    ("offline", "members", "why"),
    [
        (False, b'"previous_response_id": "resp_1"', "previous_response_id"),
        (False, b'"input": [{"id": "msg_1"}]', "id"),
        (True, b'"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]', "web_fetch_20250910"),
    ],
)
async def test_a_body_that_may_not_be_sent_does_not_arrive(
    tmp_path: Path, offline: bool, members: bytes, why: str
) -> None:
    upstream = Upstream()
    body = b'{"system": "%s", %s}' % (b"x" * 300_000, members)
    with capture_logs() as logs:
        async with site(upstream) as there, agent_of(tmp_path, there.url, offline=offline) as agent:
            answer = await agent.post("/v1/messages", headers=HEADER | JSON, content=body)
    assert (answer.status_code, why in answer.text) == (403, True)
    assert (upstream.requests, there.visits) == ([], 0)
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["model-request-refused"]


async def test_a_body_that_cannot_be_read_on_its_way_is_refused(tmp_path: Path) -> None:
    for headers in [
        {},
        {"content-type": "application/x-protobuf"},
        JSON | {"content-encoding": "gzip"},
        {"content-type": "text/json"},
    ]:
        upstream = Upstream()
        async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
            answer = await agent.post("/v1/messages", headers=HEADER | headers, content=b"{}")
        assert (answer.status_code, upstream.requests) == (415, [])


async def test_a_turn_sends_a_limited_number_of_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "MAX_REQUESTS", 2)
    upstream = Upstream()
    async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
        answers = [await agent.post("/v1/messages", headers=HEADER | JSON, content=b"{}") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 403]
    assert len(upstream.requests) == 2


async def test_an_unreachable_or_invalid_upstream_is_a_502_without_details(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with site(Upstream(b"nonsense\r\n\r\n")) as there, agent_of(tmp_path, there.url) as agent:
            nonsense = await agent.get("/v1/models", headers=HEADER)
        async with agent_of(tmp_path, there.url) as agent:
            away = await agent.get("/v1/models", headers=HEADER)
    assert (nonsense.status_code, away.status_code) == (502, 502)
    assert away.json()["error"]["message"] == "The model's server cannot be reached."
    assert [log["errors"] for log in logs if log["event"] == "model-upstream-failed"] == [
        *(["RemoteProtocolError"], ["ConnectError"]),
    ]
    assert not any(key in str(logs) + nonsense.text + away.text for key in (REAL, DUMMY))


async def test_an_answer_that_breaks_off_upstream_breaks_off_for_the_agent(tmp_path: Path) -> None:
    upstream = Upstream(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nhalf")
    async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
        with pytest.raises(httpx.RemoteProtocolError):
            await agent.get("/v1/models", headers=HEADER)


async def test_an_agent_that_hangs_up_ends_its_request_at_the_model(tmp_path: Path) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        left.set()

    async with site(upstream) as there, agent_of(tmp_path, there.url) as agent:
        call = asyncio.create_task(agent.get("/v1/models", headers=HEADER))
        await asyncio.wait_for(asked.wait(), PATIENCE_SECONDS)
        call.cancel()
        await asyncio.wait_for(left.wait(), PATIENCE_SECONDS)
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_the_end_of_the_turn_ends_its_requests_and_its_key(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        await reader.read()

    async with site(silent) as there:
        async with agent_of(tmp_path, there.url) as agent:
            call = asyncio.create_task(agent.get("/v1/models", headers=HEADER))
            await asyncio.wait_for(asked.wait(), PATIENCE_SECONDS)
        with pytest.raises(httpx.TransportError):
            await call
    assert not (tmp_path / "model.sock").exists()
    first, second = models.new_dummy(), models.new_dummy()
    assert swap_key(b"/v1", [(b"x-api-key", first.encode())], second, REAL) is None


def test_a_route_without_key_or_address_is_no_route() -> None:
    for upstream, key in (("https://a.example", " "), ("https://a.example", "a\nb"), ("ftp://a.example", "sk-1")):
        with pytest.raises(ValueError, match=r"BASE|KEY"):
            ModelRoute(upstream, key, "BASE", "KEY", ())
    assert REAL not in repr(ModelRoute("https://a.example", REAL, "BASE", "KEY", ()))


@given(st.lists(st.text(alphabet="aab*", max_size=6)), st.text(alphabet="ab", min_size=1, max_size=4))
def test_the_key_is_masked_wherever_a_stream_is_cut(chunks: list[str], key: str) -> None:
    mask = KeyMask(key.encode())
    out = b"".join(mask.feed(chunk.encode()) for chunk in chunks) + mask.held
    assert out == "".join(chunks).encode().replace(key.encode(), b"*" * len(key))


@given(st.text(alphabet="abk\n", max_size=20), st.text(alphabet="k", min_size=1, max_size=3))
def test_nothing_but_the_beginning_of_a_key_is_held_back(text: str, key: str) -> None:
    passed = KeyMask(key.encode()).feed(text.encode())
    if not text.endswith(key[0]):
        assert len(passed) == len(text)


async def test_the_usage_limit_that_the_vendor_names_is_heard(tmp_path: Path) -> None:
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    answers = ModelAnswers(lambda: now)
    upstream = Upstream(response(b'{"error": {}}', "429 Too Many Requests", "Retry-After: 7200\r\n"))
    async with site(upstream) as there, agent_of(tmp_path, there.url, answers) as agent:
        assert (await agent.post("/v1/messages", headers=HEADER | JSON, content=b"{}")).status_code == 429
        assert answers.until == now + timedelta(hours=2)
        upstream.answer = (response(b"{}"),)
        await agent.post("/v1/messages", headers=HEADER | JSON, content=b"{}")
        assert answers.until is None


async def test_the_model_is_named_by_compressed_answers_and_by_those_that_an_agent_leaves(tmp_path: Path) -> None:
    answers = ModelAnswers()
    upstream = Upstream(
        response(gzip.compress(b'{"text": "of some length", "model": "m"}'), headers="Content-Encoding: gzip\r\n")
    )
    async with site(upstream) as there, agent_of(tmp_path, there.url, answers) as agent:
        # More is announced than comes.
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n"
        compressed, upstream.answer = upstream.answer, (head + b'data: {"message": {"model": "n"}}\n\n',)
        with pytest.raises(httpx.RemoteProtocolError):
            await agent.post("/v1/messages", headers=HEADER | JSON, content=b"{}")
        assert answers.model == "n"
        upstream.answer = compressed
        await agent.post("/v1/messages", headers=HEADER | JSON, content=b"{}")
        assert answers.model == "m"
