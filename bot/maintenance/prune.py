"""Prune: remove worktrees without activity for long enough, starting from their rows (DESIGN.md §4, retention)."""

import asyncio
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from bot.clones import metadata, trash
from bot.clones.metadata import Metadata
from bot.failpoints import reached
from bot.git import refs
from bot.git.errors import GitError
from bot.maintenance.expire import end_orphan, expire
from bot.maintenance.repair import METADATA_STATES, Progress, repair
from bot.maintenance.retention_rules import (
    Facts,
    Kind,
    Policy,
    describe,
    exceeds_safety_limit,
    kind_of,
    reason_to_keep,
)
from bot.model import WorktreeRow
from bot.node.context import NodeContext
from bot.operations.remove import delete_trashed, remove_claimed
from bot.store import removals, retention
from bot.store.retention import Candidate
from bot.worktrees.remove import Removed
from bot.worktrees.summary import foreign_lock, last_change

CHECKED_AT_ONCE = 4
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Line:
    """One worktree of a report; `id` is None for an orphan, which has no row."""

    id: int | None
    path: str
    why: str


@dataclass(slots=True)
class Report:
    """The result of a prune; with `dry_run`, nothing was removed. `aborted`: why it stopped before any removal."""

    dry_run: bool
    deleted: list[Line] = field(default_factory=list)
    skipped: list[Line] = field(default_factory=list)
    errors: list[Line] = field(default_factory=list)
    bytes_reclaimed: int = 0
    aborted: str | None = None


async def prune(
    ctx: NodeContext,
    policy: Policy,
    *,
    dry_run: bool = False,
    force: bool = False,
    progress: Progress = lambda _: None,
) -> Report:
    """Remove what is due, then expire the rest; `force` skips the safety limit.

    A dry run changes nothing; its bytes are those that would be freed. Opens directories only of what is due. Raises
    only what a database raises that is away.
    """
    return await _Prune(ctx, policy, Report(dry_run), progress).run(force=force)


class _Prune:
    def __init__(self, ctx: NodeContext, policy: Policy, report: Report, progress: Progress) -> None:
        self._ctx = ctx
        self._policy = policy
        self._report = report
        self._progress = progress

    async def run(self, *, force: bool) -> Report:
        ctx, report = self._ctx, self._report
        async with ctx.pool.acquire() as connection:
            old = await retention.candidates(connection, ctx.node, max(map(self._policy.expired_before, Kind)))
            total = await retention.count_live(connection, ctx.node)
        # Files of worktrees that are not old by their row are not read.
        due = await self._judge_all([one for one in old if self._is_old(one.worktree)])
        if exceeds_safety_limit(len(due), total) and not force:
            report.aborted = (
                f"{len(due)} of {total} worktrees would go at once. Did the clock jump? Nothing was removed."
            )
            _log.warning("prune-aborted", due=len(due), of=total)
            for candidate in due:
                self._skipped(candidate, "Too many at once.")
        else:
            await self._prune_all(due)
            await self._end_orphans()
        if not report.dry_run:
            report.bytes_reclaimed += await expire(ctx, self._policy, force=force)
        counts = {name: len(getattr(report, name)) for name in ("deleted", "skipped", "errors")}
        _log.info("prune-ended", **counts, bytes_reclaimed=report.bytes_reclaimed, dry_run=report.dry_run)
        return report

    def _is_old(self, worktree: WorktreeRow) -> bool:
        return worktree.updated_at < self._policy.expired_before(kind_of(worktree.start, worktree.conversations))

    async def _judge_all(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return those that are due by their rows, metadata and files."""
        due: list[Candidate] = []
        for start in range(0, len(candidates), CHECKED_AT_ONCE):
            some = candidates[start : start + CHECKED_AT_ONCE]
            self._progress(f"checking {self._path(some[0])} ({start + 1} of {len(candidates)})")
            checked = await asyncio.gather(
                *(asyncio.to_thread(self._facts, one) for one in some), return_exceptions=True
            )
            for candidate, facts in zip(some, checked, strict=True):
                if await self._is_due(candidate, facts):
                    due.append(candidate)
        return due

    async def _is_due(self, candidate: Candidate, facts: Facts | BaseException) -> bool:
        try:
            if isinstance(facts, BaseException):
                raise facts
            why = reason_to_keep(facts, self._policy)
            if facts.directory and facts.metadata != "ok" and not self._report.dry_run:
                await repair(self._ctx, candidate.worktree.id)
        except (GitError, OSError, refs.InvalidNameError) as problem:
            self._failed(candidate, problem)
            return False
        if why is not None:
            self._skipped(candidate, why)
        return why is None

    async def _prune_all(self, due: list[Candidate]) -> None:
        for number, candidate in enumerate(due, start=1):
            self._progress(f"removing {self._path(candidate)} ({number} of {len(due)})")
            try:
                await self._prune(candidate)
            except (GitError, OSError, refs.InvalidNameError) as problem:
                self._failed(candidate, problem)

    async def _prune(self, candidate: Candidate) -> None:
        ctx = self._ctx
        if self._report.dry_run:
            size = await asyncio.to_thread(trash.size_of, self._path(candidate))
            self._deleted(candidate, size)
            return
        async with ctx.pool.acquire() as connection:
            claimed = await removals.claim_for(
                connection,
                ctx.node,
                candidate.worktree.id,
                "retention",
                last_activity=candidate.worktree.updated_at,
            )
        if claimed is None:
            self._skipped(candidate, "It is used again, or is being removed already.")
            return
        reached("prune-claimed")
        # Nothing can start there now: check once more what happened until the claim.
        why = reason_to_keep(await asyncio.to_thread(self._facts, candidate), self._policy)
        if why is not None:
            async with ctx.pool.acquire() as connection:
                await removals.keep(connection, claimed, ctx.node)
            self._skipped(candidate, why)
            return
        result = await remove_claimed(ctx, claimed)
        if isinstance(result, Removed):
            self._deleted(candidate, await delete_trashed(result.trashed))
            return
        # A failed removal is no activity: the next prune tries again.
        async with ctx.pool.acquire() as connection:
            await retention.set_activity(connection, candidate.worktree.id, candidate.worktree.updated_at)
        self._skipped(candidate, result.why)

    def _facts(self, candidate: Candidate) -> Facts:
        """Return what retention must know of a worktree. Raises OSError, InvalidNameError."""
        path, clone = self._path(candidate), self._ctx.clone(candidate.worktree.folder)
        known = metadata.read(path)
        facts = Facts(
            kind=kind_of(candidate.worktree.start, candidate.worktree.conversations),
            row_at=candidate.worktree.updated_at,
            directory=os.path.lexists(path),
            metadata=METADATA_STATES[type(known)],
            metadata_at=known.updated_at if isinstance(known, Metadata) else None,
            busy=candidate.busy,
            locked=foreign_lock(clone.path, path),
        )
        is_due = reason_to_keep(facts, self._policy) is None
        return replace(facts, changed_at=last_change(clone, path)) if is_due else facts

    async def _end_orphans(self) -> None:
        ctx, report = self._ctx, self._report
        async with ctx.pool.acquire() as connection:
            orphans = await retention.orphans(connection, ctx.node)
        before = self._policy.expired_before(Kind.ORPHAN)
        for path in [ctx.directory(path) for path, since in orphans.items() if since < before]:
            line = Line(None, str(path), f"An orphan for {describe(self._policy.kept_for[Kind.ORPHAN])}.")
            try:
                if report.dry_run or await end_orphan(ctx, path):
                    freed = 0 if report.dry_run else await trash.empty_trash(ctx.data_dir)
                    report.bytes_reclaimed += freed
                    report.deleted.append(line)
                    _log.info("worktree-pruned", path=str(path), orphan=True, bytes=freed, dry_run=report.dry_run)
            except (GitError, OSError, ValueError) as problem:
                report.errors.append(Line(None, str(path), str(problem)))
                _log.warning("prune-error", path=str(path), error=str(problem))

    def _path(self, candidate: Candidate) -> Path:
        return self._ctx.directory(candidate.worktree.path)

    def _deleted(self, candidate: Candidate, freed: int) -> None:
        self._report.bytes_reclaimed += freed
        idle = self._policy.now - candidate.worktree.updated_at
        self._report.deleted.append(
            Line(candidate.worktree.id, str(self._path(candidate)), f"Last used {describe(idle)} ago.")
        )
        _log.info(
            "worktree-pruned",
            worktree=candidate.worktree.id,
            path=str(self._path(candidate)),
            bytes=freed,
            dry_run=self._report.dry_run,
        )

    def _skipped(self, candidate: Candidate, why: str) -> None:
        self._report.skipped.append(Line(candidate.worktree.id, str(self._path(candidate)), why))
        _log.info("worktree-prune-skipped", worktree=candidate.worktree.id, path=str(self._path(candidate)), why=why)

    def _failed(self, candidate: Candidate, problem: Exception) -> None:
        self._report.errors.append(Line(candidate.worktree.id, str(self._path(candidate)), str(problem)))
        _log.warning("prune-error", worktree=candidate.worktree.id, path=str(self._path(candidate)), error=str(problem))
