"""What an agent leaves in a worktree, and what becomes of one: each kind of work and of damage stands here once."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.support.git_repositories import GitRepositories, git

State = Callable[[GitRepositories], None]


def admin(world: GitRepositories) -> Path:
    return world.clone.path / "worktrees" / "issue-1"


# What an agent leaves


def edit(world: GitRepositories) -> None:
    (world.path / "README.md").write_text("edited")


def staged_edit(world: GitRepositories) -> None:
    edit(world)
    world.agent("add", "-A")


def untracked_file(world: GitRepositories) -> None:
    (world.path / "line\nbreak").write_text("untracked")


def unpushed_commit(world: GitRepositories) -> None:
    world.agent_commits({"a": "1"})


def unpushed_commit_beside_the_branch(world: GitRepositories) -> None:
    world.agent("checkout", "-q", "--detach")
    world.agent_commits({"a": "1"})


def unpushed_branch_under_a_published_head(world: GitRepositories) -> None:
    world.agent_commits({"a": "1"})
    world.agent("checkout", "-q", "--detach", "origin/main")


def hidden_edit(world: GitRepositories) -> None:
    world.agent("update-index", "--skip-worktree", "README.md")
    edit(world)


def unseen_edit(world: GitRepositories) -> None:
    world.agent("update-index", "--assume-unchanged", "README.md")
    edit(world)


def stash(world: GitRepositories) -> None:
    edit(world)
    world.agent("stash", "push", "-q")


def stash_with_a_message(world: GitRepositories) -> None:
    edit(world)
    world.agent("stash", "push", "-q", "-m", "for later")


def bisect(world: GitRepositories) -> None:
    world.agent("bisect", "start")


def submodules(world: GitRepositories) -> None:
    world.agent("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(world.remote), "lib")
    world.agent("-C", "lib", "commit", "--quiet", "--allow-empty", "-m", "Mine")


def nested_repository(world: GitRepositories) -> None:
    git(world.path, "init", "-q", "nested")
    (world.path / "nested" / "mine").write_text("mine")


WORK: list[State] = [
    edit,
    staged_edit,
    untracked_file,
    unpushed_commit,
    unpushed_commit_beside_the_branch,
    unpushed_branch_under_a_published_head,
    hidden_edit,
    unseen_edit,
    stash,
    stash_with_a_message,
    bisect,
    submodules,
    nested_repository,
]


# What becomes of the directory, of git's record of it, and of the clone


def deleted(world: GitRepositories) -> None:
    shutil.rmtree(world.path)


def emptied(world: GitRepositories) -> None:
    deleted(world)
    world.path.mkdir()


def a_file_instead(world: GitRepositories) -> None:
    deleted(world)
    world.path.write_text("somebody's notes")


def a_link_instead(world: GitRepositories) -> None:
    world.path.rename(world.root / "elsewhere")
    world.path.symlink_to(world.root / "elsewhere")


def a_stranger_instead(world: GitRepositories) -> None:
    emptied(world)
    (world.path / "theirs").write_text("theirs")


def git_file_gone(world: GitRepositories) -> None:
    (world.path / ".git").unlink()


def git_file_elsewhere(world: GitRepositories) -> None:
    (world.path / ".git").write_text(f"gitdir: {world.person}/.git\n")


def git_folder_instead(world: GitRepositories) -> None:
    git_file_gone(world)
    git(world.path, "init", "-q")


def without_permissions(world: GitRepositories) -> None:
    world.path.chmod(0o500)


def broken_index(world: GitRepositories) -> None:
    (world.state / "index").write_text("not an index")


def locked_by_somebody(world: GitRepositories) -> None:
    (admin(world) / "locked").write_text("mine")


def lock_that_cannot_be_read(world: GitRepositories) -> None:
    (admin(world) / "locked").unlink()
    (admin(world) / "locked").mkdir()


def half_made(world: GitRepositories) -> None:
    (admin(world) / "locked").write_text("initializing")
    (world.path / "README.md").unlink()


def half_registered(world: GitRepositories) -> None:
    half_made(world)
    (admin(world) / "gitdir").unlink()
    deleted(world)


def record_without_pointer(world: GitRepositories) -> None:
    (admin(world) / "gitdir").unlink()


def record_that_is_no_text(world: GitRepositories) -> None:
    (admin(world) / "HEAD").write_bytes(b"\xff\xfe")


def record_without_head(world: GitRepositories) -> None:
    (admin(world) / "HEAD").unlink()


def record_gone(world: GitRepositories) -> None:
    shutil.rmtree(world.clone.path / "worktrees")


def nothing_at_all(world: GitRepositories) -> None:
    deleted(world)
    record_gone(world)


def clone_gone(world: GitRepositories) -> None:
    shutil.rmtree(world.clone.path)


def clone_and_directory_gone(world: GitRepositories) -> None:
    clone_gone(world)
    deleted(world)


DAMAGE: list[State] = [
    deleted,
    emptied,
    a_file_instead,
    a_link_instead,
    a_stranger_instead,
    git_file_gone,
    git_file_elsewhere,
    git_folder_instead,
    without_permissions,
    broken_index,
    locked_by_somebody,
    lock_that_cannot_be_read,
    half_made,
    half_registered,
    record_without_pointer,
    record_that_is_no_text,
    record_without_head,
    record_gone,
    nothing_at_all,
    clone_gone,
]
