"""Threadtree as `pip install` puts it on a machine: the wheel in an environment of its own, far from any checkout."""

import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import ZipFile

import httpx
import orjson
import pytest

from tests.support.patience import PATIENCE_SECONDS

CHECKOUT = Path(__file__).parents[2]
TOKEN = "a-token-of-the-dashboard"


@dataclass(frozen=True, slots=True)
class Installed:
    """The program, and what a process of it needs: a working directory with nothing in it, and an environment."""

    threadtree: Path
    cwd: Path
    environment: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            (self.threadtree, *arguments),
            cwd=self.cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
        )

    @contextmanager
    def web(self) -> Iterator[str]:
        """Run `threadtree web`; yield its address."""
        argv = (self.threadtree, "web")
        with subprocess.Popen(argv, cwd=self.cwd, env=self.environment, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                lines = (orjson.loads(line) for line in process.stderr)
                yield next(line["address"] for line in lines if line["event"] == "listening")
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the tools that are here, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    argv = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, CHECKOUT)
    subprocess.run(argv, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel; only what it depends on comes from the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    install = (sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", python, wheel)
    subprocess.run(install, check=True, capture_output=True)
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    # A path from a .pth file is searched, but its own .pth files, such as that of the checkout, are not read.
    (Path(packages) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (folder / "empty").mkdir()
    (folder / "tmp").mkdir()
    environment = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder / "tmp"), "LOG_FORMAT": "json"}
    return Installed(folder / "venv/bin/threadtree", folder / "empty", environment)


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "-C", CHECKOUT, "ls-files", "--cached", "--others", "--exclude-standard", "bot", "migrations"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    expected = {
        name.replace("migrations/", "bot/store/migrations/", 1) for name in listed if (CHECKOUT / name).exists()
    }
    expected.add("bot/cli/setup/threadtree.service")  # the template of docs/install
    with ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("bot/")} == expected


def test_the_version_is_that_of_the_project(installed: Installed) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    told = installed.run("--version")
    assert (told.returncode, told.stdout, told.stderr) == (0, f"threadtree {project['version']}\n", "")


def test_the_database_is_migrated_and_the_pages_are_served(installed: Installed, empty_database_url: str) -> None:
    settings = {"GITHUB_WEBHOOK_SECRET": "a secret of the webhook", "ADMIN_TOKEN": TOKEN, "PORT": "0"}
    bot = replace(installed, environment=installed.environment | settings | {"DATABASE_URL": empty_database_url})
    migrated = bot.run("migrate")
    assert migrated.returncode == 0, migrated.stderr
    for file in (CHECKOUT / "migrations").glob("*.sql"):
        assert f"applied {file.stem}\n" in migrated.stdout
    with bot.web() as address, httpx.Client(base_url=address, follow_redirects=True, trust_env=False) as client:
        assert client.get("/healthz").status_code == 200
        page = client.get("/")
        assert (page.status_code, page.url.path) == (200, "/login")
        static = [file.name for file in (CHECKOUT / "bot/operator/dashboard/static").iterdir()]
        linked = [name for name in static if f"/static/{name}" in page.text]
        assert "dashboard.css" in linked
        for name in linked:
            assert client.get(f"/static/{name}").status_code == 200, name
        assert client.post("/login", data={"token": TOKEN}).url.path == "/"


def test_every_check_of_the_demo_holds(installed: Installed) -> None:
    told = installed.run("demo")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "All held." in told.stdout
    left = [*installed.cwd.iterdir(), *Path(installed.environment["TMPDIR"]).iterdir()]
    assert left == [], "it left something behind"
