"""Expiry of sessions, agents' homes, rescues, kept directories, orphans and the trash."""

import os
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bot.care.clones import care_for_clones
from bot.care.expire import expire
from bot.care.repair import NO_WORKTREE, repair
from bot.node import rescue_rows as rescues
from bot.sandbox import trash
from bot.store import conversations, turns
from bot.tree.clone.checkout import all_entries
from bot.tree.clone.clone import clone_lock
from bot.tree.rescue.message import RescueLabel, drop_rescue, list_rescues
from bot.tree.rescue.save import Rescued, save_rescue
from tests.support.git_repositories import SANDBOXES, git
from tests.support.node import Node, prepared_node
from tests.support.turn_rows import TurnRows

HOUR = timedelta(hours=1)


@pytest.fixture
async def node(tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url) as made:
        yield made


@pytest.fixture(params=SANDBOXES)
async def each(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url, request.param) as made:
        yield made


# Sessions


async def session(node: Node, *, ended: datetime | None, active: datetime) -> int:
    """Create a thread with a session that ended and was last used at these times; return the conversation's id."""
    conversation = await node.talk(await node.db.fetchval("select count(*)::int + 1 from conversations"), None)
    await node.db.execute(
        "insert into sessions (conversation_id, agent, active, last_active_at, ended_at, end_reason)"
        " values ($1, 'custom', $2::timestamptz is null, $3, $2, case when $2 is not null then 'reset-requested' end)",
        *(conversation, ended, active),
    )
    return conversation


async def test_ended_sessions_are_deleted_an_hour_after_their_end_or_last_activity(node: Node) -> None:
    now = node.ctx.clock()
    old = now - timedelta(seconds=3601)
    gone = await session(node, ended=old, active=old)
    stay = [
        await session(node, ended=None, active=now - 1000 * HOUR),
        await session(node, ended=now - timedelta(seconds=3599), active=old),
        await session(node, ended=old, active=now - timedelta(seconds=3599)),
        await session(node, ended=now + HOUR, active=old),
    ]

    with capture_logs() as logs:
        assert await conversations.delete_old_sessions(node.db, 3600, now) == 1
    assert [(log["event"], log["count"]) for log in logs] == [("sessions-deleted", 1)]

    left = [row[0] for row in await node.db.fetch("select conversation_id from sessions order by id")]
    assert left == stay
    assert gone not in left
    assert await conversations.delete_old_sessions(node.db, 3600, now) == 0


async def test_a_turn_stays_when_its_session_is_deleted(node: Node) -> None:
    worktree = await node.add(1, days=0)
    world = TurnRows(node.db)
    conversation = await node.db.fetchval("select id from conversations")
    await world.ask(conversation)
    turn = await world.claimed()
    await turns.use_session(
        node.db, turn.claim, await turns.start_session(node.db, turn.claim, "custom", "its own name")
    )
    await world.end(turn.claim)
    with capture_logs() as logs:
        await conversations.end_session(node.db, conversation, "reset-requested")
    assert [(log["event"], log["reason"]) for log in logs] == [("session-ended", "reset-requested")]

    assert await conversations.delete_old_sessions(node.db, 3600, node.ctx.clock() + 2 * HOUR) == 1

    row = await world.row(turn.id)
    assert (row["state"], row["session_id"], row["worktree_id"]) == ("done", None, worktree)


# Homes


async def test_a_home_is_deleted_when_its_closed_thread_has_no_session(node: Node) -> None:
    now = node.ctx.clock()
    await node.add(2, days=0)
    left, opened, with_session, with_turn = [
        await node.talk(1, None),
        await node.db.fetchval("select id from conversations where number = 2"),
        await session(node, ended=now, active=now),
        await node.talk(4, None),
    ]
    await node.db.execute("update conversations set state = 'closed' where id <> $1", opened)
    await TurnRows(node.db).ask(with_turn)
    homes = node.ctx.data_dir / "homes"
    for name in (left, opened, with_session, with_turn, 10**6, "notes"):
        (homes / str(name)).mkdir(parents=True)
        (homes / str(name) / "history").write_text("what the agent remembers\n")

    freed = await expire(node.ctx, node.policy())

    assert freed > 0
    assert {home.name for home in homes.iterdir()} == {
        *map(str, (opened, with_session, with_turn, 10**6)),
        "notes",
    }
    assert list(trash.trash_folder(node.ctx.data_dir).iterdir()) == []


# Rescues


async def test_attachments_of_ended_turns_are_deleted_and_those_of_waiting_ones_stay(node: Node) -> None:
    rows = TurnRows(node.db)
    conversation, _ = await rows.home()
    done, waits = await rows.ask(conversation), await rows.ask(conversation)
    await node.db.execute("update turns set state = 'done', finished_at = now() where id = $1", done)
    folders = [node.ctx.attachments / name for name in (str(done), "8888", str(waits), "notes")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "image-1.png").touch()

    await expire(node.ctx, node.policy())

    # The next run of a waiting turn begins with a fresh folder, perhaps at this moment.
    assert [folder.is_dir() for folder in folders] == [False, False, True, True]


async def rescued(node: Node, number: int, *, days: float, worktree_id: int | None = None) -> Rescued:
    """Create a rescue of this age."""
    worktree = await node.add(number, days=0)
    (node.path(number) / "new.txt").write_text(f"work {number}\n")
    at = node.ctx.clock() - timedelta(days=days)
    async with clone_lock(node.git.clone) as lock:
        made, _ = await save_rescue(
            lock, node.path(number), RescueLabel(worktree if worktree_id is None else worktree_id, None, (number,), at)
        )
    assert made is not None
    if worktree_id is None:
        await rescues.record(node.db, worktree, at, ref=made.ref, files=made.files, commits=made.commits)
    return made


async def refs_of(node: Node) -> set[str]:
    return {one.ref for one in await list_rescues(node.git.clone)}


async def test_rescues_expire_with_ref_and_row(each: Node) -> None:
    old, young = await rescued(each, 1, days=181), await rescued(each, 2, days=179)
    rowless = await rescued(each, 3, days=181, worktree_id=NO_WORKTREE)
    assert await refs_of(each) == {old.ref, young.ref, rowless.ref}

    await expire(each.ctx, each.policy())

    assert await refs_of(each) == {young.ref}
    assert [known.ref for known in await rescues.latest(each.db)] == [young.ref]


async def test_a_kept_directory_expires_with_its_row(node: Node) -> None:
    now = node.ctx.clock()
    for number, days in ((1, 181), (2, 179)):
        worktree = await node.add(number, days=0)
        at = now - timedelta(days=days)
        kept = trash.keep_whole(node.ctx.data_dir, node.path(number), at)
        await rescues.record(node.db, worktree, at, kept=kept.name)

    assert await expire(node.ctx, node.policy()) > 0

    [left] = await rescues.latest(node.db)
    assert [place.name for place in trash.kept_folder(node.ctx.data_dir).iterdir()] == [left.kept]


async def kept_for_days(node: Node, *days: int) -> None:
    worktree = await node.add(1, days=0)
    for number in days:
        at = node.ctx.clock() - timedelta(days=number)
        place = trash.kept_folder(node.ctx.data_dir) / trash.kept_name(node.path(1), at)
        place.mkdir(parents=True)
        await rescues.record(node.db, worktree, at, kept=place.name)


async def test_a_clock_that_jumps_expires_no_rescue(node: Node) -> None:
    await kept_for_days(node, *range(11))
    node.move_clock(1000)

    await expire(node.ctx, node.policy(), force=True)
    assert len(await rescues.latest(node.db)) == 11
    assert len(list(trash.kept_folder(node.ctx.data_dir).iterdir())) == 11


async def test_work_rescued_by_a_sweep_stays_although_its_clock_is_far_ahead(each: Node) -> None:
    for number in (1, 2):
        await each.add(number, days=0)
        each.git.agent_commits({"work.txt": "committed\n"}, each.path(number))
    each.git.agent("init", "-q", "nested", path=each.path(2))
    each.move_clock(200)

    for number in range(2):
        report = await each.sweep()
        assert len(report.deleted) == (0 if number else 2)
        known = await rescues.latest(each.db)
        commits = {one.ref for one in known if one.ref}
        assert len(commits) == 2
        assert commits == await refs_of(each)
        [kept] = [name for one in known if (name := one.kept) is not None]
        assert (trash.kept_folder(each.ctx.data_dir) / kept / "nested" / ".git").is_dir()
        each.move_clock(1)


# Orphans


async def test_an_orphan_is_kept_apart_after_its_retention_and_its_commits_are_rescued(each: Node) -> None:
    worktree = await each.add(1, days=0)
    commit = each.git.agent_commits({"work.txt": "committed\n"}, each.path(1))
    (each.path(1) / "new.txt").write_text("not committed\n")
    await each.db.execute("update conversations set worktree_id = null")
    await each.db.execute("delete from worktrees where id = $1", worktree)
    each.path(1).with_suffix(".json").unlink()
    await repair(each.ctx)

    each.move_clock(89)
    assert (await each.sweep()).deleted == []
    each.move_clock(2)
    report = await each.sweep()

    assert [line.path for line in report.deleted] == [str(each.path(1))]
    assert not each.path(1).exists()
    assert await all_entries(each.git.clone) == []
    [kept] = [place for place in trash.kept_folder(each.ctx.data_dir).iterdir() if place.suffix != ".git"]
    assert (kept / "new.txt").read_text() == "not committed\n"
    assert commit in git(each.git.clone.path, "rev-list", "--all")
    assert await each.db.fetch("select * from orphans") == []
    old = each.ctx.clock() - timedelta(days=300)
    for place in list(trash.kept_folder(each.ctx.data_dir).iterdir()):
        place.rename(place.with_name(trash.kept_name(each.path(1), old) + ".git" * (place != kept)))
    await each.sweep()
    assert list(trash.kept_folder(each.ctx.data_dir).iterdir()) == []


async def test_an_orphan_with_metadata_is_rescued_like_any_other_and_its_rescue_is_listed(node: Node) -> None:
    worktree = await node.add(1, days=0)
    (node.path(1) / "new.txt").write_text("not committed\n")
    await node.write_metadata(worktree)
    await node.db.execute("update conversations set worktree_id = null")
    await node.db.execute("delete from worktrees where id = $1", worktree)
    await repair(node.ctx)
    node.move_clock(91)

    report = await node.sweep()

    assert [line.path for line in report.deleted] == [str(node.path(1))]
    assert not node.path(1).exists()
    [rescue] = await rescues.latest(node.db)
    assert (rescue.files, rescue.branch, rescue.conversations) == (1, "threadtree/issue-1", (1,))
    assert await node.states() == {rescue.worktree_id: "removed"}
    assert await node.db.fetchval("select start_number from worktrees") == 1


# The trash


async def test_the_trash_is_emptied_and_its_bytes_are_counted(node: Node) -> None:
    place = trash.trash_folder(node.ctx.data_dir) / "old.0123456789abcdef"
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "file").write_bytes(b"x" * 100_000)

    report = await node.sweep()

    assert report.bytes_reclaimed >= 100_000
    assert not place.exists()


# What nothing needs any more


async def test_the_home_of_an_open_thread_goes_with_its_pruned_worktree(node: Node) -> None:
    worktree = await node.add(1)
    conversation = await node.db.fetchval("select id from conversations")
    home = node.ctx.data_dir / "homes" / str(conversation)
    home.mkdir(parents=True)
    assert home.exists()

    await node.sweep(force=True)

    assert await node.states() == {worktree: "removed"}
    assert not home.exists()


async def test_rows_of_removed_worktrees_go_after_the_time_of_a_rescue_unless_one_is_left(node: Node) -> None:
    worktree, rescued = await node.add(1), await node.add(2)
    (node.path(2) / "work.txt").write_text("work\n")
    world = TurnRows(node.db)
    await world.ask(await node.db.fetchval("select id from conversations where number = 1"))
    turn = await world.claimed()
    await world.end(turn.claim)
    await node.age(worktree, 365)
    await node.age(rescued, 365)
    await node.sweep(force=True)
    await node.db.execute("update worktrees set updated_at = now() - interval '179 days'")
    await expire(node.ctx, node.policy())
    assert await node.states() == {worktree: "removed", rescued: "removed"}

    await node.db.execute("update worktrees set updated_at = now() - interval '181 days'")
    await expire(node.ctx, node.policy())

    assert await node.states() == {rescued: "removed"}
    assert (await world.row(turn.id))["worktree_id"] is None


async def test_what_a_node_had_that_is_silent_for_as_long_as_a_rescue_is_kept_counts_as_gone(node: Node) -> None:
    rows = TurnRows(node.db)
    lost, rescued = await rows.worktree(node="there"), await rows.worktree(node="there")
    await node.db.execute("update worktrees set state = 'lost' where id = $1", lost)
    await node.db.execute("update worktrees set state = 'removed' where id = $1", rescued)
    await rescues.record(node.db, rescued, node.ctx.clock(), ref="refs/threadtree/rescue/1/x")
    silent = "update nodes set heartbeat_at = now() - $1::interval where id = 'there'"
    await node.db.execute("update rescues set created_at = now() - interval '200 days'")

    await node.db.execute(silent, timedelta(days=179))
    await expire(node.ctx, node.policy())
    assert (await node.states())[lost] == "lost"
    await node.db.execute(silent, timedelta(days=181))
    await expire(node.ctx, node.policy())

    assert (await node.states())[lost] == "removed"
    assert await rescues.latest(node.db) == []
    await node.db.execute("update worktrees set updated_at = now() - interval '200 days'")
    await expire(node.ctx, node.policy())
    assert await node.states() == {}


async def test_a_local_branch_goes_with_its_last_worktree_once_its_commits_are_elsewhere(each: Node) -> None:
    await each.add(1, days=0)
    clone = each.git.clone.path
    for name in ("threadtree/issue-7", "threadtree/issue-8"):
        git(clone, "branch", name, "origin/main")
    tree = git(clone, "rev-parse", "origin/main^{tree}")
    only_here = git(clone, "commit-tree", "-p", "origin/main", "-m", "Only here", tree)
    git(clone, "update-ref", "refs/heads/threadtree/issue-8", only_here)

    await care_for_clones(each.ctx, timedelta(days=90))

    left = git(clone, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
    assert left == ["threadtree/issue-1", "threadtree/issue-8"], "of the worktree; with work that is nowhere else"


async def test_objects_of_git_lfs_go_a_month_after_they_came(each: Node) -> None:
    await each.add(1)
    objects = each.git.clone.path / "lfs" / "objects"
    objects.mkdir(parents=True)
    for name, days in (("old", 31), ("new", 29)):
        (objects / name).write_text("picture")
        at = (each.ctx.clock() - timedelta(days=days)).timestamp()
        os.utime(objects / name, (at, at))
    await care_for_clones(each.ctx, timedelta(days=90))
    assert [file.name for file in objects.iterdir()] == ["new"]


async def test_a_clone_goes_when_no_thread_used_it_for_long_and_nothing_is_only_there(each: Node) -> None:
    unused, clone = timedelta(days=90), each.git.clone.path
    await each.add(1)

    async def after(days: int) -> bool:
        """Return whether the clone is still there when all threads were used that long ago."""
        at = each.ctx.clock() - timedelta(days=days)
        await each.db.execute("update codebases set created_at = $1", at)
        await each.db.execute("update conversations set updated_at = $1", at)
        await care_for_clones(each.ctx, unused)
        return clone.exists()

    assert await after(91)  # it has a worktree
    (each.path(1) / "work.txt").write_text("work\n")
    await each.sweep(policy=each.policy(branch_days=0), force=True)
    assert set((await each.states()).values()) == {"removed"}
    assert await after(91)  # it has a rescue
    [rescue] = await rescues.latest(each.db)
    async with clone_lock(each.git.clone) as lock:
        await drop_rescue(lock, rescue.ref or "")
    await rescues.delete(each.db, rescue.id)
    assert await after(89)
    commit = git(clone, "commit-tree", "-m", "only here", f"{each.git.remote_tip('main')}^{{tree}}")
    git(clone, "update-ref", "refs/heads/mine", commit)
    assert await after(91)  # a branch has a commit that is nowhere else
    git(clone, "update-ref", "-d", "refs/heads/mine")

    assert not await after(91)
    assert list(trash.trash_folder(each.ctx.data_dir).iterdir()) == []
    # The next request fetches it anew.
    await each.add(3, days=0)
    assert clone.exists()
