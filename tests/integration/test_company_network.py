"""HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE and ALLOWED_HOSTS, part by part, with a real proxy and real certificates."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from bot.cli.doctor.account import github_checks
from bot.cli.doctor.services import Known, model_checks
from bot.github.registration import Registration
from bot.sandbox.bwrap import Bind
from bot.sandbox.net.egress import Outside
from bot.sandbox.net.turn_network import Network, open_network
from bot.sandbox.outbound import Outbound
from bot.serve.base import redactor_of
from bot.serve.parts import Surroundings, open_client, outbound_of
from bot.settings import SERVE, Settings, load
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import Git
from tests.support.company import FILES, GITHUB, MODELS, PASSWORD, Company, company
from tests.support.git_repositories import SEARCH_PATH, usable_sandbox
from tests.support.network import PUBLIC, SimulatedInternet, run, sandboxed, site

needs_bubblewrap = pytest.mark.usefixtures("usable_bubblewrap")
DATABASE = "db.corp"


@pytest.fixture
def usable_bubblewrap(tmp_path: Path) -> None:
    usable_sandbox(tmp_path)


@pytest.fixture
async def corp(tmp_path: Path) -> AsyncIterator[Company]:
    async with company(tmp_path) as there:
        yield there


@pytest.fixture
async def public(corp: Company) -> AsyncIterator[Company]:
    """A company that has files on https."""
    async with site(hello) as there, corp.https(FILES, lambda: there.port):
        yield corp


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")


async def ping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A protocol in which the server speaks first, as some databases do."""
    writer.write(b"ready\n")
    writer.write(b"got " + await reader.readline())


def settings_of(corp: Company, data_dir: Path, **more: str) -> Settings:
    data_dir.mkdir(exist_ok=True)
    given = {
        "PATH": SEARCH_PATH,
        "DATA_DIR": str(data_dir),
        "GITHUB_API_URL": f"https://{GITHUB}",
        "GITHUB_WEBHOOK_SECRET": "the webhook's secret",
        "GITHUB_TOKEN": "a-token-of-nobody",
        "AGENT": "claude",
        "ANTHROPIC_API_KEY": "sk-a-key-of-nobody",
        "ANTHROPIC_BASE_URL": f"https://{MODELS}",
        **corp.settings,
        **more,
    }
    return load(given, dotenv=None, needs=SERVE)


# The bot's own requests


async def test_plain_http_and_what_no_proxy_names_are_reached_directly(corp: Company, tmp_path: Path) -> None:
    outbound = Outbound(*settings_of(corp, tmp_path / "data", NO_PROXY="127.0.0.0/8").outbound)
    async with site(hello) as there, outbound.client(30) as client:
        assert (await client.get(there.url)).text == "hello"
        with pytest.raises(httpx.ConnectError):
            await client.get(f"https://127.0.0.3:{there.port}/")
    assert corp.proxy.asked == []


# git


async def test_git_asks_through_the_proxy_with_a_password_that_is_in_no_argv(public: Company, tmp_path: Path) -> None:
    given = settings_of(public, tmp_path / "data")
    variables = outbound_of(given).for_git()
    git = Git(search_path=SEARCH_PATH, outbound=variables)
    await git.run("init", "--bare", "--quiet", str(tmp_path / "clone"), cwd=None)

    # The server speaks no git; its answer is read as an empty repository of git's oldest protocol.
    assert (await git.on_clone(tmp_path / "clone", "ls-remote", f"https://{FILES}/acme/shop.git")).text == ""

    assert set(public.proxy.asked) == {f"{FILES}:443"}
    assert PASSWORD not in repr(git)


@pytest.mark.parametrize("changes", [{"SSL_CERT_FILE": ""}, {"HTTPS_PROXY": "http://nobody:wrong@127.0.0.1:{port}"}])
async def test_what_the_proxy_or_a_certificate_refuses_is_a_problem_of_the_network(
    public: Company, tmp_path: Path, changes: dict[str, str]
) -> None:
    changed = {name: value.format(port=public.proxy.port) for name, value in changes.items()}
    variables = outbound_of(settings_of(public, tmp_path / "data", **changed)).for_git()
    git = Git(search_path=SEARCH_PATH, outbound=variables)
    await git.run("init", "--bare", "--quiet", str(tmp_path / "clone"), cwd=None)
    with pytest.raises(GitError) as failed:
        await git.on_clone(tmp_path / "clone", "ls-remote", f"https://{FILES}/acme/shop.git")
    assert failed.value.problem is GitProblem.NETWORK, failed.value
    assert PASSWORD not in str(failed.value)


# Sandboxes


@asynccontextmanager
async def turn(
    corp: Company, directory: Path, world: SimulatedInternet, mode: str = "internet", **settings: str
) -> AsyncIterator[Network]:
    given = settings_of(corp, directory / "data", **settings)
    (directory / "sockets").mkdir()
    outside = Outside(outbound_of(given), given.allowed_hosts)
    assert mode in {"internet", "none"}
    async with open_network(
        "internet" if mode == "internet" else "none", directory / "sockets", None, world.dialer, outside
    ) as network:
        yield network


async def curl(network: Network, address: str) -> str:
    """Return what a program in the sandbox gets from an address, or the proxy's status."""
    argv = ("curl", "--silent", "--show-error", "--max-time", "60", address)
    done = await run(sandboxed(network, argv), network.environment)
    return done.out.decode() or done.err


@needs_bubblewrap
async def test_a_sandbox_reaches_the_internet_through_the_companys_proxy(public: Company, tmp_path: Path) -> None:
    world = SimulatedInternet({"inside.example": [["10.1.2.3"]], "mixed.example": [[PUBLIC, "127.0.0.1"]]})
    async with turn(public, tmp_path, world) as network:
        assert await curl(network, f"https://{FILES}/") == "hello"
        for refused in ("https://inside.example/", "https://mixed.example/", "https://10.0.0.1/", "https://db/"):
            assert "403" in await curl(network, refused)
        # Unknown here, so it is left to the proxy, which refuses it.
        assert "502" in await curl(network, "https://other.corp.example/")
        assert "403" in await curl(network, "https://files.corp.example:8443/")
    assert public.proxy.asked == [f"{FILES}:443", "other.corp.example:443"]
    assert world.connections == []
    assert PASSWORD not in str(network.environment)


@needs_bubblewrap
async def test_a_name_in_no_proxy_is_checked_and_reached_directly(public: Company, tmp_path: Path) -> None:
    names = {"web.example": [[PUBLIC]], "inside.web.example": [["10.1.2.3"]]}
    async with site(hello) as there:
        world = SimulatedInternet(names, {(PUBLIC, 80): there})
        async with turn(public, tmp_path, world, NO_PROXY="web.example") as network:
            assert await curl(network, "http://web.example/") == "hello"
            assert "not a public address" in await curl(network, "http://inside.web.example/")
    assert public.proxy.asked == []


@needs_bubblewrap
@pytest.mark.parametrize("mode", ["internet", "none"])
async def test_an_allowed_private_host_is_reached_on_its_port_and_no_other_host_is(
    corp: Company, tmp_path: Path, mode: str
) -> None:
    private = "10.20.30.40"
    names = {"mirror.corp": [[private]], "other.corp": [[private]], "moved.corp": [["169.254.169.254"]]}
    async with site(hello) as there:
        world = SimulatedInternet(names, {(private, 8081): there})
        allowed = "mirror.corp:8081, moved.corp, 10.9.9.9:8081"
        async with turn(corp, tmp_path, world, mode, ALLOWED_HOSTS=allowed) as network:
            assert await curl(network, "http://mirror.corp:8081/") == "hello"
            for refused in (
                "http://mirror.corp/",
                "http://other.corp:8081/",
                "http://moved.corp/",
                f"http://{private}/",
            ):
                assert "Not reachable from here" in await curl(network, refused)
            assert "could not be connected" in await curl(network, "http://10.9.9.9:8081/")
            public_host = await curl(network, "http://files.corp.example/")
    assert ("ALLOWED_HOSTS" in public_host) == (mode == "none")
    assert world.connections == [(private, 8081), ("10.9.9.9", 8081)]


@needs_bubblewrap
async def test_a_program_that_knows_no_proxy_reaches_an_allowed_database_by_its_name(
    corp: Company, tmp_path: Path
) -> None:
    private = "10.20.30.40"
    talk = (
        "import socket; link = socket.create_connection(('db.corp', 5432)); file = link.makefile('rw');"
        "print(file.readline().strip()); print('select', file=file, flush=True); print(file.readline().strip())"
    )
    async with site(ping) as there:
        world = SimulatedInternet({DATABASE: [[private]]}, {(private, 5432): there})
        async with turn(corp, tmp_path, world, "none", ALLOWED_HOSTS=f"{DATABASE}:5432") as network:
            program = (network.wrapper[0], "-I", "-S", "-c", talk)
            done = await run(sandboxed(network, program), {})
    assert done.out == b"ready\ngot select\n", done.err
    assert world.connections == [(private, 5432)]


async def test_without_allowed_hosts_none_leaves_only_the_model(corp: Company, tmp_path: Path) -> None:
    async with turn(corp, tmp_path, SimulatedInternet(), "none") as network:
        assert "HTTPS_PROXY" not in network.environment
        bundle = Bind(tmp_path / "data" / "ca-bundle.pem")
        assert network.binds == (bundle,)


async def test_with_the_hosts_network_an_agent_is_told_a_proxy_without_a_password_only(tmp_path: Path) -> None:
    sure = Outside(Outbound("http://robot:word@proxy.corp:3128", "corp"))
    free = Outside(Outbound("http://proxy.corp:3128", "corp"))
    async with (
        open_network("host", tmp_path, None, outside=sure) as first,
        open_network("host", tmp_path, None, outside=free) as second,
    ):
        assert first.environment == {}
        assert second.environment == {"HTTPS_PROXY": "http://proxy.corp:3128", "NO_PROXY": "corp"}


# doctor


async def found(given: Settings) -> tuple[str, ...]:
    """Return what doctor says of GitHub and of the model, with its next steps."""
    async with (
        open_client(Registration, given, Surroundings(), redactor_of(given)) as github,
        Outbound(*given.outbound).client(30) as http,
    ):
        checks = [*await github_checks(given, github, Known()), *await model_checks(given, http)]
    return tuple(f"{check.found} → {check.next_step}" for check in checks if check.check != "repositories")


async def test_doctor_names_the_proxy_that_refuses(corp: Company, tmp_path: Path) -> None:
    wrong = {"HTTPS_PROXY": f"http://nobody:wrong@127.0.0.1:{corp.proxy.port}"}
    for line in await found(settings_of(corp, tmp_path / "data", **wrong)):
        assert f"through the proxy 127.0.0.1:{corp.proxy.port}: the proxy of HTTPS_PROXY answers 407" in line
        assert line.endswith("→ Correct HTTPS_PROXY, or the rules of the proxy.")


async def test_doctor_names_an_authority_that_nobody_told_it(corp: Company, tmp_path: Path) -> None:
    async with site(hello) as there, corp.https(GITHUB, lambda: there.port), corp.https(MODELS, lambda: there.port):
        lines = await found(settings_of(corp, tmp_path / "data", SSL_CERT_FILE=""))
        given = settings_of(corp, tmp_path / "data")
        async with Outbound(*given.outbound).client(30) as http:
            [trusted] = await model_checks(given, http)
    for name, line in zip((GITHUB, MODELS), lines, strict=True):
        assert f"the certificate of {name} is signed by an unknown authority" in line
        assert line.endswith("Set SSL_CERT_FILE to a PEM file with the certificate of that authority.")
    assert trusted.found == f"https://{MODELS} accepts the key through the proxy 127.0.0.1:{corp.proxy.port}"
