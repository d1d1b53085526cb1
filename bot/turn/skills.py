"""Skills: folders of the default branch that teach agents how to do something. Each agent finds them in its HOME.

https://agentskills.io/specification. They instruct like AGENTS.md, so they are read from git's objects of the default
branch: what a worktree has in their place is material.
"""

import asyncio
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from bot.node.transactions import persist
from bot.sandbox.untrusted_files import leads_out, remove_untrusted
from bot.store.database import Connection, Pool, statement
from bot.tree import Clone

FOLDERS = (".agents/skills", ".claude/skills")
"""The first folder counts where two skills have one name."""
PLACE = PurePath(".agents")
"""In HOME, also a plugin of Claude Code: https://code.claude.com/docs/en/plugins-reference"""
_MANIFEST = json.dumps({"name": "repository", "description": "The skills of this repository's default branch."})
MOST_SKILLS = 100
MOST_FILES = 2_000
SKILL_BYTES = 5 << 20
TOTAL_BYTES = 20 << 20
_LONGEST_PATH_BYTES = 400
_MOST_NAMED = 10
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_FILE = "100"
_EXECUTABLE = "100755"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of git's tree. `path` is relative to the skill's own folder; empty for the folder itself."""

    mode: str
    blob: str
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class Skills:
    """The files of skills by their path below the folder of all. `left_out` are clauses for people."""

    names: tuple[str, ...] = ()
    files: Mapping[str, Entry] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def choose(listed: Iterable[str]) -> Skills:
    """Return the skills among the lines of `git ls-tree -r --long`. What is odd or too large is left out, and told."""
    found: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for line in listed:
        facts, _, path = line.partition("\t")
        mode, _, blob, size = facts.split()
        folder = next((one for one in FOLDERS if path.startswith(f"{one}/")), None)
        if folder is not None:  # a link in place of the folder leads mostly to the other one
            name, _, rest = path.removeprefix(f"{folder}/").partition("/")
            if rest or not mode.startswith(_FILE):
                found[folder, name].append(Entry(mode, blob, int(size) if size.isdecimal() else 0, rest))
    names, files, left_out, room = list[str](), dict[str, Entry](), dict[str, list[str]](), TOTAL_BYTES
    for (_, name), entries in sorted(found.items(), key=lambda one: FOLDERS.index(one[0][0])):
        if name in names:
            continue
        why, kept = _judge(name, entries)
        size_bytes = sum(one.size for one in kept)
        if why is None and len(names) == MOST_SKILLS:
            why = f"more than {MOST_SKILLS} skills"
        if why is None and (size_bytes > room or len(files) + len(kept) > MOST_FILES):
            why = f"all together over {TOTAL_BYTES >> 20} MB or {MOST_FILES:,} files"
        if why is not None:
            left_out.setdefault(why, []).append(name)
            continue
        room -= size_bytes
        names.append(name)
        files |= {f"{name}/{one.path}": one for one in kept}
        if len(kept) < len(entries):
            left_out.setdefault("links, submodules and odd file names in them", []).append(name)
    # What one folder has as a link the other one mostly has itself.
    clauses = [
        f"left out of the skills: {_named(here)} ({why})"
        for why, all_of in left_out.items()
        if (here := [one for one in all_of if one not in names or why.startswith("links,")])
    ]
    return Skills(tuple(sorted(names)), files, tuple(clauses))


def _judge(name: str, entries: Iterable[Entry]) -> tuple[str | None, list[Entry]]:
    """Return why a skill is left out whole, or None, and its files that are regular ones with usable paths."""
    kept = [one for one in entries if one.mode.startswith(_FILE) and _is_usable(one.path)]
    if not _NAME.fullmatch(name):
        return "a name of other than 1 to 64 letters, digits, `.`, `_` and `-`", kept
    if not any(one.path == "SKILL.md" for one in kept):
        return "no ordinary file SKILL.md", kept
    if sum(one.size for one in kept) > SKILL_BYTES:
        return f"over {SKILL_BYTES >> 20} MB", kept
    return None, kept


def _is_usable(path: str) -> bool:
    return path.isprintable() and len(os.fsencode(path)) <= _LONGEST_PATH_BYTES and not leads_out(path)


def _named(names: Sequence[str]) -> str:
    shown = [name if name.isprintable() and len(name) <= 64 else "one with an odd name" for name in names]
    more = [f"{len(shown) - _MOST_NAMED} more"] if len(shown) > _MOST_NAMED else []
    return ", ".join([*shown[:_MOST_NAMED], *more])


async def find(clone: Clone, default_branch: str | None) -> Skills:
    """Return the skills of the default branch as it was last fetched. Raises GitError."""
    tip = await clone.tip(default_branch)
    # Mostly without a new process.
    if tip is None or not [one for one in FOLDERS if await clone.object_at(f"{tip}:{one}") is not None]:
        return Skills()
    return choose((await clone.constant("ls-tree", "-r", "-z", "--long", "--full-tree", tip, "--", *FOLDERS)).fields)


async def lay(clone: Clone, default_branch: str | None, home: Path) -> Path | None:
    """Lay the skills into a HOME in which nothing runs, in place of what is there; return their folder, None without
    skills. Raises GitError, OSError.
    """
    skills = await find(clone, default_branch)
    contents = await clone.contents(list(dict.fromkeys(one.blob for one in skills.files.values())))
    await asyncio.to_thread(_write, skills, contents, home)
    return home / PLACE if skills.files else None


def _write(skills: Skills, contents: Mapping[str, bytes], home: Path) -> None:
    remove_untrusted(home, PLACE)
    if not skills.files:
        return
    # The parent is the host's own: an agent's HOME may hold anything.
    with tempfile.TemporaryDirectory(prefix=".skills-", dir=home.parent) as made:
        folder = Path(made) / PLACE
        _put(folder / ".claude-plugin" / "plugin.json", _MANIFEST.encode(), executable=False)
        for path, entry in skills.files.items():
            _put(folder / "skills" / path, contents[entry.blob], executable=entry.mode == _EXECUTABLE)
        folder.rename(home / PLACE)


def _put(path: Path, content: bytes, *, executable: bool) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o555 if executable else 0o444)


@statement("""
select distinct told from turns, unnest(read) told where conversation_id = $1 and id < $2 and told = any ($3::text[])
""")
async def _told_before(connection: Connection, conversation_id: int, turn_id: int, clauses: Sequence[str]) -> list[str]:
    """Return those of the clauses that an earlier turn of the conversation told."""


async def clauses(pool: Pool, skills: Skills, conversation_id: int, turn_id: int) -> list[str]:
    """Return what people are told of the skills: once a thread, and again what has changed."""
    told = [*([f"the skills {_named(skills.names)}"] if skills.names else []), *skills.left_out]
    before = await persist(pool, _told_before, conversation_id, turn_id, told) if told else []
    return [one for one in told if one not in before]
