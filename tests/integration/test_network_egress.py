"""The egress proxy for a client in the sandbox, over its unix socket."""

# ruff: noqa: ASYNC110 - a test may block its own loop, and waits for what has no event

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from bot.sandbox.net import egress, sockets
from bot.sandbox.net.egress import Outside, egress_proxy, is_of_this_host, system_dialer
from bot.sandbox.net.rules import Destination
from bot.sandbox.net.sockets import connect_private, private_socket
from tests.support.network import ALSO_PUBLIC, PUBLIC, Handler, SimulatedInternet, site, status_of
from tests.support.patience import PATIENCE_SECONDS

CONNECT = b"CONNECT files.example:443 HTTP/1.1\r\nHost: files.example:443\r\n\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@asynccontextmanager
async def proxy(
    directory: Path,
    world: SimulatedInternet,
    local: dict[Destination, Path] | None = None,
    outside: Outside | None = None,
    *,
    only_allowed: bool = False,
) -> AsyncIterator[Path]:
    path = directory / "egress.sock"
    with private_socket(path) as listener:
        async with egress_proxy(listener, world.dialer, local or {}, outside, only_allowed=only_allowed):
            yield path


async def ask(path: Path, request: bytes) -> bytes:
    """Return the proxy's complete answer to a request."""
    reader, writer = await connect_private(path)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    writer.close()
    await writer.wait_closed()
    return answer


async def backwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the received bytes back in reverse, once the client has sent all."""
    writer.write((await reader.read())[::-1])


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def remember(requests: list[bytes]) -> Handler:
    """A web server that records the heads of requests, and their bodies up to `end`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readuntil(b"end") if b"content-length" in head.lower() else b""
        requests.append(head + body)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

    return handle


async def test_a_tunnel_carries_bytes_both_ways_until_each_ways_own_end(tmp_path: Path) -> None:
    async with (
        site(backwards) as there,
        proxy(tmp_path, SimulatedInternet({"files.example": [[PUBLIC]]}, {(PUBLIC, 443): there})) as path,
    ):
        reader, writer = await connect_private(path)
        writer.write(CONNECT)
        assert await reader.readexactly(len(ESTABLISHED)) == ESTABLISHED
        writer.write(bytes(range(256)) * 4096)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == bytes(reversed(range(256))) * 4096
        writer.close()
        await writer.wait_closed()


async def test_plain_http_is_asked_for_the_way_a_server_expects(tmp_path: Path) -> None:
    requests: list[bytes] = []
    async with (
        site(remember(requests)) as there,
        proxy(tmp_path, SimulatedInternet({"files.example": [[PUBLIC]]}, {(PUBLIC, 80): there})) as path,
    ):
        request = (
            b"POST http://files.example/a%20b?c=d HTTP/1.1\r\nHost: ignored.example\r\nProxy-Connection: keep-alive\r\n"
            b"Proxy-Authorization: Basic eA==\r\nConnection: x-hop\r\nX-Hop: 1\r\nX-Stays: 1\r\n"
            b"Content-Length: 8\r\n\r\nbody"
        )
        reader, writer = await connect_private(path)
        writer.write(request)
        writer.write(b" end")
        assert (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).endswith(b"\r\n\r\nhi")
        writer.close()
        await writer.wait_closed()
    [seen] = requests
    assert seen.startswith(b"POST /a%20b?c=d HTTP/1.1\r\nhost: files.example\r\n")
    assert sorted(line.split(b":")[0].lower() for line in seen.split(b"\r\n")[1:-2]) == [
        *(b"connection", b"content-length", b"host", b"x-stays"),
    ]
    assert b"connection: close" in seen.lower()
    assert seen.endswith(b"\r\n\r\nbody end")


async def test_a_name_with_an_internal_address_is_refused(tmp_path: Path) -> None:
    for address in [
        *("127.0.0.1", "169.254.169.254", "10.0.0.5", "172.16.0.1", "192.168.1.1", "100.64.0.1", "0.0.0.1", "::1"),
        *("fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:1::", "224.0.0.1"),
    ]:
        world = SimulatedInternet({"files.example": [[PUBLIC, address]]})
        async with proxy(tmp_path, world) as path:
            assert status_of(await ask(path, CONNECT)) == 403
        assert world.connections == []


async def test_a_name_that_changes_its_address_is_asked_once_and_held_to_its_answer(tmp_path: Path) -> None:
    world = SimulatedInternet({"files.example": [[PUBLIC], ["127.0.0.1"]]})
    async with site(hold) as there, proxy(tmp_path, world) as path:
        world.sites[PUBLIC, 443] = there
        reader, writer = await connect_private(path)
        writer.write(CONNECT)
        assert await reader.readexactly(len(ESTABLISHED)) == ESTABLISHED
        assert (world.lookups, world.connections) == (["files.example"], [(PUBLIC, 443)])
        assert status_of(await ask(path, CONNECT)) == 403
        writer.close()
        await writer.wait_closed()
    assert world.connections == [(PUBLIC, 443)]


async def test_addresses_inside_and_ports_of_other_services_are_refused(tmp_path: Path) -> None:
    for authority in [
        *("localhost:80", "127.0.0.1:80", "2130706433:80", "0x7f.1:80", "[::1]:80", "169.254.169.254:80"),
        *("files.example:22", "files.example:5432", f"{PUBLIC}:8080", "metadata.google.internal:80", "db:80"),
    ]:
        for form in ["CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", "GET http://{0}/ HTTP/1.1\r\nHost: {0}\r\n\r\n"]:
            world = SimulatedInternet({"files.example": [[PUBLIC]]})
            async with proxy(tmp_path, world) as path:
                assert status_of(await ask(path, form.format(authority).encode())) == 403
            assert world.connections == []


async def test_what_a_repository_opens_is_reached_only_where_it_is_public(tmp_path: Path) -> None:
    opened = {Destination("files.example", 5432), Destination("moves.example", 5432), Destination("db.internal", 5432)}
    outside = Outside(further=frozenset(opened))
    world = SimulatedInternet({"files.example": [[PUBLIC]], "moves.example": [["10.0.0.5"]]})
    async with site(hold) as there, proxy(tmp_path, world, outside=outside) as path:
        world.sites[PUBLIC, 5432] = there
        reader, writer = await connect_private(path)
        writer.write(b"CONNECT files.example:5432 HTTP/1.1\r\nHost: files.example\r\n\r\n")
        assert await reader.readexactly(len(ESTABLISHED)) == ESTABLISHED
        for other in ("files.example:5433", "moves.example:5432", "db.internal:5432", f"{PUBLIC}:5432"):
            assert status_of(await ask(path, f"CONNECT {other} HTTP/1.1\r\nHost: x\r\n\r\n".encode())) == 403
        writer.close()
        await writer.wait_closed()
    (tmp_path / "none").mkdir()
    async with proxy(tmp_path / "none", world, outside=outside, only_allowed=True) as path:
        assert status_of(await ask(path, b"CONNECT files.example:5432 HTTP/1.1\r\nHost: x\r\n\r\n")) == 403
    assert world.connections == [(PUBLIC, 5432)]


async def test_addresses_of_this_host_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_of_this_host(ip_address("127.0.0.1"))
    assert not is_of_this_host(ip_address(PUBLIC))
    assert not is_of_this_host(ip_address("2606:4700::1111"))
    monkeypatch.setattr(egress, "is_of_this_host", lambda address: address == ip_address(PUBLIC))
    world = SimulatedInternet({"files.example": [[PUBLIC]]})
    async with proxy(tmp_path, world) as path:
        assert b"an address of this host" in await ask(path, CONNECT)
    assert world.connections == []


async def test_the_next_address_is_tried_and_a_name_without_any_is_said(tmp_path: Path) -> None:
    world = SimulatedInternet({"files.example": [[ALSO_PUBLIC, PUBLIC]], "other.example": [[PUBLIC]]})
    async with site(hold) as there, proxy(tmp_path, world) as path:
        world.sites[PUBLIC, 443] = there
        reader, writer = await connect_private(path)
        writer.write(CONNECT)
        assert await reader.readexactly(len(ESTABLISHED)) == ESTABLISHED
        assert world.connections == [(ALSO_PUBLIC, 443), (PUBLIC, 443)]
        writer.close()
        await writer.wait_closed()
        unreachable = await ask(path, b"GET http://other.example/ HTTP/1.1\r\nHost: other.example\r\n\r\n")
        unknown = await ask(path, b"GET http://no.example/ HTTP/1.1\r\nHost: no.example\r\n\r\n")
    assert (status_of(unreachable), status_of(unknown)) == (502, 502)
    assert b"The name has no address." in unknown


async def test_an_invalid_proxy_request_is_answered_and_not_forwarded(tmp_path: Path) -> None:
    for request_, status in [
        (b"GET / HTTP/1.1\r\nHost: files.example\r\n\r\n", 400),
        (b"GET https://files.example/ HTTP/1.1\r\nHost: files.example\r\n\r\n", 400),
        (b"GET http://me@files.example/ HTTP/1.1\r\nHost: files.example\r\n\r\n", 400),
        (b"CONNECT files.example:443 HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01 no HTTP at all\r\n\r\n", 400),
        (b"GET http://files.example/ HTTP/1.1\r\nHost: a\r\nX: " + b"x" * sockets.MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (b"GET http://files.example/" + b"x" * 2 * sockets.MAX_HEAD_BYTES, 431),
    ]:
        world = SimulatedInternet({"files.example": [[PUBLIC]]})
        async with proxy(tmp_path, world) as path:
            assert status_of(await ask(path, request_)) == status
        assert world.lookups == []


async def test_a_request_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HEAD_SECONDS", 0.05)
    async with proxy(tmp_path, SimulatedInternet()) as path:
        assert status_of(await ask(path, b"GET http://")) == 408


async def test_a_tunnel_in_which_nothing_moves_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "IDLE_SECONDS", 0.05)
    async with (
        site(hold) as there,
        proxy(tmp_path, SimulatedInternet({"files.example": [[PUBLIC]]}, {(PUBLIC, 443): there})) as path,
    ):
        assert await ask(path, CONNECT) == ESTABLISHED


async def test_connections_beyond_the_bound_are_turned_away_until_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_CONNECTIONS", 1)
    async with proxy(tmp_path, SimulatedInternet()) as path:
        _, writer = await connect_private(path)
        assert status_of(await ask(path, b"")) == 503
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while status_of(await ask(path, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")) == 503:
                await asyncio.sleep(0)


async def test_the_end_of_the_turn_closes_what_is_open_and_leaves_no_socket(tmp_path: Path) -> None:
    async with site(hold) as there:
        async with proxy(tmp_path, SimulatedInternet({"files.example": [[PUBLIC]]}, {(PUBLIC, 443): there})) as path:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            reader, writer = await connect_private(path)
            writer.write(CONNECT)
            assert await reader.readexactly(len(ESTABLISHED)) == ESTABLISHED
        assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b""
        writer.close()
        await writer.wait_closed()
    assert not path.exists()


async def test_a_client_that_reads_late_gets_the_whole_answer(tmp_path: Path) -> None:
    answered = asyncio.Event()
    data = bytes(range(256)) * 1024

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        answered.set()

    path = tmp_path / "late.sock"
    with private_socket(path) as listener:
        async with sockets.serving(listener, answer):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(PATIENCE_SECONDS)
                client.connect(str(path))
                client.shutdown(socket.SHUT_WR)
                await asyncio.wait_for(answered.wait(), PATIENCE_SECONDS)
                for _ in range(100):  # time for the server to do everything that needs no client
                    await asyncio.sleep(0)
                assert await asyncio.to_thread(read_all, client) == data


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


async def test_a_client_without_no_proxy_finds_the_turns_own_service(tmp_path: Path) -> None:
    service = tmp_path / "model.sock"
    thread_ref = Destination(ip_address("127.0.0.1"), 19502)
    with private_socket(service) as listener:
        async with (
            sockets.serving(listener, backwards),
            proxy(tmp_path, SimulatedInternet(), local={thread_ref: service}) as path,
        ):
            reader, writer = await connect_private(path)
            writer.write(b"CONNECT 127.0.0.1:19502 HTTP/1.1\r\nHost: 127.0.0.1:19502\r\n\r\n")
            assert await reader.readexactly(len(ESTABLISHED)) == ESTABLISHED
            writer.write(b"olleh")
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), PATIENCE_SECONDS) == b"hello"
            writer.close()
            await writer.wait_closed()


async def test_the_log_tells_neither_paths_nor_headers(tmp_path: Path) -> None:
    requests: list[bytes] = []
    world = SimulatedInternet({"files.example": [[PUBLIC]]})
    with capture_logs() as logs:
        async with site(remember(requests)) as there, proxy(tmp_path, world) as path:
            world.sites[PUBLIC, 80] = there
            for host in ("files.example", "127.0.0.1", "no.example"):
                await ask(path, f"GET http://{host}/s3cret?s3cret HTTP/1.1\r\nHost: a\r\nX: s3cret\r\n\r\n".encode())
    assert len(requests) == 1
    assert "s3cret" not in str(logs)
    assert {"event": "egress-closed", "opened": 1, "refused": 1, "log_level": "info"} in logs


async def test_the_systems_resolver_and_tcp_are_used_outside_tests() -> None:
    async with site(backwards) as there, system_dialer() as outside:
        assert list(await outside.resolve("127.0.0.1")) == [ip_address("127.0.0.1")]
        reader, writer = await outside.connect(ip_address("127.0.0.1"), there.port)
        writer.write(b"abc")
        writer.write_eof()
        assert await reader.read() == b"cba"
        writer.close()
        await writer.wait_closed()


def test_tunnels_work_on_uvloop_too(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_tunnel_carries_bytes_both_ways_until_each_ways_own_end(tmp_path))
        runner.run(test_the_end_of_the_turn_closes_what_is_open_and_leaves_no_socket(tmp_path))
