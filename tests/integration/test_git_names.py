"""Unusual file and branch names are checked out, edited, committed and pushed unchanged."""

import os
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot.model import HeadBranch, IssueBranch
from bot.thread import reasons
from bot.tree.clone.clone import CheckoutRefused
from bot.tree.commit import Committed
from bot.tree.push import Pushed
from bot.tree.rescue.message import RescueLabel
from bot.tree.reset import WasReset
from tests.support.git_repositories import BOT, GitRepositories, git

FILES = [
    b"with space",
    b"line\nbreak",
    b"tab\there",
    b"\xff\xfe not utf-8",
    "é composed".encode(),
    unicodedata.normalize("NFD", "é decomposed").encode(),
    b"README",
    b"readme",
    b"x" * 255,
    b"-dash",
    b":(glob)*",
    b'"quoted"',
    b"back\\slash",
    b"$(touch x)",
]
BRANCHES = [
    "$(touch x)",
    "a;touch${IFS}x",
    'it\'s-"quoted"',
    "`x`|&>",
    "ünï/→",
    "a/-b",
    "refs/heads/main",
    "x" * 200,
    "x@y",
    "HEAD2",
]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


def put(folder: Path, name: bytes, content: str) -> None:
    Path(os.fsdecode(os.path.join(bytes(folder), name))).write_text(content)  # noqa: PTH118


def blobs(world: GitRepositories, branch: str) -> dict[str, str]:
    listed = git(world.remote, "ls-tree", "-r", "-z", f"refs/heads/{branch}")
    return {line.split("\t", 1)[1]: line.split()[2] for line in listed.split("\0") if line}


async def committed_and_pushed(world: GitRepositories, branch: str) -> Committed:
    async with world.open() as tree:
        done = await tree.commit("All of it", BOT, None)
    assert done.sha is not None, done
    assert await world.pushed(branch) == Pushed("pushed")
    return done


async def test_file_names_of_every_kind_are_checked_out_edited_and_pushed(world: GitRepositories) -> None:
    for name in FILES:
        put(world.person, name, "theirs")
    world.push_commit("main", {})
    before = blobs(world, "main")
    await world.created()
    for name in FILES:
        put(world.path, name, "mine")
        put(world.path, name[:250] + b".new", "mine")
    await committed_and_pushed(world, "threadtree/issue-1")
    after = blobs(world, "threadtree/issue-1")
    assert after.keys() == before.keys() | {os.fsdecode(name[:250] + b".new") for name in FILES}
    assert len({after[os.fsdecode(name)] for name in FILES}) == 1


async def test_pointers_to_large_files_stay_pointers(world: GitRepositories) -> None:
    world.someone_pushes("main", {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "a.bin": POINTER})
    await world.created()
    assert (world.path / "a.bin").read_text() == POINTER
    (world.path / "b.bin").write_text(POINTER)
    await committed_and_pushed(world, "threadtree/issue-1")
    after = blobs(world, "threadtree/issue-1")
    assert after["a.bin"] == after["b.bin"]


@pytest.mark.parametrize("address", ["https://example.invalid/private.git", "../../clone", "ext::sh -c 'touch x'"])
async def test_submodules_are_left_empty_and_are_pushed_as_they_were(world: GitRepositories, address: str) -> None:
    (world.person / ".gitmodules").write_text(f'[submodule "lib"]\n\tpath = lib\n\turl = "{address}"\n')
    inside = git(world.person, "rev-parse", "HEAD")
    git(world.person, "update-index", "--add", "--cacheinfo", f"160000,{inside},lib")
    git(world.person, "add", ".gitmodules")
    git(world.person, "commit", "-q", "-m", "a submodule")
    git(world.person, "push", "-q", "origin", "HEAD:main")
    made = await world.created()
    assert list((world.path / "lib").iterdir()) == []
    assert await world.seen() == (made.tip, made.branch, 0)
    (world.path / "new").write_text("1")
    await committed_and_pushed(world, "threadtree/issue-1")
    assert blobs(world, "threadtree/issue-1")["lib"] == inside


@pytest.mark.parametrize("branch", BRANCHES)
async def test_branch_names_are_never_options_or_patterns(world: GitRepositories, branch: str) -> None:
    branch = branch.replace(" ", "-")
    world.someone_pushes("plain", {"a": "1"}, start="origin/main")
    git(world.remote, "update-ref", f"refs/heads/{branch}", "refs/heads/plain")
    made = await world.created(HeadBranch(branch))
    assert made.branch == branch
    (world.path / "mine").write_text("1")
    await committed_and_pushed(world, branch)
    assert blobs(world, branch).keys() == {"README.md", "a", "mine"}
    assert {entry.name for entry in world.path.iterdir()} == {".git", "README.md", "a", "mine"}
    assert not [*world.root.rglob("x")]


async def test_a_branch_named_like_the_folder_of_issues_branches_is_no_obstacle(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    theirs = world.path.with_name("pull-7")
    world.someone_pushes("threadtree", {".threadtree/setup": "true"})

    made = await world.created(HeadBranch("threadtree"), theirs)
    assert made.branch == "threadtree"
    assert (await world.created()).branch == "threadtree-issue-1"
    world.agent_commits({"a": "1"})
    assert await world.pushed("threadtree-issue-1") == Pushed("pushed")
    async with world.open() as tree:
        label = RescueLabel(1, "threadtree-issue-1", (1,), datetime(2025, 1, 2, tzinfo=UTC))
        after = await tree.reset(IssueBranch(1), label)
    assert isinstance(after, WasReset)
    assert after.branch == "threadtree-issue-1-2"
    # The name goes on to be used where the obstacle is gone.
    git(world.remote, "branch", "-D", "threadtree")
    second = await world.created(IssueBranch(1), world.path.with_name("again"))
    assert second.branch == "threadtree-issue-1"


async def test_a_branch_named_like_the_folder_that_appears_later_is_no_race(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    await world.created()
    mine = world.agent_commits({"a": "1"})
    world.someone_pushes("threadtree", {"b": "1"}, start="origin/main")
    done = await world.pushed("threadtree/issue-1")
    assert done == Pushed("name-taken", "threadtree-issue-1")
    assert world.remote_tip("threadtree-issue-1") == mine
    assert world.agent("rev-parse", "HEAD") == mine, "nothing was merged"

    refused = await world.create(HeadBranch("threadtree"), world.path.with_name("pull-7"))
    assert refused == CheckoutRefused(reasons.branch_name_taken("threadtree", "threadtree/issue-1"))
