"""A person works with git on the host, at the path of a worktree whose agent is in a sandbox."""

from pathlib import Path

import pytest

from bot.tree.clone.on_host import OPERATIONS
from tests.support.git_repositories import BOT, LABEL, RESCUE, GitRepositories, git

BRANCH = "threadtree/issue-1"


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap", {"src/app.py": "1\n"})


async def turn(world: GitRepositories) -> list[str]:
    """Do with the worktree what a turn does after its agent; return the rescues of what was left behind."""
    async with world.open() as tree:
        await tree.return_to_branch(BRANCH, LABEL)
        await tree.commit("work", BOT, None)
        await tree.adopt(BRANCH)
        return tree.kept


def person_commits(world: GitRepositories, name: str, *options: str) -> str:
    (world.path / name).write_text("mine\n")
    git(world.path, "add", name)
    git(world.path, "commit", "-q", "-m", "a person's work", *options)
    return git(world.path, "rev-parse", "HEAD")


def status(world: GitRepositories) -> str:
    return git(world.path, "status", "--porcelain", "--branch")


async def test_git_status_on_the_host_is_true_after_each_step(world: GitRepositories) -> None:
    await world.created()
    on_branch = f"## {BRANCH}"
    assert status(world).split("...")[0] == on_branch
    (world.path / "a.txt").write_text("a\n")
    assert status(world).splitlines()[1:] == ["?? a.txt"]
    await turn(world)
    assert status(world).splitlines()[1:] == []
    world.agent_commits({"b.txt": "b\n"})
    (world.path / "src" / "app.py").write_text("2\n")
    await turn(world)
    assert status(world).splitlines()[1:] == []
    assert git(world.path, "show", "--stat", "--format=%s", "HEAD").startswith("work")

    world.someone_pushes("main", {"theirs.txt": "1\n"})
    async with world.open() as tree:
        await tree.update(world.url)
        await tree.check_out(BRANCH, world.remote_tip("main"))
    assert status(world).splitlines()[1:] == []


async def test_a_persons_commit_is_part_of_the_branch_for_the_next_turn(world: GitRepositories) -> None:
    await world.created()
    (world.path / "a.txt").write_text("a\n")
    await turn(world)
    theirs = person_commits(world, "mine.txt")
    (world.path / "README.md").write_text("edited, not committed\n")

    async with world.open() as tree:
        assert await tree.changed_files() == ["README.md"]
    assert world.agent("rev-parse", "HEAD", BRANCH).split() == [theirs, theirs]
    assert world.agent("status", "--porcelain") == " M README.md"
    world.agent_commits({"b.txt": "b\n"})
    assert await turn(world) == []
    assert theirs in git(world.path, "rev-list", "HEAD").split()
    assert status(world).splitlines()[1:] == []
    pushed = await world.pushed()
    assert pushed.how == "pushed"
    assert theirs in git(world.remote, "rev-list", BRANCH).split()


async def test_a_commit_that_a_person_amends_or_makes_elsewhere_is_followed(world: GitRepositories) -> None:
    await world.created()
    (world.path / "a.txt").write_text("a\n")
    await turn(world)
    amended = person_commits(world, "mine.txt", "--amend")
    assert await turn(world) == []
    assert world.agent("rev-parse", BRANCH) == amended

    git(world.path, "checkout", "-q", "-b", "other")
    elsewhere = person_commits(world, "more.txt")
    async with world.open() as tree:
        checkout = await tree.checkout()
        assert (checkout.branch, checkout.commit, await tree.changed_files()) == ("other", elsewhere, [])
    assert await turn(world) == []  # it descends from the branch, which goes on from there
    assert git(world.path, "rev-parse", "HEAD", BRANCH).split() == [elsewhere, elsewhere]


async def test_what_a_person_commits_while_the_agent_commits_is_kept_and_told(world: GitRepositories) -> None:
    await world.created()
    world.agent_commits({"a.txt": "a\n"})
    theirs = person_commits(world, "mine.txt")
    (kept,) = await turn(world)
    assert git(world.clone.path, "rev-parse", kept) == theirs
    assert (world.path / "mine.txt").read_text() == "mine\n"
    assert "mine.txt" in git(world.path, "ls-tree", "--name-only", "HEAD").split()
    assert await turn(world) == []


async def test_a_branch_that_was_moved_without_files_loses_none_of_its_commits(world: GitRepositories) -> None:
    await world.created()
    tree = git(world.clone.path, "rev-parse", f"{BRANCH}^{{tree}}")
    made = git(world.clone.path, "commit-tree", tree, "-p", BRANCH, "-m", "made in the clone")
    git(world.clone.path, "update-ref", f"refs/heads/{BRANCH}", made)
    (kept,) = await turn(world)
    assert git(world.clone.path, "rev-parse", kept) == made


async def test_an_agent_may_rewrite_its_own_commits(world: GitRepositories) -> None:
    await world.created()
    world.agent_commits({"a.txt": "a\n"})
    await turn(world)
    world.agent("commit", "-q", "--amend", "-m", "better")
    assert await turn(world) == []
    assert git(world.path, "log", "-1", "--format=%s") == "better"


async def test_a_persons_rebase_is_left_alone(world: GitRepositories) -> None:
    await world.created()
    admin = world.view().admin
    git(world.path, "checkout", "-q", "--detach")
    theirs = person_commits(world, "mine.txt")
    for name in OPERATIONS:
        (admin / name).write_text("")
        await turn(world)
        assert (admin / "HEAD").read_text().strip() == theirs
        (admin / name).unlink()


async def test_the_hosts_git_runs_nothing_that_an_agent_has_set_up(world: GitRepositories) -> None:
    await world.created()
    hook = f"#!/bin/sh\ntouch {world.root}/ran\n"
    program = world.path / "program"
    program.write_text(hook)
    program.chmod(0o755)
    world.agent("init", "-q", "sub")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    world.agent("-C", "sub", *identity, "commit", "-q", "--allow-empty", "-m", "one")
    with (world.path / "sub" / ".git" / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {program}\n")
    world.agent("add", "sub")
    world.agent(*identity, "commit", "-q", "-m", "a repository inside")
    world.agent("update-index", "--assume-unchanged", "README.md")
    with (world.view().common / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {program}\n")
    (world.view().common / "hooks" / "post-index-change").write_text(hook)
    (world.view().common / "hooks" / "post-index-change").chmod(0o755)
    (world.path / "README.md").write_text("hidden from git in the sandbox\n")
    async with world.open() as tree:
        await tree.adopt(BRANCH)

    (world.path / "sub" / "new.txt").write_text("1")
    assert " M README.md" in status(world)
    git(world.path, "diff")
    git(world.path, "add", "-A")
    git(world.path, "commit", "-q", "-m", "mine")
    assert not (world.root / "ran").exists()
    git(world.path, "update-index", "--no-assume-unchanged", "sub")
    git(world.path, "status")
    assert (world.root / "ran").exists()  # the attack is one


async def test_a_reset_rescues_what_a_person_committed(world: GitRepositories) -> None:
    await world.created()
    theirs = person_commits(world, "mine.txt")
    async with world.open() as tree:
        await tree.update(world.url)
        secured = await tree.save(LABEL)
    assert secured[0] is not None
    assert secured[0].ref == RESCUE
    assert theirs in git(world.clone.path, "rev-list", RESCUE).split()
