"""A conversation in a company: everything goes through a forward proxy, https has certificates of the company's own."""

import asyncio
import json
import shlex
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from bot.demo.pair import agent_in_a_folder
from bot.simulated.github.server import SimulatedGitHub
from tests.end_to_end.conftest import Worlds
from tests.support.company import FILES, GITHUB, MODELS, PASSWORD, company
from tests.support.network import Site, site

KEY = "sk-the-real-key-0123456789"
# The scripted agent, with a word more: `get URL`, as any program of the sandbox would.
AGENT = """
import json, os, runpy, urllib.error, urllib.request
from bot.simulated.agent.work import Work
known = Work._troubles
def more(self, word, rest):
    if word == "proxies":
        self._say(json.dumps({name: value for name, value in os.environ.items() if "proxy" in name.lower()}))
    elif word == "authorities":
        paths = {name: os.environ.get(name, "") for name in rest.split()}
        self._say(json.dumps({name: open(path).read().count("BEGIN CERT") for name, path in paths.items()}))
        try:
            open(paths.popitem()[1], "a")
        except OSError as error:
            self._say(f"read only: {error.strerror}")
    elif word == "get":
        try:
            asked = rest
            if rest == "model":
                asked = urllib.request.Request(
                    os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", b"{}",
                    {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"})
            self._say(f"{rest} says {urllib.request.urlopen(asked, timeout=60).read().decode()}")
        except urllib.error.HTTPError as error:
            self._say(f"{rest} is refused: {error.read().decode()}")
        except OSError as error:
            self._say(f"{rest} fails: {error}")
    else:
        known(self, word, rest)
Work._troubles = more
runpy.run_module("bot.simulated.agent", run_name="__main__", alter_sys=True)
"""


def installed_agent(directory: Path) -> str:
    """Install the agent as a preset's program; return the folder to put on PATH."""
    programs = directory / "node_modules" / ".bin"
    programs.mkdir(parents=True)
    [*_, folder] = shlex.split(agent_in_a_folder(directory / "node_modules"))
    (Path(folder) / "__main__.py").write_text(AGENT)
    program = programs / "claude-agent-acp"
    program.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({folder!r}, run_name='__main__')\n")
    program.chmod(0o755)
    return str(programs)


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")


async def test_a_whole_conversation_goes_through_the_proxy_and_trusts_the_companys_certificates(
    a_world: Worlds, sandboxed_settings: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "company").mkdir()
    keys: list[str] = []
    servers: list[SimulatedGitHub] = []

    async def model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keys.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngood")

    async with AsyncExitStack() as stack:
        corp = await stack.enter_async_context(company(tmp_path / "company"))
        files_site = await stack.enter_async_context(site(hello))
        model_site = await stack.enter_async_context(site(model))
        mirror, database = [await stack.enter_async_context(site(hello, host="127.0.0.5")) for _ in range(2)]
        await stack.enter_async_context(corp.https(GITHUB, lambda: servers[0].port))
        await stack.enter_async_context(corp.https(FILES, lambda: files_site.port))
        await stack.enter_async_context(corp.https(MODELS, lambda: model_site.port))

        def settings(github: SimulatedGitHub) -> dict[str, str]:
            servers.append(github)
            return {
                **sandboxed_settings,
                **corp.settings,
                "GITHUB_API_URL": f"https://{GITHUB}",
                "PATH": f"{installed_agent(tmp_path / 'company')}:/usr/local/bin:/usr/bin:/bin",
                "AGENT": "claude-acp",
                "ANTHROPIC_API_KEY": KEY,
                "ANTHROPIC_BASE_URL": f"https://{MODELS}",
                "AGENT_COMMAND": "",
                "SETUP_SCRIPT": "true",
                "ALLOWED_HOSTS": f"127.0.0.5:{mirror.port}",
            }

        world = await stack.enter_async_context(a_world(settings))
        await world.maria.pushes("main", {".threadtree/setup": SETUP.format(url=url(mirror), other=url(database))})
        issue = await world.maria.opens_issue("Greet people")
        await issue.says(
            f"@threadtree-bot write a.txt: one\nget model\nget {url(mirror)}\nget {url(database)}\n"
            f"get https://{FILES}/\nget https://unknown.corp.example/\n"
            "proxies\nauthorities SSL_CERT_FILE NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE GIT_SSL_CAINFO"
        )
        answer = (await issue.hears("model says good")).replace("\\:", ":")
        bundled = corp.authority_file.read_text().strip()
        files = await world.files((await world.branches())["threadtree/issue-1"])
        in_bundle = (world.data_dir / "ca-bundle.pem").read_text()

    for phrase in (f"{url(mirror)} says hello", f"{url(database)} is refused", f"https://{FILES}/ says hello"):
        assert phrase in answer
    assert "Tunnel connection failed: 502" in answer
    assert f"x-api-key: {KEY}" in keys[0].lower()
    assert (mirror.visits, database.visits) == (2, 0)
    assert files["a.txt"] == "one"
    assert json.loads(files["setup.json"]) == {"mirror": "hello", "other": 403}
    # The agent sees the bot's own proxy for it alone, and nothing of the company's.
    assert PASSWORD not in answer
    assert "127.0.0.1:19501" in answer
    assert f":{corp.proxy.port}" not in answer
    assert bundled in in_bundle
    number = in_bundle.count("BEGIN CERT")
    assert number > 100
    assert answer.count(f": {number}") == 4, answer
    assert "read only: " in answer
    asked = {f"{name}:443" for name in (GITHUB, MODELS, FILES, "unknown.corp.example")}
    assert asked == set(corp.proxy.asked)
    # git asks once without its password, as curl does; nobody else.
    assert set(corp.proxy.refused) <= {403, 407}
    assert corp.proxy.refused.count(403) == 1


SETUP = """#!/usr/bin/env python3
import json, urllib.error, urllib.request
found = {{"mirror": urllib.request.urlopen("{url}", timeout=60).read().decode()}}
try:
    urllib.request.urlopen("{other}", timeout=60)
except urllib.error.HTTPError as error:
    found["other"] = error.code
open("setup.json", "w").write(json.dumps(found))
"""


def url(there: Site) -> str:
    return f"http://127.0.0.5:{there.port}/"
