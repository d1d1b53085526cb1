"""The token for git's requests: shown with the first one, and by a credential helper where the server asks for another.

The helper asks a server on a socket that only the bot's user can open. The token is never in an argument, an
environment, a file or a trace. https://git-scm.com/docs/gitcredentials
"""

import asyncio
import base64
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from bot.sandbox.net.sockets import private_socket
from bot.tree.git.errors import GitError, GitProblem

GitConfig = tuple[tuple[str, str], ...]
TokenSource = Callable[[str], Awaitable[str]]
"""A function that returns the token for the repository `owner/repo`.

It raises LookupError where there is none; any other error means that the token is not known now.
"""

USERNAME = "x-access-token"
# https://git-scm.com/docs/git-credential#IOFMT
NOT_NOW = b"quit=1\n"
MAX_REQUEST_BYTES = 16 * 1024
REQUEST_TIMEOUT_SECONDS = 10.0
TOKEN_TIMEOUT_SECONDS = 45.0

_REPOSITORY = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}?)(?:\.git)?/?")

_log = structlog.get_logger()


@asynccontextmanager
async def credential_server(
    socket_path_dir: Path, server_url: str, token_for: TokenSource, reject: Callable[[str], object] = lambda _: None
) -> AsyncIterator[GitConfig]:
    """Serve the credential helper of `server_url` on a 0600 socket in the directory, which must exist.

    Yields the configuration that makes git ask this process, and nothing else, for passwords of the server.
    It answers `get` for a repository of that server; to anything else, or where there is no token, the answer is
    empty. Where the token is not known now git is told to quit, which says nothing about the repository. A token that
    the server refused is given to `reject`.
    """
    server_url = server_url.rstrip("/")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await _answer(reader, server_url, token_for, reject))
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

    path = socket_path_dir.absolute() / f"git-credentials-{secrets.token_hex(4)}.sock"  # noqa: ASYNC240 - no I/O but getcwd
    with private_socket(path) as listener:
        async with await asyncio.start_unix_server(accept, sock=listener, limit=MAX_REQUEST_BYTES) as server:
            try:
                yield _git_config(server_url, path)
            finally:
                server.close()
                for handler in handlers:
                    handler.cancel()
                await asyncio.gather(*handlers, return_exceptions=True)


async def authorise(server_url: str, token_for: TokenSource, remote_url: str) -> str:
    """Return git's configuration to show the token of a repository of the server with the first request to it.

    Empty where no token is known now: the helper is asked then, and says why. git 2.46 has `http.proactiveAuth`.
    Raises GitError where there is none for the repository.
    """
    named = _REPOSITORY.fullmatch(remote_url.removeprefix(server_url.rstrip("/") + "/"))
    if named is None:
        return ""
    try:
        async with asyncio.timeout(TOKEN_TIMEOUT_SECONDS):
            token = await token_for(named["name"])
    except LookupError as none:
        raise GitError(GitProblem.AUTH, "credential", f"there is no token for {named['name']}") from none
    except Exception:  # noqa: BLE001 - the helper meets it too
        return ""
    shown = base64.b64encode(f"{USERNAME}:{token}".encode()).decode()
    return f'[http "{remote_url}"]\n\textraHeader = Authorization: Basic {shown}\n'


def _git_config(server_url: str, path: Path) -> GitConfig:
    # git's own client of such a socket: a tenth of the time of a program in Python, at every contact with GitHub.
    command = shlex.join(["git", "credential-cache", f"--socket={path}"])
    return (
        ("credential.helper", ""),  # helpers of all configuration files add up; an empty one drops those before it
        # git adds the operation and runs this in a shell. For `store` no program starts: nothing is to be stored, and
        # the client would start a server of its own where this one is away. A client that was killed says nothing about
        # the repository: git is told to quit, else it would ask a terminal.
        (f"credential.{server_url}.helper", f'!f() {{ test "$1" = store || {command} "$1" || echo quit=1; }}; f'),
        (f"credential.{server_url}.useHttpPath", "true"),
    )


async def _answer(
    reader: asyncio.StreamReader, server_url: str, token_for: TokenSource, reject: Callable[[str], object]
) -> bytes:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
            request = b""
            while len(request) <= MAX_REQUEST_BYTES and (piece := await reader.read(MAX_REQUEST_BYTES)):
                request += piece
    except TimeoutError:
        _log.warning("git-credential-request-incomplete")
        return b""
    repository = requested_repository(request, server_url)
    if repository is None:
        _log.warning("git-credential-refused")
        return b""
    attributes = _attributes(request)
    if attributes["action"] == "erase":
        _log.warning("git-credential-refused-by-server", repository=repository)
        reject(attributes.get("password", ""))
        return b""
    try:
        async with asyncio.timeout(TOKEN_TIMEOUT_SECONDS):
            token = await token_for(repository)
    except LookupError as error:
        _log.error("git-credential-failed", repository=repository, error=type(error).__name__)
        return b""
    except Exception as error:  # noqa: BLE001 - git must not wait; the error's text may hold the token
        _log.warning("git-credential-not-now", repository=repository, error=type(error).__name__)
        return NOT_NOW
    if not token.isascii() or not token.isprintable():
        _log.error("git-credential-failed", repository=repository, error="malformed token")
        return b""
    return f"username={USERNAME}\npassword={token}\n".encode()


def requested_repository(request: bytes, server_url: str) -> str | None:
    """Return the `owner/repo` that a `get` or `erase` is about; None for any other request or server."""
    if len(request) > MAX_REQUEST_BYTES:
        return None
    attributes = _attributes(request)
    server = urlsplit(server_url)
    if attributes.get("action") not in ("get", "erase") or (attributes.get("protocol"), attributes.get("host")) != (
        server.scheme,
        server.netloc,
    ):
        return None
    repository = _REPOSITORY.fullmatch(attributes.get("path", ""))
    return repository["name"] if repository is not None else None


def _attributes(request: bytes) -> dict[str, str]:
    """Return what `git credential-cache` sends: the action, then git's request."""
    lines = request.decode(errors="replace").split("\n")
    return dict(line.split("=", 1) for line in lines if "=" in line)
