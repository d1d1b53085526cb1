"""Before the agent works in a new checkout: the repository's own script prepares it (the setting SETUP_SCRIPT).

It is always the script of the default branch: a pull request must not change what runs.
"""

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import structlog

from bot.clones import entries
from bot.clones.clone import CloneLock, NoDefaultBranch, clone_lock, remote_default_branch
from bot.git import refs
from bot.messages import notices, tracking
from bot.messages.redact import redact
from bot.run import prompt
from bot.run.context import TurnContext
from bot.run.progress import Progress
from bot.run.script import Ended, OutOfTime, Script, Stopped, command_for, run_script
from bot.sandbox.disk import watched
from bot.store.turns import ClaimedTurn

SCRIPT = ".threadtree/setup"
LIMIT_SECONDS = 600.0
MAX_SCRIPT_BYTES = 1 << 20
_SHOWN_LINES = 60
_SHOWN_CHARACTERS = 6000
_log = structlog.get_logger()

OnOverflow = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Whether the checkout is prepared (`done`); `notices` are for the thread, `remarks` for the agent."""

    done: bool
    notices: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The script of the default branch."""

    text: bytes


@dataclass(frozen=True, slots=True)
class NotThere:
    """The default branch has no script."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Its path on the default branch is not a regular file of an acceptable size."""

    default_branch: str


async def prepare_checkout(
    ctx: TurnContext, turn: ClaimedTurn, progress: Progress, stop: asyncio.Event, on_overflow: OnOverflow
) -> Prepared:
    """Run the script, if there is one, in the agent's sandbox and look at what it left. `stop` ends it early.

    Raises GitError, InvalidNameError, OSError, UnsafeCommandError.
    """
    async with clone_lock(ctx.clone(turn.worktree.folder)) as lock:
        found = await script_of(lock)
    match found:
        case NotThere():
            return Prepared(done=True)
        case Unusable(default_branch=branch):
            return _failed(notices.setup_unusable(branch, MAX_SCRIPT_BYTES), "")
        case Found(text=text):
            progress.enter(tracking.setting_up())
            return await _run(ctx, turn, text, stop, on_overflow)
        case _:
            assert_never(found)


async def script_of(lock: CloneLock) -> Found | NotThere | Unusable:
    """Return the script on the remote's default branch, after a fetch. Raises GitError."""
    clone, default = lock.clone, await remote_default_branch(lock)
    if isinstance(default, NoDefaultBranch):
        return NotThere()
    listed = (await clone.run("ls-tree", "-z", "--long", refs.remote(default.name), "--", SCRIPT)).fields
    if not listed:
        return NotThere()
    mode, kind, blob, size = listed[0].partition("\t")[0].split()
    # A symbolic link is a blob too.
    if kind != "blob" or not mode.startswith("100") or int(size) > MAX_SCRIPT_BYTES:
        return Unusable(default.name)
    return Found((await clone.run("cat-file", "blob", blob)).stdout)


def shown(output: str, secrets: tuple[str, ...]) -> str:
    """Return the end of an output, without secrets, as long as a comment has room for."""
    lines = redact(output, secrets).split("\n")[-_SHOWN_LINES:]
    return "\n".join(lines)[-_SHOWN_CHARACTERS:]


async def _run(
    ctx: TurnContext, turn: ClaimedTurn, text: bytes, stop: asyncio.Event, on_overflow: OnOverflow
) -> Prepared:
    clone, path = ctx.clone(turn.worktree.folder), Path(turn.worktree.path)
    before = {name for _, name in await entries.changed_files(clone, path)}
    ended = await _ended(ctx, turn, text, stop, on_overflow)
    if isinstance(ended, Stopped):
        return Prepared(done=False)
    # A git that it started may have been killed.
    await entries.clear_stale_locks(clone, path)
    left = [name for _, name in await entries.changed_files(clone, path) if name not in before]
    prepared = _outcome(ended, ctx.secrets)
    if not left:
        return prepared
    return Prepared(
        prepared.done,
        (*prepared.notices, notices.setup_left(left)),
        (*prepared.remarks, prompt.setup_left(len(left))),
    )


async def _ended(
    ctx: TurnContext, turn: ClaimedTurn, text: bytes, stop: asyncio.Event, on_overflow: OnOverflow
) -> Ended | OutOfTime | Stopped | OSError:
    limit = min(LIMIT_SECONDS, ctx.limits.total_seconds)
    with tempfile.TemporaryDirectory(prefix="threadtree-setup-") as folder:
        file = Path(folder) / "setup"
        file.write_bytes(text)
        async with (
            ctx.launching(turn, Script(file, command_for(text, file))) as (launch, disk),
            watched(disk, on_overflow),
        ):
            try:
                ended = await run_script(launch, limit, stop)
            except OSError as problem:
                return problem
    _log.info("setup-ended", turn=turn.id, how=type(ended).__name__, status=getattr(ended, "status", None))
    return ended


def _outcome(ended: Ended | OutOfTime | OSError, secrets: tuple[str, ...]) -> Prepared:
    match ended:
        case Ended(status=0):
            return Prepared(done=True)
        case Ended(status=status, output=output):
            return _failed(notices.setup_ended_with(status), shown(output, secrets))
        case OutOfTime(seconds=seconds, output=output):
            return _failed(notices.setup_out_of_time(seconds), shown(output, secrets))
        case OSError():
            return _failed(notices.setup_not_startable(ended.strerror or str(ended)), "")
        case _:
            assert_never(ended)


def _failed(how: str, output: str) -> Prepared:
    return Prepared(
        done=False, notices=(notices.setup_failed(how, output),), remarks=(prompt.setup_failed(how, output),)
    )
