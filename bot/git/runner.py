"""The one place that starts git: argv only, an environment built from nothing, a time limit, no hooks."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TypedDict, TypeVar, Unpack

from bot.git.errors import GitError, GitProblem, is_unauthenticated, problem_of, redact
from bot.git.objects import FORMAT, Objects
from bot.git.progress import without_progress
from bot.process import ProcessGroup, start
from bot.sandbox.cage import NO_CAGE, Cage, Sandbox
from bot.sandbox.view import View

DEFAULT_TIMEOUT_SECONDS = 300.0
# More than a list of a million files takes. An agent decides how much git has to say.
MAX_OUTPUT_BYTES = 256 << 20
MAX_ERROR_BYTES = 1 << 20
SIGPIPE_STATUSES = (-13, 141)
# Of git's own statuses. In a cage, a higher one is that of a signal.
_LAST_STATUS = 129
# git ends with it after it has said what is wrong.
_FATAL_STATUS = 128
_CHUNK_BYTES = 1 << 16
T = TypeVar("T")

# Stops what a repository's configuration could do: run code, or reach other repositories.
_NEUTRAL: tuple[tuple[str, str], ...] = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("core.quotePath", "false"),
    ("core.editor", "false"),
    ("core.askPass", ""),
    ("core.sshCommand", "false"),
    ("core.alternateRefsCommand", ""),
    ("protocol.ext.allow", "never"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("push.recurseSubmodules", "no"),
    ("push.followTags", "false"),
    ("push.gpgSign", "false"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("merge.verifySignatures", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("checkout.workers", "0"),
    ("advice.detachedHead", "false"),
    # A slow transfer is fine, a connection on which nothing comes is not.
    ("http.lowSpeedLimit", "1"),
    ("http.lowSpeedTime", "120"),
)
_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    # An agent can plant replacements: git would show another object than the one that is pushed.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/nonexistent",
}


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a git command: stdout as bytes (file names have no encoding), redacted stderr, status."""

    stdout: bytes
    stderr: str
    status: int

    @property
    def text(self) -> str:
        return os.fsdecode(self.stdout).rstrip("\n")

    @property
    def fields(self) -> list[str]:
        """Return the entries of output in the `-z` format."""
        return [field for field in os.fsdecode(self.stdout).split("\0") if field]


@dataclass(frozen=True, slots=True)
class Identity:
    """A person or bot as a commit names it."""

    name: str
    email: str

    def __str__(self) -> str:
        name, email = (re.sub(r"[<>\x00-\x1f\x7f]", " ", part).strip() for part in (self.name, self.email))
        return f"{name or email} <{email}>"

    @property
    def environment(self) -> dict[str, str]:
        """Identity by environment only: `user.email` set in a worktree would write the configuration all share."""
        roles = ("AUTHOR", "COMMITTER")
        return {
            f"GIT_{role}_{key}": value
            for role in roles
            for key, value in (("NAME", self.name or self.email), ("EMAIL", self.email))
        }


class _TooMuchOutputError(Exception):
    """A command wrote more than MAX_OUTPUT_BYTES."""


class Options(TypedDict, total=False):
    """Options of every git command; see `Git.run`."""

    input: bytes | None
    check: bool
    environment: Mapping[str, str]
    timeout_seconds: float


class CloneOptions(Options, total=False):
    """More options of a command on a clone."""

    stdin: int | None
    stdout: int | None
    program: Sequence[str]
    on_stderr: Callable[[bytes], None] | None


@dataclass(frozen=True, slots=True)
class Git:
    """A runner of git. `remote_config` (credential helpers) goes to commands on a clone, never to those on a worktree.

    Without a cage, programs that a worktree's configuration names run as this user.
    """

    remote_config: Sequence[tuple[str, str]] = ()
    protocols: Sequence[str] = ("http", "https")
    search_path: str = "/usr/local/bin:/usr/bin:/bin"
    cage: Sandbox = NO_CAGE

    async def on_clone(self, clone: Path, *args: str, **options: Unpack[CloneOptions]) -> Completed:
        """Run ref-level git on the bare clone: nothing here may read a worktree. Raises GitError.

        A token that the server refused was forgotten by then: the command runs once more with a new one.
        """
        config = _config_environment((*_NEUTRAL, ("credential.helper", ""), *self.remote_config))
        options["environment"] = {**config, **options.get("environment", {})}
        try:
            completed = await self.run(f"--git-dir={clone}", *args, cwd=None, **options)
            if not (completed.status and is_unauthenticated(completed.stderr)):
                return completed
        except GitError as error:
            if not is_unauthenticated(error.stderr):
                raise
        return await self.run(f"--git-dir={clone}", *args, cwd=None, **options)

    def objects(self, clone: Path) -> Objects:
        """Return a reader of the clone's objects, which the caller closes."""
        argv = ("git", f"--git-dir={clone}", "cat-file", f"--batch-command={FORMAT}")
        environment = {**_ENVIRONMENT, "PATH": self.search_path, **_config_environment(_NEUTRAL)}
        null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        return Objects(clone, lambda: start(argv, environment, Path("/"), stdin=pipe, stdout=pipe, stderr=null))

    async def on_worktree(self, worktree: Path, *args: str, **options: Unpack[Options]) -> Completed:
        """Run a git command that reads a worktree without a cage. Raises GitError.

        Where an agent may have been, `Checkout.git` runs it.
        """
        options["environment"] = {**_worktree_environment(worktree), **options.get("environment", {})}
        return await self.run(*args, cwd=worktree, **options)

    async def in_cage(
        self,
        view: View,
        *args: str,
        in_worktree: bool = True,
        stdout: int | None = None,
        **options: Unpack[Options],
    ) -> Completed:
        """Run git in the sandbox: in the worktree or, without `in_worktree`, in its administrative folder.

        `stdout` is as in `run`. Raises GitError, OSError.
        """
        options["environment"] = {**_worktree_environment(view.worktree), **options.get("environment", {})}
        place = () if in_worktree else (f"--git-dir={view.admin}",)
        program = (*self.cage.git_argv(view, in_worktree=in_worktree), "git")
        cwd = self.cage.start_directory(view)
        return await self.run(*place, *args, cwd=cwd, stdout=stdout, program=program, **options)

    async def in_many(self, cage: Cage, views: Sequence[View], *args: str) -> Completed:
        """Run the same git command in many worktrees of one clone, one after the other in one cage that shows them all.

        Their output follows one another. The command must run nothing that is in a worktree, and write nothing. Raises
        GitError if one of them fails, OSError.
        """
        places = {PurePath(f"/worktrees/{number}"): view for number, view in enumerate(views)}
        each = [(f"--git-dir={place}", f"--work-tree={view.worktree}", *args) for place, view in places.items()]
        given = b"".join(os.fsencode(arg) + b"\0" for arguments in each for arg in arguments)
        program = (*cage.many_argv(places), "xargs", "-0", "-n", str(len(each[0])), "git")
        # The alternates of a private folder name a place that this cage does not have.
        objects = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(views[0].clone / "objects")}
        environment = _worktree_environment(views[0].worktree) | objects
        return await self.run(cwd=None, program=program, input=given, environment=environment)

    async def run(
        self,
        *args: str,
        cwd: Path | None,
        input: bytes | None = None,  # noqa: A002
        check: bool = True,
        environment: Mapping[str, str] = MappingProxyType({}),
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        stdin: int | None = None,
        stdout: int | None = None,
        program: Sequence[str] = ("git",),
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """Run one git command. Raises GitError for a status other than 0 (with `check`), past the time limit, and where
        git was killed: that answers no question, while its status looks like a "no".

        The descriptors `stdin` and `stdout` become the command's and are closed here. `on_stderr` gets each piece of
        stderr; with it the time limit is on silence.
        """
        command = next((arg for arg in args if not arg.startswith("-")), "")
        try:
            process = await start(
                (*program, *args),
                {
                    **_ENVIRONMENT,
                    "PATH": self.search_path,
                    "GIT_ALLOW_PROTOCOL": ":".join(self.protocols),
                    **environment,
                },
                cwd or Path("/"),
                stdin=stdin or (asyncio.subprocess.DEVNULL if input is None else asyncio.subprocess.PIPE),
                stdout=stdout or asyncio.subprocess.PIPE,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            # With a cage it is the cage that is missing, which says nothing about the repository.
            problem = GitProblem.NOT_FOUND if cwd is not None else GitProblem.OTHER
            raise GitError(problem, command, str(error)) from error
        finally:
            for descriptor in (stdin, stdout):
                if descriptor is not None:
                    os.close(descriptor)
        try:
            output, errors = await _listen(process, input, timeout_seconds, on_stderr)
        except BaseException as error:
            await asyncio.shield(process.end())
            if isinstance(error, _TooMuchOutputError):
                raise GitError(
                    GitProblem.OTHER, command, f"more than {MAX_OUTPUT_BYTES >> 20} MiB of output"
                ) from error
            if not isinstance(error, TimeoutError):
                raise
            limit = f"{timeout_seconds:g} s" + (" without a sign of progress" if on_stderr else "")
            raise GitError(GitProblem.TIMEOUT, command, f"not done after {limit}") from error
        said = redact(errors.decode(errors="replace"))
        completed = Completed(output, without_progress(said) if on_stderr else said, process.status or 0)
        # A command is ended by the kernel when the reader of its output has seen enough.
        enough = stdout is not None and completed.status in SIGPIPE_STATUSES
        killed = completed.status < 0 or completed.status > _LAST_STATUS
        if killed and not enough:
            raise GitError(GitProblem.KILLED, command, f"{completed.stderr}\nended by a signal: {completed.status}")
        if check and completed.status and not enough:
            raise failure(command, completed)
        return completed


async def piped(
    read: Callable[[Iterator[bytes]], T], *commands: Callable[..., Coroutine[object, None, Completed]]
) -> T:
    """Run commands, each of which reads what the one before writes; return what `read` makes of the last's output.

    They get their ends of the pipes as `stdin` and `stdout`. `read` runs in a thread and gets piece by piece,
    so that memory stays bounded and nothing else waits. Raises GitError, and what `read` raises.
    """
    running: list[asyncio.Task[Completed]] = []
    source: dict[str, int] = {}
    for command in commands:
        following, writing = os.pipe()
        running.append(asyncio.create_task(command(stdout=writing, **source)))
        source = {"stdin": following}
    try:
        result = await asyncio.to_thread(_read_pieces, source["stdin"], read)
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return result


def _worktree_environment(worktree: Path) -> dict[str, str]:
    # A directory without a .git of its own must not be taken for a part of a repository above it.
    ceiling = {"GIT_CEILING_DIRECTORIES": str(worktree.parent)}
    return _config_environment((*_NEUTRAL, ("credential.helper", ""))) | ceiling


def failure(command: str, completed: Completed) -> GitError:
    """Return the error for a command that ended with a status the caller cannot use."""
    # It says nothing only where the process that talks to the server went away: such a killing passes.
    said = completed.stderr.strip() or completed.status != _FATAL_STATUS
    problem = problem_of(completed.stderr) if said else GitProblem.KILLED
    return GitError(problem, command, completed.stderr or f"exit status {completed.status}")


def _config_environment(config: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return configuration that overrides the repository's own; git also passes it on to submodules."""
    variables = {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (key, value) in enumerate(config):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


async def _listen(
    process: ProcessGroup,
    given: bytes | None,
    timeout_seconds: float,
    on_stderr: Callable[[bytes], None] | None,
) -> tuple[bytes, bytes]:
    """Return what the command writes to stdout and stderr until its end. `on_stderr` gets each piece of stderr.

    With `on_stderr` the limit is on silence: a command that reports progress may take as long as it needs. Raises
    TimeoutError.
    """
    loop = asyncio.get_running_loop()
    pieces: list[bytes] = []
    async with asyncio.timeout(timeout_seconds) as limit:

        async def hear(stream: asyncio.StreamReader) -> None:
            left = MAX_ERROR_BYTES
            while piece := await stream.read(_CHUNK_BYTES):
                pieces.append(piece[: max(0, left)])
                left -= len(piece)
                if on_stderr is not None:
                    limit.reschedule(loop.time() + timeout_seconds)
                    on_stderr(piece)

        if process.stderr is None:
            raise ValueError("a process whose stderr is not a pipe")
        stdout, _, _ = await asyncio.gather(_read(process.stdout), hear(process.stderr), _feed(process.stdin, given))
        await process.wait()
    return stdout, b"".join(pieces)


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    pieces: list[bytes] = []
    left = MAX_OUTPUT_BYTES
    while stream is not None and (piece := await stream.read(_CHUNK_BYTES)):
        left -= len(piece)
        if left < 0:
            raise _TooMuchOutputError
        pieces.append(piece)
    return b"".join(pieces)


def _read_pieces(descriptor: int, read: Callable[[Iterator[bytes]], T]) -> T:
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        return read(iter(partial(pipe.read, _CHUNK_BYTES), b""))


async def _feed(stream: asyncio.StreamWriter | None, given: bytes | None) -> None:
    if stream is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # git may end before it has read all
        stream.write(given or b"")
        await stream.drain()
    stream.close()
