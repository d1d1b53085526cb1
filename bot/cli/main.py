"""The command line `threadtree`: its commands and groups of commands, whose modules are imported when they run.

Errors are one line on stderr: status 2 for what the operator gave wrongly, else 1.
"""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_GROUPS = {
    "worktrees": ("bot.cli.worktrees", "The checkouts that conversations work in."),
    "rescues": ("bot.cli.storage", "Work that was rescued or kept before a worktree went."),
    "sessions": ("bot.cli.calls", "The agents' contexts, one active per conversation."),
    "turns": ("bot.cli.calls", "The turns: each is one request to the agent and its answer."),
    "deliveries": ("bot.cli.calls", "The webhooks that were received."),
    "conversations": ("bot.cli.calls", "The issues and pull requests the bot works on."),
    "env": ("bot.cli.env", "Variables of one repository, for its set-up script and its agents."),
    "nodes": ("bot.cli.calls", "The machines that run agents."),
    "config": ("bot.cli.config", "The settings of the environment and `.env`, and the rules of a repository."),
    "audit": ("bot.cli.calls", "Who did what, beside asking the agent."),
}
_COMMANDS = {
    "serve": ("bot.cli.processes", "Apply the migrations, then run web and worker."),
    "web": ("bot.cli.processes", "Run only the web process: it stores deliveries for a worker."),
    "worker": ("bot.cli.processes", "Run only a worker: it decides, runs turns and answers."),
    "migrate": ("bot.cli.processes", "Apply the migrations that the database lacks."),
    "receive": (
        "bot.cli.processes",
        "Store a payload file as a delivery with a new GUID, as if GitHub had sent it, and print the GUID.",
    ),
    "setup": (
        "bot.cli.setup.command",
        "Connect the bot to GitHub by an App made in the browser, or by a token; writes .env.",
    ),
    "doctor": ("bot.cli.doctor.command", "Check settings, database, GitHub, sandbox, model and agents."),
    "demo": (
        "bot.cli.processes",
        "Play the whole story on this machine: real Postgres and git, a simulated GitHub, a scripted agent.",
    ),
    "waiting": ("bot.cli.calls", "List what waits for a person: plans, questions, what failed, pull requests."),
    "costs": ("bot.cli.calls", "Print what turns cost, by day (UTC) and repository, or person."),
    "disk": ("bot.cli.storage", "Show what takes the disk space of this node."),
    "backup": ("bot.cli.backup", "Save the database and this node's files while the bot runs."),
    "restore": ("bot.cli.backup", "Bring a backup to an empty DATA_DIR and an empty database."),
    "logs": ("bot.cli.logs", "Print the log of this node's processes; -f goes on."),
    "uninstall": ("bot.cli.leave", "Delete what this node has, after it was shown."),
}


class _Commands(TyperGroup):
    """The commands, each once it is asked for: `--help` and completion stay quick."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in _GROUPS:
            module, words = _GROUPS[name]
            command = typer.main.get_group(getattr(import_module(module), name))
            command.help = words
        elif name in _COMMANDS:
            alone = typer.Typer(rich_markup_mode=None, add_completion=False)
            alone.command()(getattr(import_module(_COMMANDS[name][0]), name))
            command = typer.main.get_command(alone)
        return name, command, rest


app = typer.Typer(
    name="threadtree",
    help="A chat-ops bot for GitHub that runs a coding agent per conversation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=_Commands,
)
for name, (_, words) in _GROUPS.items():
    app.add_typer(typer.Typer(help=words), name=name)
for name, (_, words) in _COMMANDS.items():
    app.command(name, help=words)(lambda: None)


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
