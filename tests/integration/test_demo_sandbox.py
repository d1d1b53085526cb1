"""The sandbox of the demo: used where it works, and never a reason to fail unless it was asked for by name."""

from pathlib import Path

import pytest

from bot.demo.command import choose_sandbox
from bot.demo.report import Report
from bot.serve.base import CannotStartError
from tests.support.git_repositories import SEARCH_PATH, usable_sandbox

FORBIDDEN = "bwrap: No permissions to create a new namespace, likely because the kernel does not allow it"


@pytest.fixture
def forbidden(tmp_path: Path) -> str:
    """Return a PATH with a bubblewrap that fails as it does where user namespaces are not allowed."""
    bwrap = tmp_path / "bin" / "bwrap"
    bwrap.parent.mkdir()
    bwrap.write_text(f"#!/bin/sh\n[ $1 = --version ] && exec echo bubblewrap 0.8.0\necho '{FORBIDDEN}' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    return f"{bwrap.parent}:{SEARCH_PATH}"


def chosen(wanted: str, directory: Path, path: str) -> str:
    return choose_sandbox(wanted, directory, path, Report(json=False))["AGENT_SANDBOX"]


def test_where_namespaces_are_forbidden_it_runs_without_and_says_so_in_a_line(
    tmp_path: Path, forbidden: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chosen("auto", tmp_path, forbidden) == "off"
    [line] = capsys.readouterr().out.splitlines()
    assert line == f"The agent runs without a sandbox, which cannot be used here: {FORBIDDEN}"


def test_agent_sandbox_off_is_obeyed(tmp_path: Path) -> None:
    assert chosen("off", tmp_path, SEARCH_PATH) == "off"


def test_a_sandbox_that_was_asked_for_by_name_is_not_left_out(tmp_path: Path, forbidden: str) -> None:
    with pytest.raises(CannotStartError, match=r"AGENT_SANDBOX=bwrap: bwrap: No permissions.*userns_clone"):
        chosen("bwrap", tmp_path, forbidden)


def test_a_sandbox_that_works_is_used(tmp_path: Path) -> None:
    usable_sandbox(tmp_path)
    assert chosen("auto", tmp_path, SEARCH_PATH) == "auto"
