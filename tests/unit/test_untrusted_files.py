"""Files of a folder that an agent may have filled: no link is followed, nothing blocks, nothing is read without end."""

import asyncio
import os
import subprocess
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.agents.presets import PRESETS, plugin_of_repository
from bot.sandbox import disk
from bot.sandbox.disk import DiskWatch, used_bytes
from bot.sandbox.untrusted_files import (
    UntrustedFileError,
    entries_below,
    leads_out,
    list_untrusted,
    locks_below,
    read_untrusted,
    remove_untrusted,
    status_of_untrusted,
)


@pytest.fixture
def worktree(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "worktree").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret plugin")
    yield tmp_path / "worktree"
    # pytest deletes by recursion, which the deepest folders here are made against.
    subprocess.run(["rm", "-rf", tmp_path / "worktree"], check=True)


def test_an_ordinary_file_is_read(worktree: Path) -> None:
    (worktree / "a").mkdir()
    (worktree / "a" / "b").write_text("text")
    assert read_untrusted(worktree, PurePath("a/b"), 4) == b"text"
    assert list_untrusted(worktree, PurePath("a")) == ["b"]


def test_a_link_is_not_followed_in_any_part_of_the_path(worktree: Path) -> None:
    (worktree / "file").symlink_to(worktree.parent / "outside" / "file")
    (worktree / "folder").symlink_to(worktree.parent / "outside")
    for path in ("file", "folder/file"):
        with pytest.raises(OSError, match=path.split("/")[0]):
            read_untrusted(worktree, PurePath(path), 100)
    with pytest.raises(OSError, match="folder"):
        list_untrusted(worktree, PurePath("folder"))


def test_what_is_no_ordinary_file_does_not_block(worktree: Path) -> None:
    os.mkfifo(worktree / "fifo")
    (worktree / "folder").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises(UntrustedFileError):
            read_untrusted(worktree, PurePath(name), 100)


def test_a_large_file_is_not_read(worktree: Path) -> None:
    (worktree / "large").write_text("12345")
    with pytest.raises(UntrustedFileError):
        read_untrusted(worktree, PurePath("large"), 4)


@pytest.mark.parametrize("path", ["", "..", "a/../../b", "/etc/passwd"])
def test_a_path_outside_the_folder_is_a_mistake_of_the_caller(worktree: Path, path: str) -> None:
    for touched in (partial(read_untrusted, max_bytes=4), list_untrusted, status_of_untrusted, remove_untrusted):
        with pytest.raises(UntrustedFileError, match="below"):
            touched(worktree, PurePath(path))


@pytest.mark.parametrize("path", ["thing", "folder/thing"])
def test_what_is_removed_is_never_what_a_link_leads_to(worktree: Path, path: str) -> None:
    outside = worktree.parent / "outside"
    (worktree / "folder").mkdir()
    (worktree / path).symlink_to(outside)
    status = status_of_untrusted(worktree, PurePath(path))
    assert status is not None
    assert status.st_size == len(str(outside))
    remove_untrusted(worktree, PurePath(path))
    remove_untrusted(worktree, PurePath(path))
    (worktree / path).mkdir(mode=0)
    remove_untrusted(worktree, PurePath(path))
    assert not os.path.lexists(worktree / path)
    (worktree / "folder").rename(worktree / "was")
    (worktree / "folder").symlink_to(outside)
    (outside / "thing").write_text("theirs")
    with pytest.raises(NotADirectoryError):
        remove_untrusted(worktree, PurePath("folder/thing"))
    assert status_of_untrusted(worktree, PurePath("folder/thing")) is None
    assert (outside / "thing").exists()


def test_folders_deeper_than_a_program_can_recurse_are_walked_and_removed(worktree: Path) -> None:
    place = os.open(worktree, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=place)
        above, place = place, os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(above)
    os.close(os.open("x.lock", os.O_CREAT, dir_fd=place))
    os.close(place)
    assert len(list(entries_below(worktree))) == 1101
    [lock] = locks_below(worktree)
    remove_untrusted(worktree, lock)
    assert locks_below(worktree) == []
    assert used_bytes((worktree,), 1 << 40) >= 0
    remove_untrusted(worktree, PurePath("d"))
    assert not (worktree / "d").exists()


@given(st.lists(st.sampled_from(["a", "..", ".", "", ".git", ".GIT", "/", "...", ".gitignore"]), min_size=1))
def test_a_name_is_accepted_only_if_it_stays_in_the_folder(parts: list[str]) -> None:
    name = "/".join(parts)
    if not leads_out(name):
        place = Path("/worktree", name)
        assert place.is_relative_to("/worktree")
        assert os.path.normpath(place) == str(place)
        assert ".git" not in name.casefold().split("/")


def test_a_repository_without_plugins_passes(worktree: Path) -> None:
    (worktree / ".opencode" / "plugin").mkdir(parents=True)
    (worktree / "opencode.json").write_text('{"theme": "dark"}')
    assert plugin_of_repository(PRESETS["opencode"], worktree) is None


@pytest.mark.parametrize("name", ["opencode.json", ".opencode/opencode.jsonc", ".opencode/plugin/evil.js"])
@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "fifo", "large"])
def test_a_plugin_of_a_repository_is_found_also_behind_a_link(worktree: Path, name: str, kind: str) -> None:
    path = worktree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "file":
            path.write_text('{"plugin": ["./evil.js"]}')
        case "link":
            path.symlink_to("/proc/self/environ")
        case "dangling link":
            path.symlink_to("nowhere")
        case "fifo":
            os.mkfifo(path)
        case _:
            with path.open("wb") as file:
                file.truncate(1 << 40)
    assert plugin_of_repository(PRESETS["opencode"], worktree) == name


def test_a_folder_of_plugins_that_is_a_link_is_found(worktree: Path) -> None:
    (worktree / ".opencode").symlink_to(worktree.parent / "outside")
    assert plugin_of_repository(PRESETS["opencode"], worktree) == ".opencode/plugin"


async def test_counting_disk_ends_with_its_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / str(number)).write_bytes(b"x" * 4096)
    counted: list[int] = []
    gate, reached, done = Event(), Event(), Event()

    def count(folders: Iterable[Path], enough: int, over: Event) -> int:
        reached.set()
        gate.wait(30)
        counted.append(used_bytes(folders, enough, over))
        done.set()
        return 0

    monkeypatch.setattr(disk, "used_bytes", count)
    async with disk.watched(DiskWatch((tmp_path,), 1 << 40), lambda _: pytest.fail("not over the limit")):
        await asyncio.to_thread(reached.wait, 30)
    gate.set()
    assert await asyncio.to_thread(done.wait, 30)
    assert counted[0] < used_bytes((tmp_path,), 1 << 40)
