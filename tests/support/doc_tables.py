"""Tables of docs/commands.md that tests make: `UPDATE_SNAPSHOTS=1 pytest FILE` rewrites them."""

import os
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def is_in_the_docs(name: str, rows: Sequence[Sequence[str]]) -> None:
    """Compare a table, its first row the head, with the one between the marks of this name."""
    head, *others = rows
    lines = [_line(head), _line(["---"] * len(head)), *map(_line, others)]
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    page = PAGE.read_text()
    before, _, rest = page.partition(begin)
    written, _, after = rest.partition(end)
    table = "".join(f"{line}\n" for line in lines)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGE.write_text(f"{before}{begin}{table}{end}{after}")
    else:
        assert written == table, f"docs/commands.md differs from what the bot does; {__doc__}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
