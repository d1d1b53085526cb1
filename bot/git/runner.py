"""The one place that starts git: argv only, an environment built from nothing, a time limit, no hooks."""

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bot.git.errors import GitProblem as GitProblem
from bot.git.errors import problem_of
from bot.git.errors import redact as redact
from bot.git.process import listen
from bot.git.progress import without_progress
from bot.process import start
from bot.sandbox.cage import Cage
from bot.sandbox.view import View

DEFAULT_TIMEOUT_SECONDS = 300.0

# What configuration can take from a repository that wants to run code or to reach other repositories.
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
    # A transfer may take its time, a connection on which nothing at all comes may not.
    ("http.lowSpeedLimit", "1"),
    ("http.lowSpeedTime", "120"),
)


@dataclass(frozen=True, slots=True)
class Completed:
    """What a git command left: its output as bytes (file names have no encoding), its redacted stderr, its status."""

    stdout: bytes
    stderr: str
    status: int

    @property
    def text(self) -> str:
        return os.fsdecode(self.stdout).rstrip("\n")

    @property
    def fields(self) -> list[str]:
        """The entries of output made with `-z`."""
        return [field for field in os.fsdecode(self.stdout).split("\0") if field]


class GitError(Exception):
    """A git command that failed. Its text holds no credential and no environment."""

    def __init__(self, problem: GitProblem, command: str, stderr: str) -> None:
        super().__init__(f"git {command}: {stderr.strip() or problem.value}")
        self.problem = problem
        self.stderr = stderr


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


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git. `remote_config` (credential helpers) goes to commands on a clone only, never to those on a worktree.

    Without a `cage` what a worktree's configuration names runs as this user.
    """

    remote_config: Sequence[tuple[str, str]] = ()
    protocols: Sequence[str] = ("http", "https")
    search_path: str = "/usr/local/bin:/usr/bin:/bin"
    cage: Cage | None = None

    async def on_clone(
        self,
        clone: Path,
        *args: str,
        input: bytes | None = None,  # noqa: A002
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        stdin: int | None = None,
        program: Sequence[str] = ("git",),
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """Ref-level git on the bare clone: nothing here may read a worktree. Raises GitError."""
        config = (*_NEUTRAL, ("credential.helper", ""), *self.remote_config)
        argv = (f"--git-dir={clone}", *args)
        extra = _config_environment(config) | dict(environment or {})
        return await self.run(
            *argv,
            cwd=None,
            input=input,
            check=check,
            environment=extra,
            timeout_seconds=timeout_seconds,
            stdin=stdin,
            program=program,
            on_stderr=on_stderr,
        )

    async def on_worktree(
        self,
        worktree: Path,
        *args: str,
        input: bytes | None = None,  # noqa: A002
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> Completed:
        """A git command that reads a worktree, whose files are the agent's, without a cage around it. Raises GitError.

        `bot.clones.clone.Clone.on_worktree` is the one that knows whether there is a cage.
        """
        extra = self._worktree_environment(worktree) | dict(environment or {})
        return await self.run(
            *args, cwd=worktree, input=input, check=check, environment=extra, timeout_seconds=timeout_seconds
        )

    async def in_cage(
        self,
        cage: Cage,
        view: View,
        *args: str,
        in_worktree: bool = True,
        input: bytes | None = None,  # noqa: A002
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        stdout: int | None = None,
    ) -> Completed:
        """A git command in the cage, in the worktree or, without it, in its admin folder. Raises GitError, OSError."""
        extra = self._worktree_environment(view.worktree) | dict(environment or {})
        return await self.run(
            *(() if in_worktree else (f"--git-dir={view.admin}",)),
            *args,
            cwd=None,
            input=input,
            check=check,
            environment=extra,
            timeout_seconds=timeout_seconds,
            stdout=stdout,
            program=(*cage.git_argv(view, in_worktree=in_worktree), "git"),
        )

    def _worktree_environment(self, worktree: Path) -> dict[str, str]:
        extra = _config_environment((*_NEUTRAL, ("credential.helper", "")))
        # Without a .git of its own, a directory must not be taken for part of a repository above it.
        return extra | {"GIT_CEILING_DIRECTORIES": str(worktree.parent)}

    async def run(
        self,
        *args: str,
        cwd: Path | None,
        input: bytes | None = None,  # noqa: A002
        check: bool = True,
        environment: Mapping[str, str] | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        stdin: int | None = None,
        stdout: int | None = None,
        program: Sequence[str] = ("git",),
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> Completed:
        """One git command. GitError for a status other than 0 (with `check`) and past the time limit, which ends it.

        The descriptors `stdin` and `stdout` become the command's and are closed here. With `on_stderr`, which is given
        stderr as it comes, the time limit is on silence.
        """
        command = next((arg for arg in args if not arg.startswith("-")), "")
        try:
            process = await start(
                (*program, *args),
                {**self._environment(), **(environment or {})},
                cwd or Path("/"),
                stdin=stdin or (asyncio.subprocess.DEVNULL if input is None else asyncio.subprocess.PIPE),
                stdout=stdout or asyncio.subprocess.PIPE,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            # Of a cage it is the cage that is missing, which says nothing about the repository.
            problem = GitProblem.NOT_FOUND if cwd is not None else GitProblem.OTHER
            raise GitError(problem, command, str(error)) from error
        finally:
            for descriptor in (stdin, stdout):
                if descriptor is not None:
                    os.close(descriptor)
        try:
            output, errors = await listen(process, input, timeout_seconds, on_stderr)
        except TimeoutError as error:
            limit = f"{timeout_seconds:g} s" + (" without a sign of progress" if on_stderr else "")
            raise GitError(GitProblem.TIMEOUT, command, f"not done after {limit}") from error
        said = redact(errors.decode(errors="replace"))
        completed = Completed(output, without_progress(said) if on_stderr else said, process.status or 0)
        if check and completed.status:
            raise failure(command, completed)
        return completed

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": self.search_path,
            "HOME": "/nonexistent",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_ALLOW_PROTOCOL": ":".join(self.protocols),
        }


def failure(command: str, completed: Completed) -> GitError:
    """The error for a command that ended with a status the caller cannot use."""
    return GitError(problem_of(completed.stderr), command, completed.stderr or f"exit status {completed.status}")


def _config_environment(config: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Configuration above the repository's own, out of argv; git hands it on to what it starts in submodules."""
    variables = {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (key, value) in enumerate(config):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return variables
