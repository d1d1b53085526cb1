"""The cage: bubblewrap around everything that touches what an agent could have written."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bot.sandbox.disk import DiskWatch
from bot.sandbox.limits import Enforcement, Holder, Limits, enforcement
from bot.sandbox.system import command_mounts, program_mounts, setting_mounts
from bot.sandbox.view import View, mounts, private_folder

OLDEST_VERSION = (0, 8)
_PROBE_SECONDS = 20
_DEVICES_OF_GIT = ("/dev/null", "/dev/urandom")


@dataclass(frozen=True, slots=True)
class Usable:
    """The cage works here; `processes` and `memory` say what holds its limits."""

    version: str
    processes: Holder
    memory: Holder


@dataclass(frozen=True, slots=True)
class Unusable:
    """There is no cage here."""

    why: str
    what_to_do: str


@dataclass(frozen=True, slots=True)
class Bind:
    """Something more for the inside, at the path it has outside or `at` another."""

    path: Path
    writable: bool = False
    at: Path | None = None


@dataclass(frozen=True, slots=True)
class Cage:
    """Makes argvs that run in the cage. What is in `data_dir`, a real path, is hidden but for what a view shows.

    `known_as` is the path by which everybody calls it: the same, or one that leads there through symbolic links.
    """

    data_dir: Path
    known_as: Path
    search_path: str
    bwrap: str
    enforcement: Enforcement

    def probe(self) -> Usable | Unusable:
        """Whether a process can be started in it here and now, as this user."""
        return _probe(self.bwrap, (*self.probe_argv(), "true"), self.enforcement)

    def probe_argv(self) -> tuple[str, ...]:
        """What stands in front of a command in a cage that shows nothing but the system."""
        return (
            *self._front(),
            *self._whole_system(),
            *self._data_dir(),
            *self._back("/"),
            *self.enforcement.inside(),
            "--",
        )

    def view(self, clone: Path, worktree: Path, admin: Path) -> View:
        """What a process in this worktree sees; all paths real."""
        return View(clone, worktree, admin, private_folder(self.data_dir, worktree))

    def git_argv(self, view: View, *, in_worktree: bool = True) -> tuple[str, ...]:
        """What stands in front of git: no network, no HOME; in the admin folder, without the worktree, if so wanted.

        The environment is that of the process. Raises OSError.
        """
        enforced = self.enforcement.for_one_command()
        return (
            *enforced.joining(view.name),
            *self._front(),
            *(option for device in _DEVICES_OF_GIT for option in ("--dev-bind", device, device)),
            *self._data_dir(),
            *mounts(view, with_worktree=in_worktree),
            *self._back(str(view.worktree if in_worktree else view.admin)),
            *enforced.inside(),
            "--",
        )

    def agent_argv(
        self,
        view: View,
        command: Sequence[str],
        home: Path,
        cwd: Path,
        *,
        network: Literal["host", "none"] = "none",
        wrapper: Sequence[str] = (),
        binds: Sequence[Bind] = (),
    ) -> tuple[str, ...]:
        """The argv of an agent in its worktree `cwd`. `wrapper` is put in front of the command, behind a `--` of ours.

        The environment is that of the process, never in argv. Raises OSError, UnsafeCommandError.
        """
        programs = [*command_mounts(command, self.search_path, self.data_dir)]
        if wrapper:
            programs += command_mounts(wrapper, self.search_path, self.data_dir)
        shared = ("--share-net",) if network == "host" else ()
        extra = [option for bind in binds for option in _bind(bind)]
        return (
            *self.enforcement.joining(view.name),
            *self._front(shared),
            *self._whole_system(),
            *programs,
            *self._data_dir(),
            *mounts(view, with_worktree=True),
            *("--bind", str(home.resolve()), str(home.resolve())),
            *extra,
            *self._back(str(cwd)),
            *self.enforcement.inside(),
            *wrapper,
            "--",
            *command,
        )

    def disk_watch(self, view: View, home: Path) -> DiskWatch:
        """Watches all that an agent can write and that outlives its turn."""
        return DiskWatch((view.worktree, view.private, home), self.enforcement.limits.disk_bytes)

    def forget(self, view_name: str) -> None:
        """Lets go of what the kernel keeps for a worktree."""
        self.enforcement.leave(view_name)

    def _front(self, shared: Sequence[str] = ()) -> Iterator[str]:
        """The namespaces, programs and scratch of everything. The environment is built by the caller: it goes in."""
        yield from (self.bwrap, "--unshare-all", *shared, "--unshare-user", "--disable-userns")
        yield from ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
        yield from program_mounts()
        yield from (*self._scratch(), "/tmp")  # noqa: S108

    def _whole_system(self) -> Iterator[str]:
        """What an agent's programs expect of a machine."""
        yield from setting_mounts()
        # Settings of the kernel there are writable for root whatever capabilities were dropped.
        yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev")
        yield from (*self._scratch(), "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
        yield from ("--symlink", "../tmp", "/var/tmp")  # noqa: S108

    def _scratch(self) -> tuple[str, ...]:
        return "--size", str(self.enforcement.limits.scratch_bytes), "--tmpfs"

    def _data_dir(self) -> Iterator[str]:
        """Hidden, whatever was shown so far and wherever the operator put it."""
        yield from ("--size", str(1 << 20), "--tmpfs", str(self.data_dir))
        if self.known_as != self.data_dir:
            yield from ("--symlink", str(self.data_dir), str(self.known_as))

    def _back(self, cwd: str) -> Iterator[str]:
        yield from ("--remount-ro", str(self.data_dir), "--remount-ro", "/", "--chdir", cwd)


def cage_for(
    sandbox: Literal["auto", "bwrap", "off"], data_dir: Path, search_path: str, limits: Limits | None = None
) -> Cage | None:
    """The cage that AGENT_SANDBOX asks for: None for `off`, else one to `probe` before it is used."""
    if sandbox == "off":
        return None
    bwrap = shutil.which("bwrap", path=search_path) or "/usr/bin/bwrap"
    return Cage(data_dir.resolve(), data_dir.absolute(), search_path, bwrap, enforcement(limits or Limits()))


def _bind(bind: Bind) -> tuple[str, str, str]:
    return ("--bind" if bind.writable else "--ro-bind", str(bind.path), str(bind.at or bind.path))


_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"ENOSPC|No space left on device", re.I),
        "Allow user namespaces: `sysctl -w user.max_user_namespaces=15000`.",
    ),
    (
        re.compile(r"uid map: Permission denied|loopback: Failed RTM_NEWADDR", re.I),
        "AppArmor forbids it: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or a profile for bwrap that "
        "allows `userns`.",
    ),
    (
        re.compile(r"Operation not permitted|Permission denied|No permissions|Invalid argument", re.I),
        "Allow user namespaces: `sysctl -w kernel.unprivileged_userns_clone=1`; in a container, run it with "
        "`--security-opt seccomp=unconfined --security-opt systempaths=unconfined`.",
    ),
)
_OFF = "Or set AGENT_SANDBOX=off, and the agent can do all that this user can."


def _probe(bwrap: str, argv: Sequence[str], enforced: Enforcement) -> Usable | Unusable:
    try:
        version = subprocess.run((bwrap, "--version"), capture_output=True, text=True, timeout=_PROBE_SECONDS).stdout
    except FileNotFoundError:
        return Unusable("bubblewrap (bwrap) is not installed.", f"Install the package `bubblewrap`. {_OFF}")
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    if numbers < OLDEST_VERSION:
        known = ".".join(map(str, numbers))
        why = f"bubblewrap {known} is too old." if known else f"{bwrap} is no bubblewrap: it does not say its version."
        return Unusable(why, f"Install version {'.'.join(map(str, OLDEST_VERSION))} or newer. {_OFF}")
    for program in ("prlimit", "git"):
        if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin") is None:
            return Unusable(f"`{program}` is not among the system's programs.", f"Install it. {_OFF}")
    try:
        tried = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PROBE_SECONDS, env={"PATH": "/usr/bin:/bin"}
        )
    except subprocess.TimeoutExpired:
        return Unusable(f"bubblewrap did not answer in {_PROBE_SECONDS} seconds.", _OFF)
    if tried.returncode != 0:
        advice = next((said for pattern, said in _ADVICE if pattern.search(tried.stderr)), "")
        return Unusable(tried.stderr.strip() or f"bwrap ended with {tried.returncode}", f"{advice} {_OFF}".strip())
    return Usable(".".join(map(str, numbers)), enforced.processes, enforced.memory)
