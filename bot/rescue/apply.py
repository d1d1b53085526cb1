"""The files of a rescue put into a worktree, byte for byte, where nothing else would be lost by it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from bot.rescue.contents import read_state
from bot.rescue.scratch_git import NO_OBJECT, ScratchGit, index_lines
from bot.rescue.snapshot import DISK, snapshot

# git knows it in every repository.
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_TARGET = "target"

# What (mode, object) belongs at a path that changed; _GONE where nothing does.
Files = Mapping[str, tuple[str, str]]
_GONE = ("0", NO_OBJECT)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to differ from HEAD: `files` on disk, and `staged` in the index. What git calls the same is as in `tree`,
    unless HEAD is a newer commit.
    """

    files: Files
    staged: Files
    tree: str | None


@dataclass(frozen=True, slots=True)
class Disputed:
    """Commits since the rescue changed these files too."""

    names: Collection[str]


async def plan(own: ScratchGit, goal: str | None, head: str | None, tree: str, staged: str | None) -> Plan | Disputed:
    """What `tree` and `staged` change in the commit `goal`, for a branch that is there, or later at `head`.

    Raises GitError, OSError.
    """
    files, in_index = await _differences(own, goal, tree), await _differences(own, goal, staged or goal)
    newer = await _differences(own, goal, head)
    directories = _with_parents(name for name, entry in newer.items() if entry != _GONE)
    disputed = {name for name in files if _collides(name, files[name], newer, directories)}
    # A rescue has files as they lay on disk: where git converts line ends, an unchanged one looks changed.
    unchanged = {name for name in disputed if await _is_only_converted(own, goal, name, files[name])}
    disputed = disputed - unchanged | {name for name in in_index if _collides(name, in_index[name], newer, directories)}
    if disputed:
        return Disputed(disputed)
    files = {name: entry for name, entry in files.items() if name not in unchanged}
    return Plan(files, in_index, tree if head == goal else None)


async def in_the_way(own: ScratchGit, planned: Plan, head: str | None) -> list[str]:
    """The files with uncommitted work that neither HEAD nor the plan has. Raises GitError, OSError."""
    seen = await read_state(own, head)
    if not seen.changes:
        return []
    taken = await snapshot(own, head, seen)
    on_disk, staged = await _differences(own, head, taken.tree), await _differences(own, head, taken.staged or head)
    changed = {change.name for change in seen.changes}
    lost = {name for name in changed & on_disk.keys() if on_disk[name] != planned.files.get(name)}
    return sorted(lost | {name for name, entry in staged.items() if entry != planned.staged.get(name)})


async def apply_rescue(own: ScratchGit, planned: Plan, head: str | None) -> int:
    """Carries the plan out, whatever is there; returns how many files were not so yet. Raises GitError, OSError."""
    taken = await snapshot(own, head)
    changed = {change.name for change in taken.changes}
    # Line ends, for one, that git would make the same before it compares.
    unlike = await _differences(own, taken.tree, planned.tree) if planned.tree else {}
    files = {name: entry for name, entry in unlike.items() if name not in changed} | dict(planned.files)
    await own.run("read-tree", taken.tree, index=_TARGET)
    await own.fill(_TARGET, ((mode, sha, name) for name, (mode, sha) in _gone_first(files)))
    target = await own.tree(_TARGET)
    written = await _differences(own, taken.tree, target)
    if written:
        # Else it would write again whatever it does not know to be as listed.
        await own.run("update-index", "-q", "--refresh", index=DISK, check=False)
        await own.run("read-tree", "--reset", "-u", target, index=DISK)
    staged = await _differences(own, head, taken.staged or head)
    missing = {name: entry for name, entry in planned.staged.items() if staged.get(name) != entry}
    if missing:
        lines = index_lines((mode, sha, name) for name, (mode, sha) in _gone_first(planned.staged))
        clone, path = own.clone, own.path
        await clone.on_worktree(path, "update-index", "--replace", "-z", "--index-info", input=lines)
    return len(written.keys() | missing.keys())


async def _differences(own: ScratchGit, before: str | None, after: str | None) -> Files:
    """What is at each path that is not the same in two commits or trees; None is an empty tree."""
    trees = (before or EMPTY_TREE, after or EMPTY_TREE)
    fields = (await own.run("diff-tree", "-r", "-z", "--no-renames", *trees)).fields
    found: dict[str, tuple[str, str]] = {}
    for facts, name in zip(fields[::2], fields[1::2], strict=True):
        _, mode, _, sha, _ = facts.split(" ")
        found[name] = (mode, sha) if mode.strip("0") else _GONE
    return found


def _gone_first(files: Files) -> list[tuple[str, tuple[str, str]]]:
    """A file may take the place of a directory, and the other way round."""
    return sorted(files.items(), key=lambda item: item[1] != _GONE)


def _with_parents(names: Iterable[str]) -> set[str]:
    """The directories that these names need."""
    return {name[:end] for name in names for end in range(len(name)) if name[end] == "/"}


def _collides(name: str, entry: tuple[str, str], newer: Files, directories: set[str]) -> bool:
    if name in newer:
        return newer[name] != entry
    if entry == _GONE:
        return False
    return name in directories or any(newer.get(parent, _GONE) != _GONE for parent in _with_parents([name]))


async def _is_only_converted(own: ScratchGit, commit: str | None, name: str, entry: tuple[str, str]) -> bool:
    """Whether git, adding this content at this name, would store what `commit` has there already."""
    if commit is None or entry == _GONE:
        return False
    listed = (await own.run("ls-tree", "-z", "--full-tree", commit, "--", name)).fields
    content = await own.run("cat-file", "blob", entry[1], check=False)
    hashed = await own.run("hash-object", "--stdin", f"--path={name}", input=content.stdout)
    return bool(listed) and listed[0].split(" ")[:1] == [entry[0]] and f" {hashed.text}\t" in listed[0]
