"""`threadtree worktrees prune|repair` and `sessions prune`: housekeeping by hand, as the timer does it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import orjson
import typer
from rich.console import Console
from rich.filesize import decimal

from bot.cli.listings import print_table
from bot.cli.running import fail, open_connection, open_node, run
from bot.cli.worktrees import find
from bot.maintenance.prune import Progress, Report, prune
from bot.maintenance.reconcile_rules import Action
from bot.maintenance.repair import repair
from bot.maintenance.retention_rules import parse_age, policy_for
from bot.messages.formatting import format_count
from bot.node.process_lock import worker_lock
from bot.settings import load
from bot.store import retention


def prune_worktrees(older_than: str | None, *, dry_run: bool, force: bool, json: bool) -> None:
    """Prune and report; exit status 1 where a worktree could not be pruned."""
    age = _age(older_than)

    async def pruned() -> Report:
        settings = load()
        async with open_node() as ctx:
            policy = policy_for(
                ctx.clock(),
                detached_days=settings.worktree_headless_expiry_days,
                branch_days=settings.worktree_branch_expiry_days,
                orphan_days=settings.worktree_orphan_expiry_days,
                rescue_days=settings.rescue_expiry_days,
                older_than=age,
            )
            with worker_lock(ctx.workers) as worker, _progress() as progress:
                return await prune(ctx, policy, worker, dry_run=dry_run, force=force, progress=progress)

    report = run(pruned())
    if json:
        typer.echo(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))
    else:
        _print(report)
    if report.aborted is not None:
        fail(f"{report.aborted} --force goes on all the same.")
    if report.errors:
        raise typer.Exit(1)


def repair_worktrees(worktree: str | None, *, json: bool) -> None:
    """Repair one worktree or all of this node, and print what was done."""

    async def repaired() -> list[tuple[str, Action]]:
        async with open_node() as ctx:
            only = (await find(ctx, worktree)).id if worktree is not None else None
            with _progress() as progress:
                return await repair(ctx, only, progress)

    done = run(repaired())
    if json:
        rows = [{"path": path, "action": action.value} for path, action in done]
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    elif done:
        print_table(("ACTION", "PATH"), 2, [(action.value, path) for path, action in done], last_is_whole=True)
    else:
        typer.echo("Nothing to repair.")


def prune_sessions(older_than: str | None, *, json: bool) -> None:
    """Delete old ended sessions and print how many."""
    age = _age(older_than)

    async def deleted() -> int:
        ttl = load().session_ttl_seconds if age is None else age.total_seconds()
        async with open_connection() as connection:
            return await retention.delete_old_sessions(connection, ttl, datetime.now(UTC))

    count = run(deleted())
    typer.echo(orjson.dumps({"deleted": count}) if json else f"Deleted {format_count(count, 'ended session')}.")


def _age(text: str | None) -> timedelta | None:
    try:
        return None if text is None else parse_age(text)
    except ValueError as error:
        fail(str(error), 2)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A status line on the terminal; nothing where stderr is no terminal."""
    with Console(stderr=True).status("") as status:
        yield status.update


def _print(report: Report) -> None:
    verdict = "WOULD REMOVE" if report.dry_run else "REMOVED"
    rows = [
        *((verdict, line) for line in report.deleted),
        *(("KEPT", line) for line in report.skipped),
        *(("FAILED", line) for line in report.errors),
    ]
    if rows:
        cells = [(word, str(line.id or ""), line.why, line.path) for word, line in rows]
        print_table(("", "ID", "WHY", "PATH"), 2, cells, last_is_whole=True)
    would_be = "would be " if report.dry_run else ""
    typer.echo(
        f"{len(report.deleted)} {would_be}removed, {len(report.skipped)} kept, {len(report.errors)} failed; "
        f"{decimal(report.bytes_reclaimed)} {would_be}freed."
    )
