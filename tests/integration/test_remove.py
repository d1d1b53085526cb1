"""A removal on disk and in the rows (DESIGN.md §3.5 and §4), with real git and Postgres."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bot.care import removal_rows as removals
from bot.care.removal_rows import Removal
from bot.care.removing import delete_trashed, remove_now
from bot.model import Rescue
from bot.node import rescue_rows as rescues
from bot.node.context import NodeContext
from bot.node.launching import Launcher
from bot.redaction import Redactor
from bot.rules import Rules
from bot.sandbox import trash
from bot.store import conversations
from bot.store.database import Pool
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.metadata import Metadata
from bot.tree.remove import NotRemoved, Removed
from tests.support.failpoints import KilledError
from tests.support.git_repositories import SANDBOXES, SEARCH_PATH, GitRepositories, git
from tests.support.turn_rows import NODE, TurnRows
from tests.support.worktree_jobs import remove_all

BRANCH = "threadtree/issue-1"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Place:
    """Create a worktree with its row, its only thread and its metadata."""

    git_world: GitRepositories
    rows: TurnRows
    ctx: NodeContext
    conversation: int
    worktree: int

    @property
    def path(self) -> Path:
        return self.git_world.path

    async def remove(self, why: Removal = "closed", ctx: NodeContext | None = None) -> Removed | NotRemoved:
        await self.decide(why)
        return await remove_now(ctx or self.ctx, self.worktree)

    async def decide(self, why: Removal = "closed") -> None:
        assert await removals.decide(self.rows.db, NODE, self.worktree, why)

    async def row(self) -> tuple[str, str | None]:
        row = await self.rows.db.fetchrow("select state, removal from worktrees where id = $1", self.worktree)
        return row["state"], row["removal"]

    async def rescues(self) -> list[Rescue]:
        return await rescues.of_worktree(self.rows.db, self.worktree)


@pytest.fixture(params=SANDBOXES)
async def place(tmp_path: Path, pool: Pool, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    made = GitRepositories.make(tmp_path, request.param)
    (tmp_path / "server" / "octo").mkdir(parents=True)
    (tmp_path / "server" / "octo" / "repo-1.git").symlink_to(made.remote)
    async with pool.acquire() as db:
        rows = TurnRows(db)
        ctx = NodeContext(
            pool=pool,
            git=made.clone.git,
            node=NODE,
            data_dir=tmp_path / "data",
            server_url=(tmp_path / "server").as_uri(),
            clock=lambda: NOW,
            github=None,
            redactor=Redactor(),
            launcher=Launcher("host", SEARCH_PATH, "C.UTF-8"),
            rules=Rules(agents=("custom",), agent="custom"),
        )
        git_world = replace(made, clone=ctx.clone("octo/repo-1"))
        await git_world.created()
        git(git_world.clone.path, "config", "remote.origin.url", f"{ctx.server_url}/octo/repo-1.git")
        worktree = await rows.worktree(path=str(git_world.path))
        conversation = await rows.thread(worktree=worktree)
        await rows.make(worktree)
        write_metadata(git_world.path, worktree)
        yield Place(git_world, rows, ctx, conversation, worktree)


def write_metadata(path: Path, worktree: int) -> None:
    known = Metadata(
        id=str(worktree),
        platform="github.com",
        repository_id=1,
        full_name="octo/repo-1",
        conversations=(1,),
        branch=BRANCH,
        base="main",
        node=NODE,
        created_at=NOW,
        updated_at=NOW,
    )
    known.write(path)


async def test_a_worktree_goes_with_its_metadata_and_its_rescue_is_on_record(place: Place) -> None:
    place.git_world.agent_commits({"a": "1"})
    (place.path / "new").write_text("new")
    await place.decide("retention")
    removal = await removals.decided(place.rows.db, NODE, place.worktree)
    assert removal is not None

    result = await remove_now(place.ctx, place.worktree)

    assert isinstance(result, Removed)
    assert result.rescue is not None
    [rescue] = await place.rescues()
    assert (rescue.ref, rescue.kept, rescue.removal) == (result.rescue.ref, None, "retention")
    assert (rescue.files, rescue.commits, rescue.branch) == (1, 1, BRANCH)
    assert rescue.conversations == removal.users != ()
    assert rescue.created_at == removal.worktree.updated_at
    assert rescue.bytes > 0
    assert await place.row() == ("removed", "retention")
    assert await conversations.worktree_of(place.rows.db, place.conversation) is None
    assert not place.path.exists()
    assert not Metadata.file(place.path).exists()
    assert sum(trash.size_of(trashed) for trashed in result.trashed) > 0
    assert await delete_trashed(result.trashed) > 0
    assert list(trash.trash_folder(place.ctx.data_dir).iterdir()) == []


async def test_a_directory_that_is_kept_whole_is_on_record(place: Place) -> None:
    (place.path / ".git").unlink()
    place.path.joinpath("mine").write_bytes(b"x" * 10_000)
    result = await place.remove("command")
    assert isinstance(result, Removed)
    [rescue] = await place.rescues()
    assert rescue.kept is not None
    assert (rescue.ref, rescue.removal) == (None, "command")
    assert rescue.bytes >= 10_000
    assert (trash.kept_folder(place.ctx.data_dir) / rescue.kept / "mine").exists()


async def test_while_github_cannot_be_reached_the_worktree_stays(place: Place) -> None:
    (place.path / "new").write_text("new")
    with capture_logs() as logs:
        result = await place.remove(ctx=cut_off_from(place))
    assert isinstance(result, NotRemoved)
    assert [line["log_level"] for line in logs if line["event"] == "worktree-kept"] == ["warning"]
    assert "could not be asked" in result.why
    assert await place.row() == ("ready", "closed")
    assert (place.path / "new").read_text() == "new"
    assert Metadata.file(place.path).exists()
    assert await place.rescues() == []


def cut_off_from(place: Place) -> NodeContext:
    """Let GitHub's server refuse connections."""
    return replace(place.ctx, server_url="http://127.0.0.1:9", git=replace(place.ctx.git, protocols=("file", "http")))


async def test_without_a_repository_the_worktree_goes_and_its_commits_stay_in_the_clone(place: Place) -> None:
    tip = place.git_world.agent_commits({"a": "1"})
    await place.git_world.publish()
    (place.path / "new").write_text("new")
    shutil.rmtree(place.git_world.remote)

    result = await place.remove()

    assert isinstance(result, Removed)
    assert result.rescue is not None
    assert await place.git_world.clone.is_ancestor(tip, result.rescue.sha)
    assert (result.rescue.files, result.rescue.commits) == (1, 2)
    assert (await place.row())[0] == "removed"


async def test_a_renamed_repository_is_asked_under_its_new_name(place: Place) -> None:
    place.git_world.agent_commits({"a": "1"})
    await place.git_world.publish()
    server = place.git_world.root / "server" / "octo"
    (server / "repo-1.git").rename(server / "renamed.git")
    await place.rows.db.execute("update codebases set name = 'renamed'")
    result = await place.remove()
    assert isinstance(result, Removed)
    assert (result.rescue, result.branch_deleted) == (None, True)


async def test_a_worktree_that_was_never_made_goes_without_a_clone(place: Place) -> None:
    shutil.rmtree(place.path)
    shutil.rmtree(place.git_world.clone.path)
    result = await place.remove()
    assert isinstance(result, Removed)
    assert (await place.row())[0] == "removed"


async def test_a_purge_leaves_what_would_need_a_rescue_and_takes_what_would_not(place: Place) -> None:
    (place.path / "new").write_text("new")
    with capture_logs() as logs:
        assert isinstance(await place.remove("purged"), NotRemoved)
    assert [line["log_level"] for line in logs if line["event"] == "worktree-kept"] == ["info"], "nothing unusual"
    assert await place.row() == ("ready", None)
    (place.path / "new").unlink()

    assert isinstance(await place.remove("purged"), Removed)

    assert await place.row() == ("removed", "purged")
    assert await conversations.worktree_of(place.rows.db, place.conversation) == place.worktree
    assert not Metadata.file(place.path).exists()


async def test_a_removal_that_was_called_off_while_the_clone_was_busy_touches_nothing(place: Place) -> None:
    await place.decide()
    async with clone_lock(place.git_world.clone):
        removing = asyncio.create_task(remove_now(place.ctx, place.worktree))
        assert await conversations.live_worktree(place.rows.db, place.worktree) is not None
    assert isinstance(await removing, NotRemoved)
    assert (place.path / "README.md").exists()
    assert await place.row() == ("ready", None)


async def test_a_purge_that_was_cut_off_after_the_directory_was_moved_is_completed(
    place: Place, kill_at: Callable[[str], None]
) -> None:
    await place.decide("purged")
    kill_at("trashed")
    with pytest.raises(KilledError):
        await remove_now(place.ctx, place.worktree)
    await remove_all(place.ctx)
    assert await place.row() == ("removed", "purged")


async def test_a_removal_that_cannot_be_carried_out_ends_with_its_reason_and_is_tried_again(place: Place) -> None:
    bin_ = trash.trash_folder(place.ctx.data_dir)
    bin_.write_text("in the way of the folder")
    (place.path / "new").write_text("new")
    await place.decide()

    await remove_all(place.ctx)

    why = "select removal_error from worktrees"
    assert await place.row() == ("ready", "closed")
    assert await place.rows.db.fetchval(why)
    bin_.unlink()
    await place.rows.db.execute("update worktrees set updated_at = now() - interval '1 hour'")
    await place.rows.db.execute("update conversations set state = 'closed', closed_at = now()")
    await remove_all(place.ctx)
    assert await place.row() == ("removed", "closed")
    assert await place.rows.db.fetchval(why) is None


async def test_an_interrupted_removal_is_continued_once_github_is_back(
    place: Place, kill_at: Callable[[str], None]
) -> None:
    await interrupt(place, "entry-dropped", kill_at)

    await remove_all(cut_off_from(place))

    assert await place.row() == ("removing", "closed"), "it was called ready, without a directory"
    assert await place.rows.db.fetchval("select removal_error from worktrees")

    await remove_all(place.ctx)

    [rescue] = await place.rescues()
    assert (rescue.files, rescue.commits) == (1, 1)
    assert (await place.row())[0] == "removed"


async def interrupt(place: Place, cut: str, kill_at: Callable[[str], None]) -> None:
    """Kill a process at this point of the removal of a worktree with work in it; another one may go on."""
    place.git_world.agent_commits({"a": "1"})
    (place.path / "new").write_text("new")
    kill_at(cut)
    with pytest.raises(KilledError):
        await place.remove()


async def test_two_processes_remove_worktrees_and_their_bytes_once(place: Place) -> None:
    await place.rows.close(place.conversation)
    await conversations.release_worktree(place.rows.db, place.worktree)
    await asyncio.gather(*(remove_all(place.ctx) for _ in range(2)))
    assert (await place.row())[0] == "removed"
    assert list(trash.trash_folder(place.ctx.data_dir).iterdir()) == []


async def test_a_failed_removal_succeeds_when_it_is_retried(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.rows.close(place.conversation)
    await conversations.release_worktree(place.rows.db, place.worktree)
    await remove_all(cut_off_from(place))
    assert await place.row() == ("ready", "closed")
    await remove_all(place.ctx)
    assert (await place.row())[0] == "ready", "not again at once"
    monkeypatch.setattr("bot.care.removing.TRY_AGAIN_AFTER", timedelta(0))

    await remove_all(place.ctx)

    assert (await place.row())[0] == "removed"
