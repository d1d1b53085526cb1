"""MCP_CONFIG: the operator's servers are read, refused with a sentence, and given to each protocol in its form."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bot.agents.mcp import for_acp, for_claude, for_codex, read_servers
from bot.settings import WORKER, SettingsError, known_secrets, load

DOCS = {"command": sys.executable, "args": ["-m", "docs"], "env": {"DOCS_TOKEN": "a-secret-of-the-docs"}}
WIKI = {"type": "http", "url": "https://wiki.corp/mcp", "headers": {"Authorization": "Bearer bearer-of-the-wiki"}}
GIVEN = {
    "HOME": "/home/ada",
    "PATH": "/usr/bin:/bin",
    "GITHUB_TOKEN": "the-bots-own-token",
    "AGENT": "custom",
    "AGENT_COMMAND": "true",
}


def file_of(folder: Path, servers: Any) -> dict[str, str]:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return {"MCP_CONFIG": str(file)}


def complaint(folder: Path, servers: Any, **more: str) -> str:
    with pytest.raises(SettingsError) as raised:
        load({**GIVEN, **file_of(folder, servers), **more}, dotenv=None, needs=WORKER)
    assert "a-secret-of" not in str(raised.value)
    [line] = raised.value.lines
    return line


def test_each_protocol_gets_the_servers_in_its_form() -> None:
    servers = read_servers(json.dumps({"mcpServers": {"docs": DOCS, "wiki": WIKI}}), "/usr/bin", ())
    assert json.loads(for_claude(servers))["mcpServers"] == {"docs": {"type": "stdio", **DOCS}, "wiki": WIKI}
    assert for_acp(servers, {"HTTPS_PROXY": "http://127.0.0.1:1", "HOME": "/h"}) == [
        {
            "name": "docs",
            "command": sys.executable,
            "args": ["-m", "docs"],
            "env": [
                {"name": "HTTPS_PROXY", "value": "http://127.0.0.1:1"},
                {"name": "DOCS_TOKEN", "value": "a-secret-of-the-docs"},
            ],
        },
        {
            "type": "http",
            "name": "wiki",
            "url": "https://wiki.corp/mcp",
            "headers": [{"name": "Authorization", "value": "Bearer bearer-of-the-wiki"}],
        },
    ]
    assert tomllib.loads("[mcp_servers]\n" + for_codex(servers))["mcp_servers"] == {
        "docs": {"identity": {"command": sys.executable}},
        "wiki": {"identity": {"url": "https://wiki.corp/mcp"}},
    }


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        ([], 'must hold the one key "mcpServers" with an object of servers'),
        ({"a b": DOCS}, "names a server otherwise than with 1 to 64 letters"),
        ({"docs": {"args": []}}, "has a wrong server docs, command: field required"),
        ({"docs": {**DOCS, "env": {"A": 1}}}, "has a wrong server docs, env.A: input should be a valid string"),
        ({"docs": {**DOCS, "cwd": "/"}}, "has a wrong server docs, cwd: extra inputs are not permitted"),
        ({"docs": {"command": "no-such-program"}}, "has a wrong server docs, command: no executable file"),
        ({"wiki": {"url": "https://wiki.corp"}}, "has a wrong server wiki, type: field required"),
        ({"wiki": {**WIKI, "url": "wiki.corp"}}, "has a wrong server wiki, url: must be like https://HOST/PATH"),
        ({"docs": {**DOCS, "env": {"A": "${HOME}"}}}, "has ${NAME} in the server docs, which nothing replaces"),
        ({"docs": {**DOCS, "args": ["x-the-bots-own-token"]}}, "gives the server docs one of the bot's own secrets"),
    ],
)
def test_a_wrong_server_is_named_with_its_key_and_no_value(tmp_path: Path, servers: Any, why: str) -> None:
    assert complaint(tmp_path, servers).startswith(f"MCP_CONFIG {why}")


def test_a_file_that_is_none_or_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text("{secret")
    for path, why in ((tmp_path / "mcp.json", "is no JSON"), (tmp_path / "gone", "names no text file")):
        with pytest.raises(SettingsError, match=f"MCP_CONFIG {why}"):
            load({**GIVEN, "MCP_CONFIG": str(path)}, dotenv=None, needs=WORKER)


def test_a_server_on_another_host_needs_the_network_or_its_host_in_allowed_hosts(tmp_path: Path) -> None:
    assert complaint(tmp_path, {"wiki": WIKI}, AGENT_NETWORK="none").startswith("MCP_CONFIG has the server wiki on")
    for more in ({}, {"AGENT_NETWORK": "none", "ALLOWED_HOSTS": "wiki.corp"}):
        given = load({**GIVEN, **file_of(tmp_path, {"wiki": WIKI}), **more}, dotenv=None, needs=WORKER)
        assert [one.name for one in given.mcp_config] == ["wiki"]


def test_secrets_of_servers_are_known_and_never_shown(tmp_path: Path) -> None:
    given = load({**GIVEN, **file_of(tmp_path, {"docs": DOCS, "wiki": WIKI})}, dotenv=None, needs=WORKER)
    known = {"a-secret-of-the-docs", "Bearer bearer-of-the-wiki", "bearer-of-the-wiki"}
    assert known <= set(known_secrets(given))
    assert not any(secret in repr(given) for secret in known)
