"""Old tips of a clone's refs, held for the worktrees that may use them: git deletes what no ref reaches.

A sandbox borrows the clone's objects, and the clone knows nothing of its branches, stashes and logs. But what they can
have got from the clone is what its refs had at some time. So a tip that a fetch replaces or deletes, and each commit
that is imported, gets a ref of its own until a sweep finds that nothing can need it (see `bot.clones.packing`).
"""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePath

from bot.clones.admin import recorded
from bot.git import refs
from bot.sandbox.untrusted_files import entries_below, read_untrusted

# More than a million refs take.
MOST_PACKED_BYTES = 256 << 20


def tips(clone: Path, namespace: str) -> dict[str, str]:
    """Return the refs below `namespace`, which ends in `/`, and their objects. Reads files: it starts no git.

    https://git-scm.com/docs/gitrepository-layout, refs and packed-refs
    """
    found = {ref: sha for ref, sha in packed_refs(_packed(clone)) if ref.startswith(namespace)}
    folder = clone / namespace
    for entry in entries_below(folder):
        if entry.is_file(follow_symlinks=False) and not entry.name.endswith(".lock"):
            found[f"{namespace}{PurePath(entry.path).relative_to(folder)}"] = recorded(Path(entry.path))
    return found


def packed_refs(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield each ref and its object of a `packed-refs` file. What is no ref is left out."""
    for line in os.fsdecode(content).splitlines():
        sha, _, ref = line.partition(" ")
        if refs.is_commit(sha) and refs.is_ref(ref):
            yield ref, sha


def _packed(clone: Path) -> bytes:
    try:
        return read_untrusted(clone, PurePath("packed-refs"), MOST_PACKED_BYTES)
    except OSError:
        return b""


def hold_replaced(clone: Path, before: dict[str, str], after: dict[str, str]) -> None:
    """Hold the tips that a fetch replaced or deleted. Raises OSError."""
    hold(clone, {sha for ref, sha in before.items() if after.get(ref) != sha and refs.is_commit(sha)})


def hold(clone: Path, commits: Iterable[str]) -> None:
    """Make a ref for each of these commits, which the clone has, under the day on which it was last in use.

    Needs the clone's lock. Raises OSError.
    """
    for sha in commits:
        place = clone / refs.held(sha, datetime.now(UTC))
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        making = clone / f"held.{secrets.token_hex(8)}.lock"  # what a killed process leaves goes with git's locks
        try:
            making.write_text(f"{sha}\n")
            making.rename(place)
        finally:
            with suppress(FileNotFoundError):
                making.unlink()
