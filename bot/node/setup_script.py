"""A script of the repository runs in a worktree. Before an agent works in a new checkout: the one that prepares it
(the setting SETUP_SCRIPT).

It is always the script of the default branch: a pull request must not change what runs.
"""

import asyncio
import os
import re
import tempfile
import time
from asyncio.subprocess import STDOUT
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from bot.agents.driver import Launch
from bot.failpoints import reached
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.redaction import Redactor
from bot.sandbox.bwrap import Bind
from bot.sandbox.disk import watched
from bot.sandbox.process import OutputTail, ProcessGroup, start
from bot.thread import notices, reasons
from bot.tree import CheckoutRefused, Clone, OpenClone

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


@dataclass(frozen=True, slots=True)
class Ended:
    """The script exited, was ended by a signal if `status` is negative, or was killed after its time if it is None.

    `output` is the end of its output.
    """

    status: int | None
    output: str


@dataclass(frozen=True, slots=True)
class SetUp:
    """How a run ended: `failure` is a clause, None after a success; `output` is the end of what it wrote.

    `left`: the files that it made or changed, and that git does not ignore. `seconds` is None where it did not run.
    """

    failure: str | None
    output: str = ""
    left: tuple[str, ...] = ()
    seconds: float | None = None


async def set_up(
    ctx: NodeContext,
    worktree: WorktreeRow,
    home: Path,
    script: bytes,
    on_overflow: Callable[[int], None],
    variables: Mapping[str, str],
) -> SetUp:
    """Run the script in the sandbox of an agent with this HOME; look at what it left. A cancellation ends it.

    `variables` are the repository's.
    `on_overflow` is called where it fills its disk. Raises GitError, InvalidNameError, OSError, UnsafeCommandError.
    """
    async with ctx.tree(worktree).open() as tree:
        before, began = set(await tree.changed_files()), time.monotonic()
    limit_seconds = min(LIMIT_SECONDS, ctx.setup_seconds)
    failure, output = await run_in_worktree(ctx, worktree, home, script, limit_seconds, on_overflow, variables)
    seconds = time.monotonic() - began
    async with ctx.tree(worktree).open() as tree:
        left = tuple(name for name in await tree.changed_files() if name not in before)
    reached("worktree-set-up")
    return SetUp(failure, output, left, seconds)


async def script_of(opened: OpenClone) -> bytes | SetUp | None:
    """Return the script on the remote's default branch, after a fetch; None if there is none.

    The end of its run if it is not a regular file of an acceptable size. Raises GitError.
    """
    default = await opened.default_branch()
    found = None if isinstance(default, CheckoutRefused) else await script_on(opened.clone, default.name, SCRIPT)
    return SetUp(found) if isinstance(found, str) else found


async def script_on(clone: Clone, branch: str, name: str) -> bytes | str | None:
    """Return the script `name` on the remote's branch as it was last fetched; None if there is none.

    A clause if it is not a regular file of an acceptable size. Raises GitError.
    """
    found = await clone.file_at(branch, name, MAX_SCRIPT_BYTES)
    return notices.setup_unusable(branch, MAX_SCRIPT_BYTES) if found == "irregular" else found


def shown(output: str, redactor: Redactor) -> str:
    """Return the end of an output, without secrets, as long as a comment has room for."""
    lines = redactor.redact(output).split("\n")[-_SHOWN_LINES:]
    return "\n".join(lines)[-_SHOWN_CHARACTERS:]


async def run_in_worktree(
    ctx: NodeContext,
    worktree: WorktreeRow,
    home: Path,
    text: bytes,
    limit_seconds: float,
    on_overflow: Callable[[int], None],
    variables: Mapping[str, str],
    binds: Sequence[Bind] = (),
) -> tuple[str | None, str]:
    """Return how the script failed, as a clause, None if it succeeded; and the end of what it wrote then.

    Its sandbox shows the `binds` too; what it can write there counts as its disk space.
    """
    with tempfile.TemporaryDirectory(prefix="threadtree-script-") as folder:
        file = Path(folder) / "script"
        file.write_bytes(text.replace(b"\r\n", b"\n"))  # as Windows writes it, no shell reads it
        starting = ctx.launcher.script(ctx.tree(worktree), home, file, command_for(text, file), variables, binds)
        async with starting as (launch, seen):
            also = (bind.path for bind in binds if bind.writable)
            disk = replace(seen, folders=(*seen.folders, *also) if seen.folders else ())
            try:
                async with watched(disk, on_overflow):
                    ended = await run_script(launch, limit_seconds)
            except OSError as problem:
                return notices.setup_not_startable(problem.strerror or str(problem)), ""
    _log.info("script-ended", status=ended.status)
    if ended.status == 0:
        return None, ""
    is_late = ended.status is None
    failure = notices.setup_out_of_time(limit_seconds) if is_late else reasons.program_ended(ended.status)
    return failure, shown(ended.output, ctx.redactor)


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


async def run_script(launch: Launch, limit_seconds: float) -> Ended:
    """Run the script in a process group of its own, which ends with it. Raises OSError if it cannot be started."""
    process = await start(launch.argv, launch.environment, launch.cwd, stderr=STDOUT)
    output = OutputTail(process.stdout, _OUTPUT_BYTES)
    try:
        await process.exits_within(limit_seconds)
        status = process.status
    finally:
        await asyncio.shield(_end(process, output))
    return Ended(status, readable(output.data))


async def _end(process: ProcessGroup, output: OutputTail) -> None:
    await process.terminate()
    await output.finish()
    await process.close()
