"""The repository's instructions for agents, always as they are on the default branch."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath

from bot import refs
from bot.prompt.builder import InstructionFile, Instructions
from bot.rules import CONFIG_PATH
from bot.tree import Clone

NAMES = ("AGENTS.md", "CLAUDE.md")
NAMES_OF_AGENT = {"gemini": ("GEMINI.md",)}
MOST_FILES = 20
MOST_LISTED = 50
FILE_BYTES = 32_000
TOTAL_BYTES = 64_000


async def read_instructions(
    clone: Clone,
    default_branch: str | None,
    head: str,
    agent: str,
    changed: Sequence[str],
    since: datetime | None,
    own: str = "",
) -> Instructions | None:
    """Return the instructions, those nearest to the root first; None if there are none. Raises GitError.

    A file in a folder is told whole where the `changed` files of a pull request are in that folder. `head` is the
    commit in the worktree. A session that was told the instructions before, at `since`, gets those that changed. `own`
    are those in the file of the repository's rules.
    """
    if default_branch is None:
        return None
    names, branch = NAMES + NAMES_OF_AGENT.get(agent, ()), refs.remote(default_branch)
    tip = await clone.commit_at(branch)
    if tip is None:
        return None
    there = await _files(clone, None, tip, names, {})
    here = await _files(clone, tip, head, names, there)
    before, own_is_new = {}, True
    if since is not None:
        known = await _tip_at(clone, tip, int(since.timestamp()))
        before = await _files(clone, tip, known, names, there) if known else {}
        then = await clone.object_at(f"{known}:{CONFIG_PATH}") if known else None
        own_is_new = then != await clone.object_at(f"{tip}:{CONFIG_PATH}")
    found = [InstructionFile(CONFIG_PATH, own)] if own and own_is_new else []
    elsewhere, told, room = list[str](), set[str](), TOTAL_BYTES
    for path in sorted(there, key=lambda path: (path.count("/"), path)):
        blob = there[path]
        # CLAUDE.md is often a copy of AGENTS.md.
        if blob in told or before.get(path) == blob:
            continue
        if len(told) == MOST_FILES or not _applies(path, changed):
            elsewhere.append(path)
            continue
        told.add(blob)
        content = (await clone.run("cat-file", "blob", blob)).stdout
        kept = content[: min(FILE_BYTES, room)]
        room -= len(kept)
        text = kept.decode(errors="replace").strip()
        if len(kept) < len(content):
            text += f"\n[{len(content) - len(kept)} more bytes did not fit: git show {branch}:{path}]"
        if text:
            found.append(InstructionFile(path, text, here.get(path) != blob))
    added = () if since is not None else tuple(sorted(here.keys() - there.keys()))[:MOST_LISTED]
    if not (found or elsewhere or added):
        return None
    return Instructions(default_branch, tuple(found), tuple(elsewhere[:MOST_LISTED]), added)


async def _tip_at(clone: Clone, tip: str, seconds: int) -> str:
    """Return the commit of the default branch at that time, from its commit `tip` now; empty if there was none."""
    return (await clone.run("rev-list", "-1", "--first-parent", f"--before={seconds}", tip)).text


def _applies(path: str, changed: Iterable[str]) -> bool:
    """Return whether a file of instructions is about the whole repository or a folder with changes."""
    folder = PurePosixPath(path).parent
    return folder == PurePosixPath() or any(folder in PurePosixPath(file).parents for file in changed)


async def _files(
    clone: Clone, before: str | None, after: str, names: tuple[str, ...], known: Mapping[str, str]
) -> dict[str, str]:
    """Return the blobs of the files with one of these names at `after`, by path; `known` are those at `before`."""
    if before == after:
        return dict(known)
    now = {**known, **await clone.files_named(names, after, since=before)}
    return {path: blob for path, blob in now.items() if blob is not None}
