"""The credential helper as git uses it: the real client, against an HTTP server that asks for a password."""

# ruff: noqa: ASYNC240 - a test may block its own loop

import asyncio
import base64
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bot.tree.git.credential_server import GitConfig, authorise, credential_server, requested_repository
from bot.tree.git.errors import GitError, GitProblem, problem_of
from bot.tree.git.runner import Git
from tests.support.patience import PATIENCE_SECONDS

TOKEN = "ghs_" + "s3cret" * 5
SERVER = "https://github.example"


async def token_for(repository: str) -> str:
    assert repository == "octo-org/hello.world"
    return TOKEN


async def git(
    home: Path, credentials: GitConfig, *arguments: str, text: str = "", trace: bool = False
) -> tuple[int, str, str]:
    """Run git with that configuration in a clean environment; return its exit status and output."""
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": str(len(credentials)),
    }
    if trace:
        environment |= {"GIT_TRACE": "1", "GIT_TRACE_CURL": "1"}
    for number, (key, value) in enumerate(credentials):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    process = await asyncio.create_subprocess_exec(
        "git",
        *arguments,
        env=environment,
        cwd=home,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(text.encode()), PATIENCE_SECONDS)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def fill(home: Path, credentials: GitConfig, url: str) -> str | None:
    """Return the password that git finds for a URL, if any."""
    status, out, _ = await git(home, credentials, "credential", "fill", text=f"url={url}\n\n")
    answer = dict(line.split("=", 1) for line in out.splitlines())
    assert (status == 0) == ("password" in answer)
    if "password" in answer:
        assert answer["username"] == "x-access-token"
    return answer.get("password")


async def test_git_gets_the_token_of_the_repository_it_asks_for(tmp_path: Path) -> None:
    for path in ["octo-org/hello.world", "octo-org/hello.world.git"]:
        async with credential_server(tmp_path, f"{SERVER}/", token_for) as credentials:
            assert await fill(tmp_path, credentials, f"{SERVER}/{path}") == TOKEN


async def test_git_gets_nothing_for_any_other_url(tmp_path: Path) -> None:
    for url in [
        *("https://evil.example/octo-org/hello.world", "https://github.example.evil.example/octo-org/hello.world"),
        *("https://github.example:8443/octo-org/hello.world", "http://github.example/octo-org/hello.world"),
        *(f"{SERVER}/", f"{SERVER}/octo-org", f"{SERVER}/octo-org/.."),
        *(f"{SERVER}/octo-org/hello.world/extra", f"{SERVER}/octo%2Forg/hello world"),
    ]:
        async with credential_server(tmp_path, SERVER, token_for) as credentials:
            assert await fill(tmp_path, credentials, url) is None


@pytest.mark.parametrize("pattern", ["credential", f'credential "{SERVER}"'])
async def test_helpers_that_the_user_configured_are_not_asked(tmp_path: Path, pattern: str) -> None:
    (tmp_path / ".gitconfig").write_text(f'[{pattern}]\n\thelper = "!echo username=me; echo password=mine; :"\n')
    async with credential_server(tmp_path, SERVER, token_for) as credentials:
        assert await fill(tmp_path, credentials, f"{SERVER}/octo-org/hello.world.git") == TOKEN


async def test_a_deep_directory_with_quotes_and_spaces_works(tmp_path: Path) -> None:
    deep = tmp_path / "it's a; $(touch here)" / ("d" * 100)
    deep.mkdir(parents=True)
    async with credential_server(deep, SERVER, token_for) as credentials:
        assert await fill(tmp_path, credentials, f"{SERVER}/octo-org/hello.world") == TOKEN
    assert not (tmp_path / "here").exists()


async def test_a_client_that_was_killed_says_nothing_about_the_repository(tmp_path: Path) -> None:
    async with credential_server(tmp_path, SERVER, token_for) as credentials:
        killed = tuple((key, value.replace("git credential-cache", "sh -c 'kill -9 $$'")) for key, value in credentials)
        status, _, err = await git(
            tmp_path, killed, "credential", "fill", text=f"url={SERVER}/octo-org/hello.world\n\n"
        )
    assert status
    assert problem_of(err) is GitProblem.NETWORK, err


async def test_a_helper_that_was_killed_says_nothing_about_the_repository(tmp_path: Path) -> None:
    async with credential_server(tmp_path, SERVER, token_for) as credentials:
        killed = tuple((key, value.replace("!f() {", "!kill -9 $$; f() {")) for key, value in credentials)
        status, _, err = await git(
            tmp_path, killed, "credential", "fill", text=f"url={SERVER}/octo-org/hello.world\n\n"
        )
    assert status
    assert problem_of(err) is GitProblem.KILLED, err


async def test_a_repository_without_a_token_is_refused_before_git_runs() -> None:
    async def no_token(repository: str) -> str:
        raise LookupError(repository)

    with pytest.raises(GitError, match="there is no token for octo-org/hello") as refused:
        await authorise(SERVER, no_token, f"{SERVER}/octo-org/hello.world.git")
    assert refused.value.problem is GitProblem.AUTH


async def test_files_where_git_runs_are_not_imported(tmp_path: Path) -> None:
    for module in ("socket.py", "os.py", "bot.py", "sitecustomize.py"):
        (tmp_path / module).write_text("raise SystemExit('ran code of the repository')")
    async with credential_server(tmp_path, SERVER, token_for) as credentials:
        assert await fill(tmp_path, credentials, f"{SERVER}/octo-org/hello.world") == TOKEN


async def test_only_get_is_answered_and_a_refused_token_is_reported(tmp_path: Path) -> None:
    request = f"url={SERVER}/octo-org/hello.world\nusername=me\npassword=mine\n\n"
    asked: list[str] = []
    refused: list[str] = []

    async def watched_token(repository: str) -> str:
        asked.append(repository)
        return TOKEN

    async with credential_server(tmp_path, SERVER, watched_token, refused.append) as credentials:
        for operation in ("approve", "reject"):
            assert await git(tmp_path, credentials, "credential", operation, text=request) == (0, "", "")
        elsewhere = request.replace(SERVER, "https://evil.example")
        await git(tmp_path, credentials, "credential", "reject", text=elsewhere)
    assert asked == []
    assert refused == ["mine"]


@pytest.mark.parametrize(
    ("problem", "event", "kind"),
    [
        (LookupError, "git-credential-failed", GitProblem.KILLED),
        (RuntimeError, "git-credential-not-now", GitProblem.NETWORK),
    ],
)
async def test_a_failed_token_is_logged_without_its_text(
    tmp_path: Path, problem: type[Exception], event: str, kind: GitProblem
) -> None:
    async def failing_token(repository: str) -> str:
        raise problem(f"no installation for {repository}, asked with {TOKEN}")

    with capture_logs() as logs:
        async with credential_server(tmp_path, SERVER, failing_token) as credentials:
            request = f"url={SERVER}/octo-org/hello.world\n\n"
            status, out, said = await git(tmp_path, credentials, "credential", "fill", text=request)
    assert (status, out, problem_of(said)) == (128, "", kind)
    assert [(entry["event"], entry["repository"], entry["error"]) for entry in logs] == [
        (event, "octo-org/hello.world", problem.__name__)
    ]
    assert TOKEN not in str(logs)


@pytest.mark.expects_errors
async def test_a_token_with_a_line_break_adds_nothing_to_the_answer(tmp_path: Path) -> None:
    async def token_with_line_break(_repository: str) -> str:
        return "token\nhost=evil.example"

    async with credential_server(tmp_path, SERVER, token_with_line_break) as credentials:
        assert await fill(tmp_path, credentials, f"{SERVER}/octo-org/hello.world") is None


async def test_the_socket_belongs_to_the_user_and_is_removed_with_the_server(tmp_path: Path) -> None:
    async with credential_server(tmp_path, SERVER, token_for) as credentials:
        [path] = tmp_path.iterdir()
        assert path.is_socket()
        assert path.stat().st_mode & 0o777 == 0o600
        assert shlex.quote(f"--socket={path}") in dict(credentials)[f"credential.{SERVER}.helper"]
    assert list(tmp_path.iterdir()) == []


async def test_a_client_that_disconnects_early_disturbs_no_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the whole path may be too long for a socket address
    async with credential_server(tmp_path, SERVER, token_for) as credentials:
        [path] = tmp_path.iterdir()
        with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as torn:
            silent.connect(path.name)
            torn.connect(path.name)
            torn.sendall(b"action=get\nprotocol=https\n")
            torn.close()
            assert await fill(tmp_path, credentials, f"{SERVER}/octo-org/hello.world") == TOKEN


class PasswordDemandingServer(BaseHTTPRequestHandler):
    """Refuse a request without the token; answer like an empty repository with it."""

    seen: Callable[[], None]

    def do_GET(self) -> None:
        expected = "Basic " + base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
        self.seen()
        if self.headers["Authorization"] != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        advertisement = b"001e# service=git-upload-pack\n0000" + ref_line("1" * 40, "refs/heads/main") + b"0000"
        self.send_response(200)
        self.send_header("Content-Type", "application/x-git-upload-pack-advertisement")
        self.send_header("Content-Length", str(len(advertisement)))
        self.end_headers()
        self.wfile.write(advertisement)

    def log_message(self, *_: object) -> None:
        pass


def ref_line(object_id: str, name: str) -> bytes:
    line = f"{object_id} {name}\0side-band-64k\n"
    return f"{len(line) + 4:04x}{line}".encode()


def secrets_of_processes() -> list[bytes]:
    """Return the arguments and environments with the token, of every process but this one."""
    encoded = base64.b64encode(f"x-access-token:{TOKEN}".encode())
    found = []
    for path in (*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")):
        try:
            content = path.read_bytes()
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
        if TOKEN.encode() in content or encoded in content:
            found.append(content)
    return found


@pytest.fixture
def demanding_server() -> Iterator[tuple[str, list[bytes]]]:
    """Return the address, and the arguments and environments with the token during a request."""
    leaks: list[bytes] = []

    class Handler(PasswordDemandingServer):
        def seen(self) -> None:
            leaks.extend(secrets_of_processes())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", leaks
        server.shutdown()
        thread.join()


async def test_ls_remote_authenticates_without_showing_the_token(
    tmp_path: Path, demanding_server: tuple[str, list[bytes]]
) -> None:
    address, leaks = demanding_server

    async def watched_token(repository: str) -> str:
        leaks.extend(await asyncio.to_thread(secrets_of_processes))
        return await token_for(repository)

    async with credential_server(tmp_path, address, watched_token) as credentials:
        status, out, trace = await git(
            tmp_path, credentials, "ls-remote", f"{address}/octo-org/hello.world.git", trace=True
        )
    assert (status, out) == (0, f"{'1' * 40}\trefs/heads/main\n"), trace
    assert "credential-cache" in trace
    assert TOKEN not in trace
    assert leaks == []
    assert list(tmp_path.iterdir()) == []


async def test_the_first_request_shows_the_token_and_nobody_else_sees_it(
    tmp_path: Path, demanding_server: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, leaks = demanding_server
    answers: list[int] = []

    def counted(request: PasswordDemandingServer, status: int) -> None:
        answers.append(status)
        BaseHTTPRequestHandler.send_response(request, status)

    monkeypatch.setattr(PasswordDemandingServer, "send_response", counted)
    clone, repository, trace = tmp_path / "clone", f"{address}/octo-org/hello.world.git", tmp_path / "trace"
    async with credential_server(tmp_path, address, token_for) as credentials:
        runner = Git(credentials, authorise=partial(authorise, address, token_for))
        await runner.run("init", "-q", "--bare", str(clone), cwd=None)
        await runner.on_clone(clone, "config", "remote.origin.url", repository)
        traces = dict.fromkeys(("GIT_TRACE", "GIT_TRACE_CURL", "GIT_TRACE2_EVENT"), str(trace))
        found = await runner.on_clone(clone, "ls-remote", "origin", environment=traces)
        assert found.text == f"{'1' * 40}\trefs/heads/main"
        assert answers == [200], "git asked without the token first"
        assert base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode() not in trace.read_text()
        assert TOKEN not in trace.read_text()
        # It is for this repository: another one is asked as before.
        other = f"{address}/octo-org/hello.world"
        assert (await runner.on_clone(clone, "ls-remote", other)).status == 0
    assert answers == [200, 401, 200]
    assert leaks == []


@pytest.mark.parametrize("shown", [True, False])
async def test_a_refused_token_is_replaced_once(
    tmp_path: Path, demanding_server: tuple[str, list[bytes]], *, shown: bool
) -> None:
    address, _ = demanding_server
    tokens, refused = ["ghs_revoked"], []

    async def a_token(_repository: str) -> str:
        return tokens[0]

    def renew(token: str) -> None:
        refused.append(token)
        tokens[0] = TOKEN

    async with credential_server(tmp_path, address, a_token, renew) as credentials:
        runner = Git(credentials, authorise=partial(authorise, address, a_token) if shown else None)
        await runner.run("init", "-q", "--bare", str(tmp_path / "clone"), cwd=None)
        await runner.on_clone(tmp_path / "clone", "config", "remote.origin.url", f"{address}/octo-org/hello.world.git")
        command = ("ls-remote", "origin")
        assert (await runner.on_clone(tmp_path / "clone", *command)).text == f"{'1' * 40}\trefs/heads/main"
        assert refused == ["ghs_revoked"]
        refused.clear()
        tokens[0] = "ghs_revoked"
        assert (await runner.on_clone(tmp_path / "clone", *command, check=False)).status == 0
        assert refused == ["ghs_revoked"]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refusal_of_a_new_token_passes(
    tmp_path: Path, demanding_server: tuple[str, list[bytes]], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    address, _ = demanding_server
    waits: list[int] = []

    async def wait_for_new(tries: int) -> bool:
        waits.append(tries)
        if tries == 2:
            monkeypatch.undo()
        return True

    def refuse(request: PasswordDemandingServer) -> None:
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()

    async with credential_server(tmp_path, address, token_for) as credentials:
        runner = Git(credentials, wait_for_new=wait_for_new)
        await runner.run("init", "-q", "--bare", str(tmp_path / "clone"), cwd=None)
        monkeypatch.setattr(PasswordDemandingServer, "do_GET", refuse)
        found = await runner.on_clone(tmp_path / "clone", "ls-remote", f"{address}/octo-org/hello.world.git")
    assert found.text == f"{'1' * 40}\trefs/heads/main"
    assert waits == [0, 1, 2]


@given(st.binary())
def test_no_malformed_request_names_a_repository(request: bytes) -> None:
    assert requested_repository(b"action=get\n" + request, SERVER) is None


@pytest.mark.parametrize("server", ["protocol=https\nhost=evil.example", "protocol=http\nhost=github.example"])
def test_a_request_for_another_server_names_no_repository(server: str) -> None:
    assert requested_repository(f"action=get\n{server}\npath=octo-org/hello\n\n".encode(), SERVER) is None


@given(st.text(alphabet="abc-._/%\0 \r:@?#", max_size=30))
def test_a_repository_is_always_an_owner_and_a_name(path: str) -> None:
    request = f"action=get\nprotocol=https\nhost=github.example\npath={path}\n\n".encode()
    repository = requested_repository(request, SERVER)
    if repository is not None:
        owner, name = repository.split("/")
        assert owner.strip("abc-") == ""
        assert name not in ("", ".", "..")
