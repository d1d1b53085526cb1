"""Prune: remove worktrees without activity for long enough, or while the disk is short, starting from their rows
(DESIGN.md §4, retention).
"""

import asyncio
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import structlog

from bot import refs
from bot.care import retention_rows as retention
from bot.care.asked import PruneLine, PruneReport, Pruning, Repairing, age_of
from bot.care.expire import end_orphan, expire
from bot.care.removing import delete_trashed, remove_idle
from bot.care.repair import Progress, repair
from bot.care.retention_rows import Live, Orphan
from bot.care.retention_rules import (
    Facts,
    Kind,
    Policies,
    RetentionPolicy,
    describe,
    exceeds_safety_limit,
    kind_of,
    reason_to_keep,
)
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.node.room import free_bytes, is_short
from bot.sandbox import trash
from bot.tree import GitError, Metadata, Removed

IDLE = timedelta(days=1)
"""While the disk is short, worktrees that were used since then stay."""
EVERYTHING = Pruning()
_FAILURES = (GitError, OSError, refs.InvalidNameError)
_log = structlog.get_logger()


async def prune(
    ctx: NodeContext,
    policy_at: Policies,
    asked: Pruning = EVERYTHING,
    progress: Progress = lambda _: None,
) -> PruneReport:
    """Remove what is due, then, unless only some are asked for, expire the rest; `force` skips the safety limit.

    A dry run changes nothing, and asks what the removal would ask; its bytes are those that would be freed. Opens
    directories only of what is due. Raises only what a database raises that is away.
    """
    return await _Prune(ctx, policy_at(ctx.clock(), age_of(asked.older_than)), asked, progress).run()


class _Prune:
    def __init__(self, ctx: NodeContext, policy: RetentionPolicy, asked: Pruning, progress: Progress) -> None:
        self._ctx = ctx
        self._policy = policy
        self._asked = asked
        self._report = PruneReport(asked.dry_run)
        self._progress = progress

    async def run(self) -> PruneReport:
        ctx, report = self._ctx, self._report
        old = await retention.live_worktrees(ctx.pool, ctx.node, idle_since=max(map(self._policy.expired_before, Kind)))
        total = await retention.count_live(ctx.pool, ctx.node)
        # Files of worktrees that are not old by their row are not read.
        due = await self._due_of([one for one in old if self._is_old(one.worktree)])
        if exceeds_safety_limit(len(due), total) and not self._asked.force:
            report.aborted = (
                f"{len(due)} of {total} worktrees would go at once. Did the clock jump? Nothing was removed."
            )
            _log.warning("prune-aborted", due=len(due), of=total)
            for candidate in due:
                report.skipped.append(self._line(candidate, "Too many at once."))
        else:
            for number, candidate in enumerate(due, start=1):
                self._progress(f"removing {self._path(candidate)} ({number} of {len(due)})")
                await self._prune(candidate)
            orphans = await retention.orphans(ctx.pool, ctx.node)
            for orphan in orphans:
                is_one = self._asked.has(orphan.codebase, Kind.ORPHAN)
                if is_one and orphan.seen_at < self._policy.expired_before(Kind.ORPHAN):
                    await self._prune_orphan(orphan)
        if self._asked.is_whole:
            force, dry_run = self._asked.force, self._asked.dry_run
            report.bytes_reclaimed += await expire(ctx, self._policy, force=force, dry_run=dry_run)
        for verdict, line in report.lines:
            log = _log.warning if verdict == "failed" else _log.info
            log(
                "worktree-considered", verdict=verdict, worktree=line.id, path=line.path, why=line.why, bytes=line.bytes
            )
        counts = {name: len(getattr(report, name)) for name in ("deleted", "skipped", "errors")}
        _log.info("prune-ended", **counts, bytes_reclaimed=report.bytes_reclaimed, dry_run=report.dry_run)
        return report

    def _is_old(self, worktree: WorktreeRow) -> bool:
        kind = kind_of(worktree.start, worktree.conversations)
        is_one = self._asked.has(worktree.repository.full_name, kind)
        return is_one and worktree.updated_at < self._policy.expired_before(kind)

    async def _due_of(self, candidates: list[Live]) -> list[Live]:
        """Return those that are due by their rows, metadata and files."""
        due: list[Live] = []
        for number, candidate in enumerate(candidates, start=1):
            self._progress(f"checking {self._path(candidate)} ({number} of {len(candidates)})")
            try:
                facts = await asyncio.to_thread(self._facts, candidate)
                if facts.directory and facts.metadata != "ok" and not self._report.dry_run:
                    await repair(self._ctx, Repairing(worktree=candidate.worktree.id))
            except _FAILURES as problem:
                self._report.errors.append(self._line(candidate, str(problem)))
                continue
            if (why := reason_to_keep(facts, self._policy)) is not None:
                self._report.skipped.append(self._line(candidate, why))
            else:
                due.append(candidate)
        return due

    async def _prune(self, candidate: Live) -> None:
        async def reason() -> str | None:
            return reason_to_keep(await asyncio.to_thread(self._facts, candidate), self._policy)

        line = self._line(candidate, f"Last used {describe(self._policy.now - candidate.worktree.updated_at)} ago.")
        try:
            if self._report.dry_run:
                self._deleted(line, await asyncio.to_thread(self._ctx.tree(candidate.worktree).bytes))
                return
            result = await remove_idle(self._ctx, candidate.worktree, "retention", reason)
        except _FAILURES as problem:
            self._report.errors.append(replace(line, why=str(problem)))
            return
        if isinstance(result, Removed):
            self._deleted(line, await delete_trashed(result.trashed))
        else:
            self._report.skipped.append(replace(line, why=result.why))

    def _facts(self, candidate: Live) -> Facts:
        """Return what retention must know of a worktree. Raises OSError, InvalidNameError."""
        tree = self._ctx.tree(candidate.worktree)
        known = Metadata.read(tree.path)
        facts = Facts(
            kind=kind_of(candidate.worktree.start, candidate.worktree.conversations),
            row_at=candidate.worktree.updated_at,
            directory=os.path.lexists(tree.path),
            metadata="ok" if isinstance(known, Metadata) else known,
            metadata_at=known.updated_at if isinstance(known, Metadata) else None,
            busy=candidate.busy,
            locked=tree.foreign_lock(),
        )
        is_due = reason_to_keep(facts, self._policy) is None
        return replace(facts, changed_at=tree.last_change()) if is_due else facts

    async def _prune_orphan(self, orphan: Orphan) -> None:
        path = self._ctx.directory(orphan.path)
        line = PruneLine(orphan.id, str(path), f"An orphan for {describe(self._policy.now - orphan.seen_at)}.")
        try:
            freed = await end_orphan(self._ctx, path, dry_run=self._report.dry_run)
        except _FAILURES as problem:
            self._report.errors.append(replace(line, why=str(problem)))
            return
        if freed is not None:
            self._deleted(line, freed)

    def _path(self, candidate: Live) -> Path:
        return self._ctx.directory(candidate.worktree.path)

    def _line(self, candidate: Live, why: str) -> PruneLine:
        return PruneLine(candidate.worktree.id, str(self._path(candidate)), why)

    def _deleted(self, line: PruneLine, freed: int) -> None:
        self._report.bytes_reclaimed += freed
        self._report.deleted.append(replace(line, bytes=freed))


async def make_room(ctx: NodeContext) -> None:
    """While the disk is short, empty the trash and remove unused worktrees that hold nothing of their own, the oldest
    first: their conversations keep them, and the next request makes them again.

    What fails is logged. Raises only what a database raises that is away.
    """
    if not is_short(ctx):
        return
    freed = await trash.empty_trash(ctx.data_dir)
    removed = 0
    idle = await retention.live_worktrees(ctx.pool, ctx.node, idle_since=ctx.clock() - IDLE)
    for candidate in idle:
        if not is_short(ctx):
            break
        if candidate.busy or candidate.worktree.state != "ready":
            continue
        try:
            bytes_of_one = await _purge(ctx, candidate)
        except _FAILURES as problem:
            _log.warning("prune-error", worktree=candidate.worktree.id, error=str(problem))
            continue
        freed += bytes_of_one or 0
        removed += bytes_of_one is not None
    _log.warning("disk-short", free=free_bytes(ctx.data_dir), removed=removed, freed=freed)


async def _purge(ctx: NodeContext, candidate: Live) -> int | None:
    """Remove a worktree that is clean and pushed; return the bytes freed, None if it stays."""
    worktree = candidate.worktree
    if await asyncio.to_thread(ctx.tree(worktree).foreign_lock) is not None:
        return None
    result = await remove_idle(ctx, worktree, "purged")
    return await delete_trashed(result.trashed) if isinstance(result, Removed) else None
