"""`threadtree demo` on this machine, as a newcomer starts it."""

import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE_SECONDS


def test_every_check_of_the_demo_holds(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-m", "bot", "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "All held." in told.stdout
    assert list(tmp_path.iterdir()) == [], "it left something behind"
