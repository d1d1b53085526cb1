"""The checks of `threadtree doctor` against a simulated GitHub; it leaves nothing behind."""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot.cli.doctor.account import github_checks
from bot.cli.doctor.command import examined
from bot.cli.doctor.services import Check, Known
from bot.demo.pair import agent_in_a_folder, settings_for
from bot.github.registration import Registration
from bot.inbox.decider_rows import asked_by_operator
from bot.redaction import Redactor
from bot.serve.parts import Surroundings, open_client
from bot.simulated.github.faults import FailBefore
from bot.simulated.github.server import SimulatedGitHub
from bot.store import deliveries
from bot.store.database import Pool
from tests.support.git_repositories import usable_sandbox
from tests.support.patience import PATIENCE_SECONDS
from tests.support.ssh import new_key

PATH = "/usr/local/bin:/usr/bin:/bin"
Checks = dict[str, Check]


@dataclass(frozen=True, slots=True)
class Doctor:
    """The command with its own folder for temporary files; its short name leaves room for sockets."""

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

    async def run(self, *arguments: str, status: int, **variables: str) -> str:
        """Run the command as a process and return its stdout; check that stderr is empty and nothing is left."""
        with self.start(*arguments, **variables) as process:
            said, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
        assert (process.returncode, errors) == (status, ""), (said, errors)
        self.has_left_nothing()
        return said

    async def checks(self, **variables: str) -> Checks:
        """Run the checks with this environment and nothing else; return them by their first word."""
        with pytest.MonkeyPatch.context() as patch:
            for name in os.environ:
                patch.delenv(name)
            for name, value in {"HOME": str(self.home), "PATH": PATH, **variables}.items():
                patch.setenv(name, value)
            patch.chdir(self.home)
            patch.setattr(tempfile, "tempdir", str(self.temporary))
            found = await examined()
        self.has_left_nothing()
        return {check.check: check for check in reversed(found)}

    def agents(self) -> list[str]:
        """Return the processes whose home is in its folder."""
        home = f"HOME={self.temporary}".encode()
        return [process.name for process in Path("/proc").iterdir() if process.name.isdecimal() and _has(process, home)]

    def has_left_nothing(self) -> None:
        assert list(self.temporary.iterdir()) == []
        # The kernel ends what is in a sandbox a moment after its parent. Another test's doctor may run at the same
        # time; its groups are removed when it ends.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.agents():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        left = _groups() - self.groups
        while any(group.exists() for group in left):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _groups() -> frozenset[Path]:
    while True:
        with contextlib.suppress(FileNotFoundError):  # another test's group went meanwhile
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
async def github(tmp_path: Path) -> AsyncIterator[SimulatedGitHub]:
    async with SimulatedGitHub.running(tmp_path / "github", lambda: datetime.now(UTC)) as running:
        yield running


@pytest.fixture
def complete(tmp_path: Path, github: SimulatedGitHub) -> dict[str, str]:
    """Return working settings, with the scripted agent in its sandbox."""
    usable_sandbox(tmp_path / "data")
    return {
        "AGENT": "custom",
        "AGENT_COMMAND": agent_in_a_folder(tmp_path),
        "AGENT_SANDBOX": "bwrap",
        "DATA_DIR": str(tmp_path / "data"),
        "GITHUB_API_URL": github.api_url,
        "GITHUB_TOKEN": github.bot_token,
        "GITHUB_WEBHOOK_SECRET": "a secret of this test",
    }


@pytest.fixture
def no_bubblewrap(tmp_path: Path) -> str:
    """Return a PATH without bwrap."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "bwrap").write_text(f"#!{tmp_path}/nothing\n")
    (folder / "bwrap").chmod(0o755)
    return f"{folder}:{PATH}"


async def test_the_bots_account_and_permissions_on_github_are_shown(
    doctor: Doctor, complete: dict[str, str], github: SimulatedGitHub
) -> None:
    await github.create_repository("acme/shop")
    await github.create_repository("acme/read-only", bot_permission="read")
    names = {"ALLOWED_REPOS": "acme/shop,acme/read-only,acme/nothing,other/*", "BOT_NAME": "tree"}
    checks = await doctor.checks(**complete | names)
    assert checks["github"].found == f"works as {github.bot.login}; people mention @tree"
    assert checks["rate limit"].found.endswith("of 5000 requests left in this hour")
    repositories = {name: check.state for name, check in checks.items() if name.startswith("repository ")}
    assert repositories == {
        "repository acme/shop": "ok",
        "repository acme/read-only": "problem",
        "repository acme/nothing": "problem",
    }
    webhook = checks["webhook of acme/shop"]
    assert (webhook.state, "stay missed" in webhook.found) == ("warning", True)
    assert "Webhooks: read" in (webhook.next_step or "")


async def test_the_callback_of_the_sign_in_is_told_and_teams_that_the_bot_does_not_see(
    doctor: Doctor, complete: dict[str, str], github: SimulatedGitHub
) -> None:
    client = {"GITHUB_CLIENT_ID": "Iv1", "GITHUB_CLIENT_SECRET": "the client's secret"}
    github.put_in_team("acme/web", "wanda")
    checks = await doctor.checks(**complete, **client, DASHBOARD_OPERATORS="olga", DASHBOARD_VIEWERS="acme/web")
    assert (checks["sign-in"].state, checks["sign-in"].found) == ("ok", "operators: olga; viewers: acme/web")
    assert "https://YOUR-ADDRESS/login/callback" in (checks["sign-in"].next_step or "")
    unseen = (await doctor.checks(**complete, **client, DASHBOARD_OPERATORS="acme/none"))["team acme/none"]
    assert (unseen.state, "does not show it" in unseen.found) == ("problem", True)
    may_ask = await doctor.checks(**complete, ALLOWED_USERS="ada,acme/web,acme/gone")
    assert ("team acme/web" in may_ask, may_ask["team acme/gone"].state) == (False, "problem")
    half = (await doctor.checks(**complete, GITHUB_CLIENT_ID="Iv1", DASHBOARD_OPERATORS="olga"))["settings"]
    assert half.found == "GITHUB_CLIENT_ID is set without GITHUB_CLIENT_SECRET"


async def test_whether_github_shows_commits_as_verified_is_asked_or_said_to_be_unknown(
    github: SimulatedGitHub, tmp_path: Path
) -> None:
    key, public = new_key(tmp_path / "key")
    given = {"SIGN_COMMITS": "ssh", "SIGNING_KEY_PATH": str(key)}

    async def signatures(of: SimulatedGitHub, **more: str) -> tuple[str, str]:
        settings = settings_for(of, tmp_path / "data", os.environ["PATH"], **more)
        around = Surroundings(sleep=no_pause)
        async with open_client(Registration, settings, around, Redactor()) as client:
            found = await github_checks(settings, client, Known())
        return next(
            ((one.state, f"{one.found} {one.next_step}") for one in found if one.check == "signatures"), ("", "")
        )

    async def no_pause(_: float) -> None:
        pass

    assert await signatures(github) == ("", "")
    state, said = await signatures(github, **given)
    assert (state, "no such signing key" in said, "settings/ssh/new" in said) == ("problem", True, True)
    github.person(github.bot.login).add_signing_key(f"{public} of the bot")
    state, said = await signatures(github, **given)
    assert (state, f"{github.bot.id}+threadtree-bot@users.noreply.127.0.0.1: GitHub shows" in said) == ("ok", True)
    github.faults.add(FailBefore(403), method="GET", path="/user/emails", times=1)
    state, said = await signatures(github, **given)
    assert (state, "could not be asked" in said, "user:email" in said) == ("warning", True, True)
    github.faults.add(FailBefore(502), method="GET", path="*/ssh_signing_keys", times=None)
    state, said = await signatures(github, **given)
    assert (state, "could not be asked" in said) == ("warning", True)

    async with SimulatedGitHub.running(tmp_path / "app", lambda: datetime.now(UTC), installation_id=77) as with_app:
        app = {"GITHUB_APP_ID": str(with_app.app_id), "GITHUB_PRIVATE_KEY": with_app.app_private_key_pem}
        state, said = await signatures(with_app, **app, SIGN_COMMITS="github")
        assert (state, "could not be asked" in said) == ("warning", True)
        state, said = await signatures(with_app, **app, **given)
        assert (state, "Set SIGN_COMMITS=github" in said) == ("problem", True)


async def test_something_that_was_received_needs_no_webhook_of_the_repository(
    doctor: Doctor, complete: dict[str, str], github: SimulatedGitHub, pool: Pool, database_url: str
) -> None:
    """An organisation has webhooks too, which the bot cannot see."""
    await github.create_repository("acme/shop", bot_permission="admin")
    async with pool.acquire() as connection:
        await deliveries.store(connection, [asked_by_operator("create", {}, "acme/shop#1", "acme/shop#1")])
    checks = await doctor.checks(**complete, ALLOWED_REPOS="acme/shop", DATABASE_URL=database_url)
    assert (checks["database"].state, checks["webhook of acme/shop"].state) == ("ok", "warning")


async def test_an_app_is_known_by_its_mention(doctor: Doctor, complete: dict[str, str], tmp_path: Path) -> None:
    async with SimulatedGitHub.running(tmp_path / "app", lambda: datetime.now(UTC), installation_id=77) as github:
        app = {
            "GITHUB_TOKEN": "",
            "GITHUB_API_URL": github.api_url,
            "GITHUB_APP_ID": str(github.app_id),
            "GITHUB_PRIVATE_KEY": github.app_private_key_pem,
            "ALLOWED_REPOS": "acme/shop",
        }
        await github.create_repository("acme/shop")
        checks = await doctor.checks(**complete | app)
        assert checks["github"].found == "works as threadtree-bot[bot]; people mention @threadtree-bot"
        assert checks["repository acme/shop"].state == "ok"
        assert checks["app"].found == "the App lacks a webhook that leads to /webhooks/github"
        app["GITHUB_PRIVATE_KEY"] = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"
        checks = await doctor.checks(**complete | app)
        assert checks["github"].state == "problem"


async def test_a_sandbox_that_is_off_needs_no_bubblewrap(
    doctor: Doctor, complete: dict[str, str], no_bubblewrap: str
) -> None:
    checks = await doctor.checks(**complete | {"AGENT_SANDBOX": "off", "PATH": no_bubblewrap})
    assert checks["sandbox"].state == checks["bubblewrap"].state == "warning"
    assert checks["agent custom"].found.endswith("starts a session without a sandbox")


async def test_an_agent_that_exits_is_a_problem_with_its_last_output_but_no_secret(
    doctor: Doctor, complete: dict[str, str]
) -> None:
    program = "import os, sys; sys.exit('no ' + os.environ['AGENT_KEY'])"
    command = {"AGENT_COMMAND": shlex.join([sys.executable, "-c", program])}
    key = {"AGENT_ENV": "AGENT_KEY", "AGENT_KEY": "open-sesame-open-sesame"}
    checks = await doctor.checks(**complete | command | key)
    assert "open-sesame" not in repr(checks)
    assert checks["agent custom"].state == "problem"
    assert "Its last words: no [redacted]" in checks["agent custom"].found


async def test_a_git_that_is_too_old_is_a_problem(doctor: Doctor, complete: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "git").write_text("#!/bin/sh\necho git version 2.37.9\n")
    (tmp_path / "old" / "git").chmod(0o755)
    checks = await doctor.checks(**complete, PATH=f"{tmp_path / 'old'}:{PATH}")
    assert checks["git"].state == "problem"
    assert checks["git"].found.startswith("2.37.9 (")
    assert checks["git"].next_step == "Install `git` 2.38 or later."


async def test_without_git_it_says_so(doctor: Doctor, complete: dict[str, str], tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    bwrap = shutil.which("bwrap", path=PATH)
    assert bwrap is not None
    (programs / "bwrap").symlink_to(bwrap)
    checks = await doctor.checks(**complete, PATH=str(programs))
    assert checks["git"].state == checks["worktree"].state == "problem"
    assert "not started: there is no worktree" in checks["agent custom"].found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_stop_signal_ends_all_started_processes(
    doctor: Doctor, complete: dict[str, str], number: signal.Signals
) -> None:
    silent = {"AGENT_COMMAND": "/bin/sleep 600"}
    with doctor.start(**complete | silent) as process:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not doctor.agents():
                assert process.poll() is None
                await asyncio.sleep(0.02)
        for _ in range(2):
            process.send_signal(number)
        said, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
    assert (process.returncode, said) == (128 + number, "")
    doctor.has_left_nothing()
