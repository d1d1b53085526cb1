"""`threadtree doctor` as a process of its own: what it finds, its exit status, and that nothing of it stays."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bot.demo.pair import agent_in_a_folder
from bot.sandbox.cage import Usable, cage_for

PATH = "/usr/local/bin:/usr/bin:/bin"
DEADLINE_SECONDS = 90.0
Checks = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Doctor:
    """The command, with a folder for temporary files that nobody else uses; sockets need its short name."""

    temporary: Path
    home: Path
    groups: frozenset[Path]

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        own = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "PATH": PATH}
        return subprocess.Popen(
            [sys.executable, "-m", "bot", "doctor", *arguments],
            env={**own, **variables},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, status: int, **variables: str) -> str:
        """What it says on stdout; it says nothing on stderr and leaves nothing."""
        with self.start(*arguments, **variables) as process:
            said, errors = process.communicate(timeout=DEADLINE_SECONDS)
        assert (process.returncode, errors) == (status, ""), (said, errors)
        self.has_left_nothing()
        return said

    def checks(self, *, status: int, **variables: str) -> Checks:
        found = json.loads(self("--json", status=status, **variables))
        assert all(set(check) == {"check", "state", "found", "next_step"} for check in found)
        return {check["check"]: check for check in found}

    def agents(self) -> list[str]:
        """The processes whose home is in its folder."""
        home = f"HOME={self.temporary}".encode()
        return [process.name for process in Path("/proc").iterdir() if process.name.isdecimal() and _has(process, home)]

    def has_left_nothing(self) -> None:
        assert list(self.temporary.iterdir()) == []
        assert self.agents() == []
        assert _groups() <= self.groups


def _groups() -> frozenset[Path]:
    return frozenset(Path("/sys/fs/cgroup").glob("**/threadtree-doctor-*"))


def _has(process: Path, variable: bytes) -> bool:
    try:
        return variable in (process / "environ").read_bytes()
    except OSError:
        return False


@pytest.fixture
def doctor(tmp_path: Path) -> Iterator[Doctor]:
    with tempfile.TemporaryDirectory(prefix="d") as temporary:
        yield Doctor(Path(temporary), tmp_path, _groups())


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, str]:
    """Settings with which everything works, with the scripted agent in its cage."""
    cage = cage_for("bwrap", tmp_path / "data", PATH)
    if cage is None or not isinstance(cage.probe(), Usable):
        pytest.skip("bubblewrap cannot be used here")
    return {
        "AGENT": "custom",
        "AGENT_COMMAND": agent_in_a_folder(tmp_path),
        "AGENT_SANDBOX": "bwrap",
        "DATA_DIR": str(tmp_path / "data"),
        "GITHUB_TOKEN": "a token of nobody",
        "GITHUB_WEBHOOK_SECRET": "a secret of nobody",
    }


@pytest.fixture
def no_bubblewrap(tmp_path: Path) -> str:
    """A PATH on which bwrap cannot be started, as if it was not installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "bwrap").write_text(f"#!{tmp_path}/nothing\n")
    (folder / "bwrap").chmod(0o755)
    return f"{folder}:{PATH}"


def test_an_agent_that_starts_in_the_sandbox_is_all_that_is_needed(doctor: Doctor, complete: dict[str, str]) -> None:
    checks = doctor.checks(status=0, **complete)
    assert checks["agent custom"]["state"] == "ok"
    assert checks["agent custom"]["found"] == "chosen by AGENT; speaks ACP; starts a session in the sandbox"
    assert {checks[name]["state"] for name in ("settings", "git", "bubblewrap", "sandbox", "network")} == {"ok"}
    assert checks["agent codex"]["state"] == "ok"
    assert not (doctor.home / "data").exists()


def test_people_get_a_table_that_says_how_it_ends(doctor: Doctor, complete: dict[str, str]) -> None:
    lines = doctor(status=0, COLUMNS="200", **complete).splitlines()
    assert lines[0].split() == ["CHECK", "STATE", "FOUND"]
    assert lines[-1] == "What is set up here works."


def test_without_bubblewrap_the_sandbox_is_a_problem_and_nothing_is_started(
    doctor: Doctor, complete: dict[str, str], no_bubblewrap: str
) -> None:
    checks = doctor.checks(status=1, **complete, PATH=no_bubblewrap)
    assert checks["sandbox"]["state"] == "problem"
    assert "bubblewrap (bwrap) is not installed" in checks["sandbox"]["found"]
    assert "Install the package `bubblewrap`" in checks["sandbox"]["next_step"]
    assert "not started: there is no sandbox" in checks["agent custom"]["found"]


def test_a_sandbox_that_is_off_needs_no_bubblewrap(
    doctor: Doctor, complete: dict[str, str], no_bubblewrap: str
) -> None:
    checks = doctor.checks(status=0, **complete | {"AGENT_SANDBOX": "off", "PATH": no_bubblewrap})
    assert checks["sandbox"]["state"] == checks["bubblewrap"]["state"] == "warning"
    assert checks["agent custom"]["found"].endswith("starts a session without a sandbox")


def test_without_any_settings_it_says_what_is_missing(doctor: Doctor) -> None:
    missing = " ".join(
        check["found"] for check in json.loads(doctor("--json", status=1)) if check["check"] == "settings"
    )
    for name in ("GITHUB_WEBHOOK_SECRET", "GITHUB_TOKEN", "ANTHROPIC_API_KEY"):
        assert name in missing


def test_an_agent_that_ends_is_a_problem_with_its_last_words_but_no_secret(
    doctor: Doctor, complete: dict[str, str]
) -> None:
    program = "import os, sys; sys.exit('no ' + os.environ['AGENT_KEY'])"
    command = {"AGENT_COMMAND": shlex.join([sys.executable, "-c", program])}
    key = {"AGENT_ENV": "AGENT_KEY", "AGENT_KEY": "open-sesame-open-sesame"}
    said = doctor("--json", status=1, **complete | command | key)
    assert "open-sesame" not in said
    [custom] = (check for check in json.loads(said) if check["check"] == "agent custom")
    assert custom["state"] == "problem"
    assert "Its last words: no [redacted]" in custom["found"]


def test_without_git_it_says_so(doctor: Doctor, complete: dict[str, str], tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    bwrap = shutil.which("bwrap", path=PATH)
    assert bwrap is not None
    (programs / "bwrap").symlink_to(bwrap)
    checks = doctor.checks(status=1, **complete, PATH=str(programs))
    assert checks["git"]["state"] == checks["worktree"]["state"] == "problem"
    assert "not started: there is no worktree" in checks["agent custom"]["found"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_end_it_ends_what_it_started(doctor: Doctor, complete: dict[str, str], number: signal.Signals) -> None:
    silent = {"AGENT_COMMAND": "/bin/sleep 600"}
    with doctor.start(**complete | silent) as process:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not doctor.agents():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for _ in range(2):
            process.send_signal(number)
        said, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, said) == (128 + number, "")
    doctor.has_left_nothing()
