"""How much of the machine a cage may take: processes, memory, scratch and disk, and what the kernel offers to hold it.

Processes are held by a pids cgroup where one may be made, else by RLIMIT_NPROC, which the kernel does not apply to
root. Memory is held by a memory cgroup (version 2), else for each process by RLIMIT_DATA.
"""

import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_PREFIX = "threadtree-"
_LEFT_OVER_SECONDS = 3600
_MEMBERSHIP = Path("/proc/self/cgroup")
# Moves itself into the group that is its first argument, then becomes what the others say: nothing of them is script.
_JOIN = 'echo 0 >"$0/cgroup.procs" && exec "$@"'


@dataclass(frozen=True, slots=True)
class Limits:
    """What all processes of one worktree's cage may take together; `file_bytes` and, without a cgroup, memory: each."""

    processes: int = 1024
    memory_bytes: int = 8 << 30
    scratch_bytes: int = 1 << 30
    file_bytes: int = 4 << 30
    disk_bytes: int = 20 << 30


class Holder(StrEnum):
    """What holds processes or memory to their limit here."""

    CGROUP = "cgroup"
    RLIMIT = "rlimit"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup under which one per worktree can be made, with the files that set its limits."""

    parent: Path
    processes_file: str | None
    memory_file: str | None


@dataclass(frozen=True, slots=True)
class Enforcement:
    """The limits and what holds them on this machine, for this user."""

    limits: Limits
    group: Group | None
    is_root: bool

    @property
    def processes(self) -> Holder:
        if self.group is not None and self.group.processes_file:
            return Holder.CGROUP
        return Holder.NOTHING if self.is_root else Holder.RLIMIT

    @property
    def memory(self) -> Holder:
        return Holder.CGROUP if self.group is not None and self.group.memory_file else Holder.RLIMIT

    def for_one_command(self) -> "Enforcement":
        """The same for a command that takes milliseconds, as joining a group does: without one, unless for root."""
        return self if self.is_root else replace(self, group=None)

    def joining(self, name: str) -> tuple[str, ...]:
        """The argv in front of the cage that puts it into the group `name`, which is made. Raises OSError."""
        if self.group is None:
            return ()
        made = self.group.parent / f"{_PREFIX}{name}"
        made.mkdir(exist_ok=True)
        for file, value in (
            (self.group.processes_file, self.limits.processes),
            (self.group.memory_file, self.limits.memory_bytes),
        ):
            if file is not None:
                (made / file).write_text(str(value))
        return ("/bin/sh", "-c", _JOIN, str(made))

    def leave(self, name: str) -> None:
        """Forgets the group `name` once nothing runs in it."""
        if self.group is not None:
            with suppress(OSError):
                (self.group.parent / f"{_PREFIX}{name}").rmdir()

    def inside(self) -> tuple[str, ...]:
        """The argv in front of the command inside the cage: setrlimit(2) through prlimit(1)."""
        chosen = [f"--fsize={self.limits.file_bytes}", "--core=0"]
        if self.processes is Holder.RLIMIT:
            # Set inside: the kernel counts this user's processes in the cage's user namespace apart.
            chosen.append(f"--nproc={self.limits.processes}")
        if self.memory is Holder.RLIMIT:
            chosen.append(f"--data={self.limits.memory_bytes}")
        return ("prlimit", *chosen)


def enforcement(limits: Limits, cgroups: Path = CGROUPS, membership: Path = _MEMBERSHIP) -> Enforcement:
    """What can hold these limits here. Tries by making a group and removing it again."""
    found = next(filter(None, (_version_2(cgroups, membership), _version_1(cgroups, membership))), None)
    if found is not None:
        _sweep(found.parent)
    return Enforcement(limits, found, os.geteuid() == 0)


def _version_2(cgroups: Path, membership: Path) -> Group | None:
    """The process's own group where its controllers reach children: delegated, or the root of a container's."""
    path = _path_of(membership, "")
    if path is None:
        return None
    own = cgroups / path.lstrip("/")
    control = own / "cgroup.subtree_control"
    try:
        if not _passes_both_on(control):
            control.write_text("+pids +memory")  # refused where the group itself holds processes
        usable = _passes_both_on(control) and _can_make_groups(own)
    except OSError:
        return None
    return Group(own, "pids.max", "memory.max") if usable else None


def _passes_both_on(control: Path) -> bool:
    return {"pids", "memory"} <= set(control.read_text().split())


def _version_1(cgroups: Path, membership: Path) -> Group | None:
    """The pids hierarchy alone: its limit is what nothing else can do for root."""
    path = _path_of(membership, "pids")
    if path is None:
        return None
    own = cgroups / "pids" / path.lstrip("/")
    return Group(own, "pids.max", None) if _can_make_groups(own) else None


def _sweep(parent: Path) -> None:
    """Removes groups that were not forgotten: those in use the kernel keeps, new ones their age."""
    for left in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_OVER_SECONDS:
                left.rmdir()


def _path_of(membership: Path, controller: str) -> str | None:
    """https://man7.org/linux/man-pages/man7/cgroups.7.html: lines of `hierarchy:controllers:path`."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    parts = (line.split(":", 2) for line in lines)
    return next((path for _, controllers, path in parts if controller in controllers.split(",")), None)


def _can_make_groups(own: Path) -> bool:
    probe = own / f"{_PREFIX}probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True
