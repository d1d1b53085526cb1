"""A worktree in any state is rescued, deleted, created again and restored: it is the same, byte for byte."""

import contextlib
import hashlib
import os
import shutil
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot import failpoints
from bot.model import DetachedHead, Saved
from bot.tree.clone.published import lend
from bot.tree.git.errors import GitError
from bot.tree.rescue.message import RescueLabel
from bot.tree.rescue.restore import Restored, RestoreRefusedError, progress_file
from bot.tree.rescue.save import Rescued, Secured
from tests.support.git_repositories import GitRepositories, git
from tests.support.worktree_states import (
    BASE,
    BRANCH,
    STATES,
    State,
    another_branch,
    merge_in_progress,
    photo,
    skip_worktree,
    staged,
    stashes,
    unpushed_commits_and_files,
    unstaged,
    write,
)

AT = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
LABEL = RescueLabel(7, BRANCH, (1, 2), AT)


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    return await GitRepositories.make(tmp_path, "bwrap", BASE).with_worktree()


async def rescued(world: GitRepositories, branch: str | None = BRANCH) -> Secured:
    async with world.open() as tree:
        return await tree.save(replace(LABEL, branch=branch))


async def restored(
    world: GitRepositories,
    sha: str | None,
    kept: Path | None = None,
    *,
    branch: str | None = BRANCH,
    operation_id: int = 1,
) -> Restored | RestoreRefusedError:
    async with world.open() as tree:
        try:
            return await tree.restore(branch, sha, kept, operation_id)
        except RestoreRefusedError as refused:
            return refused


async def vanish(world: GitRepositories) -> None:
    """Delete the directory, git's record, branch, stashes and every object that only these reached; keep the rescue."""
    world.forget(world.path)
    shutil.rmtree(world.path)
    shutil.rmtree(world.clone.path / "worktrees")
    shutil.rmtree(world.root / "data" / "private", ignore_errors=True)
    for ref in git(world.clone.path, "for-each-ref", "--format=%(refname)", "refs/heads", "refs/stash").split():
        git(world.clone.path, "update-ref", "-d", ref)
    shutil.rmtree(world.clone.path / "logs", ignore_errors=True)
    git(world.clone.path, "-c", "gc.pruneExpire=now", "gc", "-q", "--prune=now")


def cut_off_at(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(name: str) -> None:
        if name == place:
            raise KeyboardInterrupt

    monkeypatch.setattr(failpoints, "listener", cut_off)


def index_of(world: GitRepositories) -> str:
    return world.agent("ls-files", "--stage")


AGAIN = (staged, unstaged, skip_worktree, unpushed_commits_and_files, stashes, merge_in_progress, another_branch)
"""What a restore brings back in its own way each; a second restore changes nothing of it."""


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
async def test_every_state_comes_back(world: GitRepositories, state: State) -> None:
    state.build(world)
    before = photo(world.path)
    index = index_of(world) if state.index else ""
    tip = world.agent("rev-parse", BRANCH)
    stashed = world.agent("stash", "list", "--format=%H %gs") if state.name == "stashes" else ""
    kept, _ = await rescued(world)
    assert kept is not None
    assert photo(world.path) == before, "the worktree stays as it is"
    await vanish(world)
    await world.created()
    done = await restored(world, kept.sha)
    assert isinstance(done, Restored), done
    assert photo(world.path) == before
    if state.index:
        assert index_of(world) == index
    if state.tip:
        assert world.agent("rev-parse", "HEAD", BRANCH).split() == [tip, tip]
    assert world.agent("symbolic-ref", "HEAD") == f"refs/heads/{BRANCH}"
    assert git(world.clone.path, "rev-parse", BRANCH) == world.agent("rev-parse", "HEAD")
    assert world.agent("fsck", "--no-dangling", "--no-progress") == ""
    if state.name == "stashes":
        assert world.agent("stash", "list", "--format=%H %gs") == stashed
    if state.build in AGAIN:
        again = await restored(world, kept.sha, operation_id=2)
        assert again == Restored(Saved(0, 0), done.elsewhere)
        assert photo(world.path) == before


async def test_commits_are_restored_onto_a_branch_that_lacks_them(world: GitRepositories) -> None:
    world.agent_commits({"one": "1\n"})
    tip = world.agent_commits({"README.md": "two\n"})
    (world.path / "new").write_text("1")
    kept, _ = await rescued(world)
    assert kept is not None
    await vanish(world)
    await world.created()
    assert await restored(world, kept.sha) == Restored(Saved(1, 2))
    assert world.agent("rev-parse", "HEAD") == tip
    assert world.agent("status", "--porcelain") == "?? new"


async def test_a_branch_with_newer_commits_keeps_them(world: GitRepositories) -> None:
    sha = await _rescued_edits(world)
    world.agent("checkout", "-q", "--", ".")
    world.agent("clean", "-q", "-f", "-d")
    newer = world.agent_commits({"README.md": "newer\n", "dos.bat": "newer\n", "newer": "1\n"})
    assert await restored(world, sha) == Restored(Saved(3, 0))
    assert world.agent("rev-parse", "HEAD") == newer
    assert world.agent("status", "--porcelain").splitlines() == [" M dir/a", " D other/c", "?? new"]
    assert (world.path / "README.md").read_text() == "newer\n"
    assert (world.path / "dos.bat").read_text() == "newer\n"


@pytest.mark.parametrize("newer", ["dir/a", "new", "new/inside", "other/c"])
async def test_newer_commits_to_the_same_files_are_not_overwritten(world: GitRepositories, newer: str) -> None:
    sha = await _rescued_edits(world)
    world.agent("reset", "-q", "--hard")
    world.agent("clean", "-q", "-f", "-d")
    (world.path / newer).parent.mkdir(exist_ok=True)
    world.agent_commits({newer: "newer\n"})
    before = photo(world.path)
    refused = await restored(world, sha)
    assert refused == RestoreRefusedError("newer-commits", (sha, newer.removesuffix("/inside")))
    assert photo(world.path) == before
    assert world.agent("status", "--porcelain") == ""


async def test_a_diverged_branch_is_left_alone(world: GitRepositories) -> None:
    commit = world.agent_commits({"one": "1\n"})
    kept, _ = await rescued(world)
    assert kept is not None
    await vanish(world)
    await world.created()
    mine = world.agent_commits({"another": "1\n"})
    refused = await restored(world, kept.sha)
    assert refused == RestoreRefusedError("diverged", (commit,))
    assert world.agent("rev-parse", "HEAD") == mine
    # The next step that the refusal names.
    world.agent("merge", "-q", "--no-edit", commit)
    assert {"one", "another"} <= photo(world.path).keys()


@pytest.mark.parametrize("staged", [False, True])
async def test_uncommitted_work_is_not_overwritten(world: GitRepositories, *, staged: bool) -> None:
    sha = await _rescued_edits(world)
    (world.path / "dir" / "a").write_text("edited since\n")
    if staged:
        world.agent("add", "dir/a")
        (world.path / "dir" / "a").write_text("edited\n")
    before = photo(world.path)
    refused = await restored(world, sha)
    assert isinstance(refused, RestoreRefusedError)
    assert refused.obstacle == "changes"
    assert "dir/a" in refused.names
    assert photo(world.path) == before
    assert world.agent("diff", "--cached", "--name-only") == ("dir/a" if staged else "")


async def test_a_restore_is_refused_during_a_merge_and_on_another_branch(world: GitRepositories) -> None:
    sha = await _rescued_edits(world)
    assert await restored(world, "0" * 40) == RestoreRefusedError("commit-gone")
    world.agent("reset", "-q", "--hard")
    world.agent("switch", "-q", "-c", "idea")
    assert isinstance(await restored(world, sha), RestoreRefusedError)
    world.agent("switch", "-q", BRANCH)
    (world.state / "MERGE_HEAD").write_text(sha + "\n")
    assert isinstance(await restored(world, sha), RestoreRefusedError)
    shutil.rmtree(world.path)
    assert isinstance(await restored(world, sha), RestoreRefusedError)


async def test_an_interrupted_restore_is_completed_by_the_next(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.agent_commits({"one": "1\n"})
    sha = await _rescued_edits(world)
    before, index = photo(world.path), index_of(world)
    await vanish(world)
    await world.created()

    cut_off_at("files-restored", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        await restored(world, sha)
    monkeypatch.setattr(failpoints, "listener", None)
    # A file that a killed git had half written.
    (world.path / "dir" / "a").write_text("ed")
    assert isinstance(await restored(world, sha), Restored)
    assert (photo(world.path), index_of(world)) == (before, index)


async def test_a_half_done_restore_is_work_for_every_other_restore(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = await _rescued_edits(world)
    await vanish(world)
    await world.created()
    cut_off_at("files-restored", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        await restored(world, sha)
    monkeypatch.setattr(failpoints, "listener", None)
    (world.path / "dir" / "a").write_text("edited since\n")

    refused = await restored(world, sha, operation_id=2)

    assert isinstance(refused, RestoreRefusedError)
    assert refused.obstacle == "changes"
    assert (world.path / "dir" / "a").read_text() == "edited since\n"


async def test_no_ignored_file_is_overwritten(world: GitRepositories) -> None:
    write(world, "ignored-file", "rescued\n")
    write(world, "ignored-place/inside", "rescued\n")
    world.agent("add", "-f", "ignored-file", "ignored-place/inside")
    kept, _ = await rescued(world)
    assert kept is not None
    world.agent("reset", "-q", "--hard")
    write(world, "ignored-file", "mine\n")
    write(world, "ignored-place", "mine\n")

    refused = await restored(world, kept.sha)

    assert refused == RestoreRefusedError("ignored-files", ("ignored-file", "ignored-place"))
    assert (world.path / "ignored-file").read_text() == "mine\n"
    (world.path / "ignored-file").unlink()
    (world.path / "ignored-place").unlink()
    write(world, "ignored-place/mine", "mine\n")
    assert isinstance(await restored(world, kept.sha), Restored)
    assert (world.path / "ignored-place" / "mine").read_text() == "mine\n"
    assert (world.path / "ignored-place" / "inside").read_text() == "rescued\n"


async def test_detached_worktrees_are_restored(world: GitRepositories) -> None:
    head = git(world.clone.path, "rev-parse", "refs/remotes/origin/main")
    git(world.remote, "update-ref", "refs/pull/3/head", head)
    pull = DetachedHead(head, "refs/pull/3/head")
    world.agent("checkout", "-q", "--detach")
    world.agent_commits({"detached": "1\n"})
    (world.path / "new").write_text("1")
    before = photo(world.path)
    kept, _ = await rescued(world, None)
    assert kept is not None
    await vanish(world)
    await world.created(pull)
    assert await restored(world, kept.sha, branch=None) == Restored(Saved(1, 1))
    assert photo(world.path) == before
    assert world.agent("rev-parse", "HEAD~1") == head


async def test_a_directory_that_was_kept_whole_comes_back(world: GitRepositories) -> None:
    world.agent("init", "-q", "nested")
    world.agent("-C", "nested", "commit", "-q", "--allow-empty", "-m", "its own")
    commit = world.agent("-C", "nested", "rev-parse", "HEAD")
    outside = world.root / "outside"
    outside.mkdir()
    (outside / "a").write_text("not the worktree's")
    shutil.rmtree(world.path / "dir")
    (world.path / "dir").symlink_to(outside)
    (world.path / "README.md").unlink()
    (world.path / "README.md").mkdir()
    (world.path / "README.md" / "inside").write_text("1")
    (world.path / "win.bat").unlink()
    (world.path / "run.sh").chmod(0o755)
    (world.path / "ignored-too").write_text("1")
    os.mkfifo(world.path / "pipe")
    assert (await rescued(world))[1] is not None
    before = photo(world.path)
    kept, state = world.root / "data" / "kept" / "issue-1.x", world.root / "data" / "kept" / "issue-1.x.git"
    modules = state / "private/state/modules/lib"
    modules.mkdir(parents=True)
    (modules / "HEAD").write_text("ref: refs/heads/main\n")
    world.path.rename(kept)
    await world.recreate(BRANCH)

    assert await restored(world, None, kept) == Restored(Saved(0, 0, whole=True))

    assert photo(world.path) == before
    assert (world.path / "pipe").is_fifo()
    assert world.agent("-C", "nested", "rev-parse", "HEAD") == commit
    assert world.agent("branch", "--show-current") == BRANCH
    assert (outside / "a").read_text() == "not the worktree's"
    assert (world.state / "modules" / "lib" / "HEAD").is_file()
    assert await restored(world, None, kept) == Restored(Saved(0, 0, whole=True)), "repeated by the same operation"
    assert await restored(world, None, kept, operation_id=2) == RestoreRefusedError("directory-gone")
    assert photo(world.path) == before


async def kept_with_a_commit(world: GitRepositories) -> tuple[Rescued, Path]:
    """Remove a worktree with a repository inside, an ignored file, an edit and a commit; create it again."""
    world.agent_commits({"committed": "1"})
    world.agent("init", "-q", "nested")
    (world.path / "nested" / "inside").write_text("1")
    world.agent("-C", "nested", "commit", "-q", "--allow-empty", "-m", "its own")
    (world.path / "edited").write_text("1")
    (world.path / "README.md").unlink()
    async with world.open() as tree:
        found, why = await tree.rescue(LABEL)
        assert found is not None
        assert why is not None
        departed = tree.unlink(AT, whole=True)
    assert departed.kept is not None
    git(world.clone.path, "update-ref", "-d", f"refs/heads/{BRANCH}")
    await world.recreate(BRANCH, git(world.clone.path, "rev-parse", "refs/remotes/origin/main"))
    return found, departed.kept


async def test_commits_and_the_directory_that_was_kept_come_back_together(world: GitRepositories) -> None:
    commit, kept = await kept_with_a_commit(world)
    before = photo(kept)

    done = await restored(world, commit.sha, kept)

    assert done == Restored(Saved(0, 1, whole=True))
    assert world.agent("log", "-1", "--format=%s") == "the agent's work"
    assert world.agent("-C", "nested", "log", "-1", "--format=%s") == "its own"
    assert photo(world.path) == before
    assert not kept.exists()
    assert await restored(world, commit.sha, kept, operation_id=2) == Restored(Saved(0, 0))
    assert photo(world.path) == before


async def test_a_directory_that_was_kept_does_not_undo_newer_commits(world: GitRepositories) -> None:
    commit, kept = await kept_with_a_commit(world)
    async with world.open() as tree:
        await lend(tree.clone, world.view(), commit.sha)
    world.agent("reset", "-q", "--hard", commit.sha + "^")
    newer = world.agent_commits({"dir/a": "newer"})

    assert await restored(world, commit.sha, kept) == RestoreRefusedError("newer-than-directory")

    assert (world.agent("rev-parse", "HEAD"), (world.path / "dir" / "a").read_text()) == (newer, "newer")
    assert world.agent("status", "--porcelain") == ""
    assert kept.is_dir()


@pytest.mark.parametrize("work", ["ignored", "untracked", "edited", "staged"])
async def test_a_directory_that_was_kept_takes_the_place_of_no_work(world: GitRepositories, work: str) -> None:
    commit, kept = await kept_with_a_commit(world)
    before = photo(kept)
    mine = {"ignored": "ignored-file", "untracked": "place/mine", "edited": "dir/a", "staged": "staged"}[work]
    write(world, mine, "mine")
    if work == "staged":
        world.agent("add", "staged")

    refused = await restored(world, commit.sha, kept)

    assert refused == RestoreRefusedError("ignored-files" if work == "ignored" else "changes", (mine,))
    assert (world.path / mine).read_text() == "mine"
    world.agent("reset", "-q", "--hard")
    world.agent("clean", "-q", "-ffdx")
    assert isinstance(await restored(world, commit.sha, kept), Restored)
    assert photo(world.path) == before


async def test_a_repository_that_replaced_the_link_to_the_clone_is_not_lost(world: GitRepositories) -> None:
    commit, kept = await kept_with_a_commit(world)
    (kept / ".git").unlink()
    git(kept, "init", "-q")
    git(kept, "commit", "-q", "--allow-empty", "-m", "in another repository")

    assert isinstance(await restored(world, commit.sha, kept), Restored)

    assert world.agent("log", "-1", "--format=%s") == "the agent's work"
    replaced = kept.with_name(f"{kept.name}.git") / "replaced-link"
    assert git(replaced, "log", "-1", "--format=%s") == "in another repository"


async def test_a_directory_comes_back_after_the_restore_was_cut_off(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, kept = await kept_with_a_commit(world)
    before = photo(kept)
    cut_off_at("worktree-set-aside", monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        await restored(world, commit.sha, kept)
    monkeypatch.setattr(failpoints, "listener", None)
    await world.recreate(BRANCH)  # every operation does this first if the directory is gone

    assert isinstance(await restored(world, commit.sha, kept), Restored)

    assert photo(world.path) == before
    assert world.agent("log", "-1", "--format=%s") == "the agent's work"
    assert world.agent("-C", "nested", "log", "-1", "--format=%s") == "its own"


@pytest.mark.parametrize("has_directory", [True, False])
async def test_names_that_an_agent_planted_reach_no_file_outside_the_worktree(
    world: GitRepositories, *, has_directory: bool
) -> None:
    commit, kept = await kept_with_a_commit(world)
    neighbour = world.path.with_name("issue-2")
    neighbour.mkdir()
    victims = [neighbour / "notes.txt", world.root / "data" / "secret.pem", world.root / "outside-of-the-data"]
    for victim in victims:
        victim.write_text("untouched")
    (world.state / "index").write_bytes(planted_index(*(outside(victim, world.path) for victim in victims)))
    # A former place of the progress of a restore, and its content.
    (world.state / "threadtree-restoring").write_text(kept.name)
    (kept / "link-to-a-victim").symlink_to(victims[1])

    with contextlib.suppress(GitError):
        await restored(world, commit.sha, kept if has_directory else None)

    assert [victim.read_text() for victim in victims] == ["untouched"] * 3


async def test_a_planted_note_of_progress_opens_no_way_to_overwrite_work(world: GitRepositories) -> None:
    sha = await _rescued_edits(world)
    world.agent("reset", "-q", "--hard")
    write(world, "dir/a", "mine\n")
    note = progress_file(world.root / "data", world.path)
    assert not note.is_relative_to(world.path)
    assert not note.is_relative_to(world.state)
    (world.state / "threadtree-restoring").write_text(sha)
    world.agent("-c", f"alias.plant=!mkdir -p {note.parent}; echo '1 {sha} None' >{note} || true", "plant")

    assert isinstance(await restored(world, sha), RestoreRefusedError)
    assert (world.path / "dir" / "a").read_text() == "mine\n"


def outside(file: Path, worktree: Path) -> str:
    return os.path.relpath(file, worktree)


def planted_index(*names: str) -> bytes:
    """Write an index that git would not write: its names lead outside. https://git-scm.com/docs/index-format."""
    entries = b""
    for name in sorted(map(os.fsencode, names)):
        entry = struct.pack(">10I", *[0] * 6, 0o100644, *[0] * 3) + bytes.fromhex(EMPTY_BLOB)
        entry += struct.pack(">H", len(name)) + name
        entries += entry + b"\0" * (8 - len(entry) % 8)
    index = struct.pack(">4sII", b"DIRC", 2, len(names)) + entries
    return index + hashlib.sha1(index).digest()  # noqa: S324 -- the format's checksum


async def _rescued_edits(world: GitRepositories) -> str:
    """Edit a file, add one, delete one, and rescue them; the worktree stays as it is."""
    (world.path / "dir" / "a").write_text("edited\n")
    (world.path / "new").write_text("1")
    (world.path / "other" / "c").unlink()
    kept, _ = await rescued(world)
    assert kept is not None
    return kept.sha
