"""Check out another commit without overwriting ignored files.

A checkout that was cut off leaves files of both commits, and missing ones that look as if an agent had deleted them.
A mark in the clone, where no caged agent can write, tells of it; the next one who uses the worktree puts it back.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Literal, TypeAlias

import structlog

from bot.clones.admin import recorded
from bot.clones.checkout import Checkout
from bot.clones.clone import Clone
from bot.git.errors import GitProblem
from bot.git.runner import failure
from bot.sandbox.untrusted_files import read_untrusted, remove_untrusted, status_of_untrusted

# The tree without files, which git knows in every repository.
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
# What git says of files that only the worktree has: https://git-scm.com/docs/git-checkout, --no-overwrite-ignore.
_IN_THE_WAY = ("would be overwritten by checkout", "would lose untracked files")
# The commits of a checkout that has begun, before and after, in the clone's folder of the worktree.
_MARK = "threadtree-checkout"
_INDEX = "threadtree-index"
# Files that a killed git was writing: as many as it has workers. Larger ones are taken for somebody's work.
_MOST_UNFINISHED, _MOST_BYTES = 64, 64 << 20
_PASSING = (GitProblem.DISK_FULL, GitProblem.LOCKED)
_log = structlog.get_logger()

_Entry: TypeAlias = tuple[str, str]
"""The mode and the object of a file; _ABSENT where there is none."""
_ABSENT: _Entry = ("000000", "0" * 40)


async def check_out(checkout: Checkout, branch: str | None, commit: str) -> bool:
    """Check out `commit` in a worktree without changes, on `branch` (None: detached), which is made or moved there.

    Return False, with everything as it was, where an ignored file is in the way. Raises GitError, OSError: what was
    written until then is for `put_back`.
    """
    # A new git would read all registered worktrees. The caller knows that no other one has this branch.
    where = ("--ignore-other-worktrees", "--no-track", "-B", branch) if branch is not None else ("--detach",)
    with marked(checkout, (await checkout.read_head()).commit, commit):
        arguments = ("checkout", "--quiet", "--no-overwrite-ignore", *where, commit)
        done = await checkout.git(*arguments, check=False)
        if done.status and not any(words in done.stderr for words in _IN_THE_WAY):
            raise failure("checkout", done)
    return done.status == 0


@contextmanager
def marked(checkout: Checkout, before: str | None, after: str) -> Iterator[None]:
    """Mark the worktree while git makes it the commit `after`; the mark stays where that fails or the process ends.

    All files are as in the commit `before`: then nothing is lost where they are put back.
    """
    mark = checkout.admin / _MARK if before is not None else None
    if mark is not None:
        mark.write_text(f"{before} {after}\n")
    yield
    if mark is not None:
        mark.unlink()


async def put_back(checkout: Checkout) -> None:
    """Give a worktree the index and the files of its HEAD again where a checkout was cut off; else do nothing.

    A file that has the content of neither commit is somebody's work, and stays. Needs the worktree's claim, and no
    running agent. Raises GitError, OSError.
    """
    clone, mark = checkout.clone, checkout.admin / _MARK
    if not (marked := recorded(mark)):
        return
    before, _, after = marked.partition(" ")
    head = (await checkout.read_head()).commit
    if head in (before, after) and [await clone.commit_at(one) for one in (before, after)] == [before, after]:
        _log.warning("checkout-was-cut-off", path=str(checkout.path), before=before, after=after)
        await _put_back(checkout, await _differing(clone, before, after), 0 if head == before else 1)
    mark.unlink(missing_ok=True)


async def _differing(clone: Clone, before: str, after: str) -> dict[str, tuple[_Entry, _Entry]]:
    """Return what both commits have at each path where they differ."""
    listed = (await clone.run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after)).fields
    words = ((facts.removeprefix(":").split(" "), name) for facts, name in zip(listed[::2], listed[1::2], strict=True))
    return {name: ((fact[0], fact[2]), (fact[1], fact[3])) for fact, name in words}


async def _put_back(checkout: Checkout, differing: Mapping[str, tuple[_Entry, _Entry]], head: Literal[0, 1]) -> None:
    """Put back the version `head` of these files: git's own are deleted first, and nothing is written over another."""
    found = await _on_disk(checkout, differing)
    works = {name for name, entry in found.items() if entry not in (*differing[name], _ABSENT)}
    for name in list(works)[:_MOST_UNFINISHED]:
        if any([await _is_unfinished(checkout, name, version) for version in differing[name]]):
            works.discard(name)
    wanted = [name for name in differing if name not in works and found[name] != differing[name][head]]
    for name in wanted:
        if found[name] != _ABSENT:
            _remove(checkout.path, PurePath(name))
    # Removals first: a file cannot be added to the index where a folder is.
    lines = sorted((differing[name][head], name) for name in differing)
    listed = b"".join(b"%s %s\t%s\0" % (mode.encode(), sha.encode(), os.fsencode(name)) for (mode, sha), name in lines)
    await checkout.git("update-index", "--replace", "-z", "--index-info", input=listed)
    there = (name for name in wanted if differing[name][head] != _ABSENT and _has_room(checkout.path, PurePath(name)))
    written = [os.fsencode(name) + b"\0" for name in there]
    out = ("checkout-index", "--quiet", "-u", "-z", "--stdin")
    done = await checkout.git(*out, input=b"".join(written), check=False)
    if done.status and (error := failure("checkout-index", done)).problem in _PASSING:
        raise error


async def _on_disk(checkout: Checkout, names: Iterable[str]) -> dict[str, _Entry]:
    """Return which file is at each path, none where a folder is. What is neither has no mode: git did not write it."""
    found, files = dict.fromkeys(names, _ABSENT), list[str]()
    for name in found:
        kind = status_of_untrusted(checkout.path, PurePath(name))
        if kind is None or stat.S_ISDIR(kind.st_mode):
            continue
        found[name] = ("", "")
        if stat.S_ISREG(kind.st_mode) or stat.S_ISLNK(kind.st_mode):
            files.append(name)
    # Beside the worktree's own index, a place that is the same inside a cage and outside.
    index = (await checkout.git("rev-parse", "--path-format=absolute", "--git-path", _INDEX)).text
    environment = {"GIT_INDEX_FILE": index}
    await checkout.git("read-tree", "--empty", environment=environment)
    listed = b"".join(os.fsencode(name) + b"\0" for name in files)
    await checkout.git("update-index", "--add", "-z", "--stdin", input=listed, environment=environment)
    for line in (await checkout.git("ls-files", "--stage", "-z", environment=environment)).fields:
        facts, _, name = line.partition("\t")
        mode, sha, _ = facts.split(" ")
        found[name] = (mode, sha)
    return found


async def _is_unfinished(checkout: Checkout, name: str, version: _Entry) -> bool:
    """Return whether a file holds the beginning of a version, as git was writing it."""
    if version == _ABSENT:
        return False
    try:
        begun = read_untrusted(checkout.path, PurePath(name), _MOST_BYTES)
    except OSError:
        return False
    whole = await checkout.git("cat-file", "--filters", f"--path={name}", version[1], check=False)
    return whole.status == 0 and whole.stdout.startswith(begun)


def _has_room(path: Path, name: PurePath) -> bool:
    """Return whether no file is in the place of a folder above: git would stop there."""
    above = (status_of_untrusted(path, folder) for folder in name.parents[:-1])
    return all(kind is None or stat.S_ISDIR(kind.st_mode) for kind in above)


def _remove(path: Path, name: PurePath) -> None:
    """Remove a file and the folders that are empty without it."""
    remove_untrusted(path, name)
    for folder in name.parents[:-1]:
        try:
            (path / folder).rmdir()
        except OSError:
            return


async def ignored_in_the_way(checkout: Checkout, head: str | None, target: str) -> list[str]:
    """Return the ignored files that git would overwrite or delete to write the files that only `target` has.

    Raises GitError, OSError.
    """
    before = f"{head}^{{tree}}" if head is not None else EMPTY_TREE
    written = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=d", before, target)
    listed = await checkout.clone.run(*written)
    ignored = await checkout.git("ls-files", "--others", "--ignored", "--exclude-standard", "-z")
    return in_the_way(set(listed.fields), ignored.fields)


def in_the_way(written: Set[str], ignored: Iterable[str]) -> list[str]:
    """Return the ignored files that are at, below or above a path to be written. A repository's name ends in `/`."""
    above = _directories_above(written)
    names = (name.rstrip("/") for name in ignored)
    return [name for name in names if name in written or name in above or _directories_above([name]) & written]


def _directories_above(names: Iterable[str]) -> set[str]:
    """Return the directories above these names."""
    return {name[:end] for name in names for end in range(len(name)) if name[end] == "/"}
