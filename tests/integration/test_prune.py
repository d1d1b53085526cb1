"""The sweep on real worktrees: unused ones are removed, and those that may be needed stay."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bot import failpoints
from bot.care.repair import repair
from bot.store import conversations, turns
from bot.tree.clone.checkout import all_entries
from bot.tree.clone.metadata import Metadata
from tests.support.git_repositories import SANDBOXES, git
from tests.support.node import LONG_AGO_DAYS, NODE, Node, prepared_node, set_times
from tests.support.turn_rows import TurnRows, until_waiting


@pytest.fixture
async def node(tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url) as made:
        yield made


@pytest.fixture(params=SANDBOXES)
async def each(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url, request.param) as made:
        yield made


async def on_record(node: Node) -> set[str]:
    return {entry.path.name for entry in await all_entries(node.git.clone)}


# Removed and kept worktrees


async def test_an_unused_worktree_is_removed_from_disk_git_and_rows(each: Node) -> None:
    old, young = await each.add(1), await each.add(2, days=1)

    report = await each.sweep()

    assert [line.id for line in report.deleted] == [old]
    assert (report.skipped, report.errors, report.aborted) == ([], [], None)
    assert report.bytes_reclaimed > 0
    assert await each.states() == {old: "removed", young: "ready"}
    assert await each.db.fetchval("select removal from worktrees where id = $1", old) == "retention"
    assert not each.path(1).exists()
    assert not Metadata.file(each.path(1)).exists()
    assert each.path(2).is_dir()
    assert await on_record(each) == {"issue-2"}
    assert await each.db.fetchval("select worktree_id from conversations where number = 1") is None


async def test_an_edit_deep_inside_is_activity_though_no_directory_tells(each: Node) -> None:
    each.git.someone_pushes("main", {"a/b/c/deep.txt": "before\n"})
    await each.git.update()
    worktree = await each.add(1)
    deep = each.path(1) / "a/b/c/deep.txt"
    deep.write_text("edited\n")
    for folder in (each.path(1), deep.parent):
        os.utime(folder, (0, 0))

    report = await each.sweep()

    assert [(line.id, line.why) for line in report.skipped] == [
        (worktree, "Last activity 0 seconds ago; one on a branch is kept for 90 days.")
    ]
    assert await each.states() == {worktree: "ready"}


async def test_the_file_beside_a_worktree_is_activity(node: Node) -> None:
    worktree = await node.add(1)
    await node.db.execute("update worktrees set updated_at = now()")
    await node.write_metadata(worktree)
    await node.db.execute("update worktrees set updated_at = now() - interval '1 year'")

    assert [line.id for line in (await node.sweep()).skipped] == [worktree]


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_lost_metadata_is_rebuilt_from_the_row_and_the_worktree_goes_next_time(node: Node, damage: str) -> None:
    worktree = await node.add(1)
    file = Metadata.file(node.path(1))
    if damage == "missing":
        file.unlink()
    else:
        file.write_text("{")

    with capture_logs() as logs:
        report = await node.sweep()
    rebuilt = [(log["was"], log["log_level"]) for log in logs if log["event"] == "metadata-rebuilt"]
    assert rebuilt == [(damage, "warning")]

    assert [(line.id, line.why) for line in report.skipped] == [
        (worktree, f"Its metadata is {damage}: rebuilt, and checked again next time.")
    ]
    known, row = Metadata.read(node.path(1)), await node.row(worktree)
    assert isinstance(known, Metadata)
    assert (known.id, known.conversations, known.branch) == (str(worktree), (1,), "threadtree/issue-1")
    assert (known.created_at, known.updated_at) == (row.created_at, row.updated_at)
    assert [line.id for line in (await node.sweep()).deleted] == [worktree]


async def test_a_worktree_locked_by_a_person_stays(node: Node) -> None:
    worktree = await node.add(1)
    git(node.git.clone.path, "worktree", "unlock", str(node.path(1)))
    git(node.git.clone.path, "worktree", "lock", "--reason", "looking into it", str(node.path(1)))

    report = await node.sweep()

    assert [(line.id, line.why) for line in report.skipped] == [(worktree, "It was locked by hand: looking into it.")]


@pytest.mark.parametrize("state", ["queued", "running"])
async def test_a_worktree_with_a_turn_is_never_pruned(node: Node, state: str) -> None:
    worktree = await node.add(1)
    world = TurnRows(node.db)
    conversation = await node.db.fetchval("select id from conversations where number = 1")
    await world.ask(conversation)
    if state == "running":
        await world.claimed()
    await node.age(worktree, 365)

    report = await node.sweep(force=True)

    assert [(line.id, line.why) for line in report.skipped] == [(worktree, "A turn is waiting or running.")]
    assert node.path(1).is_dir()


async def test_work_is_rescued_before_its_worktree_goes(each: Node) -> None:
    worktree = await each.add(1)
    each.git.agent_commits({"committed.txt": "kept\n"}, each.path(1))
    (each.path(1) / "untracked.txt").write_text("kept too\n")
    await each.age(worktree, 365)

    report = await each.sweep()

    assert [line.id for line in report.deleted] == [worktree]
    ref = await each.db.fetchval("select ref from rescues where worktree_id = $1", worktree)
    for name, content in (("committed.txt", "kept"), ("untracked.txt", "kept too")):
        assert git(each.git.clone.path, "show", f"{ref}:{name}") == content


# Unusual states


async def test_one_bad_worktree_never_stops_the_sweep(node: Node) -> None:
    good = await node.add(2)
    bad = await node.add(1)
    evil = "insert into codebases (platform, repository_id, owner, name, folder) values ('github.com', 9, 'x', 'y', $1)"
    await node.db.execute(evil, "../evil")
    await node.db.execute("update worktrees set repository_id = 9, updated_at = 'epoch' where id = $1", bad)

    report = await node.sweep()

    assert [line.id for line in report.errors] == [bad]
    assert [line.id for line in report.deleted] == [good]


# The safety limit


async def fill(node: Node, due: int, young: int) -> None:
    """Insert rows without directories, old or not."""
    await node.db.execute(
        """
        insert into worktrees (platform, repository_id, node, path, branch, start_kind, start_number, state, updated_at)
        select 'github.com', 1, $1, $2 || n, 'threadtree/issue-' || n, 'issue', n, 'ready',
               case when n <= $3 then $5::timestamptz - interval '1 year' else $5 end
        from generate_series(1, $3::integer + $4::integer) n
        """,
        *(NODE, str(node.git.path.with_name("issue-")), due, young, node.ctx.clock()),
    )


async def test_more_than_ten_and_more_than_half_stop_the_sweep_unless_forced(node: Node) -> None:
    await fill(node, 11, 10)

    report = await node.sweep()

    assert report.aborted == "11 of 21 worktrees would go at once. Did the clock jump? Nothing was removed."
    assert (report.deleted, len(report.skipped)) == ([], 11)
    assert set((await node.states()).values()) == {"ready"}
    assert len((await node.sweep(dry_run=True, force=True)).deleted) == 11
    forced = await node.sweep(force=True)
    assert (forced.aborted, len(forced.deleted), forced.errors) == (None, 11, [])


# A dry run


async def test_a_dry_run_changes_nothing(each: Node) -> None:
    old = await each.add(1)
    dirty = await each.add(2)
    (each.path(2) / "untracked.txt").write_text("new\n")
    await each.age(dirty, 365)
    lost = await each.add(3)
    Metadata.delete(each.path(3))
    stranger = each.path(4)
    stranger.mkdir()
    await each.db.execute("insert into orphans values ($1, $2, 'epoch')", NODE, str(stranger))
    for folder in ("trash", "homes/1", "kept/old.20200101T000000.000000Z.0123456789abcdef"):
        (each.ctx.data_dir / folder).mkdir(parents=True, exist_ok=True)
        (each.ctx.data_dir / folder / "file").write_text("bytes\n")
    before, rows = each.listing(), await each.rows()
    workers = {path for path in before if "/workers" in path}

    report = await each.sweep(dry_run=True)

    orphan = await each.db.fetchval("select id from orphans")
    assert {line.id for line in report.deleted} == {old, dirty, orphan}
    assert {line.id for line in report.skipped} == {lost}
    assert all(line.bytes > 0 for line in report.deleted if line.id != orphan)
    after = each.listing()
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed - workers <= {str(each.ctx.data_dir / "workers")}, "only the process lock of the sweep itself"
    assert await each.rows() == rows


async def test_a_dry_run_promises_the_bytes_that_the_sweep_frees_of_each(each: Node) -> None:
    await each.add(1)
    other = await each.add(2)
    await each.add(3, days=1)
    await each.write_metadata(other)
    await each.db.execute("update conversations set worktree_id = null where worktree_id = $1", other)
    await each.db.execute("delete from worktrees where id = $1", other)
    await repair(each.ctx)
    unknown = each.path(4)
    unknown.mkdir()
    set_times(unknown, each.ctx.clock() - timedelta(days=LONG_AGO_DAYS))
    await repair(each.ctx)
    for folder in ("trash/a.0123456789abcdef", "kept/old.20200101T000000.000000Z.0123456789abcdef"):
        (each.ctx.data_dir / folder).mkdir(parents=True)
        (each.ctx.data_dir / folder / "file").write_text("bytes\n")

    promised = await each.sweep(dry_run=True)
    freed = await each.sweep()

    assert [(Path(line.path).name, line.bytes > 0) for line in freed.deleted] == [
        ("issue-1", True),
        ("issue-2", True),
        ("issue-4", False),
    ], "what is kept whole frees nothing"
    assert {(line.path, line.bytes) for line in promised.deleted} == {(one.path, one.bytes) for one in freed.deleted}
    assert promised.bytes_reclaimed == freed.bytes_reclaimed


async def test_a_dry_run_leaves_out_an_orphan_that_its_thread_has_taken_over(node: Node) -> None:
    await node.add(1, days=0)
    await node.db.execute("insert into orphans values ($1, $2, 'epoch')", NODE, node.ctx.stored(node.path(1)))

    assert (await node.sweep(dry_run=True)).deleted == []


# Two at once


async def test_two_sweeps_at_once_remove_each_worktree_once(node: Node) -> None:
    ids = [await node.add(number) for number in range(1, 5)]

    reports = await asyncio.gather(node.sweep(), node.sweep())

    deleted = [line.id for report in reports for line in report.deleted]
    assert sorted(filter(None, deleted)) == ids
    assert [report.errors for report in reports] == [[], []]
    assert set((await node.states()).values()) == {"removed"}


async def test_a_turn_requested_during_the_sweep_keeps_its_worktree(node: Node) -> None:
    worktree = await node.add(1)
    conversation = await node.db.fetchval("select id from conversations where number = 1")
    async with node.ctx.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await conversations.live_worktree(connection, worktree)
        await TurnRows(connection).ask(conversation)
        await connection.execute("update worktrees set updated_at = $2 where id = $1", worktree, await _old(node))
        sweeping = asyncio.create_task(node.sweep())
        await until_waiting(node.ctx.pool)
        await transaction.commit()
    turn = await TurnRows(node.db).claimed()

    report = await sweeping

    assert [(line.id, line.why) for line in report.skipped] == [
        (worktree, "It is used again, or is being removed already.")
    ]
    assert turn.worktree.id == worktree
    assert node.path(1).is_dir()
    assert await node.states() == {worktree: "ready"}
    await turns.end(node.db, turn.claim, "done", None)


async def _old(node: Node) -> Any:
    return await node.db.fetchval("select updated_at from worktrees")


async def test_a_worktree_used_since_the_check_stays(node: Node) -> None:
    worktree = await node.add(1)

    def touch(name: str) -> None:
        if name == "removal-decided":
            (node.path(1) / "just-now.txt").write_text("a person is at it\n")

    with listening(touch):
        report = await node.sweep()

    assert [line.id for line in report.skipped] == [worktree]
    assert await node.states() == {worktree: "ready"}
    assert (node.path(1) / "just-now.txt").is_file()
    assert await TurnRows(node.db).ask(await node.db.fetchval("select id from conversations"))
    assert await TurnRows(node.db).claim() is not None, "it is used again as if nothing had been"


async def test_a_worktree_that_an_operator_asked_to_reset_waits_for_that(node: Node) -> None:
    await TurnRows(node.db).ask_alone(await node.add(1))

    report = await node.sweep()

    assert [line.why for line in report.skipped] == ["A turn is waiting or running."]


@contextmanager
def listening(listener: Any) -> Iterator[None]:
    failpoints.listener = listener
    try:
        yield
    finally:
        failpoints.listener = None


# Figures

_opened: list[str] | None = None


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is None:
        return
    if event in ("os.listdir", "os.scandir") or (event == "open" and (arguments[2] or 0) & os.O_DIRECTORY):
        _opened.append(f"{event} {arguments[0]}")


@contextmanager
def counted() -> Iterator[list[str]]:
    """Yield the directories that this process opens."""
    global _opened  # an audit hook cannot be removed
    if not _HOOKED:
        sys.addaudithook(_count)
        _HOOKED.append(True)
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


_HOOKED: list[bool] = []


async def test_a_sweep_opens_directories_only_for_what_is_due(node: Node) -> None:
    due = 100
    await node.add(1, days=0)
    node.copies_of(1, range(2, due + 1))
    await node.db.execute("delete from conversations")
    await node.db.execute("delete from worktrees")
    await fill(node, due, 9_900)
    for worktree, state in (await node.states()).items():
        assert state == "ready"
        if worktree > due + 1:
            node.path(worktree).mkdir()
        else:
            await node.age(worktree, LONG_AGO_DAYS)

    with counted() as opened:
        report = await node.sweep(dry_run=True)

    assert (len(report.deleted), report.skipped, report.errors) == (due, [], [])
    opened_for = {found[0] for line in opened if (found := re.search(r"/issue-\d+", line))}
    assert len(opened_for) <= due, opened[:20]
    assert len(opened) <= 20 * due, opened[:20]
