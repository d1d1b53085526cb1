"""The relay in front of an agent's command: the command runs as without it, and its ports lead to sockets."""

# ruff: noqa: ASYNC110 - a test waits for what has no event

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from bot.sandbox.net import relay, sockets
from bot.sandbox.net.sockets import loopback_socket, private_socket, serving
from tests.support.network import run
from tests.support.patience import PATIENCE_SECONDS

PORT = 19501
TEN_MB = os.urandom(1 << 20) * 10
PYTHON = (sys.executable, "-I", "-S", "-c")


def relayed(command: Sequence[str], host: str = "127.0.0.1", path: Path = Path("/nowhere")) -> tuple[str, ...]:
    """Return the command behind a relay from that host's PORT, or a free one of 127.0.0.1."""
    forward = f"--forward={host}:{0 if host == '127.0.0.1' else PORT}={path}"
    return (sys.executable, "-I", "-S", relay.__file__, forward, "--", *command)


def own_loopback() -> str:
    """Return an address of the loopback network without a listener."""
    return str(IPv4Address("127.64.0.0") + secrets.randbelow(1 << 22))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def test_a_protocol_on_stdio_passes_byte_for_byte() -> None:
    assert await run(relayed(["cat"]), {}, TEN_MB) == await run(["cat"], {}, TEN_MB)


async def test_the_command_has_the_status_environment_and_signals_it_would_have_alone() -> None:
    script = "env; grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd; pwd; echo said >&2; exit 7"
    for environment in ({"LANG": "C"}, {"A": "b=c\nd", "LC_ALL": "C.UTF-8"}, {}):
        alone = await run(["/bin/sh", "-c", script], environment)
        assert await run(relayed(["/bin/sh", "-c", script]), environment) == alone
        assert (alone.status, alone.err) == (7, "said\n")


async def test_a_signal_reaches_the_command_and_its_end_by_one_is_told() -> None:
    process = await asyncio.create_subprocess_exec(
        *relayed(["sh", "-c", "trap 'echo asked' TERM; echo ready; while :; do read -r line; done; exit 3"]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    process.stdin.write(b"\n")
    assert await process.stdout.readline() == b"asked\n"
    process.kill()
    assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == -signal.SIGKILL
    process.stdin.close()


async def test_a_missing_command_is_reported_as_by_shells() -> None:
    ended = await run(relayed(["no-such-agent"]), {})
    assert (ended.status, ended.err) == (127, "no-such-agent: No such file or directory\n")
    assert (await run(relayed(["/etc/passwd"]), {})).status == 126


async def test_an_unavailable_port_stops_the_start() -> None:
    host = own_loopback()
    with socket.create_server((host, PORT)):
        ended = await run(relayed(["echo", "started"], host), {})
    assert (ended.status, ended.out) == (1, b"")
    assert ended.err.startswith("relay: cannot forward: Address already in use")


async def test_ten_megabytes_go_through_a_port_and_back_while_both_sides_are_slow(tmp_path: Path) -> None:
    program = """
import socket, sys, threading
connection = socket.create_connection((sys.argv[1], 19501))
data = sys.stdin.buffer.read()
def send():
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
while piece := connection.recv(1000):
    sys.stdout.buffer.write(piece)
"""
    deep = tmp_path / ("d" * 100)  # longer than a socket address
    deep.mkdir()
    host = own_loopback()
    with private_socket(deep / "e.sock") as listener:
        async with serving(listener, echo):
            ended = await run(relayed([*PYTHON, program, host], host, deep / "e.sock"), {}, TEN_MB)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == TEN_MB


async def test_an_answer_given_before_the_request_has_ended_still_arrives(tmp_path: Path) -> None:
    program = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 19501))
connection.sendall(b"x" * 10_000_000)
print(connection.recv(100))
"""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"too large")

    host = own_loopback()
    with private_socket(tmp_path / "r.sock") as listener:
        async with serving(listener, refuse):
            ended = await run(relayed([*PYTHON, program, host], host, tmp_path / "r.sock"), {})
    assert (ended.out, ended.err) == (b"b'too large'\n", "")


async def test_connections_beyond_what_the_relay_holds_wait_until_others_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import socket, sys
connections = [socket.create_connection((sys.argv[1], 19501)) for _ in range(300)]
for connection in connections:
    connection.sendall(b"a")
    connection.shutdown(socket.SHUT_WR)
for connection in connections:
    assert connection.recv(10) == b"a"
    connection.close()
"""
    monkeypatch.setattr(sockets, "MAX_CONNECTIONS", 1000)
    now, most = 0, 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await echo(reader, writer)
        now -= 1

    host = own_loopback()
    with private_socket(tmp_path / "e.sock") as listener:
        async with serving(listener, counted):
            ended = await run(relayed([*PYTHON, program, host], host, tmp_path / "e.sock"), {})
    assert (ended.status, ended.err) == (0, "")
    assert most <= relay.MAX_CONNECTIONS


async def test_clients_that_reset_their_connection_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import socket, struct, sys
def connect():
    return socket.create_connection((sys.argv[1], 19501), timeout=60)
for _ in range(300):
    gone = connect()
    gone.sendall(b"a")
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()
last = connect()
last.sendall(b"b")
last.shutdown(socket.SHUT_WR)
print(last.recv(10))
"""

    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())

    monkeypatch.setattr(sockets, "MAX_CONNECTIONS", 1000)
    host = own_loopback()
    with private_socket(tmp_path / "e.sock") as listener:
        async with serving(listener, answer_at_the_end):
            ended = await run(relayed([*PYTHON, program, host], host, tmp_path / "e.sock"), {})
    assert (ended.out, ended.err) == (b"b'b'\n", "")


async def test_the_forwarder_ends_with_the_command() -> None:
    host = own_loopback()
    process = await asyncio.create_subprocess_exec(*relayed(["cat"], host), stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not answers(host):
            await asyncio.sleep(0.01)
        process.stdin.close()
        assert await process.wait() == 0
        while answers(host):
            await asyncio.sleep(0.01)


def answers(host: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, PORT)) == 0


def test_a_streamed_answer_does_not_wait_for_the_acknowledgement_of_its_piece_before() -> None:
    with contextlib.ExitStack() as stack:
        listeners = [*map(stack.enter_context, relay.listen(["127.0.0.1:0=/models.sock"]))]
        listeners.append(stack.enter_context(loopback_socket()))
        listeners[1].listen()
        for listener in listeners:
            stack.enter_context(socket.create_connection(listener.getsockname()))
            accepted = stack.enter_context(listener.accept()[0])
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
