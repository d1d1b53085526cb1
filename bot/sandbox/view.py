"""A sandboxed process's view of a clone: one worktree, and a private folder in place of the clone's own.

The host's git never reads the private folder, and the sandbox never writes the clone. So an agent that breaks every
file it can reach breaks only its own worktree.
"""

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from bot.sandbox.untrusted_files import locks_below, remove_blocking, remove_untrusted

PUBLISHED = "published"
"""The object store of a clone that all its sandboxes see: it has what GitHub has."""
LFS = "lfs"
"""The folder of git-lfs: in a clone it has objects that GitHub has, in a worktree's own folder what was made there."""
SHALLOW = "shallow"
"""git's file that tells where history ends, in a clone without older one: https://git-scm.com/docs/shallow"""
_SETTINGS = ("hooks", "info")
_OF_THE_CLONE = "config-of-the-clone"
"""What the config of a worktree's processes includes: the clone's, as it is now."""
_PLACES = ("objects/info", "objects/pack", "hooks", "refs", "worktrees")
# Folders of the host that show no hooks, and no other worktree.
_EMPTY, _WORKTREES = "empty", "worktrees"
_CLONE_OBJECTS = "clone-objects"
_ALTERNATES = PurePath("objects", "info", "alternates")
_SHARED = ("remotes", "tags")
_PINNED = ("commondir", "gitdir")
_HEAD = "refs/threadtree/head"


@dataclass(frozen=True, slots=True)
class View:
    """One worktree of one clone. All paths are real: no symbolic link stands above them.

    The host's folders that the sandbox shows: `common` as the clone, `refs` as the clone's refs, `state` as the
    worktree's admin folder (HEAD, index, operations in progress). `clone_objects` are the clone's published objects in
    the sandbox.
    """

    clone: Path
    worktree: Path
    admin: Path
    private: Path
    common: Path
    refs: Path
    state: Path
    clone_objects: Path

    @property
    def name(self) -> str:
        """The name of the worktree among all worktrees of this machine."""
        return name_of(self.private)

    @property
    def is_isolated(self) -> bool:
        """Whether this is the view of a sandbox. Without one nothing is private but the worktree's admin folder."""
        return self.private != self.admin

    @property
    def writable(self) -> tuple[Path, ...]:
        """The host's folders of git that only this worktree's processes write."""
        return (self.common, self.refs, self.state) if self.is_isolated else (self.admin,)


def sandboxed_view(clone: Path, worktree: Path, admin: Path, private: Path) -> View:
    """Return the view of a process in a sandbox."""
    shown = (private / name for name in ("common", "refs", "state", _CLONE_OBJECTS))
    return View(clone, worktree, admin, private, *shown)


def open_view(clone: Path, worktree: Path, admin: Path) -> View:
    """Return the view of a process without a sandbox: the clone itself."""
    return View(clone, worktree, admin, admin, clone, clone / "refs", admin, clone / PUBLISHED)


def private_folder(data_dir: Path, worktree: Path) -> Path:
    """Return the folder with the private state of the worktree at this real path, also after DATA_DIR was moved."""
    digest = hashlib.sha256(os.fsencode(os.path.relpath(worktree, data_dir))).hexdigest()[:16]
    return data_dir / "private" / f"{worktree.name[:60]}-{digest}"


def name_of(private: Path) -> str:
    """Return the name of a private folder's worktree among those of all nodes of this machine."""
    return f"{private.name}-{hashlib.sha256(bytes(private.parent)).hexdigest()[:8]}"


@contextmanager
def making_private(view: View, ref: str | None, tip: str | None, shared: bytes) -> Iterator[Path]:
    """Make the private folder from the clone as it is now, with one branch: `ref` at `tip`. Raises OSError.

    `shared` are the clone's remote branches and tags, sorted lines of object and ref.
    Yield the folder for packs of what the branch needs beside the published objects. The private folder appears at the
    end of the block: one that exists is complete.
    """
    view.private.parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=view.private.parent) as making:
        fresh = sandboxed_view(view.clone, view.worktree, view.admin, Path(making) / "private")
        for place in _PLACES:
            (fresh.common / place).mkdir(parents=True)
        (fresh.private / _EMPTY).mkdir()
        (fresh.private / _WORKTREES / view.admin.name).mkdir(parents=True)
        # Relative, so that DATA_DIR can be moved.
        alternate = os.path.relpath(view.clone_objects, view.clone / "objects")
        (fresh.common / _ALTERNATES).write_text(f"{alternate}\n")
        (fresh.common / "config").touch()
        if (view.clone / "HEAD").is_file():
            shutil.copyfile(view.clone / "HEAD", fresh.common / "HEAD")
        if (view.clone / SHALLOW).is_file():
            shutil.copyfile(view.clone / SHALLOW, fresh.common / SHALLOW)
        (fresh.common / "packed-refs").write_bytes(b"# pack-refs with: sorted \n" + shared)
        # Links stay links: without a sandbox, an agent may have written into this folder before.
        shutil.copytree(view.admin, fresh.state, symlinks=True)
        for name in ("heads", *_SHARED):
            (fresh.refs / name).mkdir(parents=True)
        if ref is not None and tip is not None:
            branch = fresh.refs / ref.removeprefix("refs/")
            branch.parent.mkdir(parents=True, exist_ok=True)
            branch.write_text(f"{tip}\n")
        yield fresh.common / "objects" / "pack"
        try:
            fresh.private.rename(view.private)
        except OSError:
            if not view.private.is_dir():  # another task has made it
                raise


def show_history(view: View) -> None:
    """Let git in the sandbox see the older history that the clone has by now. Raises OSError."""
    remove_untrusted(view.common, PurePath(SHALLOW))


def remove_locks(view: View) -> None:
    """Remove the locks that a killed git left in the private folder, or what an agent put in their place.

    Nothing may run in the sandbox. Raises OSError.
    """
    for name in ("packed-refs.lock", "config.lock"):
        remove_untrusted(view.common, PurePath(name))
    for lock in locks_below(view.refs):
        remove_untrusted(view.refs, lock)


def unblock(view: View) -> None:
    """Remove pipes and links from what git opens beside the worktree: it would wait for ever. Raises OSError."""
    for folder in view.writable:
        remove_blocking(folder, "", links=True)


def mounts(view: View, *, with_worktree: bool, read_only: bool = False, own_settings: bool = False) -> tuple[str, ...]:
    """Return the options of bwrap that put the view together; `read_only`: files and commits stay as they are.

    `own_settings`: for the worktree's processes, which have a config, hooks, tags and `info` of their own, as package
    managers set them up. The host's git has the clone's, and reads none of those.

    Only the host writes the sources. Each target lies directly in a folder that is mounted too, and both are always
    mounted together. A mount point cannot be renamed, so no process in the sandbox can replace it by a symbolic link,
    which the next mount would follow out of the sandbox. What is a mount point for the host's git alone is looked at
    before: no process is in the sandbox then.
    """
    for name in _SHARED:  # git deletes empty folders
        (view.clone / "refs" / name).mkdir(exist_ok=True)
    _make_settings(view)
    included = ("--ro-bind", view.clone / "config", view.clone / _OF_THE_CLONE)
    of_the_clone: list[tuple[str | Path, ...]] = [
        _read_only(view.clone / "config"),
        *(("--ro-bind", view.private / _EMPTY, view.clone / name) for name in _SETTINGS),
        _read_only(view.clone / "refs" / "tags"),
    ]
    options: list[tuple[str | Path, ...]] = [
        ("--bind", view.common, view.clone),
        ("--bind", view.refs, view.clone / "refs"),
        _read_only(view.clone / "refs" / "remotes"),
        *([included] if own_settings else of_the_clone),
        ("--ro-bind", view.private / _WORKTREES, view.clone / "worktrees"),
        ("--bind", view.state, view.admin),
        *(_read_only(view.admin / name) for name in _PINNED),
        ("--ro-bind", view.clone / PUBLISHED, view.clone_objects),
    ]
    if (objects := view.clone / LFS / "objects").is_dir():
        options.append(("--ro-bind", objects, view.clone_objects.with_name(LFS) / "objects"))
    if with_worktree:
        options += [("--bind", view.worktree, view.worktree), _read_only(view.worktree / ".git")]
    if read_only:
        options += [("--remount-ro", at) for at in (view.clone, view.clone / "refs", view.admin, view.worktree)]
    return tuple(str(word) for option in options for word in option)


def _make_settings(view: View) -> None:
    """Make the places of a worktree's own settings, where something else is there by now. Raises OSError."""
    folders = [(view.common, name) for name in _SETTINGS] + [(view.refs, "tags")]
    for root, name in folders:
        if not stat.S_ISDIR(_mode(root / name)):
            remove_untrusted(root, PurePath(name))
            (root / name).mkdir()
    config = view.common / "config"
    if not stat.S_ISREG(_mode(config)) or not config.lstat().st_size:
        remove_untrusted(view.common, PurePath("config"))
        # What git reads before it includes: https://git-scm.com/docs/gitrepository-layout
        lines, kept = list[str](), False
        for line in (view.clone / "config").read_text().splitlines():
            kept = line.startswith(("[core]", "[extensions]")) if line.startswith("[") else kept
            lines += [line] if kept else []
        config.write_text("\n".join([*lines, "[include]", f"\tpath = {_OF_THE_CLONE}", ""]))


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return 0


def git_directory(view: View, place: PurePath) -> tuple[str, ...]:
    """Return the options of bwrap that make a git directory of links at `place`, for a sandbox that shows what they
    name.

    The time for a mount grows with the mounts before it; a link takes none. HEAD must be no link to a file, but may be
    one to a ref: https://git-scm.com/docs/gitrepository-layout
    """
    state, common = f"{view.state}", f"{view.common}"
    targets = {
        "HEAD": _HEAD,
        _HEAD: f"{state}/HEAD",
        "index": f"{state}/index",
        "config": f"{view.clone}/config",
        "refs/heads": f"{view.refs}/heads",
        **{name: f"{common}/{name}" for name in ("packed-refs", "objects")},
    }
    return tuple(word for name, target in targets.items() for word in ("--symlink", target, f"{place}/{name}"))


def _read_only(path: Path) -> tuple[str, Path, Path]:
    return "--ro-bind", path, path
