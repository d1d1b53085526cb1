"""The operating system user of an embedded Postgres: the bot's own, or, since Postgres refuses root, another one.

That user may be unable to reach DATA_DIR or the programs (/root is 0700), so the server may keep one capability:
https://man7.org/linux/man-pages/man7/capabilities.7.html
"""

import ctypes
import os
import pwd
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bot.postgres.files import EmbeddedPostgresError, Files

CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAPABILITY_VERSION_3 = 0x20080522
PR_SET_SECUREBITS = 28
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
SECBIT_NO_SETUID_FIXUP = 1 << 2

# Least first: search and read, then also run programs installed for root alone. Docker grants only the latter.
REACHES: tuple[int | None, ...] = (None, CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE)


@dataclass(frozen=True, slots=True)
class ServerUser:
    """The user of the server; `become` runs in the forked child just before the program starts."""

    uid: int
    gid: int
    become: Callable[[], None] | None


def server_user(files: Files, bin_dir: Path) -> ServerUser:
    """Choose the user, with the least capability by which it reaches directory and programs.

    Raises EmbeddedPostgresError where root has no such user or may not grant what it takes.
    """
    if os.geteuid() != 0:
        return ServerUser(os.geteuid(), os.getegid(), None)
    account = _account(files)
    for capability in REACHES:
        become = _becoming(account, capability, files.directory)
        if _runs(bin_dir / "postgres", become):
            return ServerUser(account.pw_uid, account.pw_gid, become)
    raise EmbeddedPostgresError(
        f"Postgres does not run as root, and user {account.pw_name} cannot reach {files.directory} or {bin_dir}: "
        "move DATA_DIR (and the installation) to where every user may pass, or set DATABASE_URL"
    )


def _account(files: Files) -> pwd.struct_passwd:
    """Return the owner of existing data, otherwise `postgres` or `nobody`."""
    if files.data.exists() and (owner := files.data.stat().st_uid) != 0:
        return pwd.getpwuid(owner)
    accounts = {account.pw_name: account for account in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in accounts and accounts[name].pw_uid != 0:
            return accounts[name]
    raise EmbeddedPostgresError(
        "Postgres does not run as root, and this system has neither a user postgres nor nobody: set DATABASE_URL"
    )


def _runs(program: Path, become: Callable[[], None]) -> bool:
    try:
        subprocess.run(
            [program, "--version"],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            preexec_fn=become,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _becoming(account: pwd.struct_passwd, capability: int | None, directory: Path) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)
    groups = os.getgrouplist(account.pw_name, account.pw_gid)

    def become() -> None:
        if capability is not None:
            # Capabilities survive the change of user, and access(2), by which Postgres finds itself, respects them.
            _check(libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0))
        os.setgroups(groups)
        os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
        os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        if capability is not None:
            _keep_only(libc, capability)
        os.chdir(directory)

    return become


def _keep_only(libc: ctypes.CDLL, capability: int) -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    bit = 1 << capability
    # Effective, permitted, inheritable of capabilities 0-31, then of 32-63.
    sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    _check(libc.capset(header, sets))
    _check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
