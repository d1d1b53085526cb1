"""The figures of the house, from its imports: `python -m tests.house` prints them, and exits with 1 over a limit.

A room is a folder or a file of `bot/`; its floor is the longest way down from it by imports.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

BOT = Path(__file__).parents[1] / "bot"
MACHINE = "turn/turn"
# Reading or comparing what kind of turn it is, outside of the verbs' own files.
_ASKS_KIND = re.compile(
    r"""(asked|parsed|turn|r|l|f|p)\.(mode|mends|plan_of)\b|\bREAD_ONLY\b"""
    r"""|\b(kind|verb)\b ?(=|==|!=|in|not in) \(?["'](work|plan|undo|update|fix|reset|remove|restore|create)["']"""
)
_LIMITS = {
    "rooms": 36,
    "floors": 15,
    "names that tree shows": 35,
    "names that store shows": 125,
    "modules that the run of a turn imports": 20,
    "lines that ask for a kind outside of verbs": 5,
}


def modules() -> dict[str, ast.Module]:
    """Return the parsed modules of the bot by their path without `.py`."""
    return {
        path.relative_to(BOT).with_suffix("").as_posix(): ast.parse(path.read_text())
        for path in sorted(BOT.rglob("*.py"))
    }


def imports(trees: Mapping[str, ast.Module], module: str) -> Iterator[tuple[str, str]]:
    """Yield what a module imports of the bot: the other module, and each name of it that is used; `` for none."""
    for node in ast.walk(trees[module]):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("bot"):
            continue
        of = (node.module or "").removeprefix("bot").removeprefix(".").replace(".", "/")
        for name in node.names:
            inner = f"{of}/{name.name}".lstrip("/")
            whole = next((one for one in (inner, f"{inner}/__init__") if one in trees), None)
            if whole is None:
                yield (of if of in trees else f"{of}/__init__"), name.name
                continue
            yield whole, ""
            alias = name.asname or name.name
            for used in ast.walk(trees[module]):
                if isinstance(used, ast.Attribute) and isinstance(used.value, ast.Name) and used.value.id == alias:
                    yield whole, used.attr


def room(module: str) -> str:
    """Return the room of a module."""
    return module.partition("/")[0]


def floors(arrows: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the floor of each room. Raises ValueError for a circle."""
    found: dict[str, int] = {}

    def floor(one: str, above: tuple[str, ...] = ()) -> int:
        if one in above:
            raise ValueError(f"a circle of rooms: {' → '.join([*above[above.index(one) :], one])}")
        if one not in found:
            found[one] = 1 + max((floor(below, (*above, one)) for below in arrows[one]), default=0)
        return found[one]

    for one in list(arrows):
        floor(one)
    return found


def shown(trees: Mapping[str, ast.Module], door: str) -> set[str]:
    """Return the names of a room that modules of other rooms import."""
    return {
        f"{of}.{name}"
        for module in trees
        if room(module) not in (door, "simulated", "demo")
        for of, name in imports(trees, module)
        if room(of) == door and name
    }


def figures() -> dict[str, int]:
    """Return the figures by their names. Raises ValueError for a circle."""
    trees = modules()
    arrows: dict[str, set[str]] = defaultdict(set)
    for module in trees:
        if module not in ("__init__", "__main__"):
            arrows[room(module)] |= {room(of) for of, _ in imports(trees, module)} - {room(module), "__init__"}
    lines = (
        line
        for path in BOT.rglob("*.py")
        if room(path.relative_to(BOT).as_posix()) not in ("verbs", "simulated", "demo")
        for line in path.read_text().splitlines()
    )
    return {
        "rooms": len(arrows),
        "floors": max(floors(arrows).values()),
        "names that tree shows": len(shown(trees, "tree")),
        "names that store shows": len(shown(trees, "store")),
        "modules that the run of a turn imports": len({of for of, _ in imports(trees, MACHINE)}),
        "lines that ask for a kind outside of verbs": sum(_ASKS_KIND.search(line) is not None for line in lines),
    }


def main() -> int:
    """Print each figure beside its limit; return 1 if one is over."""
    over = False
    for name, figure in figures().items():
        is_over = figure > _LIMITS[name]
        over = over or is_over
        print(f"{figure:6} of at most {_LIMITS[name]:4} {name}{'  <- too many' if is_over else ''}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
