"""The directory of an embedded Postgres: its paths, its owner, and the locks that tell which processes live."""

import os
import stat
import tempfile
from pathlib import Path

SOCKET_NAME = ".s.PGSQL.5432"
# sockaddr_un.sun_path holds 108 bytes, one of them the final NUL: https://man7.org/linux/man-pages/man7/unix.7.html
MAX_SOCKET_PATH_BYTES = 107


class EmbeddedPostgresError(Exception):
    """The embedded Postgres cannot be used; the message tells the operator why, and the next step."""


class Files:
    """Paths below the directory of one embedded Postgres. Locks and log are the bot's; data and socket the server's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        # Where initdb works; renamed to `data` when it is done.
        self.unfinished_data = directory / "data.new"
        # How clients prove who they are: a line of https://www.postgresql.org/docs/current/libpq-pgpass.html
        self.password = directory / "password"
        self.log = directory / "server.log"
        # One line of the supervisor's: what it is doing, or `failed: ` and why.
        self.status = directory / "status"
        # Names the socket's directory, which is elsewhere if this path is too long for a unix socket.
        self.socket_record = directory / "socket-directory"
        # Held shared by every process that uses the server, exclusively by the supervisor that stops it.
        self.users_lock = directory / "users.lock"
        self.supervisor_lock = directory / "supervisor.lock"
        # Inherited by initdb, the postmaster and every backend: free exactly when none of them is left.
        self.server_lock = directory / "server.lock"


def prepare_directory(directory: Path) -> Files:
    """Make the directory if it is missing. Raises EmbeddedPostgresError if another user owns it."""
    directory = directory.resolve()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        raise EmbeddedPostgresError(
            f"{directory} belongs to user {owner}, not to this one ({os.geteuid()}): "
            "run as that user, choose another DATA_DIR, or set DATABASE_URL"
        )
    # Root's server runs as another user, which needs search permission here to reach its two directories.
    directory.chmod(0o711 if owner == 0 else 0o700)
    return Files(directory)


def choose_socket_directory(files: Files, owner: int, group: int) -> Path:
    """Make and record the 0700 directory of the server's socket; only the supervisor calls this.

    Beside the data where that path can be a socket's, otherwise a short one below the system's temporary directory,
    kept from one start to the next while it can be trusted.
    """
    directory = files.directory / "socket"
    # A path in an address has a greatest length, and clients split it at commas into several hosts.
    if len(os.fsencode(directory / SOCKET_NAME)) > MAX_SOCKET_PATH_BYTES or "," in str(directory):
        recorded = _recorded(files)
        if recorded is not None and is_private(recorded, owner):
            directory = recorded
        else:
            directory = Path(tempfile.mkdtemp(prefix="threadtree-"))
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    os.chown(directory, owner, group)
    write_whole(files.socket_record, str(directory))
    return directory


def remove_socket_directory(files: Files) -> None:
    """Forget the socket's directory after the server has stopped."""
    directory = _recorded(files)
    if directory is not None and directory.is_dir():
        clear_socket(directory)
        directory.rmdir()
    files.socket_record.unlink(missing_ok=True)


def clear_socket(directory: Path) -> None:
    """Remove the socket files of a killed server; a recycled pid in its lock file would stop the next one."""
    (directory / SOCKET_NAME).unlink(missing_ok=True)
    (directory / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)


def trusted_socket_directory(files: Files) -> Path | None:
    """Return the recorded socket directory if only the server's user can have put a socket there."""
    directory = _recorded(files)
    if directory is None or not files.data.exists():
        return None
    return directory if is_private(directory, files.data.stat().st_uid) else None


def is_private(directory: Path, owner: int) -> bool:
    """Return whether this is a directory, not a link, of that owner and with mode 0700."""
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == owner and not status.st_mode & 0o077


def write_whole(path: Path, text: str) -> None:
    """Replace the file atomically: a reader sees the old text or the new one."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def read_if_there(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _recorded(files: Files) -> Path | None:
    text = read_if_there(files.socket_record)
    return Path(text) if text else None
