"""`threadtree worktrees …`"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.filesize import decimal

from bot.care import on_request_rows
from bot.care.asked import PruneReport, Pruning, Repaired, Repairing, words_of_repair
from bot.care.prune import prune
from bot.care.repair import repair
from bot.cli import calls
from bot.cli.calls import call, correctable, items_of, option, print_json, print_rows, print_table
from bot.cli.options import Json, Limit, Repo, command_group
from bot.cli.running import fail, run_on_node
from bot.github.errors import NotFound
from bot.node.context import NodeContext
from bot.operator.api import changes, listings, thread_rows
from bot.operator.api.calls import THREAD, Endpoint
from bot.operator.api.listings import FoundWorktree
from bot.operator.api.rows import AskedOperation, AskedTurn, Rescue, WorktreeOnDisk
from bot.sandbox import trash
from bot.settings import load
from bot.store import turns
from bot.store.database import Connection
from bot.store.scope import EVERYTHING
from bot.thread.formatting import format_count, plain
from bot.tree import summarize
from bot.turn import request_rows as requests
from bot.turn.assign_worktree import assign_worktree_for_operator
from bot.turn.request import Nodes

T = TypeVar("T", AskedTurn, AskedOperation)
E = TypeVar("E")
CANCELLED: Final = "It was cancelled before it began."
_ID = re.compile(r"[0-9]{1,18}")
Conversation = Annotated[str, typer.Argument(metavar="OWNER/REPO#N")]
Worktree = Annotated[str, typer.Argument(metavar="ID", help="Its id in `worktrees list`, or its path.")]

worktrees = command_group()


@worktrees.command("list")
def print_worktrees(
    json: Json = False,
    limit: Limit = None,
    no_disk: Annotated[
        bool, typer.Option("--no-disk", help="Do not read what is in their directories; faster.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Include removed worktrees.")] = False,
    repository: Repo = None,
    state: Annotated[
        str | None, typer.Option(help="Only reserved, ready, removing, removed, lost, missing or orphan ones.")
    ] = None,
) -> None:
    """List the checkouts, the newest first, and what was rescued from them."""
    wanted = limit if json or limit else calls.ROWS_FOR_PEOPLE + 1
    wanted_state = state if state or every else "not-removed"

    async def listed(ctx: NodeContext) -> tuple[list[WorktreeOnDisk], list[Rescue], Path]:
        async with ctx.pool.acquire() as connection:
            found = await items_of(connection, "worktrees", wanted, repo=repository, state=wanted_state)
            rescued = await items_of(connection, "rescues")
        on_disk = [WorktreeOnDisk(**dict(one)) for one in found]
        if not no_disk:
            await _look_at_disk(ctx, [one for one in on_disk if Path(one.path).is_absolute()])
        for one in on_disk if not json else ():
            one.path = ctx.stored(Path(one.path))
        return on_disk, rescued, ctx.data_dir

    with correctable():
        found, rescued, data_dir = run_on_node(listed)
    if json:
        for rescue in rescued:
            for one in found:
                if one.id == rescue.worktree:
                    one.rescues.append(rescue)
        print_json(found[:limit])
        return
    most = limit or calls.ROWS_FOR_PEOPLE
    if found:
        print_rows(found[:most], len(found) > most)
        typer.echo(f"Paths are relative to {data_dir}.", err=True)
    else:
        typer.echo(WorktreeOnDisk.EMPTY, err=True)
    ids = {one.id for one in found}
    if rescued := [one for one in rescued if one.worktree in ids or not (repository or state)]:
        typer.echo("\nRescued work; `threadtree rescues restore ID` brings back the latest of a worktree:")
        print_rows(rescued)


async def _look_at_disk(ctx: NodeContext, here: Sequence[WorktreeOnDisk]) -> None:
    """Complete the worktrees of this node with what is in their directories."""
    for one in here:
        if one.state == "orphan":
            one.bytes = trash.size_of(Path(one.path))
    looked_at = [one for one in here if one.state not in ("removed", "orphan")]
    with Console(stderr=True).status(f"Reading {format_count(len(looked_at), 'worktree')}"):
        for folder in {_folder(one) for one in looked_at}:
            of_clone = [one for one in looked_at if _folder(one) == folder]
            summaries = await summarize(ctx.clone(folder), {Path(one.path): one.branch for one in of_clone})
            for one in of_clone:
                if (summary := summaries.get(Path(one.path))) is not None:
                    one.bytes, one.changed_files = summary.bytes, summary.changed_files
                    one.ahead, one.behind = summary.ahead, summary.behind


def _folder(worktree: WorktreeOnDisk) -> str:
    """Return the folder `owner/repo` of its clone."""
    return "/".join(Path(worktree.path).parts[-3:-1])


@worktrees.command()
def create(conversation: Conversation) -> None:
    """Make the worktree of a conversation before its next turn."""
    named = _named(conversation)
    run_on_node(lambda ctx: _create(ctx, *named))


@worktrees.command("path")
def print_path(conversation: Conversation) -> None:
    """Print the directory of a conversation's worktree, for `cd "$(threadtree worktrees path octo/hello#42)"`.

    What you commit there is part of its branch (docs/worktrees.md).
    """
    named = _named(conversation)

    async def found(ctx: NodeContext) -> None:
        async with ctx.pool.acquire() as connection:
            conversation_id = await thread_rows.conversation_named(connection, *named, EVERYTHING)
            row = conversation_id and await listings.conversation(connection, conversation_id, 1, EVERYTHING)
        if not row or row["worktree"] is None:
            fail(f"{conversation} has no worktree: `threadtree worktrees create {conversation}` makes one.")
        typer.echo(ctx.directory((await _find(ctx, str(row["worktree"]))).path))

    run_on_node(found)


def _command(change: Endpoint[Any, AskedTurn], name: str, description: str) -> None:
    @worktrees.command(name, help=description)
    def ask(worktree: Worktree) -> None:
        async def asked(ctx: NodeContext) -> None:
            await carry_out(ctx, change, str((await _find(ctx, worktree)).id))

        run_on_node(asked)


_command(changes.reset_worktree, "reset", "Rescue what GitHub does not have, then reset it to its base.")
_command(changes.remove_worktree, "remove", "Rescue what GitHub does not have, then remove the worktree.")
_command(changes.restore_worktree, "restore", "Bring back the latest rescue of the worktree.")


@worktrees.command()
def touch(worktree: Worktree) -> None:
    """Count the worktree as used now."""

    async def touched(ctx: NodeContext) -> None:
        found = await _find(ctx, worktree)
        async with ctx.pool.acquire() as connection:
            with correctable():
                await call(connection, changes.touch_worktree, {"id": str(found.id)})
        typer.echo(f"Worktree {found.id} counts as used now.")

    run_on_node(touched)


@worktrees.command("prune")
def prune_worktrees(
    older_than: Annotated[str | None, option(Pruning, "older_than")] = None,
    repo: Annotated[str | None, option(Pruning, "repo")] = None,
    kind: Annotated[Literal["branch", "detached", "orphan"] | None, option(Pruning, "kind")] = None,
    dry_run: Annotated[bool, option(Pruning, "dry_run")] = False,
    force: Annotated[bool, option(Pruning, "force")] = False,
    json: Json = False,
) -> None:
    """Remove worktrees of this node that were not used for a long time, after a rescue."""
    given = {"older_than": older_than, "repo": repo, "kind": kind, "dry_run": dry_run, "force": force}
    with correctable():
        asked = changes.prune_worktrees.parse({}, given)

    async def pruned_here(ctx: NodeContext) -> PruneReport:
        with Console(stderr=True).status("") as status:
            report = await prune(ctx, load().retention, asked, status.update)
        if not asked.dry_run:
            details = asked.model_dump_json(exclude_defaults=True)
            await calls.record(ctx.pool, "prune", "worktrees", repo, details=details, outcome=report.words)
        return report

    report = run_on_node(pruned_here, logs=True)
    if json:
        print_json(report)
    elif report.lines:
        cells = [
            (word.upper(), str(line.id), decimal(line.bytes) if line.bytes else "", line.why, line.path)
            for word, line in report.lines
        ]
        print_table(("", "ID", "SIZE", "WHY", "PATH"), 3, cells, last_is_whole=True)
    if report.aborted is not None:
        fail(report.words)
    if not json:
        typer.echo(report.words)
    if report.errors:
        raise typer.Exit(1)


@worktrees.command("repair")
def repair_worktrees(
    worktree: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this one, by its id or path.")] = None,
    repo: Annotated[str | None, option(Repairing, "repo")] = None,
    json: Json = False,
) -> None:
    """Make rows, directories and git's records of this node agree."""

    async def repaired(ctx: NodeContext) -> list[Repaired]:
        only = (await _find(ctx, worktree)).id if worktree is not None else None
        with correctable():
            asked = changes.repair_worktrees.parse({}, {"worktree": only, "repo": repo})
        with Console(stderr=True).status("") as status:
            done = await repair(ctx, asked, status.update)
        details = asked.model_dump_json(exclude_defaults=True)
        await calls.record(ctx.pool, "repair", "worktrees", repo, details=details, outcome=words_of_repair(done))
        return done

    done = run_on_node(repaired, logs=True)
    if json:
        print_json(done)
        return
    if done:
        print_table(("ACTION", "PATH"), 2, [(one.action, one.path) for one in done], last_is_whole=True)
    typer.echo(words_of_repair(done))


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


async def _create(ctx: NodeContext, full_name: str, number: int) -> None:
    github = ctx.github
    if github is None:
        fail("GitHub must be asked, and GITHUB_TOKEN is not set; set it, or the App's two settings.", 2)
    try:
        repository = await github.repository(urlsplit(ctx.server_url).netloc, *full_name.split("/"))
        here = Nodes(ctx.node, branch_prefix=load().branch_prefix)
        assigned = await assign_worktree_for_operator(ctx.pool, github, here, ctx.clock, repository, number)
    except NotFound:
        fail(f"GitHub shows the bot no {full_name}#{number}; correct it, or give the bot access.", 2)
    if assigned.node != ctx.node:
        fail(f"Its worktree {assigned.worktree_id} is on the node {assigned.node}; run this there.", 2)
    async with ctx.pool.acquire() as connection, connection.transaction():
        words, who = f"worktrees create {full_name}#{number}", requests.operator("command line")
        asked = "create", words, who, ctx.clock()
        turn = await requests.enqueue_for_operator(connection, assigned.worktree_id, *asked)
        await calls.record(connection, "create", f"{full_name}#{number}", full_name, turn=turn)
    await _wait_for(ctx, AskedTurn(turn=turn))


async def carry_out(ctx: NodeContext, change: Endpoint[Any, T], row_id: str) -> None:
    """Ask for a change as the API does, and carry it out here, or wait for the worker that does."""
    with correctable():
        async with ctx.pool.acquire() as connection, connection.transaction():
            asked = await call(connection, change, {"id": row_id})
            there = await _where(connection, asked)
            if there is not None and there[0] != ctx.node:
                fail(f"It is on the node {there[1]}; run this there.", 2)
    await _wait_for(ctx, asked)


async def _where(connection: Connection, asked: AskedTurn | AskedOperation) -> tuple[str, str] | None:
    """Return the node that carries it out, and the node's name."""
    if isinstance(asked, AskedTurn) and asked.turn is not None:
        return await turns.node_of(connection, asked.turn)
    found = await on_request_rows.described(connection, asked.operation or 0, scope=EVERYTHING) or {}
    return found["node_id"], found["node"]


async def _wait_for(ctx: NodeContext, asked: AskedTurn | AskedOperation) -> None:
    """Wait until it has ended, here or by a worker; print what it made and how it ended."""
    if isinstance(asked, AskedTurn) and asked.turn is not None:
        await _wait_for_turn(ctx, asked.turn)
        return
    operation = asked.operation or 0

    async def look() -> dict[str, Any] | None:
        found = await on_request_rows.described(ctx.pool, operation, scope=EVERYTHING)
        return found if found is not None and found["finished_at"] is not None else None

    try:
        end = await _until_ended(ctx, look)
    except asyncio.CancelledError:
        await on_request_rows.withdraw(ctx.pool, operation, CANCELLED)
        raise
    if end["turn"] is not None:
        await _wait_for_turn(ctx, end["turn"])
        return
    _print_end(end["state"], end["outcome"])


async def _wait_for_turn(ctx: NodeContext, turn: int) -> None:
    try:
        end = await _until_ended(ctx, lambda: turns.end_of(ctx.pool, turn))
    except asyncio.CancelledError:
        await requests.withdraw(ctx.pool, turn, CANCELLED)
        raise
    if end.state == "done" and end.verb in ("create", "restore"):
        found = await _find(ctx, str(end.worktree_id))
        typer.echo(f"Worktree {found.id}: {ctx.directory(found.path)}")
    _print_end(end.state, plain(end.words))


async def _until_ended(ctx: NodeContext, look: Callable[[], Awaitable[E | None]]) -> E:
    from bot.serve.turns import until_ended

    return await until_ended(ctx, load(), look, _say_that_it_waits)


def _say_that_it_waits() -> None:
    typer.echo("Waiting for a worker, which carries this out or what was requested before it.", err=True)


def _print_end(state: str, words: str) -> None:
    if state != "done":
        fail(words)
    typer.echo(words)


def _named(conversation: str) -> tuple[str, int]:
    """Return the repository and the number of a conversation; end the command if it names none."""
    named = THREAD.fullmatch(conversation)
    if named is None:
        fail(f"{conversation!r} names no conversation; write it like octo/hello#42.", 2)
    return f"{named['owner']}/{named['name']}", int(named["number"])
