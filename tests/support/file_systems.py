"""File systems of their own for tests, each in a file: they need root, and the programs that make them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE_BYTES = 400 << 20
"""The least for XFS is 300 MB. The file has holes."""


@contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """Make a file system of this kind and mount it below the folder; skip the test where that cannot be done."""
    program = shutil.which(f"mkfs.{kind}", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    if os.geteuid() != 0 or program is None:
        pytest.skip(f"To make and mount {kind}, a test needs root and `mkfs.{kind}` (xfsprogs, btrfs-progs).")
    image, place = folder / f"{kind}.img", folder / kind
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    subprocess.run([program, "-q", image], check=True)
    done = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"This machine mounts no {kind}: {os.fsdecode(done.stderr).strip()}")
    place.chmod(0o755)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
