"""The files and the index of a rescue, put into a worktree without changes, byte for byte."""

from collections.abc import Mapping
from dataclasses import dataclass

from bot.clones.check_out import in_the_way
from bot.git.runner import failure
from bot.rescue.message import RescuedCommits
from bot.rescue.scratch_git import NO_OBJECT, ScratchGit
from bot.rescue.snapshot import DISK, Snapshot

_TARGET = "target"

# The (mode, object) at each path; _GONE where nothing is.
Files = Mapping[str, tuple[str, str]]
_GONE = ("0", NO_OBJECT)


@dataclass(frozen=True, slots=True)
class Merged:
    """Two trees: of all `files`, as git stores them, not by their bytes on disk; and of what is `staged`."""

    files: str
    staged: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Files that commits after the rescue changed too."""

    names: tuple[str, ...]


async def merge_rescue(own: ScratchGit, head: str, sha: str, rescued: RescuedCommits) -> Merged | Conflict:
    """Merge the rescue `sha` with commits that came after it. Call it before `own.verbatim()`.

    Raises GitError, OSError.
    """
    files = await _merge(own, head, sha)
    staged = await _merge(own, head, rescued.staged) if rescued.staged else await own.tree_of(head)
    if isinstance(files, Conflict):
        return files
    return staged if isinstance(staged, Conflict) else Merged(files, staged)


async def _merge(own: ScratchGit, head: str, commit: str) -> str | Conflict:
    """Return the tree of a merge in which no file is written: https://git-scm.com/docs/git-merge-tree."""
    # A rescue has files as they lay on disk. Where git converts line ends, an unchanged file must not look changed.
    options = ("--write-tree", "--name-only", "--no-messages", "--allow-unrelated-histories", "-z")
    done = await own.run("-c", "merge.renormalize=true", "merge-tree", *options, head, commit, check=False)
    if done.status not in (0, 1):
        raise failure("merge-tree", done)
    tree, *names = done.fields
    # git appends the name of its side to a file whose path is a directory on the other side.
    return Conflict(tuple(name.removesuffix(f"~{commit}") for name in names)) if done.status else tree


async def with_changes(own: ScratchGit, taken: Snapshot, before: str, after: str) -> str:
    """Return the snapshot's tree, with the files that differ between two trees as in `after`. Raises GitError."""
    changed = await differences(own, before, after)
    await own.run("read-tree", taken.tree, index=_TARGET)
    # A file may take the place of a directory, and the other way round: what goes, goes first.
    ordered = sorted(changed.items(), key=lambda item: item[1] != _GONE)
    await own.fill(_TARGET, ((mode, sha, name) for name, (mode, sha) in ordered))
    return await own.tree(_TARGET)


async def ignored_in_the_way(own: ScratchGit, taken: Snapshot, target: str) -> list[str]:
    """Return the ignored files that `write_files` would overwrite or delete. Raises GitError, OSError."""
    changed = await differences(own, taken.tree, target)
    written = {name for name, entry in changed.items() if entry != _GONE}
    if not written:
        return []
    listed = await own.run("ls-files", "--others", "--ignored", "--exclude-standard", "-z", index=DISK)
    return in_the_way(written, listed.fields)


async def write_files(own: ScratchGit, target: str) -> None:
    """Make the files on disk those of the tree `target`, after a snapshot. Raises GitError, OSError."""
    # git would write again each file of which it does not know that it is as listed.
    await own.run("update-index", "-q", "--refresh", index=DISK, check=False)
    await own.run("read-tree", "--reset", "-u", target, index=DISK)


async def differences(own: ScratchGit, before: str, after: str) -> Files:
    """Return the content in `after` of each path where two commits or trees differ. Raises GitError, OSError."""
    fields = (await own.run("diff-tree", "-r", "-z", "--no-renames", before, after)).fields
    found: dict[str, tuple[str, str]] = {}
    for facts, name in zip(fields[::2], fields[1::2], strict=True):
        _, mode, _, sha, _ = facts.split(" ")
        found[name] = (mode, sha) if mode.strip("0") else _GONE
    return found
