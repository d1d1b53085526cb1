"""The command line `threadtree`: its commands and options. What a command does is imported when it runs.

Errors are one line on stderr: status 2 for what the operator gave wrongly, else 1.
"""

import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="threadtree",
    help="A chat-ops bot for GitHub that runs a coding agent per conversation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
worktrees = typer.Typer(help="The checkouts that conversations work in.", no_args_is_help=True)
sessions = typer.Typer(help="The agents' contexts, one active per conversation.", no_args_is_help=True)
turns = typer.Typer(help="The requests to the agent and how they ended.", no_args_is_help=True)
deliveries = typer.Typer(help="The webhooks that were received.", no_args_is_help=True)
conversations = typer.Typer(help="The issues and pull requests the bot works on.", no_args_is_help=True)
nodes = typer.Typer(help="The machines that run agents.", no_args_is_help=True)
rescues = typer.Typer(help="Work that was rescued or kept before a worktree went.", no_args_is_help=True)
_GROUPS = {
    "worktrees": worktrees,
    "rescues": rescues,
    "sessions": sessions,
    "turns": turns,
    "deliveries": deliveries,
    "conversations": conversations,
    "nodes": nodes,
}
for name, group in _GROUPS.items():
    app.add_typer(group, name=name)


def main() -> None:
    """Run the command that the arguments name."""
    try:
        app()
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    except Exception as error:  # noqa: BLE001 -- told, or raised again
        from bot.cli.running import tell

        sys.exit(tell(error))


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"threadtree {version('threadtree')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A chat-ops bot for GitHub that runs a coding agent per conversation."""


# Processes

NoWorktreePrune = Annotated[
    bool, typer.Option("--no-worktree-prune", help="Keep old worktrees, as WORKTREE_PRUNE_ENABLED=false does.")
]
EndWith = Annotated[int | None, typer.Option(hidden=True, help="The process to end with.")]


def _stop_while_starting() -> None:
    """End with status 0 on SIGTERM, until the event loop has its own handler."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


@app.command()
def serve(no_worktree_prune: NoWorktreePrune = False) -> None:
    """Apply the migrations, then run web and worker. If one of the two processes ends, so does the other."""
    _stop_while_starting()
    from bot.cli import processes

    processes.serve(worktree_prune=not no_worktree_prune)


@app.command()
def web(end_with: EndWith = None) -> None:
    """Run only the web process: it stores deliveries for a worker."""
    _stop_while_starting()
    from bot.cli import processes

    processes.web(end_with)


@app.command()
def worker(no_worktree_prune: NoWorktreePrune = False, end_with: EndWith = None) -> None:
    """Run only a worker: it decides, runs turns and answers."""
    _stop_while_starting()
    from bot.cli import processes

    processes.worker(end_with, worktree_prune=not no_worktree_prune)


@app.command()
def migrate() -> None:
    """Apply the migrations that the database lacks."""
    from bot.cli import processes

    processes.migrate()


@app.command()
def receive(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A payload as JSON.")],
    event: Annotated[str, typer.Option(help="GitHub's name of the event, such as issue_comment.")],
) -> None:
    """Store a payload file as a delivery with a new GUID, as if GitHub had sent it, and print the GUID."""
    from bot.cli import processes

    processes.receive(file, event)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the checks as a JSON array.")] = False,
) -> None:
    """Check the settings, GitHub, the sandbox and the agents. It asks no model and leaves nothing behind."""
    from bot.cli.doctor import report

    report(json=json)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Keep everything running afterwards, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the steps and checks as one JSON document.")] = False,
) -> None:
    """Play the whole story on this machine: real Postgres and git, a simulated GitHub, a scripted agent."""
    from bot.cli.running import run, stop_signals
    from bot.demo.command import run_demo
    from bot.settings import sandbox_asked, search_path

    async def played() -> bool:
        return await run_demo(search_path(), sandbox_asked(), stop_signals(), keep=keep, json=json)

    if not run(played(), log_level="error"):
        sys.exit(1)


# Lists

Json = Annotated[bool, typer.Option("--json", help="Print all fields of all rows as a JSON array.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Print only the newest N; by default 50, or all with --json.", metavar="N")
]


Repo = Annotated[str | None, typer.Option("--repo", metavar="OWNER/NAME", help="Only this one's.")]
State = Annotated[str | None, typer.Option("--state", help="Only those in this state.")]


def _list_command(name: str, description: str) -> None:
    @_GROUPS[name].command("list", help=f"List {description}, the newest first.")
    def list_rows(json: Json = False, limit: Limit = None, repository: Repo = None, state: State = None) -> None:
        from bot.cli.calls import show_list

        show_list(name, json=json, limit=limit, repo=repository, state=state)


_list_command("sessions", "the agents' contexts")
_list_command("turns", "the requests to the agent, what they cost and how they ended")
_list_command("deliveries", "the webhooks that were received")
_list_command("conversations", "the threads with their branch, pull requests and cost")


TurnId = Annotated[str, typer.Argument(metavar="ID", help="Its id in `turns list`.")]


@turns.command("show")
def show_turn(
    turn: TurnId, json: Annotated[bool, typer.Option("--json", help="Print all fields as JSON.")] = False
) -> None:
    """Print one request with its text, plan, steps and cost, and why it ended."""
    from bot.cli.calls import show_turn

    show_turn(turn, json=json)


@turns.command("stop")
def stop_turn(turn: TurnId) -> None:
    """Stop a request that runs or waits."""
    from bot.cli.calls import stop_turn

    stop_turn(turn)


@turns.command("retry")
def retry_turn(turn: TurnId) -> None:
    """Ask the last unfinished request of its thread again."""
    from bot.cli.calls import retry_turn

    retry_turn(turn)


@nodes.command("list")
def list_nodes(json: Json = False, state: State = None) -> None:
    """List the nodes, what they do and what takes their disk."""
    from bot.cli.calls import show_list

    show_list("nodes", json=json, state=state)


@app.command()
def costs(json: Json = False, days: Annotated[int, typer.Option(min=1, max=366)] = 30, repository: Repo = None) -> None:
    """Print what ended requests cost, by day (UTC) and repository."""
    from bot.cli.calls import show_list

    show_list("costs", json=json, days=str(days), repo=repository)


@deliveries.command("replay")
def replay_delivery(guid: str) -> None:
    """Handle a stored delivery once more. What it did before is not done twice."""
    from bot.cli.calls import replay_delivery

    replay_delivery(guid)


@deliveries.command("recover")
def recover_deliveries(json: Json = False) -> None:
    """Fetch what GitHub delivered in the last three days while nothing listened, as a worker does now and then."""
    from bot.cli.processes import recover

    recover(json=json)


# Worktrees

ReportAsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
OlderThan = Annotated[
    str | None,
    typer.Option(help="Prune everything without activity for this long (24h, 7d) instead of what the settings say."),
]
Worktree = Annotated[str, typer.Argument(metavar="ID", help="Its id in `worktrees list`, or its path.")]


@worktrees.command("list")
def list_worktrees(
    json: Json = False,
    limit: Limit = None,
    no_disk: Annotated[bool, typer.Option("--no-disk", help="Print only what the database knows; faster.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Include removed worktrees.")] = False,
    repository: Repo = None,
    state: Annotated[
        str | None, typer.Option(help="Only reserved, ready, removing, removed, lost or missing ones.")
    ] = None,
) -> None:
    """List the checkouts, the newest first, and what was rescued from them."""
    from bot.cli.worktrees import print_worktrees

    print_worktrees(json=json, limit=limit, with_disk=not no_disk, every=every, repository=repository, state=state)


@worktrees.command("create")
def create_worktree(thread: Annotated[str, typer.Argument(metavar="OWNER/REPO#N")]) -> None:
    """Make the worktree of a thread."""
    from bot.cli.worktrees import create

    create(thread)


@worktrees.command("path")
def print_worktree_path(thread: Annotated[str, typer.Argument(metavar="OWNER/REPO#N")]) -> None:
    """Print the directory of a thread's worktree, for `cd "$(threadtree worktrees path octo/hello#42)"`."""
    from bot.cli.worktrees import print_path

    print_path(thread)


def _operation_command(kind: Literal["reset", "remove", "restore"], description: str) -> None:
    @worktrees.command(kind, help=description)
    def operate_on_worktree(worktree: Worktree) -> None:
        from bot.cli.worktrees import operate

        operate(worktree, kind)


_operation_command("reset", "Rescue what GitHub does not have, then reset the worktree to its base.")
_operation_command("remove", "Rescue what GitHub does not have, then remove the worktree.")
_operation_command("restore", "Bring back the latest rescue of the worktree.")


@worktrees.command("touch")
def touch_worktree(worktree: Worktree) -> None:
    """Count the worktree as used now."""
    from bot.cli.worktrees import touch

    touch(worktree)


@worktrees.command("prune")
def prune_worktrees(
    older_than: OlderThan = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed; change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Go on even if more than half would be removed.")] = False,
    json: ReportAsJson = False,
) -> None:
    """Remove worktrees that were not used for a long time, after a rescue."""
    from bot.cli.worktrees import prune_worktrees

    prune_worktrees(older_than, dry_run=dry_run, force=force, json=json)


@worktrees.command("repair")
def repair_worktrees(
    worktree: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only this one, by its id or path.")] = None,
    json: ReportAsJson = False,
) -> None:
    """Make rows, directories and git's records agree."""
    from bot.cli.worktrees import repair_worktrees

    repair_worktrees(worktree, json=json)


# Disk

RescueId = Annotated[str, typer.Argument(metavar="ID", help="Its id in `rescues list`.")]


@rescues.command("list")
def list_rescues(json: Json = False, limit: Limit = None, repository: Repo = None, state: State = None) -> None:
    """List what was rescued or kept, with its size and when it expires, the newest first."""
    from bot.cli.storage import list_rescues

    list_rescues(json=json, limit=limit, repository=repository, state=state)


@rescues.command("restore")
def restore_rescue(rescue: RescueId) -> None:
    """Bring a rescue back into its worktree, which is made again where it is gone."""
    from bot.cli.storage import restore_rescue

    restore_rescue(rescue)


@rescues.command("drop")
def drop_rescue(
    rescue: Annotated[str, typer.Argument(metavar="ID", help="Its id in `rescues list`, or its name there.")],
) -> None:
    """Delete a rescue for good, before it expires."""
    from bot.cli.storage import drop_rescue

    drop_rescue(rescue)


@app.command()
def disk(json: Annotated[bool, typer.Option("--json", help="Print the rows as a JSON array.")] = False) -> None:
    """Show what takes the disk space of this node."""
    from bot.cli.storage import print_disk

    print_disk(json=json)


@sessions.command("prune")
def prune_sessions(older_than: OlderThan = None, json: ReportAsJson = False) -> None:
    """Delete sessions that ended longer ago than SESSION_TTL_SECONDS."""
    from bot.cli.worktrees import prune_sessions

    prune_sessions(older_than, json=json)
