"""Which workers are alive: real processes, real locks of the kernel."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bot.locks import is_alive, worker_lock

HOLDER = """
import sys, time
from pathlib import Path
from bot.locks import worker_lock
with worker_lock(Path(sys.argv[1])) as worker:
    print(worker, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def workers(tmp_path: Path) -> Path:
    return tmp_path / "data" / "workers"


class Holder:
    """A process of its own with a worker lock, until its input ends."""

    def __init__(self, workers: Path) -> None:
        argv = [sys.executable, "-c", HOLDER, str(workers)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.worker = self.process.stdout.readline().strip()

    def __enter__(self) -> "Holder":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


def test_a_worker_is_alive_while_it_holds_its_lock(workers: Path) -> None:
    with worker_lock(workers) as worker:
        assert is_alive(workers, worker)
        assert is_alive(workers, worker)

    assert not is_alive(workers, worker)
    assert list(workers.iterdir()) == []


def test_every_worker_has_a_name_of_its_own(workers: Path) -> None:
    with worker_lock(workers) as one, worker_lock(workers) as other:
        assert one != other

        assert is_alive(workers, one)
        assert is_alive(workers, other)


def test_a_worker_that_failed_is_dead(workers: Path) -> None:
    def fail() -> None:
        with worker_lock(workers) as worker:
            names.append(worker)
            raise RuntimeError

    names: list[str] = []
    with pytest.raises(RuntimeError):
        fail()

    assert not is_alive(workers, names[0])


def test_a_killed_process_is_dead_and_leaves_nothing_behind(workers: Path) -> None:
    with Holder(workers) as holder:
        assert is_alive(workers, holder.worker)

        holder.process.kill()
        holder.process.wait(timeout=30)

        assert not is_alive(workers, holder.worker)
        assert list(workers.iterdir()) == []
        assert not is_alive(workers, holder.worker)


def test_a_suspended_process_is_alive(workers: Path) -> None:
    with Holder(workers) as holder:
        os.kill(holder.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, holder.process.pid, os.WSTOPPED | os.WNOWAIT)

        assert is_alive(workers, holder.worker)


def test_what_a_worker_started_does_not_keep_it_alive(workers: Path) -> None:
    with worker_lock(workers) as worker:
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        assert not is_alive(workers, worker)
    finally:
        child.kill()
        child.wait()


def test_the_folder_belongs_to_the_user_alone(workers: Path) -> None:
    with worker_lock(workers) as worker:
        assert (workers / f"{worker}.lock").stat().st_mode & 0o077 == 0
        assert workers.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/etc/passwd", "../secret", "../../../../../..", "a" * 15, "a" * 17, "a" * 100_000),
        *("A" * 16, "٠" * 16, "0123456789abcde\n", "0123456789abcdef\n", "0123456789abcdef\0"),
    ],
)
def test_an_invalid_worker_name_is_dead_and_touches_no_file(workers: Path, name: str) -> None:
    workers.mkdir(parents=True)
    secret = workers.parent / "secret.lock"
    secret.write_text("kept")

    assert not is_alive(workers, name)
    assert secret.read_text() == "kept"


def test_an_unknown_worker_and_a_folder_that_is_not_there_are_dead(workers: Path) -> None:
    assert not is_alive(workers, "0123456789abcdef")
    workers.mkdir(parents=True)
    assert not is_alive(workers, "0123456789abcdef")
    assert list(workers.iterdir()) == []
