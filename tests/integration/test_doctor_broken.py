"""`threadtree doctor` on set-ups that are broken in one place, as people read it.

`UPDATE_SNAPSHOTS=1 pytest tests/integration/test_doctor_broken.py` rewrites what it says.
"""

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot.agents import presets
from bot.cli.doctor.command import examined, show
from bot.demo.pair import agent_in_a_folder
from bot.github.client import NOWHERE
from bot.simulated.github.model import Repository
from bot.simulated.github.server import SimulatedGitHub
from tests.support.git_repositories import usable_sandbox
from tests.support.models.server import SimulatedModels
from tests.support.network import site

FOLDER = Path(__file__).parent / "snapshots" / "doctor"
OF_THIS_MACHINE = ("user", "limits")
"""What depends on who runs the tests, and on cgroups."""
KEY = "sk-of-the-operator"
UPDATE = bool(os.environ.get("UPDATE_SNAPSHOTS"))
DEAD = "http://127.0.0.1:9"


@dataclass(slots=True)
class Clock:
    """GitHub's clock."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass(slots=True)
class SetUp:
    """A set-up that works: a repository whose webhook leads to a bot, and an agent with a model."""

    folder: Path
    github: SimulatedGitHub
    shop: Repository
    models: SimulatedModels
    programs: Path
    webhook_url: str
    clock: "Clock"
    stack: AsyncExitStack
    variables: dict[str, str] = field(default_factory=dict)
    answer: bytes = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    """The bot's to a webhook."""

    def program(self, name: str, *lines: str, interpreter: str = "/bin/sh") -> None:
        """Put a script on the PATH."""
        path = self.programs / name
        path.write_text("\n".join((f"#!{interpreter}", *lines)) + "\n")
        path.chmod(0o755)

    async def delivers(self) -> None:
        """Let GitHub deliver a comment."""
        await self.github.person("maria").open_issue(self.shop, "Hello")
        await self.github.settled()

    def plain(self, text: str) -> str:
        """Return what was said without what differs between machines and runs."""
        for path, name in (
            (str(self.folder), "FOLDER"),
            (sys.executable, "PYTHON"),
            (sys.prefix, "VENV"),
        ):
            text = text.replace(path, name)
        text = re.sub(r"VENV/lib/\S+|/usr/lib/postgresql/\S+", "VENV/postgres", text)
        text = re.sub(r"127\.0\.0\.1:\d{2,}", "127.0.0.1:PORT", text)
        text = re.sub(r"\d[\d.]* [kMGTP]?B are free", "SIZE are free", text)
        text = re.sub(r"further worktree takes .*", "further worktree takes SIZE", text)
        text = re.sub(r"\d+ of 5000 requests", "4990 of 5000 requests", text)
        text = re.sub(r"\b\d+(\.\d+)+ \(/", "VERSION (/", text)
        text = re.sub(r"clock is \d+ s", "clock is 600 s", text)
        rows = re.split(r"\n(?=\S|\Z)", text)
        return "\n".join(row for row in rows if not row.startswith(OF_THIS_MACHINE)).rstrip()


async def no_change(_: SetUp) -> None:
    """Leave it as it works."""


async def database_away(of: SetUp) -> None:
    of.variables["DATABASE_URL"] = "postgresql://bot:hunter22@127.0.0.1:9/bot"


async def token_refused(of: SetUp) -> None:
    of.variables["GITHUB_TOKEN"] = "ghp_wrong"


async def github_away(of: SetUp) -> None:
    of.variables["GITHUB_API_URL"] = DEAD


async def unknown_repository(of: SetUp) -> None:
    of.variables["ALLOWED_REPOS"] = "acme/shoop"


async def not_a_collaborator(of: SetUp) -> None:
    of.shop.allow(of.github.bot, "read")


async def no_webhook(of: SetUp) -> None:
    of.github.remove_webhook()


async def polled(of: SetUp) -> None:
    """Nothing reaches the bot, and nothing need."""
    of.variables |= {"POLL_INTERVAL_SECONDS": "5", "ALLOWED_REPOS": "", "WEBHOOK_REPOS": "acme/shop"}
    of.github.set_webhook(f"{NOWHERE}/webhooks/github", "a secret of this test")
    await of.delivers()


async def polled_without_the_right(of: SetUp) -> None:
    of.variables["POLL_INTERVAL_SECONDS"] = "5"
    of.shop.allow(of.github.bot, "write")


async def not_polled_any_more(of: SetUp) -> None:
    of.github.set_webhook(f"{NOWHERE}/webhooks/github", "a secret of this test")


async def wrong_events(of: SetUp) -> None:
    of.github.set_webhook(of.webhook_url, "a secret of this test", events=("push", "issues"))


async def app_without_permission(of: SetUp) -> None:
    running = SimulatedGitHub.running(of.folder / "app", of.clock, installation_id=77)
    github = await of.stack.enter_async_context(running)
    await github.create_repository("acme/shop")
    assert github.world.app is not None
    github.world.app.permissions["contents"] = "read"
    github.world.app.events.remove("issue_comment")
    del of.variables["GITHUB_TOKEN"]
    of.variables |= {"GITHUB_API_URL": github.api_url, "GITHUB_APP_ID": str(github.app_id)}
    of.variables["GITHUB_PRIVATE_KEY"] = github.app_private_key_pem


async def other_secret(of: SetUp) -> None:
    of.answer = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    await of.delivers()


async def deliveries_fail(of: SetUp) -> None:
    of.answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
    await of.delivers()


async def key_refused(of: SetUp) -> None:
    of.variables["OPENAI_API_KEY"] = "sk-wrong"


async def model_away(of: SetUp) -> None:
    of.variables["OPENAI_BASE_URL"] = DEAD


async def misspelt_setting(of: SetUp) -> None:
    (of.folder / ".env").write_text("ALOWED_USERS=maria\nFOO=x\n")


async def weak_secret_beside_a_wrong_setting(of: SetUp) -> None:
    of.variables |= {"GITHUB_WEBHOOK_SECRET": "abc", "PORT": "high"}


async def node_too_old(of: SetUp) -> None:
    (of.programs / "codex-acp").unlink()
    of.program("node", "echo v18.19.0")


async def sandbox_forbidden(of: SetUp) -> None:
    version = '[ "$1" = --version ] && echo "bubblewrap 0.8.0" && exit'
    of.program("bwrap", version, "echo 'bwrap: No permissions to create new namespace' >&2", "exit 1")


async def disk_nearly_full(of: SetUp) -> None:
    of.variables["DISK_RESERVE_GB"] = "1000000"


async def clock_wrong(of: SetUp) -> None:
    of.clock.ahead = timedelta(minutes=10)


async def data_dir_not_writable(of: SetUp) -> None:
    (of.folder / "file").touch()
    of.variables["DATA_DIR"] = str(of.folder / "file" / "threadtree")


async def nothing_set(of: SetUp) -> None:
    of.variables = {}


WARNINGS = (no_change, polled, misspelt_setting, clock_wrong)
PROBLEMS = (
    *(database_away, token_refused, github_away, unknown_repository, not_a_collaborator, no_webhook, wrong_events),
    *(app_without_permission, other_secret, deliveries_fail, key_refused, model_away, node_too_old, nothing_set),
    *(polled_without_the_right, not_polled_any_more),
    *(weak_secret_beside_a_wrong_setting, sandbox_forbidden, disk_nearly_full, data_dir_not_writable),
)
Break = Callable[[SetUp], Awaitable[None]]


@pytest.fixture
async def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SetUp]:
    usable_sandbox(tmp_path / "data")
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setattr(presets, "find_spec", lambda _: None)  # not every machine has Claude
    async with AsyncExitStack() as stack:

        async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(of.answer)
            await writer.drain()

        there = await stack.enter_async_context(site(receive))
        clock = Clock()
        github = await stack.enter_async_context(SimulatedGitHub.running(tmp_path / "github", clock))
        models = await stack.enter_async_context(SimulatedModels.running())
        models.only_key = KEY
        shop = await github.create_repository("acme/shop", bot_permission="admin")
        of = SetUp(tmp_path, github, shop, models, programs, f"{there.url}/webhooks/github", clock, stack)
        github.set_webhook(of.webhook_url, "a secret of this test")
        of.program("git-lfs", "echo git-lfs/3.3.0")
        # As npm installs it: the sandbox shows a program's node_modules.
        (programs / "node_modules").mkdir()
        agent_in_a_folder(programs / "node_modules")
        of.program(
            "node_modules/codex-acp",
            "import os, runpy, sys",
            "agent = os.path.realpath(__file__).removesuffix('codex-acp') + 'agent'",
            "print('codex-acp 2.6.0') if '--version' in sys.argv else runpy.run_path(agent, run_name='__main__')",
            interpreter=sys.executable,
        )
        (programs / "codex-acp").symlink_to("node_modules/codex-acp")
        of.variables = {
            "AGENT": "codex",
            "AGENT_SANDBOX": "bwrap",
            "ALLOWED_REPOS": "acme/shop",
            "DATA_DIR": str(tmp_path / "data"),
            "GITHUB_API_URL": github.api_url,
            "GITHUB_TOKEN": github.bot_token,
            "GITHUB_WEBHOOK_SECRET": "a secret of this test",
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": models.url,
        }
        yield of


@pytest.mark.parametrize("broken", [*WARNINGS, *PROBLEMS], ids=lambda broken: broken.__name__)
async def test_a_set_up_is_judged_as_people_read_it(
    set_up: SetUp, broken: Break, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await broken(set_up)
    for name in os.environ:
        monkeypatch.delenv(name)
    usual = {"HOME": str(set_up.folder), "PATH": f"{set_up.programs}:/usr/bin:/bin", "COLUMNS": "1000"}
    for name, value in {**usual, **set_up.variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(set_up.folder)
    with tempfile.TemporaryDirectory(prefix="d") as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        checks = await examined()
        assert list(Path(temporary).iterdir()) == []  # noqa: ASYNC240 - nothing else runs
    show(checks)
    said = set_up.plain("\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()))
    snapshot = FOLDER / f"{broken.__name__}.txt"
    if UPDATE:
        snapshot.write_text(said + "\n")
    assert said + "\n" == snapshot.read_text()
    works = said.endswith("What is set up here works.")
    assert works == (broken in WARNINGS), "what stops the main job is a problem"
    assert not any(word in said for word in (KEY, "hunter22", "ghp_", "sk-wrong")), "no secret is shown"
