"""Limits of a sandbox: processes, memory, scratch space and disk, and how the kernel enforces them.

Processes are limited by a pids cgroup where one can be made, else by RLIMIT_NPROC, which the kernel does not apply to
root. Memory is limited by a memory cgroup (version 2), else for each process by RLIMIT_DATA.
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
# The shell moves itself into the group that is its first argument and then becomes the command in the others.
_JOIN = 'echo 0 >"$0/cgroup.procs" && exec "$@"'


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of all processes in one worktree's sandbox; `file_bytes`, and memory without a cgroup, apply to each."""

    processes: int = 1024
    memory_bytes: int = 8 << 30
    scratch_bytes: int = 1 << 30
    file_bytes: int = 4 << 30
    disk_bytes: int = 20 << 30


class Holder(StrEnum):
    """The mechanism that enforces a limit here."""

    CGROUP = "cgroup"
    RLIMIT = "rlimit"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup below which each worktree gets its own. It limits processes, in version 2 also `memory`."""

    parent: Path
    memory: bool


@dataclass(frozen=True, slots=True)
class Enforcement:
    """The limits, and what enforces them on this machine for this user."""

    limits: Limits
    group: Group | None
    is_root: bool

    @property
    def processes(self) -> Holder:
        if self.group is not None:
            return Holder.CGROUP
        return Holder.NOTHING if self.is_root else Holder.RLIMIT

    @property
    def memory(self) -> Holder:
        return Holder.CGROUP if self.group is not None and self.group.memory else Holder.RLIMIT

    def for_one_command(self) -> "Enforcement":
        """Return the enforcement for a short command: without a group, which takes as long to join, except for root."""
        return self if self.is_root else replace(self, group=None)

    def join_group(self, name: str) -> tuple[str, ...]:
        """Make the group `name`, and return the argv prefix that puts a sandbox into it. Raises OSError."""
        if self.group is None:
            return ()
        made = self.group.parent / f"{_PREFIX}{name}"
        made.mkdir(exist_ok=True)
        (made / "pids.max").write_text(str(self.limits.processes))
        if self.group.memory:
            (made / "memory.max").write_text(str(self.limits.memory_bytes))
        return ("/bin/sh", "-c", _JOIN, str(made))

    def remove_group(self, name: str) -> None:
        """Remove the group `name` if nothing runs in it."""
        if self.group is not None:
            with suppress(OSError):
                (self.group.parent / f"{_PREFIX}{name}").rmdir()

    def limit_argv(self) -> tuple[str, ...]:
        """Return the argv prefix inside the sandbox that sets the limits: setrlimit(2) through prlimit(1)."""
        chosen = [f"--fsize={self.limits.file_bytes}", "--core=0"]
        if self.processes is Holder.RLIMIT:
            # Inside the sandbox the kernel counts only the processes in its user namespace.
            chosen.append(f"--nproc={self.limits.processes}")
        if self.memory is Holder.RLIMIT:
            chosen.append(f"--data={self.limits.memory_bytes}")
        return ("prlimit", *chosen)


def enforcement(limits: Limits, cgroups: Path = CGROUPS, membership: Path = _MEMBERSHIP) -> Enforcement:
    """Return what can enforce these limits here. The check makes a group and removes it again."""
    found = next(filter(None, (_version_2(cgroups, membership), _version_1(cgroups, membership))), None)
    if found is not None:
        _sweep(found.parent)
    return Enforcement(limits, found, os.geteuid() == 0)


def _version_2(cgroups: Path, membership: Path) -> Group | None:
    """Return the process's own group if its controllers apply to children: delegated, or the root of a container."""
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
    return Group(own, memory=True) if usable else None


def _passes_both_on(control: Path) -> bool:
    return {"pids", "memory"} <= set(control.read_text().split())


def _version_1(cgroups: Path, membership: Path) -> Group | None:
    """Return a group of the pids hierarchy only: nothing else limits processes of root."""
    path = _path_of(membership, "pids")
    if path is None:
        return None
    own = cgroups / "pids" / path.lstrip("/")
    return Group(own, memory=False) if _can_make_groups(own) else None


def _sweep(parent: Path) -> None:
    """Remove old groups of earlier processes. The kernel keeps those in use."""
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
