"""Two object stores of a clone, so that no sandbox sees what another conversation has not published.

`published` has what GitHub has: a fetch writes there, and each sandbox borrows from it. The clone's own `objects` has
what the host imported from sandboxes, and rescues. It borrows from `published`, so that git on the clone sees both.
A commit that the clone has already is not fetched again. When a branch on GitHub has it, it is copied.

git knows nothing of the branches, stashes and logs in sandboxes. What they borrow is what GitHub's branches had at some
time. So what no ref reaches any more stays in `published` while there are worktrees from that time (see
`bot.tree.clone.packing`); an operator's `git gc` does not touch that store.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from bot.sandbox.view import PUBLISHED, View
from bot.tree.clone.admin import write
from bot.tree.clone.clone import Clone, CloneLock
from bot.tree.git.runner import Completed

_NOTE = "threadtree-published"


def make_stores(clone: Path) -> None:
    """Give a new clone its published objects. Raises OSError."""
    (clone / PUBLISHED / "pack").mkdir(parents=True)
    (clone / "objects" / "info" / "alternates").write_text(f"../{PUBLISHED}\n")


def writing_published(clone: Path) -> dict[str, str]:
    """Return the environment of a git that sees both stores and writes published objects."""
    objects = {"GIT_OBJECT_DIRECTORY": clone / PUBLISHED, "GIT_ALTERNATE_OBJECT_DIRECTORIES": clone / "objects"}
    return {name: str(path) for name, path in objects.items()}


async def publish_tips(lock: CloneLock) -> None:
    """Publish what the remote's branches reach. Comes after each fetch. Raises GitError, OSError."""
    clone = lock.clone
    tips = set((await clone.refs("refs/remotes/origin/")).values())
    if tips != noted_tips(clone):
        await publish(lock, tips)
        write(clone.path / _NOTE, "\n".join(sorted(tips)))


async def publish(lock: CloneLock, commits: Iterable[str]) -> None:
    """Publish what these commits of GitHub need and only the clone's own objects have. Raises GitError, OSError.

    The pack of such a commit is linked; what else is needed is copied.
    """
    clone, known = lock.clone, noted_tips(lock.clone)
    new = set(commits) - known
    if not new:
        return
    for commit in new & lock.packs.keys():
        _link(lock.packs[commit], clone.path / PUBLISHED / "pack")
    if _has_objects(clone.path / "objects"):  # else a new clone: to look at all that was fetched takes long
        given = "".join([*(f"{sha}\n" for sha in new), *(f"^{sha}\n" for sha in known)]).encode()
        packing = ("pack-objects", "--revs", "--local", "--non-empty", "--delta-base-offset", "-q")
        await clone.git.on_clone(clone.path, *packing, str(clone.path / PUBLISHED / "pack" / "pack"), input=given)
    write(clone.path / _NOTE, "\n".join(sorted(known | new)))


async def unpublished_objects(clone: Clone, commits: Iterable[str], admin: Path | None = None) -> bytes:
    """Return the names of what these commits reach, and the index in `admin`, but no published commit. Raises GitError.

    The list is for `git pack-objects --local`, which leaves out all else that is published.
    """
    known, commits = noted_tips(clone), [*commits]
    given = "".join([*(f"{sha}\n" for sha in commits), *(f"^{sha}\n" for sha in known)]).encode()
    listing = ("rev-list", "--objects", "--no-object-names", "--single-worktree", "--stdin")
    # Without a sandbox the clone has what was staged.
    has_index = admin is not None and os.path.lexists(admin / "index")  # noqa: ASYNC240
    if not has_index and known.issuperset(commits):
        return b""
    place, more = (admin, ("--indexed-objects",)) if admin is not None and has_index else (clone.path, ())
    return (await clone.git.on_clone(place, *listing, *more, input=given)).stdout


async def unknown_to_published(clone: Clone, objects: Iterable[bytes]) -> set[bytes]:
    """Return those of these objects that are not in the store of published objects. Raises GitError."""
    store = {"GIT_OBJECT_DIRECTORY": str(clone.path / PUBLISHED)}
    asked = ("cat-file", "--batch-check=%(objectname)")
    told = await clone.git.on_clone(clone.path, *asked, input=b"\n".join(objects) + b"\n", environment=store)
    return {line.removesuffix(b" missing") for line in told.stdout.splitlines() if line.endswith(b" missing")}


async def lend(clone: Clone, view: View, *commits: str) -> None:
    """Give a sandbox these commits of the clone, with all that is not published. Raises GitError, OSError."""
    if not view.is_isolated or not (objects := await unpublished_objects(clone, commits)):
        return
    packing = ("pack-objects", "--local", "--delta-base-offset", "--stdout", "-q")
    await connected(
        partial(clone.git.on_clone, clone.path, *packing, input=objects),
        partial(clone.git.in_sandbox, view, "index-pack", "--stdin", in_worktree=False),
    )


async def connected(
    packing: Callable[..., Awaitable[Completed]], receiving: Callable[..., Awaitable[Completed]]
) -> tuple[Completed, Completed]:
    """Run two commands, the second of which reads what the first one writes."""
    reading, writing = os.pipe()
    return await asyncio.gather(packing(stdout=writing), receiving(stdin=reading))


def noted_tips(clone: Clone) -> set[str]:
    """Return the tips that the remote's branches had after the last fetch or push: what they reach is published."""
    try:
        return set((clone.path / _NOTE).read_text().split())
    except FileNotFoundError:
        return set()


def _link(index: Path, folder: Path) -> None:
    """Let a pack be in this folder too, where its file system can do that. It comes before its index, by which git
    finds it.
    """
    with suppress(OSError):
        for file in (index.with_suffix(".pack"), index):
            with suppress(FileExistsError):
                (folder / file.name).hardlink_to(file)


def _has_objects(store: Path) -> bool:
    return any((store / "pack").glob("*.pack")) or any(len(name) == 2 for name in os.listdir(store))  # noqa: PTH208
