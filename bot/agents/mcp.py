"""The MCP servers that the operator gives to agents: the file MCP_CONFIG, and its form in each protocol.

https://modelcontextprotocol.io/specification
"""

import json
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EXPANDED = re.compile(r"\$\{\w")
_PROXY_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "NODE_USE_ENV_PROXY"),
)


class _Stdio(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["stdio"] = "stdio"
    command: str
    args: list[str] = []
    env: dict[str, str] = {}


class _Remote(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["http", "sse"]
    url: str
    headers: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class McpServer:
    """One server: a `command` that the agent starts in its sandbox, or a `url`, with its variables or headers."""

    name: str
    type: Literal["stdio", "http", "sse"]
    command: tuple[str, ...] = ()
    url: str = ""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def authority(self) -> tuple[str, int]:
        """The `host[:port]` of its address, and the port where that names none."""
        url = urlsplit(self.url)
        return url.netloc.rpartition("@")[2], 443 if url.scheme == "https" else 80

    def secrets(self, is_secret: re.Pattern[str]) -> Iterator[str]:
        """Yield the values whose names look like those of secrets, a credential also without the word before it."""
        url = urlsplit(self.url)
        given = [*self.values.items(), *parse_qsl(url.query), ("password", url.password or "")]
        for value in (value for name, value in given if value and is_secret.search(name)):
            yield value
            yield value.rpartition(" ")[2]


def read_servers(text: str, search_path: str, own_secrets: Collection[str]) -> tuple[McpServer, ...]:
    """Return the servers of the file's text, each program by its absolute path.

    Raises ValueError with a clause that names the server and the key, and no value.
    """
    try:
        content = json.loads(text)
    except ValueError:
        raise ValueError('is no JSON; write it like {"mcpServers": {"docs": {"command": "docs-server"}}}') from None
    servers = content.get("mcpServers") if isinstance(content, dict) and content.keys() == {"mcpServers"} else None
    if not isinstance(servers, dict):
        raise ValueError('must hold the one key "mcpServers" with an object of servers')
    return tuple(_server(name, config, search_path, own_secrets) for name, config in servers.items())


def _server(name: str, config: Any, search_path: str, own_secrets: Collection[str]) -> McpServer:
    if not _NAME.fullmatch(name):
        raise ValueError("names a server otherwise than with 1 to 64 letters, digits, hyphens and underscores")
    is_remote = isinstance(config, dict) and ("url" in config or config.get("type") in ("http", "sse"))
    try:
        found = (_Remote if is_remote else _Stdio).model_validate(config)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"])) or "its object"
        raise ValueError(f"has a wrong server {name}, {key}: {first['msg'].lower()}") from None
    written = json.dumps(found.model_dump(), ensure_ascii=False)
    if any(json.dumps(secret, ensure_ascii=False)[1:-1] in written for secret in own_secrets):
        raise ValueError(f"gives the server {name} one of the bot's own secrets")
    if _EXPANDED.search(written):
        raise ValueError(f"has ${{NAME}} in the server {name}, which nothing replaces; write the value")
    if isinstance(found, _Remote):
        return _remote(name, found)
    program = shutil.which(found.command, path=search_path)
    if program is None:
        raise ValueError(f"has a wrong server {name}, command: no executable file, nor the name of one on PATH")
    return McpServer(name, "stdio", (str(Path(program).absolute()), *found.args), values=found.env)


def _remote(name: str, found: _Remote) -> McpServer:
    try:
        url = urlsplit(found.url)
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ValueError(f"has a wrong server {name}, url: must be like https://HOST/PATH")
    return McpServer(name, found.type, url=found.url, values=found.headers)


def for_claude(servers: Collection[McpServer]) -> str:
    """Return the file of `claude --mcp-config`: https://docs.claude.com/en/docs/claude-code/mcp"""
    return json.dumps({"mcpServers": {one.name: _for_claude(one) for one in servers}})


def _for_claude(one: McpServer) -> dict[str, Any]:
    if one.type == "stdio":
        return {"type": "stdio", "command": one.command[0], "args": one.command[1:], "env": one.values}
    return {"type": one.type, "url": one.url, "headers": one.values}


def for_acp(servers: Collection[McpServer], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the servers of a new session: https://agentclientprotocol.com/protocol/session-setup#mcp-servers

    An agent may start programs with few of its own variables in `environment`: those of the network are given.
    """
    network = {name: value for name, value in environment.items() if name.upper() in _PROXY_VARIABLES}
    return [_for_acp(one, network) for one in servers]


def _for_acp(one: McpServer, network: Mapping[str, str]) -> dict[str, Any]:
    if one.type == "stdio":
        program, *arguments = one.command
        return {"name": one.name, "command": program, "args": arguments, "env": _pairs({**network, **one.values})}
    return {"type": one.type, "name": one.name, "url": one.url, "headers": _pairs(one.values)}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def for_codex(servers: Collection[McpServer]) -> str:
    """Return the sections of Codex's requirements that permit these servers, and thereby no others.

    https://developers.openai.com/codex/security#managed-configuration
    """
    permitted = ""
    for one in servers:
        key, value = ("command", one.command[0]) if one.type == "stdio" else ("url", one.url)
        permitted += f"\n[mcp_servers.{json.dumps(one.name)}.identity]\n{key} = {json.dumps(value)}\n"
    return permitted
