"""Check out another commit without overwriting ignored files.

A checkout that was cut off leaves files of both commits, and missing ones that look as if an agent had deleted them.
A mark in the clone, where no sandboxed agent can write, tells of it; the next one who uses the worktree puts it back.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path, PurePath

import structlog

from bot.sandbox.untrusted_files import read_untrusted, remove_untrusted, status_of_untrusted
from bot.tree.clone.admin import recorded
from bot.tree.clone.checkout import Checkout
from bot.tree.clone.clone import EMPTY_TREE
from bot.tree.clone.importing import import_commits
from bot.tree.git.errors import GitProblem
from bot.tree.git.runner import failure

# What git says of files that only the worktree has: https://git-scm.com/docs/git-checkout, --no-overwrite-ignore.
_IN_THE_WAY = ("would be overwritten by checkout", "would lose untracked files")
# The commits of a checkout that has begun, before and after, in the clone's folder of the worktree.
_MARK = "threadtree-checkout"
_INDEX = "threadtree-index"
# Files that a killed git was writing: as many as it has workers. Larger ones are taken for somebody's work.
_MOST_UNFINISHED, _MOST_BYTES = 64, 64 << 20
_PASSING = (GitProblem.DISK_FULL, GitProblem.LOCKED)
_log = structlog.get_logger()


async def check_out(checkout: Checkout, branch: str | None, commit: str) -> bool:
    """Check out `commit` in a worktree without changes, on `branch` (None: detached), which is made or moved there and
    in the clone.

    Return False, with everything as it was, where an ignored file is in the way. Raises GitError, OSError: what was
    written until then is for `put_back`.
    """
    # A new git would read all registered worktrees. The caller knows that no other one has this branch.
    where = ("--ignore-other-worktrees", "--no-track", "-B", branch) if branch is not None else ("--detach",)
    with marked(checkout, (await checkout.now()).commit, commit):
        arguments = ("checkout", "--quiet", "--no-overwrite-ignore", *where, commit)
        done = await checkout.git(*arguments, check=False)
        if done.status and not any(words in done.stderr for words in _IN_THE_WAY):
            raise failure("checkout", done)
    if done.status == 0:
        await import_commits(await checkout.now(), branch)
    return done.status == 0


@contextmanager
def marked(checkout: Checkout, before: str | None, after: str) -> Iterator[None]:
    """Mark the worktree while git makes it the commit `after`; the mark stays where that fails or the process ends.

    All files are as in the commit `before`: then nothing is lost where they are put back.
    """
    mark = checkout.admin / _MARK
    if before is not None:
        mark.write_text(f"{before} {after}\n")
    yield
    mark.unlink(missing_ok=True)


async def put_back(checkout: Checkout) -> None:
    """Give a worktree the index and the files of its HEAD again where a checkout was cut off; else do nothing.

    A file that has the content of neither commit is somebody's work, and stays. Needs the worktree's claim, and no
    running agent. Raises GitError, OSError.
    """
    clone, mark = checkout.clone, checkout.admin / _MARK
    if not (marked := recorded(mark)):
        return
    before, _, after = marked.partition(" ")
    head = (await checkout.now()).commit
    if head and head in (before, after) and [await clone.commit_at(one) for one in (before, after)] == [before, after]:
        _log.warning("checkout-was-cut-off", path=str(checkout.path), before=before, after=after)
        await _put_back(checkout, head, after if head == before else before)
    mark.unlink(missing_ok=True)


async def _put_back(checkout: Checkout, head: str, other: str) -> None:
    """Give the files that differ between two commits the content that `head` has.

    git's own are deleted first, and nothing is written over another.
    """
    unlike, unlike_other = await _unlike(checkout, head), await _unlike(checkout, other)
    listed = (await checkout.clone.run("diff-tree", "-r", "-z", "--no-renames", "--name-status", head, other)).fields
    letters = dict(zip(listed[1::2], listed[::2], strict=True))
    kinds = {name: status_of_untrusted(checkout.path, PurePath(name)) for name in letters}
    there = {name for name, kind in kinds.items() if kind is not None and not stat.S_ISDIR(kind.st_mode)}
    wrong = {name for name, letter in letters.items() if (name in there if letter == "A" else name in unlike)}
    doubtful = [name for name in wrong & there if letters[name] == "D" or name in unlike_other]
    for number, name in enumerate(doubtful):
        if number >= _MOST_UNFINISHED or not await _is_unfinished(checkout, name, (head, other)):
            wrong.remove(name)
    for name in wrong & there:
        _remove(checkout.path, PurePath(name))
    await checkout.git("reset", "--quiet")
    missing = (name for name in wrong if letters[name] != "A" and _has_room(checkout.path, PurePath(name)))
    out = ("checkout-index", "--quiet", "-u", "-z", "--stdin")
    given = b"".join(os.fsencode(name) + b"\0" for name in missing)
    done = await checkout.git(*out, input=given, check=False)
    if done.status and (error := failure("checkout-index", done)).problem in _PASSING:
        raise error


async def _unlike(checkout: Checkout, commit: str) -> set[str]:
    """Return the files of a commit that have another content on disk, or are not there."""
    # Beside the worktree's own index, a place that is the same inside a sandbox and outside.
    index = (await checkout.git("rev-parse", "--path-format=absolute", "--git-path", _INDEX)).text
    environment = {"GIT_INDEX_FILE": index}
    await checkout.git("read-tree", commit, environment=environment)
    await checkout.git("update-index", "-q", "--refresh", check=False, environment=environment)
    return set((await checkout.git("diff-files", "--name-only", "-z", "--no-renames", environment=environment)).fields)


async def _is_unfinished(checkout: Checkout, name: str, commits: Iterable[str]) -> bool:
    """Return whether a file holds the beginning of what a commit has, as git was writing it."""
    try:
        begun = read_untrusted(checkout.path, PurePath(name), _MOST_BYTES)
    except OSError:
        return False
    found = [await checkout.git("cat-file", "--filters", f"{commit}:{name}", check=False) for commit in commits]
    return any(whole.status == 0 and whole.stdout.startswith(begun) for whole in found)


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
    """Return the ignored files and the build products that git would overwrite or delete to write the files that only
    `target` has.

    Raises GitError, OSError.
    """
    before = f"{head}^{{tree}}" if head is not None else EMPTY_TREE
    written = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=d", before, target)
    listed = await checkout.clone.run(*written)
    ignored = await checkout.git("ls-files", "--others", "--ignored", "--exclude-standard", "-z")
    products = [change.name for change in await checkout.changes() if change.product is not None]
    return in_the_way(set(listed.fields), [*ignored.fields, *products])


def in_the_way(written: Set[str], ignored: Iterable[str]) -> list[str]:
    """Return the ignored files that are at, below or above a path to be written. A repository's name ends in `/`."""
    above = _directories_above(written)
    names = (name.rstrip("/") for name in ignored)
    return [name for name in names if name in written or name in above or _directories_above([name]) & written]


def _directories_above(names: Iterable[str]) -> set[str]:
    """Return the directories above these names."""
    return {name[:end] for name in names for end in range(len(name)) if name[end] == "/"}
