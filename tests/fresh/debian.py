"""Minimal Debian systems, made by mmdebstrap: they have what was asked for, and nothing else."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SECONDS = 900
SUITE = "bookworm"
CLEAN = {"TERM": "dumb", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
OF_THE_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
"""What tells a program how this machine reaches package registries."""
RELEASE = os.environ.get("RELEASE")
"""The folder of the release that `make release` made and these tests are to try; without, they build what they need."""


def needs(*programs: str) -> list[pytest.MarkDecorator]:
    """Return the marks of tests that need root and these programs, and some minutes."""
    missing = [name for name in ("mmdebstrap", *programs) if shutil.which(name) is None]
    return [
        pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter another system"),
        pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
        pytest.mark.timeout(2 * SECONDS),
    ]


def make_debian(place: Path, packages: str) -> Path:
    """Make a system with these packages, in a folder or, where its name ends so, a .tar file."""
    argv = ("mmdebstrap", "--variant=minbase", f"--include={packages},ca-certificates", SUITE, str(place))
    made = subprocess.run(argv, capture_output=True, text=True, check=False)
    if made.returncode:
        assert RELEASE is None, made.stderr
        pytest.skip(f"no Debian system can be made here: {made.stderr[-300:]}")
    return place


def give_network(root: Path) -> None:
    """Let programs of this system reach registries as those of this machine do."""
    for name in of_the_network():
        shutil.copyfile(name, root / name.removeprefix("/"))


def of_the_network() -> list[str]:
    """Return the files of this machine that say how."""
    return [name for name in OF_THE_NETWORK if Path(name).is_file()]


def run(*argv: object, seconds: float = SECONDS, expected: int | None = 0) -> str:
    """Run a command; return what it printed. Fails where its status is not the expected one."""
    done = subprocess.run(
        [*map(str, argv)], env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False
    )
    printed = done.stdout.decode(errors="replace")
    assert expected is None or done.returncode == expected, printed[-4000:]
    return printed
