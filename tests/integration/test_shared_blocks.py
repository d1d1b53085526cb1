"""New worktrees share disk blocks with others on XFS and Btrfs, and an agent can neither break nor use that."""

import asyncio
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bot.care.clones import share_new_worktrees
from bot.model import IssueBranch
from bot.serve.worker import Housekeeping
from bot.tree.clone import shared_blocks
from bot.tree.clone.shared_blocks import MARK, mark_own_blocks, share_blocks
from tests.support.file_systems import mounted
from tests.support.node import Node, prepared_node

KINDS = ("xfs", "btrfs")
FILES, FILE_BYTES = 40, 40_000


@pytest.fixture(params=KINDS)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    with mounted(request.param, tmp_path) as folder:
        yield folder


def random_text(seed: int) -> str:
    """Return what cannot be compressed much; always the same."""
    return hashlib.shake_128(b"%d" % seed).hexdigest(FILE_BYTES // 2)


@pytest.fixture
async def node(place: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(place / "node", database_url, "bwrap" if place.name == "xfs" else "off") as made:
        files = {f"{number % 3}/a/{number}": random_text(number) for number in range(FILES)}
        made.git.push_commit("main", files)
        yield made


async def make(node: Node, *issues: int) -> None:
    """Make worktrees; their times are as the checkout left them."""
    for number in issues:
        await node.git.created(IssueBranch(number), node.path(number))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two worktrees without git: `own` is new."""

    own: Path
    other: Path

    def write(self, name: str, content: bytes = b"the same" * 10_000) -> None:
        """Write an equal file in both."""
        for folder in (self.own, self.other):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)

    def share(self, *, since: int | None = None) -> int:
        return shared_blocks._share_files(self.own, self.other, since or time.time_ns(), Event())


@pytest.fixture
def pair(place: Path) -> Pair:
    for name in ("own", "other"):
        (place / name).mkdir()
    return Pair(place / "own", place / "other")


def used(folder: Path) -> int:
    os.sync()
    return shutil.disk_usage(folder).used


def contents(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ctime_ns)
        for file in folder.rglob("*")
        if file.is_file() and file.name != ".git"
    }


async def test_a_further_worktree_takes_little_and_is_as_it_was(node: Node) -> None:
    await make(node, 1)
    before = used(node.ctx.data_dir)
    await make(node, 2)
    full = used(node.ctx.data_dir) - before
    assert full > FILES * FILE_BYTES
    (node.path(2) / "new").write_text("an agent is at work")
    as_it_was = [contents(node.path(number)) for number in (1, 2)]
    admins = list((node.git.clone.path / "worktrees").iterdir())
    assert all((admin / MARK).exists() for admin in admins)

    await share_new_worktrees(node.ctx)

    assert used(node.ctx.data_dir) - before < full / 5
    assert [contents(node.path(number)) for number in (1, 2)] == as_it_was
    assert node.git.agent("status", "--porcelain", path=node.path(2)) == "?? new"
    assert not any((admin / MARK).exists() for admin in admins)
    # What one of them writes later is its own.
    (node.path(1) / "0/a/0").write_text("changed")
    assert contents(node.path(2)) == as_it_was[1]


async def test_sharing_that_is_cut_off_goes_on_the_next_time(node: Node) -> None:
    await make(node, 1, 2)
    over = Event()
    over.set()
    assert share_blocks(node.git.clone.path, over) == 0
    assert len(list(node.git.clone.path.glob(f"worktrees/*/{MARK}"))) == 2
    assert share_blocks(node.git.clone.path, Event()) > FILES * FILE_BYTES
    assert share_blocks(node.git.clone.path, Event()) == 0, "each worktree has its turn once"


async def test_a_worktree_that_went_away_or_is_being_made_stops_nothing(node: Node) -> None:
    await make(node, 1, 2, 3, 4)
    shutil.rmtree(node.path(2))
    (node.git.clone.path / "worktrees/issue-3/locked").write_text("threadtree: being made\n")
    assert share_blocks(node.git.clone.path, Event()) > 0
    left = {mark.parent.name for mark in node.git.clone.path.glob(f"worktrees/*/{MARK}")}
    assert left == {"issue-3"}


def test_what_was_changed_since_the_checkout_is_not_compared(pair: Pair) -> None:
    """Else an agent could guess at a file of another worktree, and see whether the blocks are shared."""
    pair.write("kept")
    pair.write("guessed")
    made = time.time_ns()
    (pair.own / "guessed").write_bytes((pair.other / "guessed").read_bytes())
    os.utime(pair.own / "guessed", ns=(0, 0))
    assert pair.share(since=made) == (pair.own / "kept").stat().st_size


def test_different_files_stay_different(pair: Pair) -> None:
    pair.write("end", bytes(200_000))
    pair.write("size", bytes(200_000))
    (pair.own / "end").write_bytes(bytes(199_999) + b"x")
    (pair.own / "size").write_bytes(bytes(199_999))
    before = contents(pair.own), contents(pair.other)
    assert pair.share() == 0
    assert (contents(pair.own), contents(pair.other)) == before


def test_nothing_that_an_agent_plants_is_followed_or_waited_for(pair: Pair, tmp_path: Path) -> None:
    outside = pair.own.parent / "outside"
    outside.mkdir()
    for name in ("link", "folder/file", "pipe", "pipe-there", "kind/file", "linked"):
        pair.write(name)
    shutil.copytree(pair.other, outside, dirs_exist_ok=True)
    for folder, name in ((pair.own, "link"), (pair.other, "linked")):
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
    for folder, name in ((pair.own, "pipe"), (pair.other, "pipe-there")):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    shutil.rmtree(pair.other / "folder")
    (pair.other / "folder").symlink_to(outside / "folder")
    shutil.rmtree(pair.own / "kind")
    (pair.own / "kind").symlink_to(pair.other / "kind")
    pair.write("good")
    assert pair.share() == (pair.own / "good").stat().st_size
    shutil.rmtree(pair.own)
    pair.own.symlink_to(outside)
    assert pair.share() == 0, "the worktree itself is a link"


def test_a_tree_of_any_size_ends_when_its_time_is_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.write("file")
    monkeypatch.setattr(shared_blocks, "_LONGEST_SECONDS", 0.0)
    assert pair.share() == 0


async def test_agents_that_write_meanwhile_find_what_they_wrote(pair: Pair) -> None:
    names, same, ended = "abcdefgh", secrets.token_bytes(4096), Event()
    for name in names:
        pair.write(name, same)
    broken: list[str] = []

    def write(folder: Path) -> None:
        """Change files, also back to what both had, and read what is there."""
        written = dict.fromkeys(names, same)
        while not ended.is_set():
            name = secrets.choice(names)
            written[name] = secrets.choice((same, secrets.token_bytes(4096)))
            with (folder / name).open("r+b") as file:
                file.write(written[name])
            broken.extend(f"{folder}/{name}" for name in names if (folder / name).read_bytes() != written[name])

    writers = [Thread(target=write, args=(folder,)) for folder in (pair.own, pair.other)]
    for writer in writers:
        writer.start()
    # As if nothing had changed: the kernel alone has to keep them apart.
    forever = time.time_ns() + 10**15
    shared = [await asyncio.to_thread(pair.share, since=forever) for _ in range(100)]
    ended.set()
    for writer in writers:
        writer.join()
    assert broken == []
    assert any(shared)


def test_housekeeping_shares_blocks_where_the_file_system_can_and_leaves_no_trace(place: Path, tmp_path: Path) -> None:
    def is_shared(folder: Path) -> bool:
        intervals = {"sweep_interval_seconds": 3600.0, "recover_interval_seconds": 300.0, "poll_interval_seconds": None}
        settings = SimpleNamespace(data_dir=folder, platform="github.com", named_repos=(), standing=False, **intervals)
        parts: Any = (SimpleNamespace(pool=None, github=None, clock=None), None, settings, None)
        return "sharing" in Housekeeping(*parts).chores(cast("Any", None))

    before = list(place.iterdir())
    assert is_shared(place)
    assert list(place.iterdir()) == before
    with mounted("ext4", tmp_path) as elsewhere:
        assert not is_shared(elsewhere)
    assert not is_shared(tmp_path / "missing")


def test_the_mark_is_not_older_than_a_file_written_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    mark_own_blocks(tmp_path)
    assert (tmp_path / "file").stat().st_ctime_ns <= (tmp_path / MARK).stat().st_mtime_ns
