"""A turn's network from inside the sandbox: real namespaces, and programs that try to reach other places."""

import asyncio
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from bot.agents.presets import ANTHROPIC
from bot.sandbox.net.models import ModelRoute
from bot.sandbox.net.turn_network import Network, open_network
from tests.support.git_repositories import usable_sandbox
from tests.support.network import PUBLIC, Ended, SimulatedInternet, run, sandboxed, site

REAL = "sk-real-" + "a1b2c3" * 6

# Requests each address, through the proxy of the environment and then directly.
TRY_ALL = """
import json, os, sys, urllib.request, urllib.error
def ask(opener, url):
    try:
        return [200, opener.open(url, timeout=60).read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
    except OSError as error:
        return [0, str(error)]
os.environ.pop("no_proxy", None), os.environ.pop("NO_PROXY", None)
proxied = urllib.request.build_opener()
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
proxied.addheaders = direct.addheaders = [("x-api-key", os.environ.get("ANTHROPIC_API_KEY", "none"))]
print(json.dumps({url: [ask(proxied, url), ask(direct, url)] for url in sys.argv[1:]}))
"""

# Asks the model as an SDK does, and prints the answer as it arrives.
ASK_MODEL = """
import os, sys, urllib.request
request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", data=b"{}",
                                 headers={"x-api-key": os.environ["ANTHROPIC_API_KEY"],
                                          "content-type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as answer:
    while piece := answer.read1():
        print(piece.decode(), flush=True)
        sys.stdin.readline()
"""

needs_bubblewrap = pytest.mark.usefixtures("usable_bubblewrap")


@pytest.fixture
def usable_bubblewrap(tmp_path: Path) -> None:
    usable_sandbox(tmp_path)


def python(network: Network, program: str, *arguments: str) -> tuple[str, ...]:
    """Run a Python program in the sandbox, with the relay's interpreter."""
    return sandboxed(network, [network.wrapper[0], "-I", "-S", "-c", program, *arguments])


async def tried(network: Network, *urls: str) -> dict[str, Any]:
    """Return each address's answer: through the proxy, and directly."""
    ended = await run(python(network, TRY_ALL, *urls), network.environment)
    assert ended.status == 0, ended.err
    answers: dict[str, Any] = json.loads(ended.out)
    return answers


def route(upstream: str) -> ModelRoute:
    return ModelRoute(upstream, REAL, "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", ANTHROPIC.endpoints)


async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")


@needs_bubblewrap
async def test_the_services_of_the_host_its_network_and_its_cloud_cannot_be_reached(tmp_path: Path) -> None:
    world = SimulatedInternet({"inside.example": [["10.1.2.3"]], "mixed.example": [[PUBLIC, "127.0.0.1"]]})
    async with (
        site(web) as database,
        site(web) as api,
        site(web) as metrics,
        open_network("internet", tmp_path, None, world.dialer) as network,
    ):
        services = [f"http://127.0.0.1:{service.port}/" for service in (database, api, metrics)]
        answers = await tried(
            network,
            *services,
            *(f"http://localhost:{api.port}/", f"http://2130706433:{api.port}/", f"http://[::1]:{api.port}/"),
            *("http://127.0.0.1/", "http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/"),
            *(
                "http://10.0.0.1/",
                "http://172.16.0.1/",
                "http://192.168.0.1/",
                "http://[fd00::1]/",
                "http://[fe80::1]/",
            ),
            *("http://inside.example/", "http://mixed.example/", "https://169.254.169.254/", "https://inside.example/"),
        )
        assert [service.visits for service in (database, api, metrics)] == [0, 0, 0]
    assert world.connections == []
    for url, (proxied, direct) in answers.items():
        assert "Not reachable from here" in proxied[1] or "Tunnel connection failed: 403" in proxied[1], url
        assert direct[0] == 0, url


@needs_bubblewrap
async def test_a_public_address_is_reached_through_the_proxy_and_only_through_it(tmp_path: Path) -> None:
    async with site(web) as there:
        world = SimulatedInternet({"files.example": [[PUBLIC]]}, {(PUBLIC, 80): there})
        async with open_network("internet", tmp_path, None, world.dialer) as network:
            answers = await tried(network, "http://files.example/a", f"http://{PUBLIC}/b")
    for proxied, direct in answers.values():
        assert proxied == [200, "hello"]
        assert direct[0] == 0
    assert world.connections == [(PUBLIC, 80), (PUBLIC, 80)]


@needs_bubblewrap
async def test_the_namespace_has_its_own_loopback_and_nothing_else(tmp_path: Path) -> None:
    async with open_network("none", tmp_path, route("http://127.0.0.1:1")) as network:
        ended = await run(sandboxed(network, ["cat", "/proc/net/dev", "/proc/net/route"]), network.environment)
    interfaces = [line.split(":")[0].strip() for line in ended.out.decode().splitlines() if ":" in line]
    assert interfaces == ["lo"]
    assert "HTTP_PROXY" not in network.environment


@needs_bubblewrap
@pytest.mark.parametrize("mode", ["internet", "none", "host"])
async def test_the_model_streams_into_the_sandbox_piece_by_piece_and_its_key_stays_outside(
    tmp_path: Path, mode: str
) -> None:
    shown = asyncio.Event()
    heads: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\none")
        await shown.wait()
        writer.write(b"two")

    async with site(upstream) as there, opened(mode, tmp_path, there.url) as network:
        program = [network.wrapper[0] if network.wrapper else "python3", "-I", "-S", "-c", ASK_MODEL]
        process = await asyncio.create_subprocess_exec(
            *sandboxed(network, program),
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", **network.environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert await process.stdout.readline() == b"one\n"
        shown.set()
        rest, _ = await process.communicate(b"\n\n\n")
    assert (process.returncode, rest) == (0, b"two\n")
    assert f"x-api-key: {REAL}".encode() in heads[0].lower()
    assert REAL not in str(network.environment) + str(network.wrapper)
    assert all(network.environment["ANTHROPIC_API_KEY"] not in argument for argument in network.wrapper)


def opened(mode: str, directory: Path, upstream: str) -> Any:
    match mode:
        case "internet" | "none" | "host":
            return open_network(mode, directory, route(upstream), SimulatedInternet().dialer)
        case _:
            raise AssertionError(mode)


@pytest.mark.parametrize(("mode", "status"), [("none", 403), ("internet", 200), ("host", 200)])
async def test_without_internet_the_vendor_fetches_nothing_for_the_agent(
    tmp_path: Path, mode: str, status: int
) -> None:
    body = {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}
    async with site(web) as there, opened(mode, tmp_path, there.url) as network:
        key = {"x-api-key": network.environment["ANTHROPIC_API_KEY"]}
        host = network.environment["ANTHROPIC_BASE_URL"]
        uds = None if mode == "host" else str(tmp_path / "model.sock")
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=uds)) as agent:
            answer = await agent.post(f"{host}/v1/messages", headers=key, json=body)
    assert answer.status_code == status


@needs_bubblewrap
async def test_one_turns_key_is_worthless_in_another_and_after_its_end(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    async with site(web) as there:
        async with open_network("none", tmp_path / "first", route(there.url)) as first:
            assert (await asked(first, first.environment)).status == 0
        async with open_network("none", tmp_path / "second", route(there.url)) as second:
            stolen = await asked(second, first.environment)
        assert stolen.status != 0
        assert "HTTP Error 401" in stolen.err
        assert there.visits == 1
    assert not any(bind.path.is_socket() for bind in first.binds)


async def asked(network: Network, environment: Mapping[str, str]) -> Ended:
    return await run(python(network, ASK_MODEL), environment)


async def test_the_sockets_are_this_users_alone_and_what_the_sandbox_needs_is_named(tmp_path: Path) -> None:
    async with open_network(
        "internet", tmp_path, route("https://models.example"), SimulatedInternet().dialer
    ) as network:
        sockets = [bind.path for bind in network.binds if bind.path.is_socket()]
        assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in sockets} == {
            "model.sock": 0o600,
            "egress.sock": 0o600,
        }
        assert network.own_namespace
        assert network.wrapper
        assert {name: value for name, value in network.environment.items() if name != "ANTHROPIC_API_KEY"} == {
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:19501"),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1"),
            "NODE_USE_ENV_PROXY": "1",
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:19502",
        }


async def test_without_a_sandbox_network_or_a_route_nothing_is_added(tmp_path: Path) -> None:
    async with open_network("host", tmp_path, None) as host, open_network("none", tmp_path, None) as none:
        assert host == Network(own_namespace=False)
        assert none == Network(own_namespace=True)
