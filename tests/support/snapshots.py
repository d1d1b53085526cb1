"""Snapshots: whole texts in files of `tests/unit`. `UPDATE_SNAPSHOTS=1 pytest FILE` rewrites them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "unit" / "snapshots"


@pytest.fixture
def matches_snapshot() -> Callable[[str, str], None]:
    """Compare a text with `snapshots/NAME.md`, byte by byte."""

    def compare(name: str, text: str) -> None:
        file = FOLDER / f"{name}.md"
        if os.environ.get("UPDATE_SNAPSHOTS"):
            file.write_bytes(f"{text}\n".encode())
        assert file.read_bytes().decode() == f"{text}\n"

    return compare
