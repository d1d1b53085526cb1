"""Old tips of a clone's refs, held for the worktrees that may use them: git deletes what no ref reaches.

A sandbox borrows the clone's objects, and the clone knows nothing of its branches, stashes and logs. But what they can
have got from the clone is what its refs had at some time. So a tip that a fetch replaces or deletes, and each commit
that is imported, gets a ref of its own until a sweep finds that nothing can need it (see `bot.clones.packing`).

What a fetch will delete is known only afterwards. Until then the log of one ref names all tips, and git keeps what a
log names: a process that is killed meanwhile leaves it to the next fetch or sweep.
"""

import os
import secrets
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path, PurePath

from bot.clones.admin import recorded
from bot.git import refs
from bot.sandbox.untrusted_files import entries_below, read_untrusted

# More than a million refs take.
MOST_PACKED_BYTES = 256 << 20
_CLOCK_TICK_NS = 20_000_000
_FETCHING = f"{refs.HELD_PREFIX}fetch"
_LOG = f"logs/{_FETCHING}"


def tips(clone: Path, beginning: str) -> dict[str, str]:
    """Return the refs with this beginning and their objects. Reads files: it starts no git.

    https://git-scm.com/docs/gitrepository-layout, refs and packed-refs
    """
    packed = _packed(_read(clone, "packed-refs"))
    found = dict(packed[bisect_left(packed, (beginning,)) : bisect_left(packed, (beginning + chr(sys.maxunicode),))])
    above, now = len(f"{clone}/"), time.time_ns()
    for entry in entries_below(clone / beginning.rpartition("/")[0]):
        if not entry.path.startswith(beginning, above):
            continue
        if entry.is_file(follow_symlinks=False) and not entry.name.endswith(".lock"):
            with suppress(FileNotFoundError):
                state = entry.stat(follow_symlinks=False)
                # Two writes within one tick of the kernel's clock have the same time.
                is_settled = now - state.st_mtime_ns >= _CLOCK_TICK_NS
                known = _loose(entry.path, state.st_ino, state.st_mtime_ns) if is_settled else None
                found[entry.path[above:]] = recorded(Path(entry.path)) if known is None else known
    return found


@lru_cache(maxsize=50_000)  # most fetches leave most branches as they are
def _loose(file: str, _inode: int, _written_ns: int) -> str:
    if not (text := recorded(Path(file))):
        raise FileNotFoundError(file)  # what cannot be read now is not remembered as empty
    return text


@lru_cache(maxsize=4)  # most fetches leave this file as it is
def _packed(content: bytes) -> list[tuple[str, str]]:
    return sorted(packed_refs(content))


def packed_refs(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield each ref and its object of a `packed-refs` file. What is no ref is left out."""
    for line in os.fsdecode(content).splitlines():
        sha, _, ref = line.partition(" ")
        if refs.is_commit(sha) and refs.is_ref(ref):
            yield ref, sha


def _read(clone: Path, name: str) -> bytes:
    try:
        return read_untrusted(clone, PurePath(name), MOST_PACKED_BYTES)
    except OSError:
        return b""


def begin_fetch(clone: Path, tips: dict[str, str] | None) -> None:
    """Hold all tips until `end_fetch`, with those of a fetch that was cut off. Needs the clone's lock. Raises OSError.

    https://git-scm.com/docs/git-reflog: git reads no order into the two commits of a line.
    """
    end_fetch(clone, tips)
    commits = sorted({sha for sha in (tips or {}).values() if refs.is_commit(sha)})
    if commits:
        said = f"threadtree <> {int(time.time())} +0000\tbefore a fetch\n"
        pairs = zip_longest(commits[::2], commits[1::2], fillvalue=commits[0])
        _write(clone, _LOG, "".join(f"{one} {other} {said}" for one, other in pairs))
        _write(clone, _FETCHING, f"{commits[0]}\n")


def end_fetch(clone: Path, tips: dict[str, str] | None) -> None:
    """Hold what a fetch replaced or deleted, which left `tips`; nothing for None. Needs the clone's lock. Raises
    OSError.
    """
    if tips is not None:
        before = {sha for line in _read(clone, _LOG).splitlines() for sha in os.fsdecode(line).split(" ", 2)[:2]}
        hold(clone, {sha for sha in before.difference(tips.values()) if refs.is_commit(sha)})
    for name in (_FETCHING, _LOG):
        (clone / name).unlink(missing_ok=True)


def hold(clone: Path, commits: Iterable[str]) -> None:
    """Make a ref for each of these commits, which the clone has, under the day on which it was last in use.

    Needs the clone's lock. Raises OSError.
    """
    for sha in commits:
        ref = refs.held(sha, datetime.now(UTC))
        if not (clone / ref).exists():
            _write(clone, ref, f"{sha}\n")


def _write(clone: Path, name: str, text: str) -> None:
    making = clone / f"held.{secrets.token_hex(8)}.lock"  # what a killed process leaves goes with git's locks
    try:
        making.write_text(text)
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        making.rename(clone / name)
    finally:
        making.unlink(missing_ok=True)
