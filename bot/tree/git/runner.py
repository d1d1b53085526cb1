"""The one place that starts git: argv only, an environment built from nothing, a time limit, no hooks."""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TypeAlias, TypedDict, TypeVar, Unpack

from bot.sandbox.bwrap import NO_SANDBOX, Bind, Bwrap, Sandbox
from bot.sandbox.process import ProcessGroup, start
from bot.sandbox.view import LFS, PUBLISHED, View
from bot.tree.git.errors import (
    TALKS_TO_SERVER,
    GitError,
    GitProblem,
    is_refused,
    is_unauthenticated,
    problem_of,
    redact,
)
from bot.tree.git.objects import FORMAT, Objects
from bot.tree.git.progress import without_progress

DEFAULT_TIMEOUT_SECONDS = 300.0
# More than a list of a million files takes. An agent decides how much git has to say.
MAX_OUTPUT_BYTES = 256 << 20
MAX_ERROR_BYTES = 1 << 20
SIGPIPE_STATUSES = (-13, 141)
# Of git's own statuses. In a sandbox, a higher one is that of a signal.
_LAST_STATUS = 129
# git ends with it after it has said what is wrong.
_FATAL_STATUS = 128
_CHUNK_BYTES = 1 << 16
T = TypeVar("T")
_Written: TypeAlias = tuple[int, int, int] | None

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
# No credentials are where a worktree is: what cannot be fetched without stays a pointer.
_LFS = (
    ("filter.lfs.process", "git-lfs filter-process"),
    ("filter.lfs.required", "false"),
    ("lfs.skipDownloadErrors", "true"),
    ("lfs.transfer.maxRetries", "1"),
    # The worktree's `.lfsconfig` would keep files pointers whose objects are there.
    ("lfs.fetchinclude", ""),
    ("lfs.fetchexclude", ""),
    ("lfs.repositoryFormatVersion", "0"),  # else git-lfs would write it
)
# What the host checks out stays pointers, until `bot.lfs` gives files their content.
WITH_CONTENT = {"GIT_LFS_SKIP_SMUDGE": "0"}
_POINTERS = {"GIT_LFS_SKIP_SMUDGE": "1"}
# Files of this size are images, archives and the like: git would look for minutes for deltas between them and find
# none. They are compressed once, fast, where they are staged, and copied from pack to pack. Large text goes whole, too.
LARGE_FILE_BYTES = 1 << 20
_LARGE_FILES = ("core.bigFileThreshold", str(LARGE_FILE_BYTES))
# Other commands would take such a file for a binary one, and show no lines of it.
_OF_COMMANDS = {
    "update-index": (_LARGE_FILES, ("pack.compression", "1")),
    **dict.fromkeys(("pack-objects", "index-pack", "push", "repack"), (_LARGE_FILES,)),
}
UNCOMPRESSED, NO_LEVEL = "--config-env=pack.compression=LEVEL", {"LEVEL": "0"}
"""An option and its environment for `update-index`: large files are not compressed."""
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

    @property
    def configuration(self) -> str:
        """The text of a file for git to read in place of the machine's own, which it includes: it counts least."""
        user = f"[user]\n\tname = {json.dumps(self.name)}\n\temail = {json.dumps(self.email)}\n"
        return f"[include]\n\tpath = /etc/gitconfig\n{user}"


class _TooMuchOutputError(Exception):
    """A command wrote more than MAX_OUTPUT_BYTES."""


class Options(TypedDict, total=False):
    """Options of every git command; see `Git.run`."""

    input: bytes | None
    check: bool
    environment: Mapping[str, str]
    timeout_seconds: float
    stdin: int | None
    stdout: int | None
    program: Sequence[str]
    on_stderr: Callable[[bytes], None] | None
    inherited: Sequence[int]


@dataclass(frozen=True, slots=True)
class Git:
    """A runner of git. `remote_config` (credential helpers) goes to commands on a clone, never to those on a worktree.

    Without a sandbox, programs that a worktree's configuration names run as this user. `wait_for_new` is asked after
    the server's refusals, with their number before: whether a token is new, after a pause. `authorise` returns the
    configuration with which git shows its token to this remote at once: else it asks without one first.
    """

    remote_config: Sequence[tuple[str, str]] = ()
    protocols: Sequence[str] = ("http", "https")
    search_path: str = "/usr/local/bin:/usr/bin:/bin"
    sandbox: Sandbox = NO_SANDBOX
    wait_for_new: Callable[[int], Awaitable[bool]] | None = None
    authorise: Callable[[str], Awaitable[str]] | None = None
    lfs: bool = False
    """git-lfs is installed: files under Git LFS have their content in worktrees."""
    outbound: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables with the way to the server, for commands on a clone."""
    configured: "dict[Path, tuple[_Written, list[str]]]" = field(default_factory=dict, compare=False, repr=False)
    """The configuration of clones, and when it was written."""

    def of_few_refs(self) -> "Git":
        """Return this git for servers with few refs: it lists them all with its first request, and asks nothing before.

        https://git-scm.com/docs/protocol-v2: version 2 asks for the server's capabilities and then for certain refs.
        """
        return replace(self, remote_config=(*self.remote_config, ("protocol.version", "0")))

    def of_any_commit(self) -> "Git":
        """Return this git for commits that no ref of the server reaches: only version 2 fetches them by name."""
        return replace(self, remote_config=(*self.remote_config, ("protocol.version", "2")))

    async def on_clone(self, clone: Path, *args: str, **options: Unpack[Options]) -> Completed:
        """Run ref-level git on the bare clone: nothing here may read a worktree. Raises GitError.

        It runs again where the server refused a new token, and once where a token was forgotten after a refusal.
        """
        config = (*_NEUTRAL, ("credential.helper", ""), *_of_command(args), *self.remote_config)
        given = {**self.outbound, **options.get("environment", {})}
        options["environment"] = {**_config_environment(config), **given}
        tries, was_forgotten = 0, False
        while True:
            outcome: Completed | GitError
            try:
                async with self._authorised(clone, args[0]) as secret:
                    if secret is not None:
                        included = _config_environment((*config, ("include.path", f"/proc/self/fd/{secret}")))
                        options |= {"environment": {**included, **given}, "inherited": (secret,)}
                    outcome = completed = await self.run(f"--git-dir={clone}", *args, cwd=None, **options)
                said = completed.stderr if completed.status else ""
            except GitError as error:
                outcome, said = error, error.stderr
            if is_refused(said) and self.wait_for_new is not None and await self.wait_for_new(tries):
                tries += 1
            elif is_unauthenticated(said) and not was_forgotten:
                was_forgotten = True
            elif isinstance(outcome, GitError):
                raise outcome
            else:
                if args[0] == "config":
                    self.configured.pop(clone, None)
                return outcome

    async def configuration(self, clone: Path, *, anew: bool = False) -> list[str]:
        """Return the clone's own configuration, each as "key\nvalue": its keys in lower case, but for the names between
        the first and the last dot. `anew`, or where its file was written since, git is asked. Raises GitError.
        """
        written = _written(clone / "config")
        known = None if anew else self.configured.get(clone)
        if known is None or known[0] != written:
            listed = await self.run(f"--git-dir={clone}", "config", "--local", "--list", "-z", cwd=None)
            known = self.configured[clone] = written, listed.fields
        return known[1]

    async def configured_as(self, clone: Path, key: str) -> str:
        """Return the value of a key of the clone's own configuration, the last one; empty without. Raises GitError."""
        values = (one.partition("\n")[2] for one in await self.configuration(clone) if one.startswith(f"{key}\n"))
        return next(reversed([*values]), "")

    async def remote_url(self, clone: Path) -> str:
        """Return the address of the clone's remote; empty where it has none. Raises GitError."""
        return await self.configured_as(clone, "remote.origin.url")

    @contextlib.asynccontextmanager
    async def _authorised(self, clone: Path, command: str) -> AsyncIterator[int | None]:
        """Yield the descriptor of a configuration that holds the token, in memory alone; None without a token."""
        secret = ""
        if command in TALKS_TO_SERVER and self.authorise is not None:
            secret = await self.authorise(await self.remote_url(clone))
        if not secret:
            yield None
            return
        descriptor = os.memfd_create("git-config")
        try:
            os.write(descriptor, secret.encode())
            yield descriptor
        finally:
            os.close(descriptor)

    def objects(self, clone: Path) -> Objects:
        """Return a reader of the clone's objects, which the caller closes."""
        argv = ("git", f"--git-dir={clone}", "cat-file", f"--batch-command={FORMAT}")
        environment = {**_ENVIRONMENT, "PATH": self.search_path, **_config_environment(_NEUTRAL)}
        null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        return Objects(lambda: start(argv, environment, Path("/"), stdin=pipe, stdout=pipe, stderr=null))

    async def in_sandbox(
        self, view: View, *args: str, in_worktree: bool = True, shown: Sequence[Bind] = (), **options: Unpack[Options]
    ) -> Completed:
        """Run git in the sandbox: in the worktree or, without `in_worktree`, in its administrative folder. `shown` are
        further folders that it reads.

        Raises GitError, OSError.
        """
        config = self._lfs_config(view.admin / LFS)
        environment = _worktree_environment(view.worktree, *config, *_of_command(args)) | self._lfs_objects(view)
        options["environment"] = {**environment, **_POINTERS, **options.get("environment", {})}
        options["program"] = (*self.sandbox.git_argv(view, in_worktree=in_worktree, binds=shown), "git")
        place = () if in_worktree else (f"--git-dir={view.admin}",)
        return await self.run(*place, *args, cwd=self.sandbox.start_directory(view), **options)

    def lfs_environment(self, view: View) -> dict[str, str]:
        """Return the variables with which an agent's git knows Git LFS, also where it is the first to use that."""
        # Other repositories, which the agent's programs make, would take objects of the clone for their own.
        objects = self._lfs_objects(view) if (view.clone / LFS).is_dir() else {}
        return _config_environment(self._lfs_config(view.admin / LFS)) | objects

    def _lfs_config(self, storage: PurePath) -> tuple[tuple[str, str], ...]:
        return (*_LFS, ("lfs.storage", str(storage))) if self.lfs else ()

    def _lfs_objects(self, view: View) -> dict[str, str]:
        # git-lfs looks for the clone's objects beside those of git, and does not understand the alternates' own file.
        return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(view.clone_objects)} if self.lfs else {}

    async def in_many(self, sandbox: Bwrap, views: Sequence[View], *args: str) -> Completed:
        """Run the same git command in many worktrees of one clone, one after the other in one sandbox that shows them
        all.

        Their output follows one another. The command must run nothing that is in a worktree, and write nothing. Raises
        GitError if one of them fails, OSError.
        """
        places = {PurePath(f"/worktrees/{number}"): view for number, view in enumerate(views)}
        each = [(f"--git-dir={place}", f"--work-tree={view.worktree}", *args) for place, view in places.items()]
        given = b"".join(os.fsencode(arg) + b"\0" for arguments in each for arg in arguments)
        program = (*sandbox.many_argv(places), "xargs", "-0", "-n", str(len(each[0])), "git")
        # The alternates of a private folder name a place that this sandbox does not have.
        objects = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(views[0].clone / PUBLISHED)}
        # git-lfs writes there what it reads to compare it.
        config = self._lfs_config(PurePath("/tmp", LFS))  # noqa: S108 - of the sandbox
        environment = _worktree_environment(views[0].worktree, *config) | objects
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
        inherited: Sequence[int] = (),
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
                inherited=inherited,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            # With a sandbox it is the sandbox that is missing, which says nothing about the repository.
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


def _written(file: Path) -> _Written:
    """Return what changes whenever a file is written: git writes another one and renames it."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _of_command(args: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return _OF_COMMANDS.get(next(arg for arg in args if not arg.startswith("-")), ())


def _worktree_environment(worktree: Path, *config: tuple[str, str]) -> dict[str, str]:
    # A directory without a .git of its own must not be taken for a part of a repository above it.
    ceiling = {"GIT_CEILING_DIRECTORIES": str(worktree.parent)}
    return _config_environment((*_NEUTRAL, ("credential.helper", ""), *config)) | ceiling


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
    process: ProcessGroup, given: bytes | None, timeout_seconds: float, on_stderr: Callable[[bytes], None] | None
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
