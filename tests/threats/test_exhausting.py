"""An agent cannot use up the machine, and nothing of it outlives the turn. Every attack here is itself bounded."""

import asyncio
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bot.sandbox.bwrap import Bwrap
from bot.sandbox.disk import used_bytes
from bot.sandbox.limits import Holder
from bot.tree.clone import importing
from bot.tree.clone.checkout import require_checkout
from bot.tree.clone.clone import clone_lock
from bot.tree.push import Pushed
from bot.tree.sync import sync
from tests.support.git_repositories import RESCUE
from tests.support.patience import PATIENCE_SECONDS
from tests.threats.conftest import BRANCH, LIMITS, Machine

# Not more than this even without a limit.
FORKS = 200


def processes_named(name: str) -> list[int]:
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                if name.encode() in (directory / "cmdline").read_bytes():
                    found.append(int(directory.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def wait_until_gone(name: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while processes_named(name):
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.02)


_STAYING = """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "{seconds}"])
        os._exit(0)
print("left", flush=True)
"""


def test_a_process_left_behind_ends_with_the_turn(machine: Machine) -> None:
    seconds = f"54321.{os.getpid()}"
    assert "left" in machine.attack(_STAYING.format(seconds=seconds) + "time.sleep(0.2)")
    wait_until_gone(seconds)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_sandbox_is_the_end_of_all_in_it(machine: Machine, number: signal.Signals) -> None:
    seconds = f"54322.{os.getpid()}"
    program = _STAYING.format(seconds=seconds) + "signal = __import__('signal'); signal.signal(15, 1); time.sleep(600)"
    argv = machine.command(program)
    with subprocess.Popen(argv, cwd=machine.world.path, env=machine.environment(), stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"left\n"
        agent.send_signal(number)
        wait_until_gone(seconds)


def test_a_fork_bomb_stops_at_the_limit(machine: Machine) -> None:
    sandbox = machine.world.clone.git.sandbox
    assert isinstance(sandbox, Bwrap)
    if sandbox.enforcement.processes is Holder.NOTHING:
        pytest.skip("as root without a writable cgroup the kernel limits no processes")
    said = machine.attack(
        f"""
children = []
try:
    for _ in range({FORKS}):
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        children.append(child)
except OSError as error:
    print("refused:", error)
print(len(children), "forked")
for child in children:
    os.kill(child, 9)
"""
    )
    assert "refused" in said
    assert int(said.split()[-2]) < LIMITS.processes


def test_a_fork_bomb_in_what_the_bots_git_runs_stops_too(machine: Machine) -> None:
    sandbox = machine.world.clone.git.sandbox
    assert isinstance(sandbox, Bwrap)
    if sandbox.enforcement.processes is Holder.NOTHING:
        pytest.skip("as root without a writable cgroup the kernel limits no processes")
    bomb = f"alias.bomb=!i=0; while [ $i -lt {FORKS} ]; do sleep 600 & i=$((i+1)); done; echo all"
    argv = (*sandbox.git_argv(machine.world.view()), "git", "-c", bomb, "bomb")
    done = subprocess.run(
        argv, env=machine.environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert "all" not in done.stdout


def test_memory_ends_before_the_machines_does(machine: Machine) -> None:
    said = machine.attack(
        f"""
held = []
try:
    while len(held) < {LIMITS.memory_bytes * 2 >> 20}:
        held.append(bytes(1 << 20))
    print("had it all")
except MemoryError:
    print("refused")
"""
    )
    assert "refused" in said


def test_scratch_and_single_files_are_bounded(machine: Machine) -> None:
    said = machine.attack(
        f"""
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def fill(path, size):
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    print("filled", path)
attempt(fill, "/tmp/filler", {LIMITS.scratch_bytes * 2})
attempt(fill, "/dev/shm/filler", {LIMITS.scratch_bytes * 2})
attempt(fill, worktree / "filler", {LIMITS.file_bytes + (8 << 20)})
"""
    )
    assert said.count("refused: ") == 3, said


async def test_a_huge_commit_is_not_let_in(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MAX_PACK_BYTES", 1 << 20)
    machine.attack(
        """
for number in range(4):
    (worktree / f"random-{number}").write_bytes(os.urandom(1 << 20))
git("add", "-A", check=True)
git("commit", "-q", "-m", "huge", check=True)
"""
    )
    before = await machine.world.clone.commit_at(f"refs/heads/{BRANCH}")
    results = await machine.after_the_turn()
    assert any("maximum allowed size" in str(result) for result in results), results
    assert await machine.world.clone.commit_at(f"refs/heads/{BRANCH}") == before
    async with clone_lock(machine.world.clone) as lock:
        assert await sync(await require_checkout(lock, machine.world.path), BRANCH, RESCUE) is None
    machine.attack("git('reset', '-q', '--hard', 'HEAD~1', check=True); (worktree / 'small').write_text('1')")
    assert any(isinstance(result, Pushed) for result in await machine.after_the_turn())


async def test_a_disk_being_filled_is_seen(machine: Machine) -> None:
    world = machine.world
    sandbox = world.clone.git.sandbox
    assert isinstance(sandbox, Bwrap)
    watch = replace(sandbox.disk_watch(world.view(), world.home), limit_bytes=8 << 20)
    watching = asyncio.create_task(watch.overflow(poll_seconds=0.01))
    machine.attack("for n in range(100): (worktree / f'small-{n}').write_bytes(os.urandom(64 << 10))")
    await asyncio.sleep(0)
    machine.attack("(pathlib.Path(os.environ['HOME']) / 'more').write_bytes(os.urandom(4 << 20))")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await watching > watch.limit_bytes


def test_counting_disk_follows_no_link_and_forgives_what_is_gone(machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "up").symlink_to("/usr")
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", 1 << 40)
    assert used_bytes((folder, tmp_path / "gone"), 1 << 30) < 1 << 20
