"""Before the agent works in a new checkout: the repository's own script prepares it (the setting SETUP_SCRIPT).

It is always the script of the default branch: a pull request must not change what runs.
"""

import asyncio
import os
import re
import tempfile
from asyncio.subprocess import STDOUT
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import structlog

from bot.agents.driver import Launch
from bot.clones.checkout import require_checkout
from bot.clones.clone import CloneLock, NoDefaultBranch, clone_lock
from bot.clones.fetch import remote_default_branch
from bot.git import refs
from bot.messages import notices, tracking
from bot.process import OutputTail, ProcessGroup, start
from bot.prompt import remarks
from bot.prompt.foreign import Told
from bot.redaction import Redactor
from bot.run.context import Script, TurnContext
from bot.run.progress import Progress
from bot.sandbox.disk import watched
from bot.store.turns import ClaimedTurn

SCRIPT = ".threadtree/setup"
LIMIT_SECONDS = 600.0
MAX_SCRIPT_BYTES = 1 << 20
_SHOWN_LINES = 60
_SHOWN_CHARACTERS = 6000
_OUTPUT_BYTES = 64 * 1024
# Colours, cursor movements and titles: https://man7.org/linux/man-pages/man4/console_codes.4.html
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_log = structlog.get_logger()

OnOverflow = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Whether the checkout is prepared (`done`); `notices` are for the thread, `remarks` for the agent."""

    done: bool
    notices: tuple[str, ...] = ()
    remarks: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True)
class Unusable:
    """The script's path on the default branch is not a regular file of an acceptable size."""

    default_branch: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The script exited, or was ended by a signal if `status` is negative. `output` is the end of its output."""

    status: int
    output: str


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """It was killed after `seconds`."""

    seconds: float
    output: str


async def prepare_checkout(
    ctx: TurnContext, turn: ClaimedTurn, progress: Progress, on_overflow: OnOverflow
) -> Prepared:
    """Run the script, if there is one, in the agent's sandbox and look at what it left. A cancellation ends it.

    Raises GitError, InvalidNameError, OSError, UnsafeCommandError.
    """
    async with clone_lock(ctx.clone(turn.worktree.folder)) as lock:
        found = await script_of(lock)
    if found is None:
        return Prepared(done=True)
    if isinstance(found, Unusable):
        return _failed(notices.setup_unusable(found.default_branch, MAX_SCRIPT_BYTES), "")
    progress.enter(tracking.SETTING_UP)
    return await _run(ctx, turn, found, on_overflow)


async def script_of(lock: CloneLock) -> bytes | Unusable | None:
    """Return the script on the remote's default branch, after a fetch; None if there is none. Raises GitError."""
    clone, default = lock.clone, await remote_default_branch(lock)
    if isinstance(default, NoDefaultBranch):
        return None
    listed = (await clone.run("ls-tree", "-z", "--long", refs.remote(default.name), "--", SCRIPT)).fields
    if not listed:
        return None
    mode, kind, blob, size = listed[0].partition("\t")[0].split()
    # A symbolic link is a blob too.
    if kind != "blob" or not mode.startswith("100") or int(size) > MAX_SCRIPT_BYTES:
        return Unusable(default.name)
    return (await clone.run("cat-file", "blob", blob)).stdout


def shown(output: str, redactor: Redactor) -> str:
    """Return the end of an output, without secrets, as long as a comment has room for."""
    lines = redactor.redact(output).split("\n")[-_SHOWN_LINES:]
    return "\n".join(lines)[-_SHOWN_CHARACTERS:]


async def _run(ctx: TurnContext, turn: ClaimedTurn, text: bytes, on_overflow: OnOverflow) -> Prepared:
    before = set(await _changed_files(ctx, turn))
    ended = await _ended(ctx, turn, text, on_overflow)
    left = [name for name in await _changed_files(ctx, turn) if name not in before]
    prepared = _outcome(ended, ctx.redactor)
    if not left:
        return prepared
    return Prepared(
        prepared.done,
        (*prepared.notices, notices.setup_left(left)),
        (*prepared.remarks, remarks.setup_left(len(left))),
    )


async def _changed_files(ctx: TurnContext, turn: ClaimedTurn) -> list[str]:
    """Return the names of uncommitted files. What a git that was killed, or a script, left in git's way is removed."""
    async with clone_lock(ctx.clone(turn.worktree.folder)) as lock:
        checkout = await require_checkout(lock, ctx.directory(turn.worktree.path))
        await checkout.unblock()
        return await checkout.changed_files()


async def _ended(
    ctx: TurnContext, turn: ClaimedTurn, text: bytes, on_overflow: OnOverflow
) -> Ended | OutOfTime | OSError:
    limit = min(LIMIT_SECONDS, ctx.limits.total_seconds)
    with tempfile.TemporaryDirectory(prefix="threadtree-setup-") as folder:
        file = Path(folder) / "setup"
        file.write_bytes(text)
        async with (
            ctx.launching(turn, Script(file, command_for(text, file))) as (launch, disk),
            watched(disk, on_overflow),
        ):
            try:
                ended = await run_script(launch, limit)
            except OSError as problem:
                return problem
    _log.info("setup-ended", how=type(ended).__name__, status=getattr(ended, "status", None))
    return ended


def _outcome(ended: Ended | OutOfTime | OSError, redactor: Redactor) -> Prepared:
    match ended:
        case Ended(status=0):
            return Prepared(done=True)
        case Ended(status=status, output=output):
            return _failed(notices.setup_ended_with(status), shown(output, redactor))
        case OutOfTime(seconds=seconds, output=output):
            return _failed(notices.setup_out_of_time(seconds), shown(output, redactor))
        case OSError():
            return _failed(notices.setup_not_startable(ended.strerror or str(ended)), "")
        case _:
            assert_never(ended)


def _failed(how: str, output: str) -> Prepared:
    return Prepared(
        done=False, notices=(notices.setup_failed(how, output),), remarks=(remarks.setup_failed(how, output),)
    )


def command_for(text: bytes, path: Path) -> tuple[str, ...]:
    """Return what runs a script with this text: the interpreter that its first line names, with one argument, as the
    kernel reads it, else sh. So the file needs no executable bit.
    """
    first = os.fsdecode(text.split(b"\n", 1)[0])
    named = first[2:].strip().split(maxsplit=1) if first.startswith("#!") and "\0" not in first else []
    return (*(named or ["/bin/sh"]), str(path))


def readable(output: bytes) -> str:
    """Return what a terminal still shows of this: no colours, and only the last version of an overwritten line."""
    text = _ESCAPES.sub("", output.decode(errors="replace"))
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return _CONTROLS.sub("", "\n".join(line.rstrip() for line in lines)).strip("\n")


async def run_script(launch: Launch, limit_seconds: float) -> Ended | OutOfTime:
    """Run the script in a process group of its own, which ends with it. Raises OSError if it cannot be started."""
    process = await start(launch.argv, launch.environment, launch.cwd, stderr=STDOUT)
    output = OutputTail(process.stdout, _OUTPUT_BYTES)
    try:
        await process.exits_within(limit_seconds)
        status = process.status
    finally:
        await asyncio.shield(_end(process, output))
    if status is not None:
        return Ended(status, readable(output.data))
    return OutOfTime(limit_seconds, readable(output.data))


async def _end(process: ProcessGroup, output: OutputTail) -> None:
    await process.terminate()
    await output.finish()
    await process.close()
