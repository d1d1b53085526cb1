"""The demo on machines that have only what README names: minimal Debian systems, made by mmdebstrap.

`make test-fresh` runs this, `make release` with what it made. It needs root, a network, and the packages mmdebstrap and
bubblewrap.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fresh.debian import CHECKOUT, CLEAN, RELEASE, SECONDS, give_network, make_debian, needs, run

NAMED_IN_README = "python3,python3-venv,git,make"
USER_ID = 1000

pytestmark = needs()


@dataclass(frozen=True, slots=True)
class Machine:
    """A fresh system. `namespaces`: programs may make some, as bubblewrap needs; in a chroot they may not."""

    root: Path
    namespaces: bool

    def run(self, command: str, *, user_id: int, home: str) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the checkout below `home`."""
        become = ("setpriv", f"--reuid={user_id}", f"--regid={user_id}", "--clear-groups") if user_id else ()
        enter = (
            # Not bwrap's own /proc: it covers parts of it, and then nobody inside may mount one for a sandbox.
            ("bwrap", "--bind", str(self.root), "/", "--dev", "/dev", "--bind", "/proc", "/proc", "--cap-add", "ALL")
            if self.namespaces
            else ("unshare", "--mount", "--propagation=private", "sh", "-c", MOUNT, "sh", str(self.root))
        )
        inside = ("env", f"HOME={home}", "sh", "-c", f"cd {home}/threadtree && {command}")
        return subprocess.run(
            (*enter, *become, *inside), env=CLEAN, capture_output=True, text=True, timeout=SECONDS, check=False
        )


MOUNT = 'mount --bind /proc "$1/proc"; mount --rbind /dev "$1/dev"; root=$1; shift; exec chroot "$root" "$@"'


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a system with the packages that README names, and bubblewrap."""
    return make_debian(tmp_path_factory.mktemp("debian") / "root", f"{NAMED_IN_README},bubblewrap")


@pytest.fixture
def system(debian: Path, tmp_path: Path) -> Iterator[Path]:
    """Yield a copy of the system."""
    root = tmp_path / "root"
    subprocess.run(("cp", "-a", str(debian), str(root)), check=True)
    give_network(root)
    with (root / "etc/passwd").open("a") as users:
        users.write(f"ann:x:{USER_ID}:{USER_ID}::/home/ann:/bin/sh\n")
    yield root
    subprocess.run(("rm", "-rf", str(root)), check=True)  # much faster than shutil's


@pytest.mark.parametrize(
    ("user_id", "home", "bubblewrap", "namespaces", "says"),
    [
        (0, "/root", False, False, "The agent runs without a sandbox, which cannot be used here"),
        (0, "/root", True, True, "The agent runs in a bubblewrap sandbox."),
        (0, "/opt", True, False, "The agent runs without a sandbox, which cannot be used here"),
        (USER_ID, "/home/ann", False, True, "The agent runs without a sandbox, which cannot be used here"),
        (USER_ID, "/home/ann", True, True, "The agent runs in a bubblewrap sandbox."),
    ],
)
def test_the_demo_runs_on_a_fresh_machine(
    system: Path, user_id: int, home: str, bubblewrap: bool, namespaces: bool, says: str
) -> None:
    if not bubblewrap:
        (system / "usr/bin/bwrap").unlink()
    place = system / home.removeprefix("/") / "threadtree"
    place.parent.mkdir(mode=0o700, exist_ok=True)
    files = subprocess.run(("git", "-C", str(CHECKOUT), "archive", "HEAD"), capture_output=True, check=True).stdout
    place.mkdir()
    subprocess.run(("tar", "--extract", "--directory", str(place)), input=files, check=True)
    subprocess.run(("chown", "-R", f"{user_id}:{user_id}", str(place.parent)), check=True)
    done = Machine(system, namespaces).run("make demo", user_id=user_id, home=home)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert says in done.stdout
    assert re.search(r"^(\d+) of \1 checks held", done.stdout, re.MULTILINE), done.stdout[-3000:]
    assert "Try it by hand: threadtree demo --keep" in done.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the release that is tried, or one with a wheel, an sdist and the pinned packages."""
    if RELEASE is not None:
        return Path(RELEASE)
    place = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place, CHECKOUT)
    shutil.copy(CHECKOUT / "requirements/runtime.txt", place / "threadtree-runtime.txt")
    return place


@pytest.mark.parametrize("part", ["*.whl", "*[0-9].tar.gz"])
def test_a_release_runs_on_a_fresh_machine(system: Path, release: Path, part: str) -> None:
    place = system / "opt/threadtree"
    place.mkdir()
    pip = ".venv/bin/pip install --quiet --no-cache-dir"
    for pattern in (part, "*-runtime.txt"):
        [one] = release.glob(pattern)
        shutil.copy(one, place)
    steps = (
        "python3 -m venv .venv",
        f"{pip} --require-hashes -r *-runtime.txt",
        f"{pip} --no-deps --no-build-isolation {part}",
        ".venv/bin/pip freeze --all >installed",
        ".venv/bin/threadtree demo",
    )
    done = Machine(system, namespaces=True).run(" && ".join(steps), user_id=0, home="/opt")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"^(\d+) of \1 checks held", done.stdout, re.MULTILINE), done.stdout[-3000:]
    installed = [re.split("==| @ ", line)[0] for line in (place / "installed").read_text().splitlines()]
    assert normal(installed) - normal(named_in_its_list(release)) <= {"pip", "setuptools", "threadtree"}


def named_in_its_list(release: Path) -> list[str]:
    """Return the packages that its list (SBOM) names; for one that is not published, what is pinned."""
    if RELEASE is None:
        return re.findall(r"^([a-z0-9-]+)==", (release / "threadtree-runtime.txt").read_text(), re.MULTILINE)
    [made] = release.glob("*.cdx.json")
    return [component["name"] for component in json.loads(made.read_text())["components"]]


def normal(names: Iterable[str]) -> set[str]:
    """Spell names as https://packaging.python.org/en/latest/specifications/name-normalization/ says."""
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}
