"""Inconsistent rows, directories and entries of git are repaired, and no work is lost."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bot.care.asked import Repairing
from bot.care.clones import care_for_clones
from bot.care.reconcile_rules import Action
from bot.care.repair import repair
from bot.model import IssueBranch
from bot.node import rescue_rows as rescues
from bot.sandbox import trash
from bot.store import conversations, turns
from bot.tasks import concurrently
from bot.tree.clone.admin import LIVE
from bot.tree.clone.checkout import all_entries
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.metadata import Metadata
from bot.tree.create import Created
from bot.tree.git.runner import Completed, Git
from bot.tree.rescue.message import RescueLabel
from bot.tree.rescue.save import save_rescue
from tests.support.git_repositories import SANDBOXES, entry_of, git
from tests.support.node import HELLO, LONG_AGO_DAYS, NODE, Node, prepared_node, set_times
from tests.support.turn_rows import TurnRows


@pytest.fixture
async def node(tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url) as made:
        yield made


@pytest.fixture(params=SANDBOXES)
async def each(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url, request.param) as made:
        yield made


async def mended(node: Node, only: int | None = None) -> dict[str, list[Action]]:
    """Return the repairs by the name of the place."""
    done: dict[str, list[Action]] = {}
    for one in await repair(node.ctx, Repairing(worktree=only)):
        done.setdefault(Path(one.path).name, []).append(Action(one.action))
    return done


async def lock_of(node: Node, number: int) -> str | None:
    entry = await entry_of(node.git.clone, node.path(number))
    assert entry is not None
    return entry.lock_reason


async def forget_row(node: Node, worktree: int) -> None:
    """Change the rows to those of an older backup."""
    await node.db.execute("update conversations set worktree_id = null where worktree_id = $1", worktree)
    await node.db.execute("delete from worktrees where id = $1", worktree)


async def test_a_worktree_that_is_not_locked_is_locked_again(node: Node) -> None:
    await node.add(1)
    git(node.git.clone.path, "worktree", "unlock", str(node.path(1)))

    assert await mended(node) == {"issue-1": [Action.LOCK]}
    assert await lock_of(node, 1) == LIVE
    assert await mended(node) == {}


async def test_a_worktree_whose_files_are_being_written_is_left_alone(
    each: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = each.path(1)
    worktree = await conversations.reserve_worktree(
        each.db, HELLO, node=NODE, path=each.ctx.stored(path), owner=1, start=IssueBranch(1)
    )
    rows = TurnRows(each.db)
    await rows.ask(await each.talk(1, worktree))
    await rows.claimed()
    long_ago = each.ctx.clock() - timedelta(days=LONG_AGO_DAYS)
    await each.db.execute("update worktrees set created_at = $1, updated_at = $1", long_ago)
    begun, go, whole_run = asyncio.Event(), asyncio.Event(), Git.run

    async def run(self: Git, *args: str, **options: Any) -> Completed:
        if "reset" in args:
            begun.set()
            await go.wait()
        return await whole_run(self, *args, **options)

    monkeypatch.setattr(Git, "run", run)
    async with concurrently(each.git.create(IssueBranch(1), path, lets_go=True)) as making:
        await begun.wait()
        assert await mended(each) == {}
        report = await each.sweep(force=True)
        await care_for_clones(each.ctx, timedelta(days=1))
        git(each.git.clone.path, "worktree", "prune")
        go.set()
        made = await making

    assert [line.id for line in report.skipped] == [worktree]
    assert report.deleted == []
    assert isinstance(made, Created)
    assert await each.git.seen(path) == (made.tip, made.branch, 0)


@pytest.mark.parametrize("content", [None, "{", '{"id": 7}'])
async def test_metadata_is_rebuilt_from_the_row_with_its_times(node: Node, content: str | None) -> None:
    worktree = await node.add(1)
    file = Metadata.file(node.path(1))
    file.unlink() if content is None else file.write_text(content)

    assert await mended(node) == {"issue-1": [Action.REBUILD_METADATA]}

    known, row = Metadata.read(node.path(1)), await node.row(worktree)
    assert isinstance(known, Metadata)
    assert (known.id, known.full_name, known.conversations) == (str(worktree), "octo/hello", (1,))
    assert (known.created_at, known.updated_at) == (row.created_at, row.updated_at)
    assert await mended(node) == {}


async def test_rebuilt_metadata_counts_the_turns_and_tells_the_last_error(node: Node) -> None:
    worktree = await node.add(1)
    rows = TurnRows(node.db)
    conversation = await node.db.fetchval("select id from conversations")
    for state in ("failed", "done", "failed"):
        await rows.ask(conversation)
        turn = await rows.claimed()
        await turns.end(node.db, turn.claim, state, None if state == "done" else f"Reason {turn.id}.")
    await rows.ask(conversation)  # it waits: it did not run
    await node.db.execute("update turns set worktree_id = null where state = 'queued'")
    Metadata.delete(node.path(1))

    await repair(node.ctx, Repairing(worktree=worktree))

    known = Metadata.read(node.path(1))
    assert isinstance(known, Metadata)
    last = await node.db.fetchval("select max(id) from turns where state = 'failed'")
    assert (known.execution_count, known.last_error) == (3, f"Reason {last}.")


@pytest.mark.parametrize("gone", ["directory", "directory and entry"])
async def test_a_missing_worktree_waits_for_its_next_turn(node: Node, gone: str) -> None:
    worktree = await node.add(1)
    shutil.rmtree(node.path(1))
    if gone != "directory":
        shutil.rmtree(node.git.clone.path / "worktrees" / "issue-1")

    assert await mended(node) == {}
    assert await node.states() == {worktree: "ready"}


async def test_a_directory_that_is_no_worktree_is_kept_whole(each: Node) -> None:
    worktree = await each.add(1)
    commit = each.git.agent_commits({"work.txt": "committed\n"}, each.path(1))
    await each.git.bring_home()
    (each.path(1) / "new.txt").write_text("not committed\n")
    shutil.rmtree(each.git.clone.path / "worktrees" / "issue-1")

    assert await mended(each) == {"issue-1": [Action.KEEP_WHOLE]}

    kept = [one.kept for one in await rescues.of_worktree(each.db, worktree) if one.kept]
    assert [(each.ctx.data_dir / "kept" / name / "new.txt").read_text() for name in kept] == ["not committed\n"]
    assert not each.path(1).exists()
    assert commit in git(each.git.clone.path, "rev-list", "--all")
    assert await mended(each) == {}


async def test_without_its_clone_nothing_is_moved(node: Node) -> None:
    await node.add(1)
    shutil.rmtree(node.git.clone.path)

    assert await mended(node) == {}
    assert node.path(1).is_dir()


async def test_a_worktree_with_a_turn_is_not_repaired(node: Node) -> None:
    await node.add(1)
    git(node.git.clone.path, "worktree", "unlock", str(node.path(1)))
    await TurnRows(node.db).ask(await node.db.fetchval("select id from conversations"))

    assert await mended(node) == {}
    assert await lock_of(node, 1) is None


# Lost rows


@pytest.mark.parametrize("detached", [False, True])
async def test_a_worktree_without_a_row_is_an_orphan_as_old_as_its_metadata(node: Node, *, detached: bool) -> None:
    worktree = await node.add(1, detached=detached)
    await node.write_metadata(worktree)
    updated_at = (await node.row(worktree)).updated_at
    await forget_row(node, worktree)

    assert await mended(node) == {"issue-1": [Action.ADOPT]}

    assert await node.db.fetch("select path, seen_at from orphans") == [(node.ctx.stored(node.path(1)), updated_at)]
    assert await node.states() == {}
    assert node.path(1).is_dir()
    assert await mended(node) == {}


async def test_an_orphan_without_metadata_is_as_old_as_its_newest_file(node: Node) -> None:
    unknown, at = node.path(7), node.ctx.clock() - timedelta(days=200)
    (unknown / "deep").mkdir(parents=True)
    (unknown / "deep" / "file").write_text("old\n")
    set_times(unknown, at)

    await mended(node)

    assert await node.db.fetchval("select seen_at from orphans") == at


# Orphans


@pytest.mark.parametrize("kind", ["directory", "file", "link", "unknown repository", "of a removed row"])
async def test_an_unknown_directory_is_recorded_as_an_orphan_and_left_in_place(node: Node, kind: str) -> None:
    worktree = await node.add(1)
    match kind:
        case "directory":
            node.path(7).mkdir()
        case "file":
            node.path(7).write_text("notes\n")
        case "link":
            node.path(7).symlink_to("/nowhere")
        case "unknown repository":
            shutil.copytree(node.git.person, node.path(7))
            set_times(node.path(7), node.ctx.clock())
        case _:
            await node.git.created(IssueBranch(7), node.path(7))
            metadata_for(node, worktree + 1).write(node.path(7))
            await node.add(8)
            await node.db.execute(
                "update worktrees set state = 'removed', path = $1 where id = $2", str(node.path(7)), worktree + 1
            )
            shutil.rmtree(node.path(8))

    assert (await mended(node))["issue-7"] == [Action.ADOPT]

    assert await node.db.fetch("select path, seen_at from orphans") == [
        (node.ctx.stored(node.path(7)), node.ctx.clock())
    ]
    node.move_clock(1)
    assert "issue-7" not in await mended(node), "its age still counts from the first time"
    node.path(7).unlink() if kind in ("file", "link") else shutil.rmtree(node.path(7))
    await mended(node)
    assert await node.db.fetch("select path from orphans") == []


def metadata_for(node: Node, worktree: int) -> Metadata:
    now = node.ctx.clock()
    return Metadata(
        id=str(worktree),
        platform="github.com",
        repository_id=1,
        full_name="octo/hello",
        conversations=(7,),
        branch="threadtree/issue-7",
        base="main",
        node=NODE,
        created_at=now,
        updated_at=now,
    )


async def test_what_lies_above_the_folders_of_repositories_is_adopted_and_kept_at_its_end(node: Node) -> None:
    root = node.ctx.data_dir / "worktrees"
    (root / "octo").mkdir(parents=True, exist_ok=True)
    (root / "notes.txt").write_text("notes\n")
    (root / "octo" / "file").write_text("notes\n")
    (root / "not a login" / "folder").mkdir(parents=True)
    places = {str(root / name) for name in ("notes.txt", "octo/file", "not a login/folder")}

    assert {one.path for one in await repair(node.ctx)} == places

    assert await repair(node.ctx) == []
    node.move_clock(91)
    assert {line.path for line in (await node.sweep(dry_run=True)).deleted} == places
    assert {line.path for line in (await node.sweep()).deleted} == places
    assert not {str(place) for place in root.rglob("*")} & places
    assert len(list(trash.kept_folder(node.ctx.data_dir).iterdir())) == 3
    assert await node.db.fetch("select * from orphans") == []


async def test_worktrees_that_the_node_has_lost_are_left_to_whoever_rescues_them(node: Node) -> None:
    await node.add(1)
    git(node.git.clone.path, "worktree", "unlock", str(node.path(1)))
    await node.db.execute("update worktrees set state = 'lost'")

    assert await mended(node) == {}
    assert await lock_of(node, 1) is None


async def test_an_entry_without_directory_and_row_goes_and_its_commits_are_rescued(each: Node) -> None:
    worktree = await each.add(1)
    commit = each.git.agent_commits({"work.txt": "work\n"}, each.path(1))
    await forget_row(each, worktree)
    shutil.rmtree(each.path(1))

    assert await mended(each) == {"issue-1": [Action.DROP_ENTRY, Action.DELETE_METADATA]}

    assert await all_entries(each.git.clone) == []
    assert not Metadata.file(each.path(1)).exists()
    assert commit in git(each.git.clone.path, "rev-list", "--all")
    assert await mended(each) == {}


async def test_one_repository_that_cannot_be_examined_does_not_stop_the_others(node: Node) -> None:
    await node.add(1)
    Metadata.delete(node.path(1))
    evil = "insert into codebases (platform, repository_id, owner, name, folder) values ('github.com', 9, 'x', 'y', $1)"
    await node.db.execute(evil, "..evil/x")
    await node.db.execute(
        "insert into worktrees (platform, repository_id, node, path, start_kind, start_number)"
        " values ('github.com', 9, $1, '/nowhere', 'issue', 1)",
        NODE,
    )

    assert await mended(node) == {"issue-1": [Action.REBUILD_METADATA]}


# Rescues


async def test_a_rescue_without_a_row_is_on_record_again(each: Node) -> None:
    worktree = await each.add(1)
    (each.path(1) / "new.txt").write_text("not committed\n")
    async with clone_lock(each.git.clone) as lock:
        label = RescueLabel(worktree, "threadtree/issue-1", (1,), each.ctx.clock() - timedelta(days=3))
        rescued, _ = await save_rescue(lock, each.path(1), label)
        await save_rescue(lock, each.path(1), replace(label, worktree_id=10**6))
    assert rescued is not None

    assert await mended(each) == {}

    [known] = await rescues.latest(each.db)
    assert (known.worktree_id, known.ref, known.files, known.created_at) == (worktree, rescued.ref, 1, label.at)
    await mended(each)
    assert len(await rescues.latest(each.db)) == 1
