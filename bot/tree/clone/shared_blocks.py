"""The worktrees of a clone share the disk blocks of equal files, where the file system can: XFS and Btrfs.

The kernel compares the bytes itself and changes neither the content nor the times of a file. So whatever an agent puts
in a file's place, or writes meanwhile, no worktree gets anything from another one.
https://man7.org/linux/man-pages/man2/ioctl_fideduperange.2.html
"""

import fcntl
import os
import stat
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path, PurePath
from tempfile import TemporaryFile
from threading import Event

from bot.sandbox.untrusted_files import entries_below, open_untrusted
from bot.tree.clone.admin import admin_directories, is_unfinished, recorded

MARK = "threadtree-own-blocks"
"""A file in the clone's folder of a worktree whose files have blocks of their own. It is as old as the youngest."""
_FIDEDUPERANGE = 0xC0189436
_REQUEST = struct.Struct("=QQHHIqQQiI")  # struct file_dedupe_range with one struct file_dedupe_range_info
_PART_BYTES = 16 << 20  # what a kernel compares at once
_PROBE_BYTES = 1 << 16
_LONGEST_SECONDS = 300.0


def can_share_blocks(folder: Path) -> bool:
    """Return whether two files in the file system of this folder can share blocks. Nothing is left there."""
    with suppress(OSError), TemporaryFile(dir=folder) as one, TemporaryFile(dir=folder) as other:
        for file in (one, other):
            file.write(b"threadtree" * (_PROBE_BYTES // 10))
            file.flush()
        return _share(one.fileno(), other.fileno(), _PROBE_BYTES // 10 * 10) > 0
    return False


def mark_own_blocks(admin: Path) -> None:
    """Note that the files of a worktree were written now, with blocks of their own. Raises OSError."""
    (admin / MARK).touch()


def share_blocks(clone: Path, over: Event) -> int:
    """Let the new worktrees of a clone share blocks with its other ones; return how many bytes they share now.

    Takes seconds: call it in a thread. It ends early when it is `over`, and goes on at the next call. It needs no lock.
    """
    made = {one: _time_of(one / "commondir") for one in admin_directories(clone) if not is_unfinished(one)}
    places = {one: Path(recorded(one / "gitdir")).parent for one in sorted(made, key=made.__getitem__)}
    done = 0
    for admin, path in places.items():
        if not (since := _time_of(admin / MARK)):
            continue
        others = [other for one, other in places.items() if not _time_of(one / MARK) and other.is_dir()]
        done += _share_files(path, others[-1], since, over) if others else 0
        if over.is_set():
            break
        (admin / MARK).unlink(missing_ok=True)
    return done


def _time_of(file: Path) -> int:
    with suppress(OSError):
        return file.lstat().st_mtime_ns
    return 0


def _share_files(own: Path, other: Path, since: int, over: Event) -> int:
    """Let the files of `own` that did not change `since` then share the blocks of those in the same place in `other`.

    With changed ones an agent could find out by trial what is in a file of another worktree.
    """
    shared, end = 0, time.monotonic() + _LONGEST_SECONDS
    for entry in entries_below(own):
        if over.is_set() or time.monotonic() > end:
            break
        with suppress(OSError), ExitStack() as opened:
            if entry.is_file(follow_symlinks=False):
                name = PurePath(entry.path).relative_to(own)
                target, source = (
                    opened.enter_context(open_untrusted(root.parent, root.name / name)) for root in (own, other)
                )
                status, like = os.fstat(target), os.fstat(source)
                is_file = stat.S_ISREG(status.st_mode) and stat.S_ISREG(like.st_mode)
                if is_file and status.st_size == like.st_size and status.st_ctime_ns <= since:
                    shared += _share(source, target, status.st_size)
    return shared


def _share(source: int, target: int, size: int) -> int:
    """Let two open files share their first `size` bytes, up to a difference; return how many. Raises OSError."""
    done = 0
    while done < size:
        part = min(size - done, _PART_BYTES)
        request = bytearray(_REQUEST.pack(done, part, 1, 0, 0, target, done, 0, 0, 0))
        fcntl.ioctl(source, _FIDEDUPERANGE, request)
        *_, equal, status, _ = _REQUEST.unpack(request)
        if status < 0:
            raise OSError(-status, os.strerror(-status))
        if status or not equal:  # FILE_DEDUPE_RANGE_DIFFERS
            break
        done += equal
    return done
