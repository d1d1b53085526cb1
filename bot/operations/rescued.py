"""What a rescue found goes into the index of rescues: its size is measured, its rows are written."""

import asyncio
from functools import partial
from pathlib import Path

import structlog

from bot.clones import trash
from bot.clones.clone import Clone
from bot.git.runner import GitError
from bot.rescue.save import Label, Rescued
from bot.rescue.stored import rescue_bytes
from bot.store import rescues
from bot.store.database import Connection

_log = structlog.get_logger()


async def size_of(clone: Clone, rescue: Rescued | None, kept: Path | None) -> int:
    """The bytes that are kept, in the commit or the directory, as far as they can be told."""
    size = await asyncio.to_thread(trash.size_of, kept) if kept else 0
    try:
        return size + (await rescue_bytes(clone, rescue.ref) if rescue else 0)
    except GitError as error:
        _log.warning("rescue-not-measured", error=str(error))
        return size


async def record(connection: Connection, label: Label, rescue: Rescued | None, kept: Path | None, size: int) -> None:
    """Notes the commit, the directory, or both; `size` is what `size_of` told. The same ones twice are one each."""
    note = partial(rescues.record, connection, label.worktree_id, label.at, conversations=label.conversations)
    if kept is not None:
        await note(kept=kept.name, size=size)
    if rescue is not None:
        await note(ref=rescue.ref, files=rescue.files, commits=rescue.commits, size=0 if kept else size)
