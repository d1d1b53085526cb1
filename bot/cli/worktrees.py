"""`threadtree worktrees …` and `sessions prune`."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import typer
from asyncpg import Record
from rich.console import Console
from rich.filesize import decimal

from bot.api import lists
from bot.api.calls import THREAD
from bot.api.rows import Rescue, WorktreeOnDisk
from bot.cli.calls import ROWS_FOR_PEOPLE, correctable, items_of, print_json, print_rows, print_table
from bot.cli.running import fail, run_on_database, run_on_node
from bot.clones import metadata
from bot.clones.clone import reading
from bot.compose.parts import jobs_of_node
from bot.github.errors import NotFound
from bot.handlers.assign_worktree import assign_worktree_for_operator
from bot.maintenance.prune import Report, prune
from bot.maintenance.reconcile_rules import Action
from bot.maintenance.repair import Progress, repair
from bot.maintenance.retention_rules import parse_age
from bot.messages.formatting import format_count
from bot.node.context import NodeContext
from bot.operations import execute
from bot.settings import load
from bot.store import listings, operations, retention
from bot.store.listings import FoundWorktree
from bot.store.operations import OperationKind
from bot.worktrees.summary import summarize

_ID = re.compile(r"[0-9]{1,18}")


def print_worktrees(
    *, json: bool, limit: int | None, with_disk: bool, every: bool, repository: str | None, state: str | None
) -> None:
    """Print the newest worktrees that match, without removed ones unless `every` or `state` asks for them."""
    # Whether a worktree is missing is known only after a look at the disk.
    stored_state = "ready" if state == "missing" else state
    wanted = None if state == "missing" else limit if json or limit else ROWS_FOR_PEOPLE + 1

    async def listed(ctx: NodeContext) -> tuple[list[WorktreeOnDisk], list[Rescue], Path]:
        async with ctx.pool.acquire() as connection:
            rows = await listings.newest(
                connection, listings.LIST_WORKTREES, wanted, every, repository=repository, state=stored_state
            )
            rescued = await items_of(connection, "rescues")
        return await _look_at_disk(ctx, rows, with_disk), rescued, ctx.data_dir

    with correctable():
        lists.worktrees.parse({}, {"repo": repository, "state": state})
    found, rescued, data_dir = run_on_node(listed)
    matching = [one for one in found if state in (None, one.state)]
    if json:
        for rescue in rescued:
            for one in matching:
                if one.id == rescue.worktree:
                    one.rescues.append(rescue)
        print_json(matching[:limit])
        return
    most = limit or ROWS_FOR_PEOPLE
    if matching:
        print_rows([_with_path_below(data_dir, one) for one in matching[:most]], len(matching) > most)
        typer.echo(f"Paths are relative to {data_dir}.", err=True)
    else:
        typer.echo(WorktreeOnDisk.EMPTY, err=True)
    ids = {one.id for one in matching}
    if rescued := [one for one in rescued if one.worktree in ids or not (repository or state)]:
        typer.echo("\nRescued work; `threadtree rescues restore ID` brings back the latest of a worktree:")
        print_rows(rescued)


async def _look_at_disk(ctx: NodeContext, rows: Sequence[Record], with_disk: bool) -> list[WorktreeOnDisk]:
    """Return the worktrees, those of this node with their directories and, if `with_disk`, what is in them."""
    found = [WorktreeOnDisk.model_validate(dict(row)) for row in rows]
    here = [(one, row["folder"]) for one, row in zip(found, rows, strict=True) if row["node_id"] == ctx.node]
    for one, _ in here:
        one.path = str(ctx.directory(one.path))
    looked_at = [(one, folder) for one, folder in here if with_disk and one.state != "removed"]
    with Console(stderr=True).status(f"Reading {format_count(len(looked_at), 'worktree')}"):
        for folder in {folder for _, folder in looked_at}:
            of_clone = [one for one, its_folder in looked_at if its_folder == folder]
            async with reading(ctx.clone(folder)) as clone:  # one process answers for all its worktrees
                summaries = await summarize(clone, {Path(one.path): one.branch for one in of_clone})
            for one in of_clone:
                if (summary := summaries.get(Path(one.path))) is not None:
                    one.bytes, one.changed_files = summary.bytes, summary.changed_files
                    one.ahead, one.behind = summary.ahead, summary.behind
                elif one.state == "ready":
                    one.state = "missing"
    return found


def _with_path_below(data_dir: Path, worktree: WorktreeOnDisk) -> WorktreeOnDisk:
    path = Path(worktree.path)
    shown = path.relative_to(data_dir) if path.is_relative_to(data_dir) else path
    return worktree.model_copy(update={"path": str(shown)})


def create(thread: str) -> None:
    """Make the worktree of the thread `owner/repo#number`; exit status 2 for text that names none."""
    named = _named(thread)
    run_on_node(lambda ctx: _create(ctx, named["owner"], named["name"], int(named["number"])))


def print_path(thread: str) -> None:
    """Print the directory of the thread's worktree; exit status 2 for text that names none, 1 where it has none."""
    named = _named(thread)

    async def found(ctx: NodeContext) -> None:
        async with ctx.pool.acquire() as connection:
            number, full_name = int(named["number"]), f"{named['owner']}/{named['name']}"
            conversation_id = await listings.conversation_named(connection, full_name, number)
            row = conversation_id and await listings.conversation(connection, conversation_id, 1)
        if not row or row["worktree"] is None:
            fail(f"{thread} has no worktree: `threadtree worktrees create {thread}` makes one.")
        typer.echo(ctx.directory((await _find(ctx, str(row["worktree"]))).path))

    run_on_node(found)


def operate(worktree: str, kind: OperationKind) -> None:
    """Reset, remove or restore a worktree; exit status 1 where that fails, 2 for an unknown worktree."""

    async def operated(ctx: NodeContext) -> None:
        await execute_operation(ctx, (await _find(ctx, worktree)).id, kind)

    run_on_node(operated)


def touch(worktree: str) -> None:
    """Count a worktree as used now, in its row and in the metadata beside it."""

    async def touched(ctx: NodeContext) -> None:
        found = await _find(ctx, worktree)
        now = ctx.clock()
        async with ctx.pool.acquire() as connection:
            path = await retention.touch(connection, found.id, now)
        if path is None:
            fail(f"Worktree {found.id} is {found.state}; only a live one can be touched.")
        await asyncio.to_thread(_touch_metadata, ctx.directory(path), now)
        typer.echo(f"Worktree {found.id} counts as used now.")

    run_on_node(touched)


def prune_worktrees(older_than: str | None, *, dry_run: bool, force: bool, json: bool) -> None:
    """Prune and report; exit status 1 where a worktree could not be pruned."""
    age = _age(older_than)

    async def pruned(ctx: NodeContext) -> Report:
        policy = load().retention(ctx.clock(), age)
        with _progress() as progress:
            return await prune(ctx, policy, dry_run=dry_run, force=force, progress=progress)

    report = run_on_node(pruned)
    if json:
        typer.echo(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))
    else:
        _print(report)
    if report.aborted is not None:
        fail(f"{report.aborted} Use --force to continue.")
    if report.errors:
        raise typer.Exit(1)


def repair_worktrees(worktree: str | None, *, json: bool) -> None:
    """Repair one worktree or all of this node, and print what was done."""

    async def repaired(ctx: NodeContext) -> list[tuple[str, Action]]:
        only = (await _find(ctx, worktree)).id if worktree is not None else None
        with _progress() as progress:
            return await repair(ctx, only, progress)

    done = run_on_node(repaired)
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
    ttl = load().session_ttl_seconds if age is None else age.total_seconds()
    count = run_on_database(lambda connection: retention.delete_old_sessions(connection, ttl, datetime.now(UTC)))
    typer.echo(orjson.dumps({"deleted": count}) if json else f"Deleted {format_count(count, 'ended session')}.")


def _touch_metadata(path: Path, now: datetime) -> None:
    known = metadata.read(path)
    if isinstance(known, metadata.Metadata):
        metadata.write(path, replace(known, updated_at=now))


async def _find(ctx: NodeContext, named: str) -> FoundWorktree:
    """Return the worktree of this node with this id or path; end the command if there is none."""
    worktree_id = int(named) if _ID.fullmatch(named) else None
    async with ctx.pool.acquire() as connection:
        found = await listings.find_worktree(connection, ctx.node, worktree_id, [ctx.stored(_absolute(named))])
    if found is None:
        fail(f"There is no worktree {named}: `threadtree worktrees list` shows them.", 2)
    if found.node != ctx.node:
        fail(f"Worktree {found.id} is on the node {found.node_name}; run this there.", 2)
    return found


def _absolute(path: str) -> Path:
    """Return the path without resolving symbolic links, as in the rows."""
    return Path(path).absolute()


async def _create(ctx: NodeContext, owner: str, name: str, number: int) -> None:
    github = ctx.github
    if github is None:
        fail("GITHUB_TOKEN is not set, and GitHub is asked about the thread; set it, or the App's two settings.", 2)
    try:
        repository = await github.repository(urlsplit(ctx.server_url).netloc, owner, name)
        assigned = await assign_worktree_for_operator(ctx.pool, github, ctx.node, ctx.clock, repository, number)
    except NotFound:
        fail(f"GitHub shows the bot no {owner}/{name}#{number}; correct it, or give the bot access.")
    if assigned.node != ctx.node:
        fail(f"Its worktree {assigned.worktree_id} is on the node {assigned.node}; run this there.", 2)
    await execute_operation(ctx, assigned.worktree_id, "create")
    await print_place(ctx, assigned.worktree_id)


async def print_place(ctx: NodeContext, worktree_id: int) -> None:
    """Print where a worktree of this node is."""
    found = await _find(ctx, str(worktree_id))
    typer.echo(f"Worktree {found.id}: {ctx.directory(found.path)}")


async def execute_operation(
    ctx: NodeContext, worktree_id: int, kind: OperationKind, rescue_id: int | None = None
) -> None:
    """Execute an operation, or wait for the worker that has begun it; print how it ended."""
    async with ctx.pool.acquire() as connection, connection.transaction():
        asked = operations.by_operator("command line", ctx.clock())
        operation_id = await operations.enqueue(connection, worktree_id, kind, asked, rescue_id=rescue_id)
    async with jobs_of_node(ctx) as run_jobs:
        operation = await execute.execute(ctx, run_jobs, operation_id, lambda words: typer.echo(words, err=True))
    if operation.state == "failed":
        fail(operation.outcome or "The operation failed.")
    typer.echo(operation.outcome)


def _named(thread: str) -> re.Match[str]:
    named = THREAD.fullmatch(thread)
    if named is None:
        fail(f"{thread!r} names no thread; write it like octo/hello#42.", 2)
    return named


def _age(text: str | None) -> timedelta | None:
    try:
        return None if text is None else parse_age(text)
    except ValueError as error:
        fail(str(error), 2)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Yield a status line on the terminal; None if stderr is not a terminal."""
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
