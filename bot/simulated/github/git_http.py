"""Git over smart HTTP: `git http-backend` as a CGI program; bodies are streamed both ways.

Protocol: https://git-scm.com/docs/git-http-backend
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from bot.simulated.github.auth import authenticate
from bot.simulated.github.errors import RefusedError
from bot.simulated.github.git import git_environment
from bot.simulated.github.model import Repository, User
from bot.simulated.github.pull_acts import Acts

CHUNK_BYTES = 65_536
PASSED_HEADERS = {
    "content-type": "CONTENT_TYPE",
    "content-length": "CONTENT_LENGTH",
    "content-encoding": "HTTP_CONTENT_ENCODING",
    "git-protocol": "HTTP_GIT_PROTOCOL",
}


class GitHttp:
    """The endpoint of every repository at /{owner}/{repo}.git."""

    def __init__(self, acts: Acts) -> None:
        self._acts = acts
        self._ending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for the programs whose clients disconnected."""
        await asyncio.gather(*self._ending)

    async def endpoint(self, request: Request) -> Response:
        """Check permissions, then run git: 401 asks for credentials, 404 hides what the caller may not see."""
        world = self._acts.world
        try:
            user = authenticate(world, request.headers.get("authorization")).user
        except RefusedError:
            return _unauthorized()
        repository = world.repository("{owner}/{repo}".format(**request.path_params))
        is_push = _service(request) == "git-receive-pack"
        if repository is None or not repository.may(user, "read") or (is_push and user is None):
            return _unauthorized() if user is None else PlainTextResponse("Repository not found.", 404)
        if is_push and user is not None and not repository.may(user, "write"):
            return PlainTextResponse(f"Permission to {repository.full_name}.git denied to {user.login}.", 403)
        if is_push and user is not None and request.method == "POST":
            return await self._receive_pack(request, repository, user)
        backend = await Backend.start(request, repository, user, self._ending)
        status, headers = await backend.head()
        # Starlette listens for a disconnect while it streams, and would consume the rest of the request.
        await backend.feeding
        return StreamingResponse(backend.body(), status, headers)

    async def _receive_pack(self, request: Request, repository: Repository, user: User) -> Response:
        """Handle a push: the client gets the answer after the webhooks were emitted."""
        async with repository.git_lock:
            before = await repository.git.branches()
            backend = await Backend.start(request, repository, user, self._ending)
            status, headers = await backend.head()
            body = b"".join([chunk async for chunk in backend.body()])
            await self._acts.branches_moved(user, repository, before)
        return Response(body, status, headers)


@dataclass(frozen=True, slots=True)
class Backend:
    """One running CGI program; it receives the request's body while its answer is read."""

    process: asyncio.subprocess.Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    feeding: asyncio.Task[None]
    ending: set[asyncio.Task[None]]

    @classmethod
    async def start(
        cls, request: Request, repository: Repository, user: User | None, ending: set[asyncio.Task[None]]
    ) -> "Backend":
        """Start the program; a task that ends it early is added to `ending`."""
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            env=_cgi_environment(request, repository, user),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("git http-backend was started without pipes")
        feeding = asyncio.create_task(_feed(process, process.stdin, request))
        return cls(process, process.stdin, process.stdout, feeding, ending)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return status and headers, read up to the empty line; without a Status line the status is 200."""
        status, headers = 200, dict[str, str]()
        while line := (await self.stdout.readline()).decode().rstrip("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "status":
                status = int(value.split(" ", 1)[0])
            else:
                headers[name] = value
        return status, headers

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the rest of the answer, then end the program, also when the client disconnected."""
        try:
            while chunk := await self.stdout.read(CHUNK_BYTES):
                yield chunk
            await self.process.wait()
        finally:
            self.feeding.cancel()
            if self.process.returncode is None:
                task = asyncio.create_task(self._end())
                self.ending.add(task)
                task.add_done_callback(self.ending.discard)
                # Starlette cancels every await when the client disconnects; the task continues.
                await asyncio.shield(task)

    async def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        while await self.stdout.read(CHUNK_BYTES):
            pass
        await self.process.wait()


async def _feed(process: asyncio.subprocess.Process, stdin: asyncio.StreamWriter, request: Request) -> None:
    try:
        async for chunk in request.stream():
            stdin.write(chunk)
            await stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # git may answer and exit before it has read everything; its answer is valid
    except ClientDisconnect:
        # git would read the end of its input for ever, since it waits for CONTENT_LENGTH bytes.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    stdin.close()


def _cgi_environment(request: Request, repository: Repository, user: User | None) -> dict[str, str]:
    directory = repository.git.path
    variables = {
        "GIT_PROJECT_ROOT": str(directory.parent),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": f"/{directory.name}/{request.path_params['path']}",
        "QUERY_STRING": request.url.query,
        "REQUEST_METHOD": request.method,
        "REMOTE_ADDR": "127.0.0.1",
    }
    if user is not None:
        variables["REMOTE_USER"] = user.login
    for header, variable in PASSED_HEADERS.items():
        if (value := request.headers.get(header)) is not None:
            variables[variable] = value
    return git_environment() | variables


def _service(request: Request) -> str:
    """Return git-upload-pack or git-receive-pack, from the last part of the path or the query of info/refs."""
    return request.query_params.get("service") or str(request.path_params["path"]).rsplit("/", 1)[-1]


def _unauthorized() -> Response:
    return PlainTextResponse("Authentication required.", 401, {"WWW-Authenticate": 'Basic realm="GitHub"'})
