"""Options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print all fields as JSON.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Print only the newest N; by default 50, or all with --json.", metavar="N")
]
Repo = Annotated[str | None, typer.Option("--repo", metavar="OWNER/NAME", help="Only this one's.")]
State = Annotated[str | None, typer.Option("--state", help="Only those in this state.")]


def command_group() -> typer.Typer:
    """Return a group of commands; its name and words are in `main`."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None)
