"""The units in docs/install/systemd, started by a systemd that runs in a Debian made here.

`make test-fresh` runs this in about five minutes. It needs root, a network, and the packages mmdebstrap and bubblewrap.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fresh.debian import CHECKOUT, CLEAN, give_network, make_debian, needs, run

PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,git,git-lfs,bubblewrap,postgresql"
UNITS = CHECKOUT / "docs/install/systemd"
SETTINGS = """
GITHUB_WEBHOOK_SECRET=a secret of the webhook
GITHUB_TOKEN=ghp_none
GITHUB_API_URL=http://127.0.0.1:9
BOT_NAME=threadtree-bot
AGENT=custom
AGENT_COMMAND=/bin/cat
PORT=0
"""
BOOT = """
mount --bind "$1" "$1"; cd "$1"
mount -t proc proc proc; mount -t sysfs -o ro sysfs sys; mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp; mount -t tmpfs tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm; mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts; ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm; ln -s /proc/self/fd dev/fd; ip link set lo up
pivot_root . mnt; umount -l /mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --log-target=console
"""
SPACES = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net")
pytestmark = needs("bwrap", "unshare", "nsenter", "ip")

Inside = Callable[..., str]


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    """Boot a Debian with the wheel in /opt/threadtree and the units; yield what runs a shell command in it."""
    folder = tmp_path_factory.mktemp("machine")
    root = make_debian(folder / "root", PACKAGES)
    give_network(root)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", root / "opt", CHECKOUT)
    for unit in UNITS.iterdir():
        (root / "etc/systemd/system" / unit.name).write_text(unit.read_text())
    (root / "opt/runtime.txt").write_text((CHECKOUT / "requirements/runtime.txt").read_text())
    # As docs/install/systemd.md says.
    pip = "/opt/threadtree/bin/pip install --quiet"
    steps = (
        "python3 -m venv /opt/threadtree",
        f"{pip} --require-hashes -r /opt/runtime.txt && {pip} --no-deps /opt/*.whl",
        "useradd --system --home-dir /var/lib/threadtree --shell /usr/sbin/nologin threadtree",
        "install -d -o root -g threadtree -m 0750 /etc/threadtree",
        f"echo '{SETTINGS}' >/etc/threadtree/.env && chgrp threadtree /etc/threadtree/.env",
    )
    mounted = 'mount --bind /proc "$1/proc"; mount --rbind /dev "$1/dev"; exec chroot "$1" sh -c "$2"'
    run("unshare", "--mount", "sh", "-c", mounted, "sh", root, " && ".join(steps))
    with (folder / "log").open("wb") as log:
        argv = ("unshare", *SPACES, "--fork", "--kill-child", "sh", "-ec", BOOT, "sh", str(root))
        machine = subprocess.Popen(argv, env=CLEAN, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def in_it(command: str, *, expected: int | None = 0) -> str:
        first = Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().strip()
        return run("nsenter", "-t", first, "-m", "-p", "-u", "-i", "-n", "-C", "sh", "-c", command, expected=expected)

    try:
        until(lambda: "running" in in_it("systemctl is-system-running", expected=None))  # first there is no child yet
        yield in_it
    finally:
        machine.send_signal(signal.SIGKILL)
        machine.wait()
        run("rm", "-rf", "--one-file-system", root)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for this."""
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_the_demo_holds_within_the_hardened_unit(inside: Inside) -> None:
    unit = (UNITS / "threadtree.service").read_text()
    unit = unit.replace("threadtree serve", "threadtree demo").replace("Type=exec", "Type=oneshot")
    inside(f"cat >/run/systemd/system/demo.service <<'END'\n{unit.replace('Restart=on-failure', '')}\nEND")
    inside("systemctl daemon-reload; systemctl start demo", expected=None)
    told = inside("journalctl -u demo -o cat")
    assert "The agent runs in a bubblewrap sandbox." in told, told[-3000:]
    assert "All held." in told, told[-3000:]


@pytest.mark.parametrize("units", ["threadtree", "threadtree-web threadtree-worker"])
def test_the_bot_starts_and_stops(inside: Inside, units: str) -> None:
    if units != "threadtree":
        inside("su postgres -c 'createuser threadtree && createdb -O threadtree threadtree'")
        inside("echo 'DATABASE_URL=postgresql:///threadtree?host=/var/run/postgresql' >>/etc/threadtree/.env")
    inside(f"systemctl start {units}")
    log = f"journalctl -o cat {' '.join(f'-u {unit}' for unit in units.split())}"
    for event in ("listening", "sandbox-usable"):
        until(lambda event=event: f'"{event}"' in inside(log))  # type: ignore[misc]
    inside(f"systemctl stop {units}")
    for unit in units.split():
        assert inside(f"systemctl show {unit} -p Result -p ExecMainStatus").split() == [
            "Result=success",
            "ExecMainStatus=0",
        ]


def test_a_wrong_setting_is_not_tried_again(inside: Inside) -> None:
    inside("echo PORT=many >>/etc/threadtree/.env; systemctl start threadtree", expected=None)
    until(lambda: "failed" in inside("systemctl is-active threadtree", expected=None))
    told = inside("systemctl show threadtree -p NRestarts -p ExecMainStatus").split()
    assert sorted(told) == ["ExecMainStatus=2", "NRestarts=0"]
    assert "PORT must be" in inside("journalctl -u threadtree -o cat")
