"""The sandbox: bubblewrap around everything that touches what an agent could have written, or none."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import ClassVar, Literal, TypeAlias

from bot.sandbox.disk import DiskWatch
from bot.sandbox.limits import Enforcement, Limits, enforcement
from bot.sandbox.system import command_mounts, program_mounts, setting_mounts
from bot.sandbox.view import PUBLISHED, View, git_directory, mounts, open_view, private_folder, sandboxed_view

OLDEST_VERSION = (0, 8)
_PROBE_SECONDS = 20
_DEVICES_OF_GIT = ("/dev/null", "/dev/urandom")
_GROUP_OF_MANY = "many"
_END_OF_OPTIONS = "--"


@dataclass(frozen=True, slots=True)
class Unusable:
    """No sandbox can be used here. `why` and `what_to_do` are sentences for the operator."""

    why: str
    what_to_do: str


@dataclass(frozen=True, slots=True)
class Bind:
    """One more path to show in the sandbox, where it is outside or `at` another path."""

    path: Path
    writable: bool = False
    at: Path | None = None


@dataclass(frozen=True, slots=True)
class Bwrap:
    """A builder of argvs that run in the sandbox. `data_dir`, a real path, is hidden except for the parts in a view.

    `data_dir_alias` is the configured path: the same, or one that leads there through symbolic links.
    """

    isolates: ClassVar = True
    data_dir: Path
    data_dir_alias: Path
    search_path: str
    bwrap: str
    enforcement: Enforcement

    def probe(self) -> str | Unusable:
        """Return the version of bubblewrap if this user can start a process in the sandbox here and now."""
        return _probe(self.bwrap, (*self.probe_argv(), "true"))

    def probe_argv(self) -> tuple[str, ...]:
        """Return the argv prefix of a command in a sandbox that shows only the system."""
        return (
            *self._options_first(),
            *self._whole_system(),
            *self._data_dir(),
            *self._options_last("/"),
            *self.enforcement.limit_argv(),
            "--",
        )

    def view(self, clone: Path, worktree: Path, admin: Path) -> View:
        """Return what a process in this worktree sees. All paths must be real."""
        return sandboxed_view(clone, worktree, admin, self.private_folder(worktree))

    def private_folder(self, worktree: Path) -> Path:
        """Return the folder with the private state of the worktree at this real path."""
        return private_folder(self.data_dir, worktree)

    def start_directory(self, _: View) -> None:
        """Return where git is started: the sandbox changes the directory itself."""

    def git_argv(self, view: View, *, in_worktree: bool = True, binds: Sequence[Bind] = ()) -> tuple[str, ...]:
        """Return the argv prefix of git: no network, no HOME. Without `in_worktree` git sees the admin folder alone.

        The process must be started with git's environment. Raises OSError.
        """
        shown = (*mounts(view, with_worktree=in_worktree), *(option for bind in binds for option in _bind(bind)))
        return self._of_git(view.name, shown, str(view.worktree if in_worktree else view.admin))

    def many_argv(self, places: Mapping[PurePath, View]) -> tuple[str, ...]:
        """Return the argv prefix of git in many worktrees of one clone, whose git directories are at these places.

        All is read-only. Worktrees beside them are visible too, so nothing that is in one may run there. The process
        must be started with git's environment. Raises OSError.
        """
        clones = {view.clone for view in places.values()}
        shown = {folder for view in places.values() for folder in (view.worktree.parent, view.private.parent)}
        shown |= {clone / name for clone in clones for name in ("config", PUBLISHED)}
        folders = (option for path in sorted(shown) for option in ("--ro-bind", str(path), str(path)))
        states = (option for place, view in places.items() for option in git_directory(view, place))
        return self._of_git(_GROUP_OF_MANY, (*folders, *states), "/")

    def _of_git(self, group: str, shown: Iterable[str], cwd: str) -> tuple[str, ...]:
        enforced = self.enforcement.for_one_command()
        return (
            *enforced.join_group(group),
            *self._options_first(),
            *(option for device in _DEVICES_OF_GIT for option in ("--dev-bind", device, device)),
            *self._data_dir(),
            *shown,
            *self._options_last(cwd),
            *enforced.limit_argv(),
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
        also: Sequence[Sequence[str]] = (),
        read_only: bool = False,
    ) -> tuple[str, ...]:
        """Return the argv of an agent in its worktree `cwd`. `wrapper` comes in front of `--` and the command.

        The agent may start the commands `also`: their programs are shown too. `read_only`: it can change nothing in the
        worktree, nor commit.

        The process must be started with the agent's environment: secrets do not belong into an argv. Raises OSError,
        UnsafeCommandError.
        """
        programs = command_mounts(filter(None, (command, wrapper, *also)), self.search_path, self.data_dir)
        shared = ("--share-net",) if network == "host" else ()
        extra = [option for bind in binds for option in _bind(bind)]
        return (
            *self.enforcement.join_group(view.name),
            *self._options_first(shared),
            *self._whole_system(),
            *programs,
            *self._data_dir(),
            *mounts(view, with_worktree=True, read_only=read_only, own_settings=True),
            *("--bind", str(home.resolve()), str(home.resolve())),
            *extra,
            *self._options_last(str(cwd)),
            *self.enforcement.limit_argv(),
            *wrapper,
            "--",
            *command,
        )

    def disk_watch(self, view: View, home: Path) -> DiskWatch:
        """Return the watch over all folders that an agent can write and that outlive its turn."""
        return DiskWatch((view.worktree, view.private, home), self.enforcement.limits.disk_bytes)

    def _options_first(self, shared: Sequence[str] = ()) -> Iterator[str]:
        """Yield the options of every sandbox: namespaces, programs, scratch. The process's environment is passed on."""
        yield from (self.bwrap, "--unshare-all", *shared, "--unshare-user", "--disable-userns")
        yield from ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
        yield from program_mounts()
        yield from (*self._scratch(), "/tmp")  # noqa: S108

    def _whole_system(self) -> Iterator[str]:
        """Yield the mounts that an agent's programs expect of a machine."""
        yield from setting_mounts()
        # Root can write the kernel's settings there even without capabilities.
        yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev")
        yield from (*self._scratch(), "/dev/shm", "--remount-ro", "/dev")  # noqa: S108
        yield from ("--symlink", "../tmp", "/var/tmp")  # noqa: S108

    def _scratch(self) -> tuple[str, ...]:
        return "--size", str(self.enforcement.limits.scratch_bytes), "--tmpfs"

    def _data_dir(self) -> Iterator[str]:
        """Hide the data folder, also where an earlier option has shown a folder around it."""
        yield from ("--size", str(1 << 20), "--tmpfs", str(self.data_dir))
        if self.data_dir_alias != self.data_dir:
            yield from ("--symlink", str(self.data_dir), str(self.data_dir_alias))

    def _options_last(self, cwd: str) -> Iterator[str]:
        yield from ("--remount-ro", str(self.data_dir), "--remount-ro", "/", "--chdir", cwd)


@dataclass(frozen=True, slots=True)
class NoSandbox:
    """AGENT_SANDBOX=off, with the methods of a sandbox: every process can do and see what this user can."""

    isolates: ClassVar = False

    def view(self, clone: Path, worktree: Path, admin: Path) -> View:
        """Return what a process in this worktree sees of git: the clone itself."""
        return open_view(clone, worktree, admin)

    def private_folder(self, worktree: Path) -> Path:
        """Return the worktree: nothing of it is elsewhere."""
        return worktree

    def git_argv(self, view: View, *, in_worktree: bool = True, binds: Sequence[Bind] = ()) -> tuple[str, ...]:
        """Return no prefix."""
        return ()

    def start_directory(self, view: View) -> Path:
        """Return where git is started."""
        return view.worktree

    def agent_argv(self, _: View, command: Sequence[str], *__: Path, **___: object) -> tuple[str, ...]:
        """Return the argv of an agent, as `bot.sandbox.agent_argv`."""
        return agent_argv(command)

    def disk_watch(self, view: View, home: Path) -> DiskWatch:
        """Return a watch that never ends."""
        return DiskWatch((), sys.maxsize)


NO_SANDBOX = NoSandbox()
Sandbox: TypeAlias = Bwrap | NoSandbox


def bwrap_for(data_dir: Path, search_path: str, limits: Limits | None = None) -> Bwrap:
    """Return a sandbox, to `probe` before its first use."""
    bwrap = shutil.which("bwrap", path=search_path) or "/usr/bin/bwrap"
    return Bwrap(data_dir.resolve(), data_dir.absolute(), search_path, bwrap, enforcement(limits or Limits()))


def sandbox_for(setting: Literal["auto", "bwrap", "off"], data_dir: Path, search_path: str) -> Sandbox:
    """Return the sandbox for this value of AGENT_SANDBOX; a sandbox is to `probe` before its first use."""
    return NO_SANDBOX if setting == "off" else bwrap_for(data_dir, search_path)


def _bind(bind: Bind) -> tuple[str, str, str]:
    return ("--bind" if bind.writable else "--ro-bind", str(bind.path), str(bind.at or bind.path))


_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"ENOSPC|No space left on device", re.I),
        "Allow user namespaces: `sysctl -w user.max_user_namespaces=15000`.",
    ),
    (
        re.compile(r"uid map: Permission denied|loopback: Failed RTM_NEWADDR", re.I),
        "AppArmor forbids user namespaces. Run `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or add a "
        "profile for bwrap that allows `userns`.",
    ),
    (
        re.compile(r"Operation not permitted|Permission denied|No permissions|Invalid argument", re.I),
        "Allow user namespaces: `sysctl -w kernel.unprivileged_userns_clone=1`; in a container, run it with "
        "`--security-opt seccomp=seccomp.json --security-opt systempaths=unconfined` (docs/install/container.md).",
    ),
)
_OFF = "Or set AGENT_SANDBOX=off. Then the agent can do everything that this user can."


def _probe(bwrap: str, argv: Sequence[str]) -> str | Unusable:
    try:
        version = subprocess.run((bwrap, "--version"), capture_output=True, text=True, timeout=_PROBE_SECONDS).stdout
    except FileNotFoundError:
        return Unusable("bubblewrap (bwrap) is not installed.", f"Install the package `bubblewrap`. {_OFF}")
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    if numbers < OLDEST_VERSION:
        known = ".".join(map(str, numbers))
        why = (
            f"bubblewrap {known} is too old." if known else f"{bwrap} is not bubblewrap: it does not tell its version."
        )
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
    return ".".join(map(str, numbers))


def agent_argv(command: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs the command so that it dies with the bot, also when the bot is killed.

    The kernel sends the signal when the *thread* that started the process ends (prctl(2), PR_SET_PDEATHSIG):
    start agents from the thread of the event loop. A machine without setpriv runs the command as it is.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return tuple(command)
    return (setpriv, "--pdeathsig", "KILL", _END_OF_OPTIONS, *command)


def command_of(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command inside an argv of `agent_argv`."""
    if _END_OF_OPTIONS in argv:
        return tuple(argv[argv.index(_END_OF_OPTIONS) + 1 :])
    return tuple(argv)


def agent_environment(home: Path, path: str, lang: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's environment, built from nothing: these three and the variables named in AGENT_ENV.

    HOME, PATH and LANG win over `extra`.
    """
    return {**extra, "HOME": str(home), "PATH": path, "LANG": lang}
