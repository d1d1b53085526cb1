"""The units in docs/install/systemd, as systemd reads them. `make test-fresh` also starts them."""

import shutil
import subprocess
from pathlib import Path

import pytest

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
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/threadtree/bin/threadtree", "/bin/true"))
    checked = analyze("verify", "--man=no", *tmp_path.iterdir())
    told = [line for line in checked.stderr.splitlines() if str(tmp_path) in line]
    assert (checked.returncode, told) == (0, []), checked.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_as_hard_as_it_says(unit: Path) -> None:
    rated = analyze("security", "--no-pager", "--offline=yes", f"--threshold={MOST_EXPOSED[unit.name]}", unit)
    assert rated.returncode == 0, rated.stdout[-3000:] + rated.stderr


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
