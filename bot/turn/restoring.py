"""A worktree is made by its row, and what was rescued from it comes back: before a turn, or because somebody asks."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from bot import refs
from bot.model import Rescue, Saved, WorktreeRow
from bot.node import rescue_rows as rescues
from bot.node.context import NodeContext
from bot.node.room import require_room
from bot.refs import InvalidNameError
from bot.sandbox import trash
from bot.store import turns, worktrees
from bot.store.database import Connection
from bot.thread import notices, reasons, worktree_replies
from bot.tree import CheckoutRefused, Created, GitError, Metadata, Missing, OpenTree, RestoreRefusedError
from bot.turn.alone import ImpossibleError, work_alone
from bot.turn.turn_run import TurnRun
from bot.turn.waiting import passing

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Made:
    """The checkout is there; `fresh`: it was made now, `again`: it had been lost."""

    branch: str | None
    base_branch: str | None
    fresh: bool
    again: bool

    async def record(self, connection: Connection, worktree_id: int) -> None:
        """Write into the rows that the checkout was made."""
        await worktrees.record_checkout(connection, worktree_id, self.branch, self.base_branch, fresh=self.fresh)
        if self.again:
            await worktrees.end_sessions(connection, worktree_id, "worktree-missing")


@dataclass(frozen=True, slots=True)
class Back:
    """What came back into the checkout, and the commits that only the rescue has; or why nothing did: `words` say that
    to whoever asks for it, `why` to the thread whose turn it was to come back for.
    """

    made: Made | None = None
    saved: Saved | None = None
    elsewhere: tuple[str, ...] = ()
    words: str = ""
    why: str = ""
    rescue: Rescue | None = None
    directory: Path | None = None

    async def record(self, connection: Connection, run: TurnRun) -> None:
        """Write into the rows what was made and what came back."""
        if self.made is not None:
            await self.made.record(connection, run.turn.worktree.id)
        if self.rescue is None:
            return
        if self.saved is not None:
            await rescues.mark_restored(connection, self.rescue.id, run.ctx.clock())
        if self.directory is not None and not self.directory.exists():  # it is back, or gone: nothing is left of it
            await rescues.forget_directory(connection, self.rescue.id)


async def fetch_for(ctx: NodeContext, tree: OpenTree, worktree: WorktreeRow) -> None:
    """Bring the clone up to date. Raises ImpossibleError, GitError."""
    full_name = worktree.repository.full_name
    if (await tree.update(f"{ctx.server_url}/{full_name}.git")).no_access:
        raise ImpossibleError(reasons.cannot_fetch(full_name))


async def make(ctx: NodeContext, tree: OpenTree, worktree: WorktreeRow, rescue: str | None = None) -> Made:
    """Fetch the clone and make the checkout, from the commit `rescue` where GitHub lacks what that has.

    Raises ImpossibleError, GitError, OSError, InvalidNameError.
    """
    await fetch_for(ctx, tree, worktree)
    if worktree.is_made:
        if not isinstance(found := await ctx.tree(worktree).look(), Missing):
            return Made(worktree.branch, worktree.base_branch, fresh=False, again=False)
        _log.warning("worktree-missing", path=worktree.path, why=found.why)
    require_room(ctx)
    made = await _checkout(ctx, tree, worktree, rescue)
    if isinstance(made, CheckoutRefused):
        raise ImpossibleError(reasons.no_worktree(made.next_step))
    await asyncio.to_thread(Metadata.record_use, tree.path, worktree, made.branch, made.base_branch, ctx.clock())
    return Made(made.branch, made.base_branch, fresh=True, again=worktree.is_made)


async def _checkout(
    ctx: NodeContext, tree: OpenTree, worktree: WorktreeRow, rescue: str | None
) -> Created | CheckoutRefused:
    clone, branch = tree.clone, worktree.branch
    displaced = refs.rescue_ref(str(worktree.id), ctx.clock())
    tip = await tree.rescued_tip(rescue) if rescue is not None else None
    if worktree.is_made:
        return await tree.make_again(branch, tip or worktree.start_sha, displaced)
    on_github = await clone.tip(branch) is not None
    if tip is not None and branch is not None and not on_github and await clone.unpublished(tip):
        return await tree.make_again(branch, tip, displaced)
    made = await tree.make(refs.start_again(worktree), displaced)
    if isinstance(made, CheckoutRefused) and tip is not None:
        return await tree.make_again(branch, tip, displaced)
    return made


async def bring_back(run: TurnRun, tree: OpenTree, rescue: Rescue) -> Back:
    """Bring a rescue back into the turn's worktree, which is made for it. Every step can be repeated.

    Raises ImpossibleError, GitError, OSError, InvalidNameError.
    """
    ctx, worktree = run.ctx, run.turn.worktree
    sha = await tree.clone.commit_at(rescue.ref) if rescue.ref else None
    if rescue.ref is not None and sha is None:
        why, step = worktree_replies.COMMIT_GONE
        return Back(words=worktree_replies.not_done("restore", why, step), why=notices.not_restored_before_turn(why))
    made = await make(ctx, tree, worktree, sha)
    directory = trash.kept_folder(ctx.data_dir) / rescue.kept if rescue.kept else None
    try:
        restored = await tree.restore(made.branch, sha, directory, run.turn.id)
    except RestoreRefusedError as refused:
        words = worktree_replies.not_restored(refused.obstacle, refused.names)
        if directory is not None and directory.exists():
            words += f" {worktree_replies.kept_whole(directory.name)}"
        obstacle = worktree_replies.restore_obstacle(refused.obstacle, refused.names)
        why = notices.restore_refused_before_turn(obstacle)
        return Back(made, words=words, why=why, rescue=rescue, directory=directory)
    return Back(made, restored.back, tuple(restored.elsewhere), rescue=rescue, directory=directory)


async def bring_back_before(run: TurnRun, rescue: Rescue) -> None:
    """Bring back what was rescued when nobody asked for the removal of the thread's worktree; the reply tells of it.

    Raises StoppedError, ClaimLostError, and GitError, OSError that pass.
    """
    ctx, turn = run.ctx, run.turn
    if rescue.node != ctx.node:
        run.notices.append(notices.rescued_on(rescue.node_name))
        return
    async with work_alone(run) as tree:
        try:
            back = await bring_back(run, tree, rescue)
        except ImpossibleError as impossible:
            back = Back(why=str(impossible))
        except (GitError, InvalidNameError, OSError) as problem:
            if passing(problem) is not None:
                raise
            _log.warning("rescue-not-restored", problem=str(problem))
            back = Back(why=notices.not_restored_before_turn(str(problem)))
        run.notices.append(back.why if back.saved is None else notices.restored_before_turn(back.saved))
        await run.write(_save_before, run, back)
    row = await run.write(worktrees.row_of, turn.worktree.id)
    run.turn = replace(turn, worktree=row or turn.worktree)


async def _save_before(connection: Connection, run: TurnRun, back: Back) -> None:
    await turns.save_notices(connection, run.turn.claim, tuple(run.notices))
    await back.record(connection, run)
