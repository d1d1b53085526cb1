"""`threadtree worktrees prune|repair` and `sessions prune`: housekeeping by hand, as the timer does it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.filesize import decimal

from bot.cli.listings import Connect, print_table
from bot.cli.worktrees import fail, find
from bot.cli.worktrees_list import OpenNode
from bot.maintenance.prune import Progress, Report, prune
from bot.maintenance.reconcile_rules import Action
from bot.maintenance.repair import repair
from bot.maintenance.retention_rules import parse_age, policy_for
from bot.messages.formatting import format_count
from bot.node.process_lock import worker_lock
from bot.settings import load
from bot.store import retention

OlderThan = Annotated[
    str | None, typer.Option(help="Prune all without activity for so long (24h, 7d), whatever the settings say.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would go; nothing is touched.")]
Force = Annotated[bool, typer.Option("--force", help="Go on also where more than half would go at once.")]
AsJson = Annotated[bool, typer.Option("--json", help="The report as JSON.")]
OneOrAll = Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this one, by its id or path.")]


def add_prune(group: typer.Typer, open_node: OpenNode) -> None:
    """Adds the command to the group `worktrees`; its exit status is 1 where something could not be pruned."""

    @group.command("prune", help="Remove what nobody used for long, after a rescue.")
    def prune_worktrees(
        older_than: OlderThan = None, dry_run: DryRun = False, force: Force = False, json: AsJson = False
    ) -> None:
        age = _age(older_than)

        async def run() -> Report:
            known = load()
            async with open_node() as ctx:
                policy = policy_for(
                    ctx.clock(),
                    detached_days=known.worktree_headless_expiry_days,
                    branch_days=known.worktree_branch_expiry_days,
                    orphan_days=known.worktree_orphan_expiry_days,
                    rescue_days=known.rescue_expiry_days,
                    older_than=age,
                )
                with worker_lock(ctx.workers) as worker, _progress() as progress:
                    return await prune(ctx, policy, worker, dry_run=dry_run, force=force, progress=progress)

        report = asyncio.run(run())
        if json:
            typer.echo(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))
        else:
            _print(report)
        if report.braked is not None:
            fail(f"{report.braked} --force goes on all the same.")
        if report.errors:
            raise typer.Exit(1)


def add_repair(group: typer.Typer, open_node: OpenNode) -> None:
    """Adds the command to the group `worktrees`."""

    @group.command("repair", help="Make rows, directories and git's records agree.")
    def repair_worktrees(worktree: OneOrAll = None, json: AsJson = False) -> None:
        async def run() -> list[tuple[str, Action]]:
            async with open_node() as ctx:
                only = (await find(ctx, worktree)).id if worktree is not None else None
                with _progress() as progress:
                    return await repair(ctx, only, progress)

        done = asyncio.run(run())
        if json:
            rows = [{"path": path, "action": action.value} for path, action in done]
            typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
        elif done:
            print_table(("ACTION", "PATH"), 1, [(action.value, path) for path, action in done])
        else:
            typer.echo("Nothing to repair.")


def add_session_prune(group: typer.Typer, connect: Connect) -> None:
    """Adds the command to the group `sessions`."""

    @group.command("prune", help="Delete sessions that ended longer ago than SESSION_TTL_SECONDS.")
    def prune_sessions(older_than: OlderThan = None, json: AsJson = False) -> None:
        age = _age(older_than)

        async def run() -> int:
            known = load()
            ttl = known.session_ttl_seconds if age is None else age.total_seconds()
            async with connect() as connection:
                return await retention.delete_old_sessions(connection, ttl, datetime.now(UTC))

        deleted = asyncio.run(run())
        typer.echo(orjson.dumps({"deleted": deleted}) if json else f"Deleted {format_count(deleted, 'ended session')}.")


def _age(text: str | None) -> timedelta | None:
    try:
        return None if text is None else parse_age(text)
    except ValueError as error:
        fail(str(error), 2)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A line on the terminal that says what is being done; nothing where stderr is no terminal."""
    with Console(stderr=True).status("") as status:
        yield status.update


def _print(report: Report) -> None:
    gone = "WOULD GO" if report.dry_run else "REMOVED"
    rows = [
        *((gone, line) for line in report.deleted),
        *(("KEPT", line) for line in report.skipped),
        *(("FAILED", line) for line in report.errors),
    ]
    if rows:
        cells = [(word, str(line.id or ""), line.why, line.path) for word, line in rows]
        print_table(("", "ID", "WHY", "PATH"), 2, cells)
    verb = "would be freed" if report.dry_run else "freed"
    typer.echo(
        f"{len(report.deleted)} {gone.lower()}, {len(report.skipped)} kept, {len(report.errors)} failed; "
        f"{decimal(report.bytes_reclaimed)} {verb}."
    )
