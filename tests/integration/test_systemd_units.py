"""The units in docs/install/systemd, as systemd reads them. `make test-fresh` also starts them."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bot.cli.main import app
from bot.cli.setup import service
from bot.serve.base import CannotStartError
from bot.settings import load

PROGRAM = "/opt/threadtree/bin/threadtree"
UNITS = sorted((Path(__file__).parents[2] / "docs/install/systemd").glob("*.service"))
MOST_EXPOSED = {"threadtree.service": 31, "threadtree-worker.service": 31, "threadtree-web.service": 12}
"""In tenths, as systemd 252 counts: https://www.freedesktop.org/software/systemd/man/latest/systemd-analyze.html"""
NOT_WITH_A_SANDBOX = (
    *("RestrictNamespaces", "ProtectKernelTunables", "ProtectKernelLogs", "ProcSubset", "MemoryDenyWriteExecute"),
)


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_systemd_knows_every_option(tmp_path: Path) -> None:
    for unit in UNITS:
        # It looks for the program.
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    checked = analyze("verify", "--man=no", *tmp_path.iterdir())
    told = [line for line in checked.stderr.splitlines() if str(tmp_path) in line]
    assert (checked.returncode, told) == (0, []), checked.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_as_hard_as_it_says(unit: Path) -> None:
    rated = analyze("security", "--no-pager", "--offline=yes", f"--threshold={MOST_EXPOSED[unit.name]}", unit)
    assert rated.returncode == 0, rated.stdout[-3000:] + rated.stderr


def test_a_unit_of_setup_is_for_this_user_and_as_hard(tmp_path: Path) -> None:
    folder, data = tmp_path / 'my 100% "bot"', tmp_path / "data $HOME"
    folder.mkdir()
    settings = load({"HOME": str(tmp_path), "DATA_DIR": str(data), "PATH": "/usr/bin:/bin"}, dotenv=None)
    said = service.write_unit(settings, folder, Path("/bin/true"))
    written = folder / "threadtree.service"
    assert f"{shlex.quote(str(written))} /etc/systemd/system/threadtree.service" in said
    assert data.is_dir()
    checked = analyze("verify", "--man=no", written)
    (tmp_path / written.name).write_text(re.sub("(?m)^User=.*", "User=ann", written.read_text()))
    rated = analyze("security", "--no-pager", "--offline=yes", "--threshold=32", tmp_path / written.name)
    assert [line for line in checked.stderr.splitlines() if str(written) in line] == []
    assert (checked.returncode, rated.returncode) == (0, 0), rated.stdout[-3000:] + rated.stderr
    ours, usual = options(written), options(UNITS[2])
    assert ours["WorkingDirectory"] == f'{tmp_path}/my 100%% "bot"'
    assert ours["ReadWritePaths"] == f'"{data}"'
    assert {name for name, _ in ours.items() ^ usual.items()} == {
        *("User", "WorkingDirectory", "Environment", "ExecStart", "ReadWritePaths", "ProtectHome"),
        *("ConfigurationDirectory", "ConfigurationDirectoryMode", "StateDirectory", "StateDirectoryMode"),
    } - {name for name in ("User", "ProtectHome") if ours[name] == usual[name]}


def test_homes_are_hidden_where_nothing_of_the_bot_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    given = service.template(), "ann", Path("/srv/bot"), Path("/srv/data"), Path("/opt/bot/bin/threadtree"), "/usr/bin"
    assert "\nProtectHome=yes\n" in service.unit(*given)
    at_home = *given[:3], Path("/home/ann/data"), *given[4:]
    assert '\nProtectHome=read-only\nReadWritePaths="/home/ann/data"\n' in service.unit(*at_home)
    with pytest.raises(CannotStartError, match="no unit can have"):
        service.unit(*given[:2], Path("/srv/bot\nUser=root"), given[3], given[4], given[5])


def test_root_gets_no_unit_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["setup", "--service", "--poll"])
    assert isinstance(result.exception, CannotStartError)
    assert "root is not" in str(result.exception)


def test_what_runs_agents_may_make_sandboxes() -> None:
    texts = {unit.name: options(unit) for unit in UNITS}
    for name in NOT_WITH_A_SANDBOX:
        assert name in texts["threadtree-web.service"]
        assert name not in texts["threadtree-worker.service"] | texts["threadtree.service"]
    different = texts["threadtree.service"].items() ^ texts["threadtree-worker.service"].items()
    assert {name for name, _ in different} == {"Description", "After", "ExecStart", "ExecStartPre", "Nice"}


def options(unit: Path) -> dict[str, str]:
    lines = (line.partition("=") for line in unit.read_text().splitlines() if line[:1] not in ("", "#", "["))
    return {name: value for name, _, value in lines}
