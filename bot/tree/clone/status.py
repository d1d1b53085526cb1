"""What a worktree has that HEAD has not, as git tells it in one go."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from bot import refs
from bot.sandbox.bwrap import Bwrap
from bot.sandbox.untrusted_files import leads_out, read_untrusted, remove_blocking
from bot.sandbox.view import View, unblock
from bot.tree.clone.admin import admin_directory
from bot.tree.clone.clone import Clone
from bot.tree.clone.on_host import SUBMODULE_ENTRY
from bot.tree.git.errors import GitError

_STAGED_STATES = frozenset("MTAD")
# Folders that tools fill, which a repository often forgets to ignore.
_PRODUCTS = frozenset(
    {
        *("__pycache__", ".venv", "venv", ".eggs", ".tox", ".nox", ".pytest_cache", ".mypy_cache", ".ruff_cache"),
        *("node_modules", "bower_components", "dist", ".next", ".nuxt", ".svelte-kit", ".parcel-cache", ".turbo"),
        *("target", ".gradle", ".terraform"),
    }
)
FLAGS = ("--porcelain=v2", "-z", "--untracked-files=all", "--no-renames")
_HEADER = b"\0# branch.oid "
MOST_TOGETHER = 100
"""The most worktrees that one process reads."""
_MOST_INDEX_BYTES = 64 << 20
# https://git-scm.com/docs/index-format: the extension that names another index.
_SHARED_INDEX = b"link\x00"


@dataclass(frozen=True, slots=True)
class Change:
    """A file that differs from HEAD: `staged` in the index, `unstaged` on disk, by git's letters; `.` is no change.

    The name of an untracked repository ends in `/`; `inside`: a submodule with changes of its own, some of which are
    `uncommitted`.
    """

    name: str
    staged: str
    unstaged: str
    unresolved: bool = False
    inside: bool = False
    uncommitted: bool = False
    product: str | None = None
    """The folder of build products that it is in, with a `/` at its end, where nobody takes it for work: see `judged`.
    """

    @property
    def is_staged(self) -> bool:
        """Whether the index holds content that HEAD does not."""
        return self.staged in _STAGED_STATES and not self.unresolved


def perhaps_product(change: Change) -> str | None:
    """Return the folder of a file that is untracked, and in a folder that tools fill; a repository inside is work."""
    return _product_folder(change.name) if change.staged == "?" and not change.name.endswith("/") else None


def judged(changes: Sequence[Change], tracked: Iterable[str]) -> list[Change]:
    """Return the changes with their `product`: untracked files in a well-known folder of which nothing is `tracked`.

    They are never committed, rescued or counted. `tracked` are the files of the index, or those in such folders.
    """
    found = {one.name: folder for one in changes if (folder := perhaps_product(one))}
    if not found:
        return list(changes)
    known = {*map(_product_folder, tracked), *(_product_folder(one.name) for one in changes if one.staged != "?")}
    products = {name: folder for name, folder in found.items() if folder not in known}
    return [replace(one, product=products.get(one.name)) if one.staged == "?" else one for one in changes]


def _product_folder(name: str) -> str | None:
    """Return the outermost folder of a file that tools fill, with a `/` at its end."""
    folders = name.split("/")[:-1]
    if _PRODUCTS.isdisjoint(folders):
        return None
    end = next(end for end, folder in enumerate(folders, 1) if folder in _PRODUCTS)
    return "/".join(folders[:end]) + "/"


async def statuses(clone: Clone, paths: Sequence[Path]) -> dict[Path, tuple[str, int]]:
    """Return the commits of at most MOST_TOGETHER worktrees of one clone, read one after the other in one sandbox, and
    how many files differ from them.

    Only to be shown: what decides about one worktree is read without others. Those with submodules, in which git would
    run what their settings name, and those with build products are left out; all where git cannot read one of them.
    """
    sandbox, views = clone.git.sandbox, dict[Path, View]()
    if not isinstance(sandbox, Bwrap):
        return {}
    for path in paths:
        with suppress(OSError):
            admin = admin_directory(clone.path, path)
            if isinstance(admin, Path) and (view := clone.view(path, admin)).private.is_dir():
                views[path] = view
    plain = await asyncio.to_thread(lambda: {path: view for path, view in views.items() if _is_plain(view)})
    flags = (*FLAGS, "--ignore-submodules=dirty", "--branch", "--no-ahead-behind")
    shown = b""
    with suppress(GitError):
        shown = (await clone.git.in_many(sandbox, [*plain.values()], "status", *flags)).stdout if plain else b""
    # A name holds no NUL, so only git begins an entry of its own.
    found = [one.partition(b"\0") for one in (b"\0" + shown).split(_HEADER)[1:]]
    if len(found) != len(plain):
        return {}
    read = [(path, os.fsdecode(head), rest) for path, (head, _, rest) in zip(plain, found, strict=True)]
    counted: dict[Path, tuple[str, int]] = {}
    for path, head, rest in read:
        changes = parse_status(rest)
        # What is tracked in such folders is not asked of all at once: that worktree is read by itself.
        if refs.is_commit(head) and not any(map(perhaps_product, changes)):
            counted[path] = head, len(changes)
    return counted


def _is_plain(view: View) -> bool:
    """Return whether git would wait for nothing, and start nothing, in a worktree."""
    try:
        unblock(view)
        remove_blocking(view.worktree, ".git", links=False)
        index = read_untrusted(view.state, PurePath("index"), _MOST_INDEX_BYTES)
    except OSError:
        return False
    return SUBMODULE_ENTRY not in index and _SHARED_INDEX not in index


def parse_status(shown: bytes) -> list[Change]:
    """Parse the output of `git status --porcelain=v2 -z --no-renames`: https://git-scm.com/docs/git-status."""
    found: list[Change] = []
    for line in filter(None, os.fsdecode(shown).split("\0")):
        kind, _, rest = line.partition(" ")
        if kind == "?":
            found.append(Change(rest, "?", "?"))
        elif kind in ("1", "u"):
            facts = rest.split(" ", 7 if kind == "1" else 9)
            submodule = facts[1]
            inside = submodule[0] == "S" and submodule != "S..."
            uncommitted = inside and submodule[2:] != ".."
            found.append(Change(facts[-1], facts[0][0], facts[0][1], kind == "u", inside, uncommitted))
    return [change for change in found if not leads_out(change.name)]
