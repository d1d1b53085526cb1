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

import asyncpg
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bot.agents import presets
from bot.cli.doctor.checks import service_checks
from bot.cli.doctor.command import examined, show
from bot.cli.doctor.services import Check
from bot.cli.running import database_url as database_url_of
from bot.demo.pair import agent_in_a_folder
from bot.github.client import APP_EVENTS, CHECK_EVENTS, NOWHERE
from bot.github.registration import Registration
from bot.model import Repository as ModelRepository
from bot.serve.base import redactor_of
from bot.serve.parts import Surroundings, open_client
from bot.settings import load
from bot.simulated.github.faults import FailBefore
from bot.simulated.github.model import Repository
from bot.simulated.github.server import SimulatedGitHub
from bot.store import conversations
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
    database_url: str
    empty_database_url: str
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

    async def pings(self) -> None:
        """Let GitHub send what a new webhook sends."""
        hook = self.github.hook
        assert hook is not None
        address = f"{self.github.api_url}/repos/{self.shop.full_name}/hooks/{hook.id}/pings"
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.post(address, headers={"authorization": f"bearer {self.github.bot_token}"})
        await self.github.settled()

    async def becomes_an_app(self) -> SimulatedGitHub:
        """Return the GitHub of an App that works in place of the token."""
        running = SimulatedGitHub.running(self.folder / "app", self.clock, installation_id=77)
        github = await self.stack.enter_async_context(running)
        self.shop = await github.create_repository("acme/shop")
        github.set_webhook(self.webhook_url, "a secret of this test")
        await github.person("maria").open_issue(self.shop, "Hello")
        await github.settled()
        del self.variables["GITHUB_TOKEN"]
        self.variables |= {"GITHUB_API_URL": github.api_url, "GITHUB_APP_ID": str(github.app_id)}
        self.variables["GITHUB_PRIVATE_KEY"] = github.app_private_key_pem
        return github

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
        return re.sub(r"\d{4}-\d\d-\d\d", "2026-11-30", text)


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
    github = await of.becomes_an_app()
    assert github.world.app is not None
    github.world.app.permissions["contents"] = "read"
    github.world.app.events.remove("issue_comment")


async def an_app(of: SetUp) -> None:
    """All is well."""
    await of.becomes_an_app()


async def app_installed_nowhere(of: SetUp) -> None:
    github = await of.becomes_an_app()
    assert github.world.app is not None
    github.world.app.installed = False


async def app_with_another_key(of: SetUp) -> None:
    await of.becomes_an_app()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    of.variables["GITHUB_PRIVATE_KEY"] = pem.decode()


async def app_with_a_wrong_clock(of: SetUp) -> None:
    await of.becomes_an_app()
    of.clock.ahead = timedelta(hours=-2)


async def app_without_a_webhook(of: SetUp) -> None:
    (await of.becomes_an_app()).remove_webhook()


async def app_with_another_secret(of: SetUp) -> None:
    of.answer = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    await of.becomes_an_app()


async def app_without_a_key_file(of: SetUp) -> None:
    del of.variables["GITHUB_TOKEN"]
    of.variables |= {"GITHUB_APP_ID": "7", "GITHUB_PRIVATE_KEY_PATH": str(of.folder / "nothing.pem")}


async def ping_refused(of: SetUp) -> None:
    of.answer = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    of.github.set_webhook(of.webhook_url, "a secret of this test", anew=True)
    await of.pings()


async def nobody_listened_yet(of: SetUp) -> None:
    """The webhook was made by hand before the bot's first start."""
    of.answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
    of.github.set_webhook(of.webhook_url, "a secret of this test", anew=True)
    await of.pings()


async def nothing_delivered_yet(of: SetUp) -> None:
    of.github.set_webhook(of.webhook_url, "a secret of this test", anew=True)


async def checks_not_sent(of: SetUp) -> None:
    sent = tuple(event for event in APP_EVENTS if event not in CHECK_EVENTS)
    of.github.set_webhook(of.webhook_url, "a secret of this test", events=sent)


async def webhook_leads_elsewhere(of: SetUp) -> None:
    of.github.set_webhook(of.webhook_url.removesuffix("/webhooks/github"), "a secret of this test")


async def log_not_shown(of: SetUp) -> None:
    of.github.faults.add(FailBefore(403), method="GET", path="*/hooks/*/deliveries*", times=None)


async def nothing_named_and_no_webhook(of: SetUp) -> None:
    """As README's way with a token would leave it without `setup`."""
    of.variables["ALLOWED_REPOS"] = ""
    of.github.remove_webhook()


async def nothing_named(of: SetUp) -> None:
    """All is well: the repository is found by its webhook."""
    of.variables["ALLOWED_REPOS"] = ""


async def nothing_named_nothing_to_see(of: SetUp) -> None:
    of.variables["ALLOWED_REPOS"] = ""
    of.shop.allow(of.github.bot, "read")


async def nothing_named_and_not_an_administrator(of: SetUp) -> None:
    of.variables["ALLOWED_REPOS"] = ""
    of.shop.allow(of.github.bot, "write")


async def pattern_without_webhooks(of: SetUp) -> None:
    of.variables["ALLOWED_REPOS"] = "acme/*"
    await of.github.create_repository("acme/till", bot_permission="admin")
    of.github.remove_webhook()


async def pattern_that_nothing_matches(of: SetUp) -> None:
    of.variables["ALLOWED_REPOS"] = "acme/shop,amce/*"


async def pattern_of_many(of: SetUp) -> None:
    """All is well: what is said of many is one line."""
    of.variables["ALLOWED_REPOS"] = "acme/*"
    for number in range(6):
        await of.github.create_repository(f"acme/part-{number}", bot_permission="admin")


async def repositories_not_listed(of: SetUp) -> None:
    of.variables["ALLOWED_REPOS"] = "acme/*"
    of.github.faults.add(FailBefore(403), method="GET", path="/user/repos*", times=None)


async def polled_and_not_named(of: SetUp) -> None:
    of.variables |= {"ALLOWED_REPOS": "", "POLL_INTERVAL_SECONDS": "5"}


async def asked_lately_without_a_webhook(of: SetUp) -> None:
    """Nothing but the database knows the repository, whose webhook was deleted since."""
    of.variables |= {"ALLOWED_REPOS": "acme/other", "DATABASE_URL": of.database_url}
    await of.github.create_repository("acme/other", bot_permission="admin")
    of.github.remove_webhook()
    shop = ModelRepository(of.github.server_url.partition("//")[2], of.shop.id, "acme", "shop", "main")
    connection = await asyncpg.connect(of.database_url)
    await conversations.save_codebase(connection, shop)
    await conversations.save_thread(connection, shop, 1, "issue", "Hello", None)
    await connection.close()


async def schema_is_old(of: SetUp) -> None:
    of.variables["DATABASE_URL"] = of.database_url
    connection = await asyncpg.connect(of.database_url)
    await connection.execute("delete from schema_migrations where name like '009%'")
    await connection.close()


async def schema_is_newer(of: SetUp) -> None:
    of.variables["DATABASE_URL"] = of.database_url
    connection = await asyncpg.connect(of.database_url)
    await connection.execute("insert into schema_migrations (name, sha256) values ('999_future', '')")
    await connection.close()


async def database_is_empty(of: SetUp) -> None:
    """All is well: the start makes the schema."""
    of.variables["DATABASE_URL"] = of.empty_database_url


async def rules_want_pull_requests(of: SetUp) -> None:
    of.shop.rule("pull_request")


async def rules_want_other_names(of: SetUp) -> None:
    of.shop.rule("branch_name_pattern", operator="starts_with", pattern="feature/")


async def rules_want_signatures(of: SetUp) -> None:
    of.shop.rule("required_signatures")


async def rules_want_messages(of: SetUp) -> None:
    of.shop.rule("commit_message_pattern", operator="regex", pattern="^SHOP-[0-9]+ ")


async def rules_of_linear_history(of: SetUp) -> None:
    """All is well: what they forbid is told."""
    of.shop.rule("required_linear_history")
    of.shop.rule("non_fast_forward")


async def rules_not_told(of: SetUp) -> None:
    of.github.faults.add(FailBefore(403), method="GET", path="*/rules/branches/*", times=None)


async def token_ends_soon(of: SetUp) -> None:
    ends = datetime.now(UTC) + timedelta(days=3)
    of.variables["GITHUB_TOKEN"] = of.github.world.issue_token(of.github.bot, None, ends)


async def token_without_its_scope(of: SetUp) -> None:
    of.variables["GITHUB_TOKEN"] = of.github.world.issue_token(of.github.bot, "gist")


async def proxy_away(of: SetUp) -> None:
    of.variables |= {"HTTPS_PROXY": DEAD, "GITHUB_API_URL": "https://github.test/api/v3"}


async def bubblewrap_missing(of: SetUp) -> None:
    of.program("bwrap", interpreter=f"{of.folder}/nothing")


async def key_that_cannot_be_tried(of: SetUp) -> None:
    of.variables |= {"AGENT": "claude", "CLAUDE_CODE_OAUTH_TOKEN": KEY}
    del of.variables["OPENAI_API_KEY"]


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


async def data_dir_open_to_all(of: SetUp) -> None:
    (of.folder / "open").mkdir()
    (of.folder / "open").chmod(0o755)
    of.variables["DATA_DIR"] = str(of.folder / "open")


async def data_dir_not_writable(of: SetUp) -> None:
    (of.folder / "file").touch()
    of.variables["DATA_DIR"] = str(of.folder / "file" / "threadtree")


async def nothing_set(of: SetUp) -> None:
    of.variables = {}


WORKING = (
    *(no_change, polled, an_app, nothing_named, pattern_of_many, database_is_empty, rules_of_linear_history),
    *(misspelt_setting, data_dir_open_to_all, clock_wrong, checks_not_sent, log_not_shown, nobody_listened_yet),
    *(nothing_delivered_yet, nothing_named_and_not_an_administrator, repositories_not_listed, polled_and_not_named),
    *(rules_want_messages, rules_not_told, token_ends_soon),
)
"""What works, or may work: nothing here is a problem."""
PROBLEMS = (
    *(database_away, token_refused, github_away, unknown_repository, not_a_collaborator, no_webhook, wrong_events),
    *(app_without_permission, app_installed_nowhere, app_with_another_key, app_with_a_wrong_clock),
    *(app_without_a_webhook, app_with_another_secret, app_without_a_key_file, ping_refused, webhook_leads_elsewhere),
    *(other_secret, deliveries_fail, key_refused, model_away, node_too_old, nothing_set, polled_without_the_right),
    *(nothing_named_and_no_webhook, nothing_named_nothing_to_see, pattern_without_webhooks),
    *(pattern_that_nothing_matches, asked_lately_without_a_webhook, schema_is_old, schema_is_newer),
    *(rules_want_pull_requests, rules_want_other_names, rules_want_signatures, token_without_its_scope, proxy_away),
    *(weak_secret_beside_a_wrong_setting, sandbox_forbidden, disk_nearly_full, data_dir_not_writable),
    *(not_polled_any_more, bubblewrap_missing, key_that_cannot_be_tried),
)
OF_THE_MACHINE = (
    *(no_change, nothing_set, misspelt_setting, data_dir_open_to_all, data_dir_not_writable, disk_nearly_full),
    *(weak_secret_beside_a_wrong_setting, sandbox_forbidden, bubblewrap_missing, node_too_old, key_refused),
    *(model_away, key_that_cannot_be_tried, app_without_a_key_file),
)
"""Where more than the database and GitHub is asked."""
Break = Callable[[SetUp], Awaitable[None]]


@pytest.fixture
async def set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str, empty_database_url: str
) -> AsyncIterator[SetUp]:
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
        databases = (database_url, empty_database_url)
        of = SetUp(tmp_path, github, shop, models, programs, f"{there.url}/webhooks/github", clock, stack, *databases)
        github.set_webhook(of.webhook_url, "a secret of this test")
        await of.delivers()
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
            "ADMIN_TOKEN": "the-token-of-an-operator",
            "AGENT": "codex",
            "AGENT_SANDBOX": "bwrap",
            "ALLOWED_REPOS": "acme/shop",
            "DATA_DIR": str(tmp_path / "data"),
            "GITHUB_API_URL": github.api_url,
            "GITHUB_TOKEN": github.bot_token,
            "GITHUB_WEBHOOK_SECRET": "a secret of this test",
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": models.url,
            "PUBLIC_URL": "https://bot.example.org",
        }
        yield of


async def no_pause(_: float) -> None:
    """GitHub's refusals are asked again at once."""


async def found_of_services(of: SetUp) -> list[Check]:
    settings = load({"HOME": str(of.folder), **of.variables}, dotenv=None)
    around = Surroundings(sleep=no_pause)
    async with open_client(Registration, settings, around, redactor_of(settings)) as github:
        return await service_checks(settings, github, database_url_of(settings))


async def found_of_all(of: SetUp, monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    for name in os.environ:
        monkeypatch.delenv(name)
    usual = {"HOME": str(of.folder), "PATH": f"{of.programs}:/usr/bin:/bin"}
    for name, value in {**usual, **of.variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(of.folder)
    with tempfile.TemporaryDirectory(prefix="d") as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        checks = await examined()
        assert list(Path(temporary).iterdir()) == []  # noqa: ASYNC240 - nothing else runs
    return checks


@pytest.mark.parametrize("broken", [*WORKING, *PROBLEMS], ids=lambda broken: broken.__name__)
async def test_a_set_up_is_judged_as_people_read_it(
    set_up: SetUp, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot has the lines that differ from those of a set-up that works."""
    await broken(set_up)
    is_whole = broken in OF_THE_MACHINE
    checks = await (found_of_all(set_up, monkeypatch) if is_whole else found_of_services(set_up))
    lines = [set_up.plain(line_of(check)) for check in checks if check.check not in OF_THIS_MACHINE]
    works = "" if broken is no_change else (FOLDER / "no_change.txt").read_text()
    said = "".join(f"{line}\n" for line in lines if f"{line}\n" not in works)
    snapshot = FOLDER / f"{broken.__name__}.txt"
    if UPDATE:
        snapshot.write_text(said)
    assert said == snapshot.read_text()
    is_problem = any(check.state == "problem" for check in checks)
    assert is_problem == (broken in PROBLEMS), "what stops the main job is a problem"
    assert not any(word in repr(checks) for word in (KEY, "hunter22", "ghp_", "sk-wrong")), "no secret is shown"


def line_of(check: Check) -> str:
    return f"{check.state:8} {check.check}: {check.found}" + (
        f"\n         → {check.next_step}" if check.next_step else ""
    )


def test_people_read_a_table_with_the_next_step_below_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    show([Check("git", "ok", "2.39"), Check("disk", "problem", "it is full", "Free some space.")])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "CHECK  STATE    FOUND",
        "git    ok       2.39",
        "disk   problem  it is full",
        "                → Free some space.",
        "",
        "1 problem.",
    ]
    show([Check("git", "ok", "2.39")])
    assert capsys.readouterr().out.endswith("What is set up here works.\n")
