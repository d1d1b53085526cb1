"""Gives git its credentials through a helper that asks this process over a socket only its user can open.

So the token is never in an argument, an environment, a file or a trace: https://git-scm.com/docs/gitcredentials
"""

import asyncio
import os
import re
import secrets
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from bot.git import credential_client

TokenSource = Callable[[str], Awaitable[str]]
"""Gives the token for a repository, named `owner/repo`."""

USERNAME = "x-access-token"
MAX_REQUEST_BYTES = 16 * 1024
REQUEST_TIMEOUT_SECONDS = 10.0
TOKEN_TIMEOUT_SECONDS = 45.0

_REPOSITORY = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}?)(?:\.git)?/?")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Credentials:
    """Configuration that makes a git command ask here, and only here, for passwords of the server."""

    git_config: tuple[tuple[str, str], ...]


@asynccontextmanager
async def credential_server(
    socket_path_dir: Path, server_url: str, token_for: TokenSource
) -> AsyncIterator[Credentials]:
    """Serve the credential helper of `server_url` on a 0600 socket in the directory, which must exist.

    Answers `get` for a repository of that server; anything else, and a token_for that raises, gets an empty answer.
    """
    server_url = server_url.rstrip("/")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await _answer(reader, server_url, token_for))
            await writer.drain()
        except OSError as error:
            _log.warning("git-credential-client-left", error=str(error))
        finally:
            writer.close()

    handlers: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.create_task(handle(reader, writer))
        handlers.add(handler)
        handler.add_done_callback(handlers.discard)

    listener, path = _private_socket(socket_path_dir)
    try:
        async with await asyncio.start_unix_server(accept, sock=listener, limit=MAX_REQUEST_BYTES) as server:
            try:
                yield Credentials(_git_config(server_url, path))
            finally:
                server.close()
                for handler in handlers:
                    handler.cancel()
                await asyncio.gather(*handlers, return_exceptions=True)
    finally:
        path.unlink(missing_ok=True)


def _private_socket(parent: Path) -> tuple[socket.socket, Path]:
    """A bound 0600 socket; until it listens nobody can connect, so it is never open to others."""
    path = parent.absolute() / f"git-credentials-{secrets.token_hex(4)}.sock"
    listener = socket.socket(socket.AF_UNIX)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Shorter than the path, of which a socket address holds 107 bytes.
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
        path.chmod(0o600)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener, path


def _git_config(server_url: str, path: Path) -> tuple[tuple[str, str], ...]:
    command = shlex.join([sys.executable, "-I", "-S", str(Path(credential_client.__file__)), str(path)])
    return (
        ("credential.helper", ""),  # helpers add up over all configuration; an empty one forgets those before it
        (f"credential.{server_url}.helper", f"!{command}"),
        (f"credential.{server_url}.useHttpPath", "true"),
    )


async def _answer(reader: asyncio.StreamReader, server_url: str, token_for: TokenSource) -> bytes:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
            request = await _read_all(reader)
    except TimeoutError:
        _log.warning("git-credential-request-incomplete")
        return b""
    repository = requested_repository(request, server_url)
    if repository is None:
        _log.warning("git-credential-refused")
        return b""
    try:
        async with asyncio.timeout(TOKEN_TIMEOUT_SECONDS):
            token = await token_for(repository)
    except Exception as error:  # noqa: BLE001 - whatever it is, git must not wait; its text might hold the token
        _log.error("git-credential-failed", repository=repository, error=type(error).__name__)
        return b""
    if not token.isascii() or not token.isprintable():
        _log.error("git-credential-failed", repository=repository, error="malformed token")
        return b""
    return f"username={USERNAME}\npassword={token}\n".encode()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """The request up to its end, cut off where it is longer than any real one."""
    request = b""
    while len(request) <= MAX_REQUEST_BYTES and (piece := await reader.read(MAX_REQUEST_BYTES)):
        request += piece
    return request


def requested_repository(request: bytes, server_url: str) -> str | None:
    """The `owner/repo` that a `get` request asks for; None for every other request and every other server."""
    if len(request) > MAX_REQUEST_BYTES:
        return None
    operation, *lines = request.decode(errors="replace").split("\n")
    attributes = dict(line.split("=", 1) for line in lines if "=" in line)
    server = urlsplit(server_url)
    if operation != "get" or (attributes.get("protocol"), attributes.get("host")) != (server.scheme, server.netloc):
        return None
    repository = _REPOSITORY.fullmatch(attributes.get("path", ""))
    return repository["name"] if repository is not None else None
