"""The repository's instructions for agents, always as they are on the default branch."""

from pathlib import PurePosixPath

from bot.clones.clone import Clone
from bot.git import refs
from bot.prompt.builder import InstructionFile

NAMES = ("AGENTS.md", "CLAUDE.md")
NAMES_OF_AGENT = {"gemini": ("GEMINI.md",)}
MOST_FILES = 20
FILE_BYTES = 32_000
TOTAL_BYTES = 64_000
_REGULAR_FILES = {"100644", "100755"}


async def read_instructions(
    clone: Clone, default_branch: str | None, head: str, agent: str
) -> tuple[InstructionFile, ...]:
    """Return the instruction files of the default branch, those nearest to the root first. Raises GitError.

    `head` is the commit in the worktree: a file that differs there is marked. Links are not followed.
    """
    if default_branch is None:
        return ()
    names = NAMES + NAMES_OF_AGENT.get(agent, ())
    there = await _files(clone, refs.remote(default_branch), names)
    here = await _files(clone, head, names)
    found: list[InstructionFile] = []
    room = TOTAL_BYTES
    for path in sorted(there, key=lambda path: (path.count("/"), path))[:MOST_FILES]:
        blob = there[path]
        if any(there[known.path] == blob for known in found):
            continue  # CLAUDE.md is often a copy of AGENTS.md
        text = (await clone.run("cat-file", "blob", blob)).stdout[: min(FILE_BYTES, room)]
        room -= len(text)
        if text.strip():
            found.append(InstructionFile(path, text.decode(errors="replace"), here.get(path) != blob))
    return tuple(found)


async def _files(clone: Clone, revision: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the blobs of the files with one of these names, by path."""
    listed = await clone.run("ls-tree", "-r", "-z", "--full-tree", revision)
    blobs = {}
    for entry in listed.fields:
        facts, _, path = entry.partition("\t")
        mode, _, blob = facts.partition(" blob ")
        if mode in _REGULAR_FILES and PurePosixPath(path).name in names and path.isprintable():
            blobs[path] = blob
    return blobs
