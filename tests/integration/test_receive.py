import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlencode

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bot.inbox import endpoint
from bot.inbox.delivery import LARGEST_USED_BYTES, TOO_LARGE, delivery_of, is_signed, sign
from bot.inbox.endpoint import LARGEST_BODY_BYTES, PATH, USUAL_BODY_BYTES
from bot.inbox.inbox import Inbox
from bot.json_values import MOST_VALUES
from bot.store import deliveries
from bot.store.database import Pool
from tests.recorded import INSTALL, recorded_payloads
from tests.support.webhook_sender import OLD_SECRET, SECRET, Sender, comment, jobs, receiving_app, rows, sending_to

NAMED = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "g-1", "X-Hub-Signature-256": "sha256=" + "0" * 64}
"""The headers of a request by a stranger, who guesses the signature."""


@pytest.fixture
def inbox(pool: Pool) -> Inbox:
    return Inbox(pool)


@pytest.fixture
async def github(inbox: Inbox) -> AsyncIterator[Sender]:
    async with sending_to(inbox) as sender:
        yield sender


async def test_a_comment_is_stored_with_its_bytes_and_its_job(github: Sender, pool: Pool) -> None:
    body = orjson.dumps(comment(42))
    answer = await github.send(body, guid="g-1")
    assert answer.status_code == 202
    assert answer.json() == {"status": "accepted", "delivery": "g-1"}
    row = (await rows(pool))["g-1"]
    assert (row["state"], row["event"], row["action"], row["body"]) == ("received", "issue_comment", "created", body)
    assert (row["conversation"], row["lock_key"]) == ("acme/shop#42", "github.com/99#42")
    assert await jobs(pool) == [("decide", "decide", "github.com/99#42", "g-1")]


async def test_the_same_guid_again_is_a_duplicate(github: Sender, pool: Pool) -> None:
    await github.send(comment(), guid="g-1")
    answer = await github.send(comment(), guid="g-1")
    assert (answer.status_code, answer.json()["status"]) == (202, "duplicate")
    assert len(await jobs(pool)) == 1


@pytest.mark.parametrize("state", ["done", "ignored", "received"])
async def test_a_redelivery_of_a_successful_delivery_does_nothing(github: Sender, pool: Pool, state: str) -> None:
    await github.send(comment(), guid="g-1")
    await pool.execute("update deliveries set state = $1", state)
    assert (await github.send(comment(), guid="g-1")).json()["status"] == "duplicate"
    assert (await rows(pool))["g-1"]["state"] == state


async def test_a_redelivery_of_a_failed_delivery_runs_again(github: Sender, pool: Pool) -> None:
    await github.send(comment(), guid="g-1")
    await pool.execute("update deliveries set state = 'failed', error = 'boom', finished_at = now(), body = null")
    assert (await github.send(comment(), guid="g-1")).json()["status"] == "accepted"
    row = (await rows(pool))["g-1"]
    assert (row["state"], row["error"], row["finished_at"]) == ("received", None, None)
    assert orjson.loads(row["body"]) == comment()
    assert len(await jobs(pool)) == 2


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        ("ping", {"zen": "Keep it logically awesome."}),
        ("issue_comment", comment() | {"action": "deleted"}),
        ("push", []),
    ],
)
async def test_an_unused_event_is_ignored_and_kept_without_its_body(
    github: Sender, pool: Pool, event: str, payload: object
) -> None:
    answer = await github.send(payload, event=event, guid="g-1")
    assert (answer.status_code, answer.json()) == (202, {"status": "ignored", "delivery": "g-1"})
    row = (await rows(pool))["g-1"]
    assert (row["state"], row["body"]) == ("ignored", None)
    assert row["finished_at"]
    assert await jobs(pool) == []


async def test_a_comment_that_cannot_concern_the_bot_is_ignored_once_the_bots_names_are_known(
    github: Sender, pool: Pool
) -> None:
    async def answer(text: str, guid: str) -> str:
        return str((await github.send(comment(body=text), guid=guid)).json()["status"])

    assert await answer("nice work", "g-1") == "accepted", "no worker has told its name"
    await _rename(pool, "bot")
    assert await answer("nice work", "g-2") == "accepted", "this process has not heard of it"
    assert await answer("nice work, @tree-bot!", "g-3") == "ignored"
    assert await answer("@bot fix it", "g-4") == "accepted"
    assert await answer("first\n  /help", "g-5") == "accepted"
    # The process has only heard of @bot: another worker begins to answer to @tree-bot.
    await _rename(pool, "tree-bot")
    assert await answer("@tree-bot fix it", "g-6") == "accepted"
    assert await answer("nice work", "g-7") == "ignored"

    stored = await rows(pool)
    assert [(stored[guid]["state"], stored[guid]["body"]) for guid in ("g-3", "g-7")] == [("ignored", None)] * 2
    assert stored["g-7"]["conversation"] == "acme/shop#1"
    assert {guid for *_, guid in await jobs(pool)} == {guid for guid, row in stored.items() if row["body"]}
    assert await answer("@bot after all", "g-7") == "duplicate"


async def test_a_changed_name_counts_before_a_worker_has_it_and_a_first_one_does_not(pool: Pool) -> None:
    async with pool.acquire() as connection:
        await deliveries.change_name(connection, "bot")
        assert (await deliveries.store(connection, [])).names == ""
        await deliveries.add_name(connection, "worker")
        await deliveries.change_name(connection, "bot")
        await deliveries.change_name(connection, "bot")
        assert (await deliveries.store(connection, [])).names == "bot,worker"


async def _rename(pool: Pool, name: str) -> None:
    async with pool.acquire() as connection:
        await deliveries.add_name(connection, name)


async def test_only_post_is_allowed(inbox: Inbox) -> None:
    transport = httpx.ASGITransport(receiving_app(inbox))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
        for method in ("GET", "PUT", "DELETE", "HEAD", "PATCH"):
            assert (await client.request(method, PATH)).status_code == 405


async def test_both_secrets_are_accepted_during_rotation(github: Sender) -> None:
    for secret in [SECRET, OLD_SECRET]:
        assert (await github.send(comment(), secret=secret)).status_code == 202


async def test_without_a_right_signature_nothing_is_stored(github: Sender, pool: Pool) -> None:
    for signature in ["", "sha256=", "sha256=" + "0" * 64, "sha1=abc", "gänz falsch"]:
        answer = await github.send(
            comment(), headers={"X-Hub-Signature-256": signature, "X-Hub-Signature": "sha1=whatever"}
        )
        assert answer.status_code == 401
        assert await rows(pool) == {}


async def test_a_missing_or_malformed_header_is_refused(github: Sender, pool: Pool) -> None:
    for header in ["X-GitHub-Event", "X-GitHub-Delivery"]:
        for value in ["", "a b", "ä", "x" * 65, "a\x01"]:
            assert (await github.send(comment(), headers={header: value})).status_code == 400
            assert await rows(pool) == {}


async def test_a_request_without_a_signature_is_refused_before_its_body_is_read(inbox: Inbox) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    transport = httpx.ASGITransport(receiving_app(inbox))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
        for signature in ("", "sha1=0123", "sha256=" + "0" * 63):
            answer = await client.post(PATH, content=chunks(), headers=NAMED | {"X-Hub-Signature-256": signature})
            assert answer.status_code == 401
        for missing, status in zip(NAMED, (400, 400, 401), strict=True):
            headers = {name: value for name, value in NAMED.items() if name != missing}
            assert (await client.post(PATH, content=chunks(), headers=headers)).status_code == status


async def test_a_body_that_does_not_arrive_is_given_up(inbox: Inbox) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    transport = httpx.ASGITransport(receiving_app(inbox, body_seconds=0.05))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
        assert (await client.post(PATH, content=chunks(), headers=NAMED)).status_code == 408


async def test_large_bodies_in_flight_are_limited_and_leave_room_for_usual_ones(inbox: Inbox) -> None:
    budget = 8 * USUAL_BODY_BYTES
    holding, release = asyncio.Event(), asyncio.Event()

    async def held() -> AsyncIterator[bytes]:
        for _ in range(6):
            yield bytes(USUAL_BODY_BYTES)
        holding.set()
        await release.wait()

    transport = httpx.ASGITransport(receiving_app(inbox, bytes_in_flight=budget))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
        slow = asyncio.create_task(client.post(PATH, content=held(), headers=NAMED))
        await holding.wait()
        large = await client.post(PATH, content=bytes(USUAL_BODY_BYTES + 1), headers=NAMED)
        assert (large.status_code, large.headers["retry-after"]) == (503, "5")
        github = Sender(client)
        assert (await github.send(comment())).status_code == 202
        release.set()
        assert (await slow).status_code == 401
        # What a refused body held is free again.
        assert (await client.post(PATH, content=bytes(4 * USUAL_BODY_BYTES), headers=NAMED)).status_code == 401


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "10"}, {"Content-Length": str(LARGEST_BODY_BYTES + 1)}])
async def test_a_body_over_the_cap_is_refused_whatever_its_length_says(inbox: Inbox, headers: dict[str, str]) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(40):
            sent += 1
            yield bytes(1024 * 1024)

    transport = httpx.ASGITransport(receiving_app(inbox))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
        named = headers | NAMED
        answer = await client.post(PATH, content=chunks(), headers=named)
    assert answer.status_code == 413
    assert sent <= 26


async def test_the_form_encoding_stores_the_json_in_it(github: Sender, pool: Pool) -> None:
    content = orjson.dumps(comment(body="grüße & so"))
    form = urlencode({"payload": content}).encode()
    headers = {"Content-Type": "Application/X-WWW-Form-URLEncoded; charset=utf-8"}
    assert (await github.send(form, guid="g-1", headers=headers)).json()["status"] == "accepted"
    assert (await rows(pool))["g-1"]["body"] == content


UNPARSEABLE = [b"", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000, b'"\\ud8']


@pytest.mark.parametrize("body", UNPARSEABLE, ids=range(len(UNPARSEABLE)))
async def test_signed_but_unparseable_is_kept_dead(github: Sender, pool: Pool, body: bytes) -> None:
    for _ in range(2):
        assert (await github.send(body, guid="g-1")).status_code == 400
        row = (await rows(pool))["g-1"]
        assert (row["state"], row["body"]) == ("dead", body)
        assert row["error"]
    assert await jobs(pool) == []


MANY_VALUES = b'{"action":"created","many":[' + b"[]," * (3 * MOST_VALUES) + b"0]}"
LARGE = b'{"action":"created","long":"' + b"a" * LARGEST_USED_BYTES + b'"}'


@pytest.mark.parametrize(("body", "kept"), [(MANY_VALUES, True), (LARGE, False)], ids=["many values", "large"])
async def test_a_body_that_would_take_long_to_parse_is_not_parsed(
    github: Sender, pool: Pool, body: bytes, kept: bool
) -> None:
    assert (await github.send(body, guid="g-1")).status_code == 400
    row = (await rows(pool))["g-1"]
    assert (row["state"], row["error"], row["body"]) == ("dead", TOO_LARGE, body if kept else None)
    assert (await github.send(body, guid="g-2", event="push")).json()["status"] == "ignored"
    assert await jobs(pool) == []


async def test_strangers_do_not_fill_the_log(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.25
    transport = httpx.ASGITransport(receiving_app(inbox))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
        unsigned = {name: value for name, value in NAMED.items() if name != "X-Hub-Signature-256"}
        with capture_logs() as logs, monkeypatch.context() as clock:
            clock.setattr(asyncio.get_running_loop(), "time", lambda: now)
            for headers in (unsigned, NAMED, *[unsigned] * 8):
                assert (await client.post(PATH, headers=headers)).status_code == 401
            now = 101.0
            await client.post(PATH, headers=unsigned)
    assert [log["event"] for log in logs] == ["delivery-unsigned", "delivery-wrong-signature", "delivery-unsigned"]


async def test_large_bodies_are_checked_while_others_arrive(github: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def noted(body: bytes, header: str, secrets: Sequence[bytes]) -> bool:
        threads.append(threading.current_thread() is threading.main_thread())
        return is_signed(body, header, secrets)

    monkeypatch.setattr(endpoint, "is_signed", noted)
    for body in (bytes(USUAL_BODY_BYTES + 1), orjson.dumps(comment())):
        await github.send(body)
    assert threads == [False, True]


@pytest.mark.parametrize("form", [b"a=1", b"payload=%ff", b"\xff=1", b"&".join([b"a=1"] * 99), b"payload=%7B"])
async def test_a_form_without_a_payload_is_kept_dead(github: Sender, pool: Pool, form: bytes) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await github.send(form, guid="g-1", headers=headers)).status_code == 400
    assert (await rows(pool))["g-1"]["state"] == "dead"


async def test_readable_bytes_bring_a_dead_delivery_back_and_the_same_bytes_do_not(github: Sender, pool: Pool) -> None:
    await github.send(b"{", guid="g-1")
    assert (await github.send(comment(), guid="g-1")).json()["status"] == "accepted"
    await pool.execute("update deliveries set state = 'dead'")  # decide could not read it
    assert (await github.send(comment(), guid="g-1")).json()["status"] == "duplicate"
    assert len(await jobs(pool)) == 1


async def test_a_used_kind_that_names_no_conversation_is_still_decided_on(github: Sender, pool: Pool) -> None:
    assert (await github.send({"action": "created"}, guid="g-1")).json()["status"] == "accepted"
    assert await jobs(pool) == [("decide", "decide", "github.com/g-1", "g-1")]


async def test_a_client_that_goes_away_in_the_middle_is_no_error(inbox: Inbox, pool: Pool) -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b"{", "more_body": True},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop()

    async def send(_: object) -> None:
        pass

    headers = [(name.lower().encode(), value.encode()) for name, value in NAMED.items()]
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers, "query_string": b"", "app": None}
    with capture_logs() as logs:
        await receiving_app(inbox)(scope, receive, send)
    assert {entry["log_level"] for entry in logs} == {"info"}
    assert await rows(pool) == {}


async def test_a_payload_file_is_stored_like_a_delivery(inbox: Inbox, pool: Pool) -> None:
    delivery = delivery_of("g-1", "issue_comment", orjson.dumps(comment()), "github.com")
    assert await inbox.store(delivery) == "stored"
    assert (await rows(pool))[delivery.guid]["state"] == "received"
    assert [job[3] for job in await jobs(pool)] == [delivery.guid]


async def test_every_recorded_payload_is_acknowledged(github: Sender, pool: Pool) -> None:
    recorded = recorded_payloads()
    assert recorded, f"GitHub's recorded payloads are missing: run `{INSTALL}`"
    for one in recorded:
        answer = await github.send(one.payload, event=one.event)
        assert answer.status_code == 202, (one.payload.get("action"), str(one), answer.text)
        assert answer.json()["status"] in ("accepted", "ignored")
    assert len(await rows(pool)) == len(recorded)
    accepted = await pool.fetchval("select count(*) from deliveries where state = 'received' and body is not null")
    assert accepted == len(await jobs(pool)) > 0


HEADER = st.text(st.characters(min_codepoint=1, max_codepoint=255, exclude_characters="\r\n"), max_size=80)
BODY = st.binary(max_size=200) | st.builds(orjson.dumps, st.recursive(st.integers(0, 9) | st.text(), st.lists))


@given(
    event=HEADER | st.sampled_from(["issue_comment", "issues", "ping"]),
    guid=HEADER | st.uuids().map(str),
    signature=HEADER | st.none(),
    content_type=HEADER | st.just("application/x-www-form-urlencoded"),
    length=HEADER | st.none(),
    body=BODY,
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_header_and_no_body_gives_a_server_error(
    inbox: Inbox, event: str, guid: str, signature: str | None, content_type: str, length: str | None, body: bytes
) -> None:
    headers = {
        "x-github-event": event,
        "x-github-delivery": guid,
        "x-hub-signature-256": sign(body, SECRET) if signature is None else signature,
        "content-type": content_type,
    } | ({} if length is None else {"content-length": length})
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    transport = httpx.ASGITransport(receiving_app(inbox))
    async with httpx.AsyncClient(transport=transport, base_url="http://bot") as client:
        answer = await client.post(PATH, content=body, headers=raw)
    assert answer.status_code in (202, 400, 401, 413)
    assert answer.headers["content-type"] == "application/json"
