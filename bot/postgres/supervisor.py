"""The process that keeps an embedded Postgres running while it has users, and stops it after the last one.

Run as `python -m bot.postgres.supervisor DIRECTORY BIN_DIR [NAME=VALUE ...]`: it goes to the background once it
has been elected, or ends at once if another one lives. It imports nothing outside the standard library.
"""

import contextlib
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bot.locks import is_locked, try_lock
from bot.postgres.files import (
    EmbeddedPostgresError,
    Files,
    choose_socket_directory,
    clear_socket,
    read_if_there,
    remove_socket_directory,
    write_whole,
)

POLL_SECONDS = 0.1
RETRY_SECONDS = 2.0
# Fast shutdown, immediate shutdown, the end: https://www.postgresql.org/docs/current/server-shutdown.html
STOP_SIGNALS = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": os.defpath}
# What that user may keep of root, least first, to reach DATA_DIR and the programs (/root is 0700): nothing, search and
# read, or also run programs installed for root alone. Docker grants only the latter.
# initdb asks access(2), which overlooks the capabilities of an ordinary user unless `no_setuid_fixup` is set.
# https://man7.org/linux/man-pages/man7/capabilities.7.html
REACHES = (None, "dac_read_search", "dac_override")
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}


def main(arguments: Sequence[str]) -> None:
    """Supervise DIRECTORY until it has no users, unless another supervisor does."""
    directory, bin_dir, *settings = arguments
    files = Files(Path(directory))
    os.umask(0o077)
    if try_lock(files.supervisor_lock, fcntl.LOCK_EX) is None:
        return
    write_whole(files.status, "starting")
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    os.chdir(files.directory)
    # A signal to a whole process group ends the users too, and they need their database until they end.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, lambda *_: None)
    _log_to(files)
    Supervisor(files, Path(bin_dir), dict(setting.split("=", 1) for setting in settings)).run()


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user of the server, and the words in front of a command that make it run as this user."""

    uid: int
    gid: int
    prefix: tuple[str, ...]


def server_user(files: Files, bin_dir: Path) -> ServerUser:
    """Choose the bot's own user, or since Postgres refuses root, another one that reaches directory and programs.

    Raises EmbeddedPostgresError where root has no such user or may not grant what it takes.
    """
    if os.geteuid() != 0:
        return ServerUser(os.geteuid(), os.getegid(), ())
    account = _account(files)
    if shutil.which("setpriv", path=os.defpath) is None:
        raise EmbeddedPostgresError(
            f"Postgres does not run as root, and `setpriv`, which starts it as user {account.pw_name}, is not "
            "installed: install the package util-linux, or set DATABASE_URL"
        )
    become = ("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups")
    for capability in REACHES:
        kept = f"-all,+{capability}" if capability else "-all"
        securebits = ("--securebits=+no_setuid_fixup",) if capability else ()
        prefix = (*become, f"--inh-caps={kept}", f"--ambient-caps={kept}", *securebits)
        reaches = (*prefix, "env", f"--chdir={files.directory}", str(bin_dir / "postgres"), "--version")
        if subprocess.run(reaches, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            return ServerUser(account.pw_uid, account.pw_gid, prefix)
    raise EmbeddedPostgresError(
        f"Postgres does not run as root, and user {account.pw_name} cannot reach {files.directory} or {bin_dir}: "
        "move DATA_DIR (and the installation) to where every user may pass, or set DATABASE_URL"
    )


def _account(files: Files) -> pwd.struct_passwd:
    """Return the owner of existing data, otherwise `postgres` or `nobody`."""
    if files.data.exists() and (owner := files.data.stat().st_uid) != 0:
        return pwd.getpwuid(owner)
    accounts = {account.pw_name: account for account in pwd.getpwall() if account.pw_uid != 0}
    for name in ("postgres", "nobody"):
        if name in accounts:
            return accounts[name]
    raise EmbeddedPostgresError(
        "Postgres does not run as root, and this system has neither a user postgres nor nobody: set DATABASE_URL"
    )


def name_for_initdb() -> tuple[str, ...]:
    """Return the words in front of initdb, which refuses a user without a name, as `docker run --user 1000` makes one.

    A user namespace gives it the name `nobody`; the files are this user's all the same. Raises EmbeddedPostgresError.
    """
    with contextlib.suppress(KeyError):
        pwd.getpwuid(os.geteuid())
        return ()
    with contextlib.suppress(KeyError, OSError):
        prefix = ("unshare", f"--map-user={pwd.getpwnam('nobody').pw_uid}")
        if subprocess.run([*prefix, "true"], env=ENVIRONMENT, capture_output=True).returncode == 0:
            return prefix
    raise EmbeddedPostgresError(
        f"User {os.geteuid()} has no line in /etc/passwd, without which Postgres makes no database: add one, "
        "run as a user that has one, or set DATABASE_URL"
    )


class Supervisor:
    """The holder of the supervisor's lock. The server is a child, or was left by a killed predecessor."""

    def __init__(self, files: Files, bin_dir: Path, settings: Mapping[str, str]) -> None:
        self._files = files
        self._bin_dir = bin_dir
        self._settings = settings
        self._server: subprocess.Popen[bytes] | None = None
        self._retry_at = 0.0
        self._log_start = 0

    def run(self) -> None:
        """Keep a server running until the users' lock is free, then stop it."""
        while try_lock(self._files.users_lock, fcntl.LOCK_EX) is None:
            self._ensure_server()
            time.sleep(POLL_SECONDS)
        self._stop()

    def _ensure_server(self) -> None:
        lock = try_lock(self._files.server_lock, fcntl.LOCK_EX)
        if lock is None:
            return
        try:
            if self._server is not None:
                status = self._server.wait()
                self._server = None
                if status > 0:
                    self._fail(f"Postgres ended with status {status}: {self._log_tail()}")
            if time.monotonic() >= self._retry_at:
                self._start(lock)
        except (EmbeddedPostgresError, OSError, subprocess.SubprocessError) as error:
            self._fail(str(error))
        finally:
            os.close(lock)

    def _start(self, lock: int) -> None:
        user = server_user(self._files, self._bin_dir)
        if not self._files.data.exists():
            self._make_data(lock, user)
        socket_directory = choose_socket_directory(self._files, user.uid, user.gid)
        # The lock proves that no server lives, whichever process has the pid in these files by now.
        clear_socket(socket_directory)
        (self._files.data / "postmaster.pid").unlink(missing_ok=True)
        settings = {**SETTINGS, "unix_socket_directories": _quoted(socket_directory), **self._settings}
        options = [f"--{name}={value}" for name, value in settings.items()]
        write_whole(self._files.status, "starting")
        argv = [str(self._bin_dir / "postgres"), "-D", str(self._files.data), "-p", "5432", *options]
        self._server = self._spawn(argv, lock, user)

    def _make_data(self, lock: int, user: ServerUser) -> None:
        write_whole(self._files.status, "initdb")
        named = () if user.prefix else name_for_initdb()
        unfinished = self._files.unfinished_data
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        os.chown(unfinished, user.uid, user.gid)
        # A new one each time. That of the server's user is there while initdb runs.
        password, for_initdb = secrets.token_hex(32), self._files.password.with_name("password.initdb")
        write_whole(self._files.password, f"*:*:*:*:{password}\n")
        write_whole(for_initdb, password)
        os.chown(for_initdb, user.uid, user.gid)
        argv = [*named, str(self._bin_dir / "initdb"), "-D", str(unfinished), "--username=postgres"]
        argv += ["--auth=scram-sha-256", f"--pwfile={for_initdb}"]
        argv += ["--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"]
        if self._settings.get("fsync") == "off":
            argv.append("--no-sync")
        try:
            if (status := self._spawn(argv, lock, user).wait()) != 0:
                raise EmbeddedPostgresError(f"initdb ended with status {status}: {self._log_tail()}")
        finally:
            for_initdb.unlink()
        unfinished.rename(self._files.data)

    def _spawn(self, argv: Sequence[str], lock: int, user: ServerUser) -> subprocess.Popen[bytes]:
        self._log_start = self._files.log.stat().st_size
        return subprocess.Popen([*user.prefix, *argv], env=ENVIRONMENT, stdin=subprocess.DEVNULL, pass_fds=(lock,))

    def _stop(self) -> None:
        for stop_signal, seconds in STOP_SIGNALS:
            deadline = time.monotonic() + seconds
            pid = None
            while time.monotonic() < deadline and is_locked(self._files.server_lock, fcntl.LOCK_EX):
                if pid is None and (pid := self._postmaster()) is not None:
                    with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                        os.kill(pid, stop_signal)
                time.sleep(POLL_SECONDS)
        if not is_locked(self._files.server_lock, fcntl.LOCK_EX):
            remove_socket_directory(self._files)
        self._files.status.unlink(missing_ok=True)

    def _postmaster(self) -> int | None:
        if self._server is not None:
            return self._server.pid if self._server.poll() is None else None
        recorded = read_if_there(self._files.data / "postmaster.pid")
        if not recorded:
            return None
        pid = int(recorded.splitlines()[0])
        command = read_if_there(Path(f"/proc/{pid}/cmdline"))
        return pid if command is not None and str(self._files.data) in command.split("\0") else None

    def _fail(self, reason: str) -> None:
        write_whole(self._files.status, f"failed: {reason}")
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def _log_tail(self) -> str:
        with self._files.log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-6:] if line.strip())


def _log_to(files: Files) -> None:
    """Write all output from here on, the servers' too, to the log; keep the previous log."""
    if files.log.exists():
        files.log.replace(files.log.with_name("server.log.1"))
    log = os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)


def _quoted(path: Path) -> str:
    """Quote a path as one item of a list-valued setting."""
    return '"' + str(path).replace('"', '""') + '"'


if __name__ == "__main__":
    main(sys.argv[1:])
