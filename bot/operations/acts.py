"""What each operation does with its worktree: make it, reset it, remove it, bring rescued work back to it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, assert_never

import structlog

from bot.clones import trash
from bot.clones.clone import clone_lock
from bot.clones.metadata import record_use
from bot.clones.start import start_again
from bot.github.errors import GitHubError
from bot.messages import notices, worktree_replies
from bot.messages.worktree_replies import Saved
from bot.model import WorktreeState
from bot.node.context import NodeContext
from bot.node.transactions import persist
from bot.operations import remove, rescued
from bot.operations.create import CannotBeMade, Made, fetched, make
from bot.rescue.restore import RestoreRefused
from bot.rescue.restore_directory import restore_all
from bot.rescue.save import Label
from bot.store import operations, removals, rescues, worktrees
from bot.store.database import Connection
from bot.store.operations import ClaimedOperation
from bot.store.rescues import Rescue
from bot.worktrees.remove import NotRemoved
from bot.worktrees.reset import ResetRefused, reset

_LIVE = frozenset[WorktreeState]({"reserved", "ready"})
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ends: `words` for whoever asked, `notice` for the reply of a turn that it goes before, `write`
    for the rows that change with the end, and the bytes to be deleted afterwards.
    """

    state: Literal["done", "failed"]
    words: str
    notice: str | None = None
    write: Callable[[Connection], Awaitable[None]] | None = None
    trashed: tuple[Path, ...] = ()


def failed(operation: ClaimedOperation, why: str, next_step: str | None = None) -> Outcome:
    """It was not done; `why` is somebody else's words, `next_step` a sentence of ours."""
    words = worktree_replies.not_done(operation.kind, why, next_step)
    return Outcome("failed", words, notices.not_restored_before_turn(why))


async def perform(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    """Does it. Every step can be repeated by whoever goes on with it. Raises GitError, InvalidNameError, OSError."""
    fits = {"restore": _LIVE | {"removed"}, "remove": _LIVE | {"removed"}}.get(operation.kind, _LIVE)
    if operation.worktree.state not in fits:
        return failed(operation, f"it is {operation.worktree.state}", "The next request makes a new one.")
    match operation.kind:
        case "create":
            return await _create(ctx, operation)
        case "restore":
            return await _restore(ctx, operation)
        case "remove":
            return await _remove(ctx, operation)
        case "reset":
            return await _reset(ctx, operation)
        case _:
            assert_never(operation.kind)


async def _create(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    async with clone_lock(ctx.clone(operation.worktree.folder)) as lock:
        made = await make(ctx, lock, operation)
    if isinstance(made, CannotBeMade):
        return Outcome("failed", made.words)
    return Outcome("done", worktree_replies.was_made(made.branch), write=_row_of(operation, made))


async def _reset(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    path, merged_head = Path(operation.worktree.path), await _merged_head(ctx, operation)
    # The same however often it is repeated: what was rescued before is found again.
    label = Label(
        operation.worktree.id, operation.worktree.branch, operation.worktree.conversations, operation.created_at
    )
    clone = ctx.clone(operation.worktree.folder)
    async with clone_lock(clone) as lock:
        if (unfetched := await fetched(ctx, lock, operation)) is not None:
            return Outcome("failed", unfetched.words)
        result = await reset(lock, path, start_again(operation.worktree), label, merged_head)
        if isinstance(result, ResetRefused):
            return Outcome("failed", worktree_replies.refused(operation.kind, result.why))
        size = await rescued.size_of(clone, result.rescue, result.kept)
    await asyncio.to_thread(record_use, operation.worktree, result.branch, result.base_branch, ctx.clock())

    async def write(connection: Connection) -> None:
        worktree_id = operation.worktree.id
        await rescued.record(connection, label, result.rescue, result.kept, size)
        await worktrees.made(connection, worktree_id, result.branch, result.base_branch, fresh=True)
        await worktrees.end_sessions(connection, worktree_id, "worktree-reset")

    saved = None
    if result.rescue is not None or result.kept is not None:
        files, commits = (result.rescue.files, result.rescue.commits) if result.rescue else (0, 0)
        saved = Saved(files, commits, result.kept is not None)
    words = worktree_replies.was_reset(
        operation.worktree.branch, result.branch, result.base_branch, saved, operation.others, result.submodules
    )
    return Outcome("done", words, write=write, trashed=result.trashed)


async def _merged_head(ctx: NodeContext, operation: ClaimedOperation) -> str | None:
    """The last commit that GitHub says was merged from the worktree's branch; None where it cannot be asked."""
    if ctx.github is None or operation.worktree.branch is None:
        return None
    try:
        return await ctx.github.merged_head(operation.worktree.repository, operation.worktree.branch)
    except GitHubError as error:
        _log.warning("merged-unknown", branch=operation.worktree.branch, error=str(error))
        return None


async def _remove(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    trashed: tuple[Path, ...] = ()
    if operation.worktree.state != "removed":
        mine = operation.claim
        claim = partial(removals.claim_for, removal="command", operation_id=mine.operation_id)
        removal = await persist(
            ctx.pool, lambda connection: claim(connection, ctx.node, operation.worktree.id, mine.worker)
        )
        if removal is None:
            return failed(operation, "something else needs it at this moment")
        result = await remove.carry_out(ctx, removal)
        if isinstance(result, NotRemoved):
            return failed(operation, result.why)
        trashed = result.trashed
    saved = await persist(ctx.pool, lambda connection: _rescued_since(connection, operation))
    return Outcome("done", worktree_replies.was_removed(saved, operation.others), trashed=trashed)


async def _rescued_since(connection: Connection, operation: ClaimedOperation) -> Saved | None:
    """What was rescued since the operation was asked for, also by somebody who had begun it and died."""
    found = await rescues.of_worktree(connection, operation.worktree.id, 2)
    last = [one for one in found if one.created_at == found[0].created_at >= operation.created_at]
    files, commits = sum(one.files for one in last), sum(one.commits for one in last)
    return Saved(files, commits, any(one.kept is not None for one in last)) if last else None


async def _restore(ctx: NodeContext, operation: ClaimedOperation) -> Outcome:
    found = await persist(ctx.pool, lambda connection: _rescued_for(connection, operation))
    if found is None:
        return Outcome("done", worktree_replies.nothing_to_restore())
    rescue, commit, kept = found.latest, found.commit, found.kept
    if rescue.node != ctx.node:
        return failed(operation, f"it is on the node {rescue.node}", "Whoever runs the bot can get it there.")
    if operation.worktree.state == "removed":
        if not await persist(ctx.pool, lambda connection: _revive(connection, operation, rescue)):
            return failed(operation, "another worktree is at its path", "Nothing was changed.")
        operation = replace(operation, worktree=replace(operation.worktree, state="reserved"))
    async with clone_lock(ctx.clone(operation.worktree.folder)) as lock:
        sha = await lock.clone.commit_at(commit) if commit else None
        if commit is not None and sha is None:
            return failed(operation, "the rescued commit is not in the clone any more", "Nothing was changed.")
        made = await make(ctx, lock, operation, sha)
        if isinstance(made, CannotBeMade):
            return Outcome("failed", made.words, made.words)
        directory = trash.kept_folder(ctx.data_dir) / kept if kept else None
        restored = await restore_all(lock, Path(operation.worktree.path), made.branch, sha, directory)
    write_row = _row_of(operation, made)
    if isinstance(restored, RestoreRefused):
        words = worktree_replies.not_restored(restored.why)
        words += f" {worktree_replies.kept_whole(kept)}" if kept is not None else ""
        notice = notices.not_restored_before_turn(restored.why)
        return Outcome("failed", words, notice, write_row)
    back, now = Saved(restored.files, restored.commits, restored.whole), ctx.clock()
    done = [one.id for one in found.rescues if one.ref is not None or restored.left is None]

    async def write(connection: Connection) -> None:
        await write_row(connection)
        for rescue_id in done:
            await rescues.restored(connection, rescue_id, now)

    words = worktree_replies.was_restored(back, made.branch, restored.elsewhere)
    notice = notices.restored_before_turn(back)
    if kept is not None and restored.left is not None:
        stays = worktree_replies.kept_whole(kept, restored.left)
        words, notice = f"{words}\n\n{stays}", f"{notice} {stays}"
    return Outcome("done", words, notice, write)


@dataclass(frozen=True, slots=True)
class _Rescued:
    """All that was rescued when `latest` was: a commit, the directory that was kept, or both."""

    latest: Rescue
    rescues: Sequence[Rescue]

    @property
    def commit(self) -> str | None:
        """Its ref."""
        return next((one.ref for one in self.rescues if one.ref is not None), None)

    @property
    def kept(self) -> str | None:
        """The directory's name."""
        return next((one.kept for one in self.rescues if one.kept is not None), None)


async def _rescued_for(connection: Connection, operation: ClaimedOperation) -> _Rescued | None:
    """The latest of the thread that asked; before a turn what that must find; for an operator that of the worktree."""
    if operation.turn_conversation_id is not None:
        latest = await rescues.to_bring_back(connection, operation.turn_conversation_id)
    elif operation.conversation_id is not None:
        latest = next(iter(await rescues.of_conversation(connection, operation.conversation_id, 1)), None)
    else:
        latest = next(iter(await rescues.of_worktree(connection, operation.worktree.id, 1)), None)
    if latest is None:
        return None
    of_worktree = await rescues.of_worktree(connection, latest.worktree_id)
    return _Rescued(latest, [one for one in of_worktree if one.created_at == latest.created_at])


async def _revive(connection: Connection, operation: ClaimedOperation, rescue: Rescue) -> bool:
    await operations.must_be_mine(connection, operation.claim)
    if not await worktrees.revive(connection, operation.worktree.id):
        return False
    await worktrees.rejoin(connection, operation.worktree.id, rescue.conversations)
    return True


def _row_of(operation: ClaimedOperation, made: Made) -> Callable[[Connection], Awaitable[None]]:
    async def write(connection: Connection) -> None:
        await worktrees.made(connection, operation.worktree.id, made.branch, made.base_branch, fresh=made.fresh)
        if made.again:
            await worktrees.end_sessions(connection, operation.worktree.id, "worktree-missing")

    return write
