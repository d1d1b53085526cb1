"""After a turn: its work becomes commits on the worktree's branch."""

import os
import re
import stat
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from bot import refs
from bot.files import real_path
from bot.sandbox.untrusted_files import (
    open_untrusted,
    read_untrusted,
    status_of_untrusted,
)
from bot.thread.notices import LeftOut
from bot.tree.clone.check_out import ignored_in_the_way, marked
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import EMPTY_TREE
from bot.tree.clone.importing import import_commit, import_commits, move_branch
from bot.tree.clone.status import Change
from bot.tree.git.runner import LARGE_FILE_BYTES, NO_LEVEL, UNCOMPRESSED, Identity, failure
from bot.tree.lfs.objects import MAX_OBJECT_BYTES
from bot.tree.lfs.pointers import LFS, filters_of
from bot.tree.rescue.message import RescueLabel
from bot.tree.rescue.save import rescue_checkout

MAX_FILE_BYTES = 10_000_000
_MOST_LOOKED_AT = 50
_MARKS = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
_SAMPLE_BYTES, _DENSE = 64 << 10, 0.97


@dataclass(frozen=True, slots=True)
class StrayWork:
    """HEAD was elsewhere and did not descend from the branch: commits and files are rescued under `ref`.

    `uncovered` are files that were ignored there, and are not on this branch: they stay, as uncommitted files.
    """

    ref: str
    uncovered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit that was made, None where nothing else was uncommitted than what is `left_out`, or where a merge or
    rebase was left with conflicts in the `unresolved` files. What is left out stays in the worktree.
    """

    sha: str | None
    left_out: Mapping[LeftOut, tuple[str, ...]] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()


async def return_to_branch(checkout: Checkout, branch: str, label: RescueLabel) -> StrayWork | None:
    """Put the worktree back on its branch, which gets commits made elsewhere that continue it; others are rescued.

    Ignored files stay, even where another `.gitignore` hid them, but for those that the branch has files in the place
    of: they are in the rescue. Raises GitError, InvalidNameError.
    """
    clone, ref = checkout.clone, refs.local(branch)
    await import_commits(checkout, branch)
    if checkout.branch == branch:
        return None
    await checkout.unblock()
    head, tip = checkout.commit, await clone.commit_at(ref)
    if head is not None and (tip is None or await clone.is_ancestor(tip, head)):
        await move_branch(checkout, ref, head, tip)
        # The commit stays the same, so neither the index nor a file has to change.
        await checkout.git("symbolic-ref", "HEAD", ref)
        await _quit_rebase(checkout)
        await import_commits(await checkout.now(), branch)
        return None
    if tip is not None:
        # What is in the index is rescued, ignored or not.
        await stage(checkout, await ignored_in_the_way(checkout, head, tip))
    rescued, _ = await rescue_checkout(checkout, label)
    before = rescued.sha if rescued is not None else head
    await _quit_rebase(checkout)
    # `reset` deletes what is in the index and not in the branch: all that was rescued, and no ignored file.
    # Repositories inside the worktree are in no rescue and stay.
    await stage(checkout, [one.name for one in await checkout.work() if not one.name.endswith("/")])
    with marked(checkout, before, tip or before or EMPTY_TREE):
        await checkout.git("symbolic-ref", "HEAD", ref)
        await checkout.git("reset", "--quiet", "--hard")
    await import_commits(await checkout.now(), branch)
    uncovered = [one.name for one in await checkout.work() if not one.name.endswith("/")]
    return StrayWork(rescued.ref, tuple(uncovered)) if rescued is not None else None


async def commit_all(checkout: Checkout, message: str, author: Identity, co_author: Identity | None) -> Committed:
    """Commit what is neither ignored nor to be left out, see `_reasons`; without the clone's lock, where it lets go.

    Raises GitError, OSError.
    """
    await checkout.unblock()
    if checkout.commit is not None:
        await import_commit(checkout, checkout.commit)
    async with checkout.lock.released():
        made = await _commit_all(checkout, _message(message, co_author), author)
    if made.sha is not None:
        await import_commit(checkout, made.sha)
    return made


async def _commit_all(checkout: Checkout, text: bytes, author: Identity) -> Committed:
    changed = await checkout.changes()
    conflicts = [one for one in changed if one.unresolved]
    looks = len(conflicts) <= _MOST_LOOKED_AT
    unresolved = tuple([one.name for one in conflicts if not (looks and await _is_resolved(checkout, one))])
    if unresolved:
        return Committed(None, unresolved=unresolved)
    reasons = await _reasons(checkout, changed)
    left_out: dict[LeftOut, tuple[str, ...]] = {}
    for change in changed:
        if (why := reasons.get(change.name)) is not None:
            named = change.product if why == "product" and change.product else change.name
            left_out[why] = tuple(dict.fromkeys((*left_out.get(why, ()), named)))
    wanted = [change for change in changed if change.name not in reasons]
    await stage(checkout, [change.name for change in wanted if change.unstaged != "."])
    if staged := [change.name for change in changed if change.name in reasons and change.is_staged]:
        await checkout.git("reset", "--quiet", "--pathspec-from-file=-", "--pathspec-file-nul", input=_listed(staged))
    is_sure = wanted and checkout.operation_in_progress() is None
    if not is_sure and not await _has_staged(checkout):
        return Committed(None, left_out)
    # Lines that begin with # are references to issues here, not comments.
    options = ("--quiet", "--no-verify", "--no-gpg-sign", "--cleanup=whitespace", "--file=-")
    done = await checkout.git("commit", *options, input=text, environment=author.environment, check=False)
    if done.status == 1 and not await _has_staged(checkout):
        return Committed(None, left_out)
    if done.status:
        raise failure("commit", done)
    return Committed((await checkout.git("rev-parse", "--verify", "HEAD")).text, left_out)


async def _is_resolved(checkout: Checkout, change: Change) -> bool:
    """Return whether a file that both sides have was edited until no mark of a conflict was left, but not staged.

    Where git can set no marks, as in a binary file, it is as on our side.
    """
    if change.staged != change.unstaged or change.staged not in "UA":
        return False
    try:
        content = read_untrusted(checkout.path, PurePath(change.name), MAX_FILE_BYTES)
    except OSError:
        return False
    ours = await checkout.git("cat-file", "--filters", f":2:{change.name}", check=False)
    return ours.status == 0 and content != ours.stdout and not _MARKS.search(content)


def has_conflict_marks(path: Path, name: str) -> bool:
    """Return whether a file that can be read has marks of a conflict that git could not merge."""
    try:
        return _MARKS.search(read_untrusted(path, PurePath(name), MAX_FILE_BYTES)) is not None
    except OSError:
        return False


async def _has_staged(checkout: Checkout) -> bool:
    """Return whether the index differs from HEAD."""
    differs = ("diff", "--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff")
    return bool((await checkout.git(*differs)).fields)


def _message(message: str, co_author: Identity | None) -> bytes:
    trailer = f"\n\nCo-authored-by: {co_author}" if co_author else ""
    return (message.replace("\0", " ").rstrip() + trailer + "\n").encode(errors="replace")


async def _reasons(checkout: Checkout, changed: Sequence[Change]) -> dict[str, LeftOut]:
    """Return why some of these files are not committed.

    They are over MAX_FILE_BYTES (under Git LFS over its own limit), a repository inside, changed in a submodule or at
    a commit of it that only this worktree has, under another filter, or build products.
    """
    submodules = [change for change in changed if change.inside]
    inside = {one.name for one in submodules if one.uncommitted or not await has_published(checkout, one.name, "HEAD")}
    there = [one.name for one in changed if status_of_untrusted(checkout.path, PurePath(one.name)) is not None]
    asked = ("check-attr", "--stdin", "-z", "filter")
    filters = filters_of(await checkout.git(*asked, input=_listed(there))) if there else {}
    # git-lfs makes pointers of these, and the host uploads their objects.
    limits = {name: MAX_OBJECT_BYTES for name, value in filters.items() if value == LFS and checkout.clone.git.lfs}
    large = [
        one.name
        for one in changed
        if one.name in inside or not _fits(checkout.path, one.name, limits.get(one.name, MAX_FILE_BYTES))
    ]
    filtered = await _unknown(checkout, [name for name in filters if name not in large and name not in limits])
    reasons: dict[str, LeftOut] = dict.fromkeys([one.name for one in changed if one.product is not None], "product")
    return reasons | dict.fromkeys(filtered, "filter") | dict.fromkeys(large, "large")


async def _unknown(checkout: Checkout, found: list[str]) -> list[str]:
    """Return the files under a filter whose content HEAD has nowhere: the filter has to replace it.

    A file that was only moved has content that HEAD knows. No filter is run: it is a program that settings name.
    """
    hashed = [name for name in found if "\n" not in name]
    if not hashed:
        return found
    files = b"".join(os.fsencode(name) + b"\n" for name in hashed)
    objects = (await checkout.git("hash-object", "--no-filters", "--stdin-paths", input=files)).text.split("\n")
    listed = (await checkout.git("ls-tree", "-r", "-z", "--full-tree", "HEAD", check=False)).fields
    committed = {facts.split(" ")[2] for facts, _, _ in (entry.partition("\t") for entry in listed)}
    moved = {name for name, sha in zip(hashed, objects, strict=True) if sha in committed}
    return [name for name in found if name not in moved]


def _fits(path: Path, name: str, most_bytes: int) -> bool:
    """Return whether git can commit what is at `name`, and it is not too large. A file that is gone fits."""
    if name.endswith("/"):
        return False
    status = status_of_untrusted(path, PurePath(name))
    if status is None or stat.S_ISDIR(status.st_mode):
        return True
    return stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK) and status.st_size <= most_bytes


async def has_published(checkout: Checkout, submodule: str, commit: str) -> bool:
    """Return whether the submodule's own remote branches, as its repository in the worktree knows them, reach a commit.

    An agent can write there what it likes: the answer protects it from a mistake, and nothing else.
    """
    command = ("-C", submodule, "rev-list", "--max-count=1", commit, "--not", "--remotes")
    # Where nothing is checked out, git would take the worktree for the submodule's repository.
    ceiling = {"GIT_CEILING_DIRECTORIES": str(real_path(checkout.path))}
    listed = await checkout.git(*command, check=False, environment=ceiling)
    return listed.status == 0 and not listed.stdout


async def stage(checkout: Checkout, names: list[str]) -> None:
    """Stage files as they are on disk, deleted ones too. Names go to stdin, since argv has a limit."""
    if not names:
        return
    dense = {name for name in names if _is_dense(checkout.path, name)}
    arguments = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
    if others := [name for name in names if name not in dense]:
        await checkout.git(*arguments, input=_listed(others))
    if dense:
        await checkout.git(UNCOMPRESSED, *arguments, input=_listed(dense), environment=NO_LEVEL)


def _listed(names: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _is_dense(path: Path, name: str) -> bool:
    """Return whether a large file, judged by its middle, gets no smaller when it is compressed."""
    try:
        with open_untrusted(path, PurePath(name)) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size < LARGE_FILE_BYTES:
                return False
            sample = os.pread(descriptor, _SAMPLE_BYTES, status.st_size // 2)
    except OSError:
        return False
    return len(zlib.compress(sample, 1)) > _DENSE * len(sample)


async def _quit_rebase(checkout: Checkout) -> None:
    if checkout.operation_in_progress() == "rebase":
        await checkout.git("rebase", "--quit")
