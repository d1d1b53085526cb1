"""`threadtree logs`: the log that `serve`, `web` and `worker` keep in DATA_DIR beside the one on stderr."""

import re
import signal
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from structlog.dev import ConsoleRenderer

from bot.cli.running import fail
from bot.logs import FOLDER
from bot.settings import load

_POLL_SECONDS = 0.5
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class _Log:
    """One file, which is renamed when it is full: then a new one has its name."""

    def __init__(self, path: Path, lines: int) -> None:
        self._path = path
        self._file = path.open("rb")
        self._rest = b""
        self.last = deque(self.read(), lines)

    def read(self) -> list[bytes]:
        """Return the whole lines that came."""
        came = self._file.read()
        if self._path.exists() and self._path.stat().st_ino != self._inode:
            self._file = self._path.open("rb")
            came += self._file.read()
        *lines, self._rest = (self._rest + came).split(b"\n")
        return lines

    @property
    def _inode(self) -> int:
        return Path(f"/proc/self/fd/{self._file.fileno()}").stat().st_ino


def logs(
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Print the last N lines.", metavar="N")] = 50,
) -> None:
    """Print the log of this node's processes, of all in the order of time."""
    folder, known = load().data_dir / FOLDER, dict[Path, _Log]()
    fresh = _fresh(folder, known, lines)
    if not known and not follow:
        fail(f"There is no log in {folder}: `threadtree serve` writes it from its start on.")
    _print(sorted(fresh)[-lines:] if lines else [])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        while follow:
            time.sleep(_POLL_SECONDS)
            came = [_stamped(line) for log in known.values() for line in log.read()]
            _print(sorted([*came, *_fresh(folder, known, lines)]))


def _fresh(folder: Path, known: dict[Path, _Log], lines: int) -> list[tuple[str, bytes]]:
    """Return the last lines of the files that are not known yet."""
    found = {path: _Log(path, lines) for path in folder.glob("*.log") if path not in known}
    known |= found
    return [_stamped(line) for log in found.values() for line in log.last]


def _stamped(line: bytes) -> tuple[str, bytes]:
    return str(_entry(line).get("timestamp", "")), line


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _print(stamped: list[tuple[str, bytes]]) -> None:
    renderer = ConsoleRenderer(colors=False)
    for _, line in stamped:
        text = str(renderer(None, "", entry)) if (entry := _entry(line)) else line.decode(errors="replace")
        typer.echo(_UNPRINTABLE.sub("?", text))
