"""After a turn: work from other branches is brought back or kept, the rest is committed, and one branch is pushed."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import pytest

from bot.locks import try_lock
from bot.model import DetachedHead, IssueBranch
from bot.sandbox.view import PUBLISHED, View
from bot.tree import commit
from bot.tree.clone import branch_history
from bot.tree.clone.checkout import Checkout, require_checkout
from bot.tree.clone.published import publish
from bot.tree.commit import Committed, StrayWork, commit_all
from bot.tree.git.errors import GitError, GitProblem
from bot.tree.git.runner import Completed, Git, Identity, Options
from bot.tree.push import Push, Pushed, push
from bot.tree.summary import summarize
from tests.support.failpoints import KilledError
from tests.support.git_repositories import BOT, LABEL, RESCUE, GitRepositories, git, unchecked

BRANCH = "threadtree/issue-1"
ALICE = Identity("Alice", "alice@example.com")


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    return await GitRepositories.make(tmp_path, "bwrap").with_worktree()


async def returned(world: GitRepositories) -> StrayWork | None:
    async with world.open() as tree:
        return await tree.return_to_branch(BRANCH, LABEL)


async def committed(world: GitRepositories, message: str = "Do it") -> Committed:
    async with world.open() as tree:
        return await tree.commit(message, BOT, ALICE)


def files_at(world: GitRepositories, revision: str) -> set[str]:
    listed = git(world.clone.path, "ls-tree", "-r", "-z", "--name-only", revision)
    return set(filter(None, listed.split("\0")))


async def test_everything_uncommitted_is_committed_under_the_bots_name(world: GitRepositories) -> None:
    names = {"with space", "line\nbreak", "→/ü", "-dash", ":(top)x"}
    for name in names:
        (world.path / name).parent.mkdir(exist_ok=True)
        (world.path / name).write_text("1")
    (world.path / "README.md").unlink()
    done = await committed(world, "Answer #1\n\n#1 is a reference, not a comment\n")
    assert done.sha is not None
    assert done.left_out == {}
    assert files_at(world, done.sha) == names
    assert world.agent("status", "--porcelain") == ""
    assert world.agent("log", "-1", "--format=%an|%ce|%B").splitlines() == [
        "threadtree[bot]|bot@example.com|Answer #1",
        "",
        "#1 is a reference, not a comment",
        "",
        "Co-authored-by: Alice <alice@example.com>",
    ]
    assert world.agent("config", "--get-regexp", "user.*|remote.origin.url").count("\n") == 0
    assert await committed(world) == Committed(None)


async def test_large_files_are_stored_once_and_git_looks_for_no_deltas_between_them(world: GitRepositories) -> None:
    content = os.urandom(1_200_000)
    for number in range(3):
        (world.path / f"image-{number}").write_bytes(content + b"%d" % number)
    await committed(world)

    assert await world.pushed() == Pushed("pushed")

    names = {git(world.clone.path, "rev-parse", f"{BRANCH}:image-{number}") for number in range(3)}
    packs = list(world.clone.path.glob("*/pack/*.idx"))
    shown = [git(world.clone.path, "verify-pack", "-v", str(pack)).splitlines() for pack in packs]
    # A delta has two columns more: https://git-scm.com/docs/git-verify-pack
    entries = [line.split() for lines in shown for line in lines if line.split(" ")[0] in names]
    assert {entry[0] for entry in entries} == names
    assert {len(entry) for entry in entries} == {5}


async def test_a_large_file_that_looks_dense_in_its_middle_is_not_compressed(world: GitRepositories) -> None:
    (world.path / "image").write_bytes(bytes(600_000) + os.urandom(100_000) + bytes(500_000))
    (world.path / "table").write_bytes(b"one,two,three\n" * 100_000)

    await committed(world)

    sizes = "--batch-check=%(objectsize) %(objectsize:disk)"
    listed = git(world.clone.path, "cat-file", "--batch-all-objects", sizes)
    stored = {int(size): int(disk) for size, disk in map(str.split, listed.splitlines())}
    assert stored[1_200_000] > 1_200_000
    assert stored[1_400_000] < 100_000


async def test_a_push_that_was_cut_off_is_published_by_the_next_fetch(
    world: GitRepositories, kill_at: Callable[[str], None]
) -> None:
    other = world.path.with_name("issue-2")
    await world.created(IssueBranch(2), other)
    mine = world.agent_commits({"mine": "1"})
    kill_at("push-accepted")
    with pytest.raises(KilledError):
        await world.pushed()
    assert world.remote_tip(BRANCH) == mine
    world.someone_pushes(BRANCH, {"theirs": "2"})

    await world.update()

    assert world.agent("show", f"origin/{BRANCH}~:mine", path=other) == "1"
    world.agent("fsck", "--connectivity-only", path=other)


@pytest.mark.parametrize("has_more", [False, True])
async def test_the_pack_of_a_pushed_commit_is_published_unless_it_has_anything_else(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch, has_more: bool
) -> None:
    stores = [world.clone.path / name / "pack" for name in ("objects", PUBLISHED)]
    secret = world.agent_commits({"secret": "on no branch of GitHub"})
    world.agent("reset", "--hard", "HEAD~")
    mine, in_sandbox = world.agent_commits({"mine": "1"}), Git.in_sandbox

    async def with_more(self: Git, view: View, *args: str, **options: Unpack[Options]) -> Completed:
        if args[0] == "pack-objects" and has_more:
            options["input"] = (options["input"] or b"") + secret.encode() + b"\n"
        return await in_sandbox(self, view, *args, **options)

    monkeypatch.setattr(Git, "in_sandbox", with_more)

    assert await world.pushed() == Pushed("pushed")

    same = set.intersection(*({file.stat().st_ino for file in store.glob("*.pack")} for store in stores))
    assert bool(same) is not has_more
    published = {"GIT_OBJECT_DIRECTORY": str(stores[1].parent), "GIT_ALTERNATE_OBJECT_DIRECTORIES": ""}
    for name, is_there in ((mine, True), (secret, False)):
        asked = ("cat-file", "-e", f"{name}^{{tree}}")
        found = await world.clone.git.on_clone(world.clone.path, *asked, environment=published, check=False)
        assert (found.status == 0) is is_there


async def test_a_push_is_noted_although_a_git_of_the_first_try_was_killed(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, tries = world.agent_commits({"mine": "1"}), list[int]()

    async def fails_once(*args: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise GitError(GitProblem.KILLED, "pack-objects", "ended by a signal: -9")
        await publish(*args)

    monkeypatch.setattr("bot.tree.push.publish", fails_once)

    assert await world.pushed() == Pushed("pushed")

    assert git(world.clone.path, "rev-parse", f"refs/remotes/origin/{BRANCH}") == world.remote_tip(BRANCH) == mine


async def test_a_staged_and_then_deleted_file_is_no_obstacle(world: GitRepositories) -> None:
    (world.path / "gone").write_text("1")
    world.agent("add", "gone")
    (world.path / "gone").unlink()
    assert await committed(world) == Committed(None)


async def test_big_files_and_nested_repositories_are_left_out_and_named(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "MAX_FILE_BYTES", 10)
    (world.path / "big").write_text("more than ten bytes")
    (world.path / "big and staged").write_text("more than ten bytes")
    (world.path / "small").write_text("1")
    world.agent("add", "big and staged")
    world.agent("init", "-q", "nested")
    done = await committed(world)
    assert done.sha is not None
    assert {why: set(names) for why, names in done.left_out.items()} == {"large": {"big", "big and staged", "nested/"}}
    assert files_at(world, done.sha) == {"README.md", "small"}
    assert (world.path / "big and staged").read_text() == "more than ten bytes"


async def test_build_products_that_are_not_tracked_are_left_out_and_named(world: GitRepositories) -> None:
    for name in ("shop/__pycache__/a.pyc", "shop/__pycache__/b.pyc", "node_modules/x/dist/y", "dist/tracked", "target"):
        (world.path / name).parent.mkdir(parents=True, exist_ok=True)
        (world.path / name).write_text("1")
    world.agent("add", "dist/tracked", "target")
    world.agent("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "Track it")
    (world.path / "dist" / "new").write_text("1")
    (world.path / "target").unlink()
    (world.path / "target").mkdir()
    (world.path / "target" / "debug").write_text("1")
    (world.path / "asked").mkdir()
    (world.path / "asked" / "dist").mkdir()
    (world.path / "asked" / "dist" / "staged").write_text("1")
    world.agent("add", "asked/dist/staged")
    done = await committed(world)
    assert done.sha is not None
    assert done.left_out == {"product": ("node_modules/", "shop/__pycache__/", "target/")}
    assert files_at(world, done.sha) == {"README.md", "asked/dist/staged", "dist/new", "dist/tracked"}
    assert await world.seen() == (done.sha, BRANCH, 0)
    # They are no work for anybody else either.
    async with world.open() as tree:
        assert await tree.changed_files() == []
        saved, _ = await tree.save(LABEL)
        assert saved is not None
        assert saved.files == 0
    assert files_at(world, saved.sha) == files_at(world, done.sha)
    assert (await summarize(world.clone, {world.path: BRANCH}))[world.path].changed_files == 0
    async with world.open() as tree:
        await tree.drop_changes(saved.sha)
    assert (world.path / "node_modules" / "x" / "dist" / "y").is_file()


async def test_conflict_markers_are_never_committed(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "idea")
    world.agent_commits({"README.md": "one\n"})
    world.agent("switch", "-q", BRANCH)
    world.agent_commits({"README.md": "two\n"})
    (world.path / "other").write_text("1")
    await (await world.looked_at()).git("merge", "idea", check=False, environment=BOT.environment)
    assert await committed(world) == Committed(None, unresolved=("README.md",))
    assert commit.has_conflict_marks(world.path, "README.md")
    assert not commit.has_conflict_marks(world.path, "no-such-file")
    (world.path / "README.md").write_text("one and two\n")  # resolved, but not staged
    assert not commit.has_conflict_marks(world.path, "README.md")
    done = await committed(world)
    assert done.sha is not None
    assert len(git(world.clone.path, "log", "-1", "--format=%P", done.sha).split()) == 2


async def test_a_conflict_without_marks_is_not_resolved_by_itself(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "idea")
    world.agent_commits({"logo.png": "one\0"})
    world.agent("switch", "-q", BRANCH)
    world.agent_commits({"logo.png": "two\0"})
    await (await world.looked_at()).git("merge", "idea", check=False, environment=BOT.environment)
    assert await committed(world) == Committed(None, unresolved=("logo.png",))
    (world.path / "logo.png").write_text("three\0")
    assert (await committed(world)).sha


async def test_a_file_that_one_side_deleted_is_not_resolved_by_itself(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "idea")
    world.agent_commits({"README.md": "one\n"})
    world.agent("switch", "-q", BRANCH)
    world.agent("rm", "-q", "README.md")
    world.agent("commit", "-q", "-m", "Drop it")
    await (await world.looked_at()).git("merge", "idea", check=False, environment=BOT.environment)
    assert await committed(world) == Committed(None, unresolved=("README.md",))


async def test_a_head_on_the_branch_is_left_alone(world: GitRepositories) -> None:
    assert await returned(world) is None


@pytest.mark.parametrize("move", [("switch", "-q", "-c", "idea"), ("checkout", "-q", "--detach")])
async def test_commits_on_another_branch_are_brought_back(world: GitRepositories, move: tuple[str, ...]) -> None:
    world.agent(*move)
    mine = world.agent_commits({"a": "1"})
    (world.path / "uncommitted").write_text("kept")
    assert await returned(world) is None
    assert world.agent("rev-parse", "--symbolic-full-name", "HEAD", BRANCH).split() == [f"refs/heads/{BRANCH}"] * 2
    assert world.agent("rev-parse", "HEAD") == mine
    assert world.agent("status", "--porcelain") == "?? uncommitted"


async def test_unrelated_work_is_kept_and_named_with_its_files(world: GitRepositories) -> None:
    on_branch = world.agent_commits({"mine": "1"})
    world.agent("switch", "-q", "--orphan", "elsewhere")
    stray = world.agent_commits({"stray": "1"})
    (world.path / "line\nbreak").write_text("untracked")
    (world.path / "stray").write_text("edited")
    kept = await returned(world)
    assert isinstance(kept, StrayWork)
    assert kept.ref == RESCUE
    assert git(world.clone.path, "rev-parse", f"{RESCUE}^") == stray
    assert files_at(world, RESCUE) == {"stray", "line\nbreak"}
    assert git(world.clone.path, "show", f"{RESCUE}:stray") == "edited"
    assert world.agent("rev-parse", "HEAD") == on_branch
    assert world.agent("status", "--porcelain", "--branch") == f"## {BRANCH}"


async def test_files_that_another_branch_ignores_stay_when_the_worktree_returns(world: GitRepositories) -> None:
    world.agent_commits({"results": "on the branch"})
    world.agent("switch", "-q", "--orphan", "elsewhere")
    world.agent("rm", "-q", "-r", "--cached", "--ignore-unmatch", ".")
    (world.path / "results").unlink(missing_ok=True)
    world.agent_commits({".gitignore": "data/\nresults\n"})
    (world.path / "data").mkdir()
    (world.path / "data" / "measured").write_text("hours of work")
    (world.path / "results").write_text("hours of work")
    (world.path / "untracked").write_text("rescued")

    stray = await returned(world)

    assert stray == StrayWork(RESCUE, ("data/measured",))
    assert (world.path / "data" / "measured").read_text() == "hours of work"
    assert (world.path / "results").read_text() == "on the branch"
    assert git(world.clone.path, "show", f"{RESCUE}:results") == "hours of work", "what was in the way is rescued"
    assert git(world.clone.path, "show", f"{RESCUE}:untracked") == "rescued"
    assert world.agent("status", "--porcelain") == "?? data/"


async def test_no_merge_overwrites_an_ignored_file(world: GitRepositories) -> None:
    world.agent_commits({".gitignore": "results\n"})
    (world.path / "results").write_text("hours of work")
    world.someone_pushes(BRANCH, {"results": "theirs"}, start="origin/main")
    assert (await world.pushed()).how == "parked"
    assert (world.path / "results").read_text() == "hours of work"


async def test_an_unfinished_rebase_is_ended(world: GitRepositories) -> None:
    world.someone_pushes("main", {"README.md": "theirs\n"})
    mine = world.agent_commits({"README.md": "mine\n"})
    await world.update()
    await (await world.looked_at()).git(
        "rebase", "origin/main", check=False, environment=BOT.environment | {"GIT_EDITOR": "true"}
    )
    assert isinstance(await returned(world), StrayWork)
    assert world.agent("rev-parse", "HEAD") == mine
    assert world.agent("status", "--porcelain", "--branch") == f"## {BRANCH}"
    assert "rebase" not in world.agent("status")


async def test_a_return_to_the_branch_that_is_cut_off_brings_no_stray_work_to_it(
    world: GitRepositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = world.agent_commits({"mine": "1", "both": "mine"})
    world.agent("switch", "-q", "--detach", "origin/main")
    world.agent_commits({"stray": "1", "both": "stray"})
    (world.path / "both").write_text("changed")
    (world.path / "new").write_text("new")
    git_of_checkout = Checkout.git

    async def is_killed(checkout: Checkout, *args: str, **options: Unpack[Options]) -> Completed:
        if args[0] == "reset":
            raise GitError(GitProblem.KILLED, "reset", "")
        return await git_of_checkout(checkout, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Checkout, "git", is_killed)
        with pytest.raises(GitError):
            await returned(world)
    (world.path / "stray").unlink()

    async with world.open() as tree:
        await tree.look(BRANCH)
        assert await world.seen() == (mine, BRANCH, 0)
    assert (world.path / "both").read_text() == "mine"
    assert not (world.path / "new").exists()
    assert git(world.clone.path, "show", f"{RESCUE}:both", f"{RESCUE}:new") == "changednew"


async def test_one_branch_is_pushed_and_nothing_else(world: GitRepositories) -> None:
    world.agent("branch", "idea")
    git(world.clone.path, "tag", "-a", "-m", "x", "v1", "refs/remotes/origin/main")
    world.agent_commits({"a": "1"})
    after = world.agent_commits({"b": "1"})
    assert await world.pushed() == Pushed("pushed")
    assert world.remote_tip(BRANCH) == after
    assert git(world.remote, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main",
        f"refs/heads/{BRANCH}",
    ]
    assert await world.pushed() == Pushed("nothing")
    again = world.agent_commits({"c": "1"})
    assert await world.pushed() == Pushed("pushed")
    assert world.remote_tip(BRANCH) == again


async def test_a_branch_without_a_commit_of_its_own_is_not_pushed(world: GitRepositories) -> None:
    assert await world.pushed() == Pushed("nothing")


async def test_the_work_is_merged_with_a_simultaneous_push(world: GitRepositories) -> None:
    mine = world.agent_commits({"mine": "1"})
    theirs = world.someone_pushes(BRANCH, {"theirs": "1"}, start="origin/main")
    assert await world.pushed() == Pushed("merged")
    assert git(world.remote, "rev-parse", f"{BRANCH}^1", f"{BRANCH}^2").split() == [mine, theirs]
    assert (world.path / "theirs").exists()


async def test_a_merge_that_is_cut_off_is_no_work_and_is_done_again(world: GitRepositories) -> None:
    mine = world.agent_commits({"mine": "1"})
    world.someone_pushes(BRANCH, {"theirs": "1", "README.md": "theirs\n"}, start="origin/main")
    async with world.open() as tree:
        checkout = await tree.checkout()
        (world.state / "index.lock").touch()
        with pytest.raises(GitError):
            await push(checkout, Push(BRANCH, "x", BOT), unchecked)
    (world.path / "theirs").write_text("1")
    (world.path / "README.md").unlink()

    async with world.open() as tree:
        await tree.look(BRANCH)
    assert await world.seen() == (mine, BRANCH, 0)

    assert await world.pushed() == Pushed("merged")
    assert (world.path / "README.md").read_text() == "theirs\n"


async def test_the_work_is_parked_if_a_simultaneous_push_conflicts(world: GitRepositories) -> None:
    mine = world.agent_commits({"README.md": "mine\n"})
    theirs = world.someone_pushes(BRANCH, {"README.md": "theirs\n"}, start="origin/main")
    assert await world.pushed() == Pushed("parked", f"{BRANCH}-turn-7")
    assert world.remote_tip(f"{BRANCH}-turn-7") == mine
    assert world.remote_tip(BRANCH) == theirs
    assert world.agent("rev-parse", "HEAD") == mine
    assert world.agent("status", "--porcelain", "--branch").splitlines() == [f"## {BRANCH}"]


async def test_a_file_in_the_way_of_the_merge_is_not_overwritten(world: GitRepositories) -> None:
    world.agent_commits({"mine": "1"})
    (world.path / "theirs").write_text("left out")
    world.someone_pushes(BRANCH, {"theirs": "1"}, start="origin/main")
    assert (await world.pushed()).how == "parked"
    assert (world.path / "theirs").read_text() == "left out"


async def test_a_refusal_by_the_remote_is_reported_with_its_text(world: GitRepositories) -> None:
    hook = world.remote / "hooks" / "update"
    hook.write_text(f"#!/bin/sh\necho 'GH013: no secrets here' >&2\ntest $1 != refs/heads/{BRANCH}\n")
    hook.chmod(0o755)
    world.agent_commits({"a": "1"})
    refused = await world.pushed()
    assert refused.how == "rejected"
    assert "hook declined" in refused.detail
    assert "GH013: no secrets here" in refused.detail
    assert git(world.remote, "branch", "--list").split() == ["*", "main"]


async def test_an_unreachable_remote_is_not_a_refusal(world: GitRepositories) -> None:
    world.agent_commits({"a": "1"})
    world.remote.rename(world.root / "away")
    with pytest.raises(GitError) as caught:
        await world.pushed()
    assert caught.value.problem is GitProblem.NOT_FOUND


async def test_changes_are_counted_since_the_merge_base(world: GitRepositories) -> None:
    (world.path / "binary").write_bytes(b"\0\1")
    after = world.agent_commits({"README.md": "one\ntwo\n", "line\nbreak": "x\n"})
    await world.bring_home()
    world.someone_pushes("main", {"theirs": "1"})
    await world.update()
    assert await world.clone.count_changes("refs/remotes/origin/main", after) == (3, 3, 1)
    assert await world.clone.count_files("refs/remotes/origin/main", after) == 3


@pytest.mark.parametrize("lets_go", [False, True])
async def test_others_have_the_clone_while_a_commit_is_made_where_its_lock_lets_go(
    world: GitRepositories, lets_go: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_run, free = Git.run, dict[str, bool]()

    async def run(self: Git, *args: str, **options: Any) -> Completed:
        descriptor = try_lock(world.clone.path.with_name(f"{world.clone.path.name}.lock"))
        free.update((arg, descriptor is not None) for arg in args)
        if descriptor is not None:
            os.close(descriptor)
        return await whole_run(self, *args, **options)

    (world.path / "new.txt").write_text("new\n")
    async with world.open() as tree:
        checkout = await require_checkout(replace(tree, lets_go=lets_go), world.path)
        monkeypatch.setattr(Git, "run", run)
        made = await commit_all(checkout, "x", BOT, None)
        wanted = Push(BRANCH, f"{BRANCH}-turn-7", BOT)
        assert (await push(replace(checkout, commit=made.sha), wanted, unchecked)).how == "pushed"

    assert [free[one] for one in ("status", "update-index", "commit")] == [lets_go] * 3
    assert (free["push"], free["update-ref"]) == (False, False)


async def test_edits_of_a_detached_worktree_come_as_a_patch_that_applies(world: GitRepositories) -> None:
    git(world.remote, "update-ref", "refs/pull/7/head", "main")
    path = world.path.with_name("pull-7")
    made = await world.created(DetachedHead(world.remote_tip("main"), "refs/pull/7/head"), path)
    (path / "line\nbreak").write_bytes(b"\0\xff binary")
    async with world.open(path) as tree:
        assert (await tree.commit("x", BOT, None)).sha
        patched = await tree.patch(made.tip)
    patch = world.root / "patch"
    patch.write_bytes(patched)
    git(world.person, "apply", str(patch))
    assert (world.person / "line\nbreak").read_bytes() == b"\0\xff binary"


async def test_no_hook_or_helper_of_the_repository_ever_runs(world: GitRepositories) -> None:
    ran, hooks = world.root / "ran", world.clone.path / "hooks"
    hooks.mkdir(exist_ok=True)
    trap = world.root / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0 $*" >> {ran}\nexit 0\n')
    trap.chmod(0o755)
    names = (
        "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-push", "post-checkout", "post-merge",
        "pre-merge-commit", "reference-transaction", "post-index-change", "pre-rebase",
    )  # fmt: skip
    for name in names:
        (hooks / name).symlink_to(trap)
    planted = (
        "core.hooksPath", "core.fsmonitor", "core.editor", "core.sshCommand", "core.askPass", "gpg.program",
        "credential.helper",
    )  # fmt: skip
    for key in planted:
        git(world.clone.path, "config", key, str(hooks if key == "core.hooksPath" else trap))
    git(world.clone.path, "config", "commit.gpgSign", "true")
    git(world.path, "checkout", "-q", "--force", BRANCH)
    assert ran.read_text().strip(), "the traps do not work"
    ran.unlink()
    (world.path / "a").write_text("1")
    assert await returned(world) is None
    assert (await committed(world)).sha
    world.someone_pushes(BRANCH, {"theirs": "1"}, start="origin/main")
    assert await world.pushed() == Pushed("merged")
    await world.created(path=world.path)
    assert not ran.exists(), ran.read_text()


@pytest.mark.parametrize("branch", ["threadtree/issue-1", 'odd"name/grün'])
async def test_git_reads_which_commit_of_a_branch_was_pushed(world: GitRepositories, branch: str) -> None:
    def read() -> str:
        return git(world.clone.path, "config", "--get-all", f"branch.{branch}.threadtree-published")

    async with world.open() as tree:
        others = git(world.clone.path, "config", "--list")
        for digit in "123":
            await branch_history.record_pushed(tree, branch, digit * 40)
            assert read() == digit * 40 == await branch_history.last_pushed(tree.clone, branch)
        git(world.clone.path, "config", f"branch.{branch}.threadtree-published", "5" * 40)
        git(world.clone.path, "config", "branch.other.threadtree-published", "5" * 40)
        await branch_history.record_pushed(tree, branch, "4" * 40)
        assert (read(), git(world.clone.path, "config", "branch.other.threadtree-published")) == ("4" * 40, "5" * 40)
        assert git(world.clone.path, "config", "--list").startswith(others)


@pytest.mark.parametrize("where", ["published", "own"])
async def test_a_commit_that_brings_back_an_older_file_is_imported(world: GitRepositories, where: str) -> None:
    world.agent_commits({"old.txt": "from before\n"})
    world.agent_commits({"old.txt": "newer\n"})
    await world.bring_home()
    # With a bitmap git leaves out of a pack all that older commits have.
    if where == "published":
        await world.publish()
        await world.update()
        store = {"GIT_OBJECT_DIRECTORY": str(world.clone.path / PUBLISHED)}
        await world.clone.git.on_clone(world.clone.path, "repack", "-adbq", environment=store)
    else:
        world.agent("repack", "-adbq")
    before = world.agent_commits({"old.txt": "from before\n"})
    await world.bring_home()
    assert await world.clone.commit_at(f"refs/heads/{BRANCH}") == before
