"""What a damaged clone still holds and GitHub does not have comes into a new one, without running git in the old."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import structlog

from bot.clones.linked import last_logged
from bot.git import refs
from bot.git.runner import Git

_OWN = ("refs/heads/", "refs/threadtree/")
_STASH = "refs/stash"
_log = structlog.get_logger()


async def salvage(git: Git, damaged: Path, fresh: Path) -> tuple[str, ...]:
    """Brings branches, rescues and the record of worktrees from `damaged` to `fresh`, which has fetched already.

    Returns the refs whose commits could not be read. Raises GitError and OSError for trouble with `fresh`.
    """
    own = dict(_refs_on_disk(damaged))
    heads = [*_copy_record(damaged, fresh)]
    lost = await _bring(git, damaged, fresh, own)
    for tip in heads:
        await _pack(git, damaged, fresh, [tip])
    # What is staged and not committed. In a cage it is not in the clone.
    await _pack(git, damaged, fresh, [], "--indexed-objects")
    if lost:
        _log.warning("refs-not-salvaged", clone=str(damaged), refs=lost)
    return lost


def _refs_on_disk(clone: Path) -> Iterator[tuple[str, str]]:
    """Refs of ours and their commits, as far as the files can be read; a loose ref comes after a packed one."""
    for line in _lines(clone / "packed-refs"):
        commit, _, ref = line.partition(" ")
        if _is_own(ref) and refs.is_commit(commit):
            yield ref, commit
    for folder, _, names in os.walk(clone / "refs"):
        for name in names:
            file = Path(folder, name)
            ref = str(file.relative_to(clone))
            commit = next(iter(_lines(file)), "")
            if not refs.is_commit(commit):
                commit = last_logged(clone / "logs" / ref)
            if _is_own(ref) and refs.is_commit(commit):
                yield ref, commit


def _is_own(ref: str) -> bool:
    return refs.is_ref(ref) and (ref.startswith(_OWN) or ref == _STASH)


def _lines(file: Path) -> list[str]:
    try:
        return os.fsdecode(file.read_bytes()).splitlines()
    except OSError:
        return []


def _copy_record(damaged: Path, fresh: Path) -> Iterator[str]:
    """Copies git's folders of the worktrees; their HEADs that are commits."""
    for admin in _folders(damaged / "worktrees"):
        try:
            shutil.copytree(admin, fresh / "worktrees" / admin.name, symlinks=True)
        except (OSError, shutil.Error) as error:
            _log.warning("worktree-record-not-salvaged", record=str(admin), error=str(error))
            continue
        head = next(iter(_lines(admin / "HEAD")), "")
        if refs.is_commit(head):
            yield head


def _folders(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []


async def _bring(git: Git, damaged: Path, fresh: Path, own: dict[str, str]) -> tuple[str, ...]:
    """All at once; where that fails one by one, so that one broken ref costs no other."""
    if await _pack(git, damaged, fresh, sorted(set(own.values()))):
        await _set_refs(git, fresh, own.items())
        return ()
    lost: list[str] = []
    for ref, commit in own.items():
        if await _pack(git, damaged, fresh, [commit]):
            await _set_refs(git, fresh, [(ref, commit)])
        else:
            lost.append(ref)
    return tuple(lost)


async def _pack(git: Git, damaged: Path, fresh: Path, commits: Sequence[str], *more: str) -> bool:
    """Packs what the new clone lacks of these commits; it reads the old one's objects where it has none itself."""
    published = await git.on_clone(fresh, "for-each-ref", "--format=^%(objectname)", "refs/remotes/origin/")
    place = fresh / "objects" / "pack" / "pack"
    packed = await git.on_clone(
        fresh,
        *("pack-objects", "--revs", "--delta-base-offset", "--non-empty", "-q", *more, str(place)),
        input="".join(f"{line}\n" for line in (*commits, *published.text.split())).encode(),
        environment={"GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(damaged / "objects")},
        check=False,
    )
    return packed.status == 0


async def _set_refs(git: Git, fresh: Path, own: Iterable[tuple[str, str]]) -> None:
    lines = "".join(f"create {ref}\0{commit}\0" for ref, commit in own)
    await git.on_clone(fresh, "update-ref", "--stdin", "-z", input=lines.encode(errors="surrogateescape"))


def _quoted(path: Path) -> str:
    """As git reads a path in which a colon may be."""
    return '"{}"'.format(str(path).replace("\\", "\\\\").replace('"', '\\"'))
