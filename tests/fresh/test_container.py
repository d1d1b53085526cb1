"""The image of Dockerfile, built by buildah on a Debian made here, and run by crun as compose.yaml says.

`make test-fresh` runs this in about six minutes, `make release` with the image of the release. It needs root, network,
and the packages mmdebstrap, buildah and crun.
"""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.fresh.debian import CHECKOUT, RELEASE, make_debian, needs, of_the_network, run

PROFILE = json.loads((CHECKOUT / "docs/install/container/seccomp.json").read_text())
OF_THE_PROFILE = {"names", "action", "errnoRet", "args"}
MASKED: dict[str, Any] = {"maskedPaths": ["/proc/kcore", "/proc/keys"], "readonlyPaths": ["/proc/sys"]}
"""What Docker does without systempaths=unconfined."""
# crun wants one hierarchy of groups, which not every machine has.
START = (
    "umount -l /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec crun --cgroup-manager=disabled run -b "
)
CALLS = """
import ctypes, os
call = ctypes.CDLL(None, use_errno=True).syscall
for name, number in (("setns", 308), ("keyctl", 250), ("bpf", 321), ("io_uring_setup", 425), ("fsopen", 430)):
    ctypes.set_errno(0)
    print(name, call(number, 0, 0, 0), os.strerror(ctypes.get_errno()))
"""

pytestmark = needs("buildah", "crun", "bwrap")


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """Build the image, or take the release's; yield the folder with its files."""
    # Not in memory: each layer is a whole copy.
    place = Path(mkdtemp(prefix="threadtree-image-", dir="/var/tmp"))
    store = ("--root", place / "store", "--runroot", place / "run", "--storage-driver", "vfs")
    buildah = ("buildah", *store)
    try:
        name = build(buildah, place) if RELEASE is None else unpack(Path(RELEASE), place)
        made = run(*buildah, "from", "--quiet", name).strip()
        yield Path(run(*buildah, "mount", made).strip())
        run(*buildah, "umount", made)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def build(buildah: tuple[object, ...], place: Path) -> str:
    base = run(*buildah, "from", "scratch").strip()
    run(*buildah, "add", base, make_debian(place / "debian.tar", "python3,python3-venv"), "/")
    run(*buildah, "commit", base, "localhost/debian")
    network = [word for name in of_the_network() for word in ("--volume", f"{name}:{name}:ro")]
    options = ("--isolation", "chroot", "--build-arg", "BASE=localhost/debian", "--build-arg", "EXTRAS=")
    run(*buildah, "bud", *options, *network, "--tag", "threadtree", "--file", CHECKOUT / "Dockerfile", CHECKOUT)
    return "localhost/threadtree"


def unpack(release: Path, place: Path) -> str:
    [image] = release.glob("*-image.tar.gz")
    with gzip.open(image) as packed, (place / "image.tar").open("wb") as plain:  # buildah 1.28 reads no packed one
        shutil.copyfileobj(packed, plain)
    return f"docker-archive:{place / 'image.tar'}"


def started(image: Path, folder: Path, *command: str, profile: dict[str, Any] = PROFILE, **linux: Any) -> str:
    """Run a command in the image, as the user and with the rights that compose.yaml gives; return what it prints."""
    (folder / "data").mkdir(exist_ok=True)
    shutil.chown(folder / "data", 1000, 1000)
    rules = [{name: rule[name] for name in OF_THE_PROFILE & rule.keys()} for rule in profile["syscalls"]]
    architectures = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
    some = {"options": ["nosuid", "nodev", "mode=1777"], "type": "tmpfs", "source": "tmpfs"}
    configuration = {
        "ociVersion": "1.0.2",
        "root": {"path": str(image), "readonly": True},
        "process": {
            "user": {"uid": 1000, "gid": 1000},
            "args": command,
            "cwd": "/data",
            "env": ["PATH=/opt/threadtree/bin:/usr/bin:/bin", "HOME=/data", "DATA_DIR=/data", "HOST=0.0.0.0"],
            "noNewPrivileges": True,
            "capabilities": {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")},
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["newinstance", "ptmxmode=0666"],
            },
            {"destination": "/dev/shm", **some},
            {"destination": "/tmp", **some},
            {"destination": "/data", "type": "bind", "source": str(folder / "data"), "options": ["bind", "rw"]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "seccomp": {
                "defaultAction": profile["defaultAction"],
                "defaultErrnoRet": profile["defaultErrnoRet"],
                "architectures": architectures,
                "syscalls": rules,
            },
            **linux,
        },
    }
    (folder / "config.json").write_text(json.dumps(configuration))
    name = f"threadtree-{folder.name}"
    return run("unshare", "--mount", "--cgroup", "sh", "-c", f'{START} "$1" "$2"', "sh", folder, name, expected=None)


def test_the_demo_holds_in_the_sandbox(image: Path, tmp_path: Path) -> None:
    told = started(image, tmp_path, "threadtree", "demo")
    assert "The agent runs in a bubblewrap sandbox." in told, told[-3000:]
    assert "All held." in told, told[-3000:]


def test_doctor_finds_what_the_image_brings(image: Path, tmp_path: Path) -> None:
    told = started(image, tmp_path, "threadtree", "doctor")
    for part in ("git", "git-lfs", "database", "sandbox"):
        assert f"\n{part:13} ok" in told, told


def test_each_right_is_needed(image: Path, tmp_path: Path) -> None:
    cannot = "sandbox       problem"
    assert cannot in started(image, tmp_path, "threadtree", "doctor", **MASKED)
    fewer = [rule for rule in PROFILE["syscalls"] if "mount" not in rule["names"]]
    assert cannot in started(image, tmp_path, "threadtree", "doctor", profile={**PROFILE, "syscalls": fewer})


def test_more_is_refused(image: Path, tmp_path: Path) -> None:
    told = started(image, tmp_path, "python3", "-c", CALLS).splitlines()
    asked = [line for line in told if " -1 " in line]
    assert len(asked) == CALLS.count('", ')
    assert [line for line in asked if not line.endswith("Operation not permitted")] == []
    assert "Read-only file system" in started(image, tmp_path, "sh", "-c", "touch /usr/bin/threadtree")
