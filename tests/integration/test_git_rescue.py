"""Which work exists only here, how it is kept and described, and which work no commit can hold."""

import os
import shutil
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bot import refs
from bot.tree.git.errors import GitError
from bot.tree.rescue.message import RescuedCommits, RescueLabel, drop_rescue, list_rescues, read_rescue, rescue_bytes
from bot.tree.rescue.message import write as write_message
from bot.tree.rescue.save import Rescued, Secured
from tests.support.git_repositories import GitRepositories, git
from tests.support.worktree_states import BASE, BRANCH, photo, write

AT = datetime(2025, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
REF = refs.rescue_ref("7", AT)


@pytest.fixture
async def world(tmp_path: Path) -> GitRepositories:
    return await GitRepositories.make(tmp_path, "bwrap", BASE).with_worktree()


async def rescued(world: GitRepositories, branch: str | None = BRANCH) -> Secured:
    async with world.open() as tree:
        return await tree.save(RescueLabel(7, branch, (1, 2), AT))


async def kept(world: GitRepositories) -> Rescued:
    found, why = await rescued(world)
    assert found is not None
    assert why is None
    return found


async def kept_whole(world: GitRepositories) -> tuple[Rescued, str]:
    found, why = await rescued(world)
    assert found is not None
    assert why is not None
    return found, why


def rescue_refs(world: GitRepositories) -> list[str]:
    return git(world.clone.path, "for-each-ref", "--format=%(refname)", refs.RESCUE_PREFIX).split()


def reaches(world: GitRepositories, rescue: str, commit: str) -> bool:
    return commit in git(world.clone.path, "rev-list", rescue).split()


async def test_an_attribute_without_a_value_is_no_obstacle(world: GitRepositories) -> None:
    write(world, ".gitattributes", "* text=\n*.c filter= eol=crlf\n")
    write(world, "a.c", "one\r\n")
    rescue = await kept(world)
    assert git(world.clone.path, "cat-file", "-s", f"{rescue.sha}:a.c") == "5"


async def test_published_work_needs_no_rescue(world: GitRepositories) -> None:
    write(world, "ignored-file")
    (world.path / "README.md").touch()
    assert await rescued(world) == (None, None)
    world.agent_commits({"a": "1"})
    await world.publish()
    await world.update()
    assert await rescued(world) == (None, None)
    assert rescue_refs(world) == []


async def test_nothing_is_left_beside_the_index(world: GitRepositories) -> None:
    write(world, "new")
    before = {name.name for name in world.state.iterdir()}
    (world.state / "threadtree-git-of-a-killed-rescue").mkdir()
    (world.state / "threadtree-git-link").symlink_to(world.root)
    await kept(world)
    assert {name.name for name in world.state.iterdir()} == before


async def test_a_rescue_describes_its_contents(world: GitRepositories) -> None:
    commit = world.agent_commits({"a": "1"})
    write(world, "README.md", "staged\n")
    world.agent("add", "README.md")
    write(world, "new")
    found = await kept(world)
    assert (found.ref, found.files, found.commits) == (REF, 2, 1)
    assert git(world.clone.path, "rev-parse", REF) == found.sha
    (listed,) = await list_rescues(world.clone)
    assert (listed.ref, listed.sha, listed.label) == (REF, found.sha, RescueLabel(7, BRANCH, (1, 2), AT))
    assert (listed.kept.head, listed.kept.files, listed.kept.commits) == (commit, 2, 1)
    assert listed.kept.staged is not None
    assert git(world.clone.path, "show", f"{listed.kept.staged}:README.md") == "staged"
    assert git(world.clone.path, "log", "-1", "--format=%P", REF).split() == [commit, listed.kept.staged]
    assert await read_rescue(world.clone, found.sha) == listed.kept
    shown = git(world.clone.path, "log", "-1", "--format=%an <%ae>%n%cI%n%B", REF)
    assert shown.startswith("Threadtree <threadtree@localhost>\n2025-01-02T03:04:05")
    assert "Rescue of worktree 7 on threadtree/issue-1" in shown
    assert "#1, #2" in shown


async def test_a_repeated_rescue_leaves_no_trace_and_overwrites_none(world: GitRepositories) -> None:
    write(world, "new", "first\n")
    first = await kept(world)
    assert await kept(world) == first
    write(world, "new", "second\n")
    second = await kept(world)
    assert second.ref == refs.rescue_ref("7", AT + timedelta(microseconds=1))
    assert rescue_refs(world) == [first.ref, second.ref]
    assert git(world.clone.path, "show", f"{first.ref}:new") == "first"


async def test_a_rescue_can_be_measured_and_dropped(world: GitRepositories) -> None:
    write(world, "new", os.urandom(100_000))
    found = await kept(world)
    assert 100_000 < await rescue_bytes(world.clone, REF) < 110_000
    async with world.open() as tree:
        await drop_rescue(tree, REF)
        await drop_rescue(tree, REF)
        with pytest.raises(refs.InvalidNameError):
            await drop_rescue(tree, "refs/heads/main")
    assert await list_rescues(world.clone) == []
    assert await read_rescue(world.clone, found.sha[::-1]) is None


async def test_other_refs_under_a_rescues_name_are_no_obstacle(world: GitRepositories) -> None:
    tip = git(world.clone.path, "rev-parse", BRANCH)
    for name in ("x/y", "7/not-a-time", "7/20250102T030405.678901Z", "word/20250102T030405.678901Z"):
        git(world.clone.path, "update-ref", refs.RESCUE_PREFIX + name, tip)
    (listed,) = await list_rescues(world.clone)
    assert (listed.label, listed.kept.head) == (RescueLabel(7, None, (), AT), tip)


async def test_a_message_is_trusted_only_about_its_own_parents(world: GitRepositories) -> None:
    tip = git(world.clone.path, "rev-parse", BRANCH)
    lie = write_message(
        RescueLabel(7, BRANCH, (), AT), RescuedCommits(head=tip, stashes=(tip,), others=(tip,))
    ).decode()
    forged = git(world.clone.path, "commit-tree", "-m", lie, f"{tip}^{{tree}}")
    found = await read_rescue(world.clone, forged)
    assert found is not None
    assert found.parents == ()


@pytest.mark.parametrize("where", ["nested", "deep/er/nested", "dir", "nested without a commit"])
async def test_a_repository_inside_is_kept_whole(world: GitRepositories, where: str) -> None:
    world.agent("init", "-q", where)
    if "without" not in where:
        world.agent("-C", where, "commit", "-q", "--allow-empty", "-m", "its own")
    found, why = await kept_whole(world)
    assert f"{where}/" in why
    assert (found.files, found.commits) == (0, 0)
    kept = await read_rescue(world.clone, found.sha)
    assert kept is not None
    assert kept.head == world.agent("rev-parse", "HEAD"), "the commit that the directory was at is on record"
    write(world, "new")
    found, _ = await kept_whole(world)
    assert git(world.clone.path, "show", f"{found.ref}:new") == "new"


async def test_an_ignored_repository_is_as_ignored_as_all_else_there(world: GitRepositories) -> None:
    world.agent("init", "-q", "build/dependency")
    assert await rescued(world) == (None, None)


@pytest.fixture
def submodule(world: GitRepositories) -> str:
    """Check out a submodule in the worktree, clean and complete on GitHub."""
    library = world.root / "library.git"
    git(world.root, "init", "-q", "--bare", "--initial-branch=main", str(library))
    git(world.root, "clone", "-q", str(library), str(world.root / "library"))
    git(world.root / "library", "commit", "-q", "--allow-empty", "-m", "one")
    git(world.root / "library", "push", "-q", "origin", "HEAD:main")
    git(world.person, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
    world.push_commit("main", {"unrelated": "1\n"})
    return str(library)


async def test_submodules_are_rescued(world: GitRepositories, submodule: str) -> None:
    await world.update()
    await (await world.looked_at()).git("merge", "-q", "--ff-only", "refs/remotes/origin/main")
    assert await rescued(world) == (None, None), "not checked out"
    write(world, "lib/stray")
    assert "lib" in (await kept_whole(world))[1]
    (world.path / "lib" / "stray").unlink()
    modules = world.state / "modules" / "lib"
    modules.parent.mkdir()
    git(world.root, "clone", "-q", "--separate-git-dir", str(modules), submodule, str(world.root / "checkout"))
    admin = (world.path / ".git").read_text().removeprefix("gitdir: ").strip()
    (world.path / "lib" / ".git").write_text(f"gitdir: {admin}/modules/lib\n")
    git(world.root, "config", "--file", str(modules / "config"), "core.worktree", str(world.path / "lib"))
    assert await rescued(world) == (None, None), "clean"
    write(world, "lib/new")
    assert "lib" in (await kept_whole(world))[1]
    world.agent("-C", "lib", "add", "new")
    world.agent("-C", "lib", "commit", "-q", "-m", "two")
    assert "lib" in (await kept_whole(world))[1]
    world.agent("add", "lib")
    world.agent("commit", "-q", "-m", "the outer commit names what only the submodule has")
    assert "lib" in (await kept_whole(world))[1]


async def test_the_commits_of_a_missing_directory_are_rescued(world: GitRepositories) -> None:
    write(world, "README.md", "stashed\n")
    world.agent("stash", "-q")
    stash = world.agent("rev-parse", "refs/stash")
    world.agent("checkout", "-q", "--detach")
    commit = world.agent_commits({"a": "1"})
    shutil.rmtree(world.path)
    found = await kept(world)
    assert found.files == 0
    assert reaches(world, found.ref, commit)
    assert reaches(world, found.ref, stash)


async def test_files_that_cannot_be_read_are_kept_whole(tmp_path: Path) -> None:
    """Run in a sandbox, where permissions apply to root too."""
    world = await GitRepositories.make(tmp_path, "bwrap").with_worktree()
    commit = world.agent_commits({"a": "1"})
    write(world, "secret")
    (world.path / "secret").chmod(0)
    found, why = await kept_whole(world)
    assert "secret" in why
    assert reaches(world, found.ref, commit)
    (world.path / "secret").unlink()
    write(world, "closed/file")
    (world.path / "closed").chmod(0)
    assert "closed" in (await kept_whole(world))[1]
    (world.path / "closed").chmod(stat.S_IRWXU)


async def test_a_name_that_no_clone_should_have_is_kept_whole(tmp_path: Path) -> None:
    world = await GitRepositories.make(tmp_path, "bwrap").with_worktree()
    write(world, "git~1")
    assert (await rescued(world))[1] is not None


async def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    world = await GitRepositories.make(tmp_path).with_worktree()
    write(world, "new")
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    full = "fatal: Unable to process path new: No space left on device"
    program.write_text(f'#!/bin/sh\ncase "$*" in *--add*) echo "{full}" >&2; exit 128;; esac\nexec /usr/bin/git "$@"\n')
    program.chmod(0o755)
    runner = replace(world.clone.git, search_path=f"{program.parent}:/usr/bin:/bin")
    with pytest.raises(GitError, match="No space left"):
        await rescued(replace(world, clone=replace(world.clone, git=runner)))


async def test_private_branches_and_deleted_merge_heads_are_kept(world: GitRepositories) -> None:
    world.agent("switch", "-q", "-c", "idea")
    idea = world.agent_commits({"idea": "1"})
    world.agent("switch", "-q", BRANCH)
    found = await kept(world)
    assert reaches(world, found.ref, idea)


async def test_the_tree_has_no_files_behind_a_link(world: GitRepositories) -> None:
    outside = world.root / "outside"
    outside.mkdir()
    (outside / "a").write_text("a secret\n")
    shutil.rmtree(world.path / "dir")
    (world.path / "dir").symlink_to(outside)
    found = await kept(world)
    tree = git(world.clone.path, "ls-tree", "-r", "--name-only", found.sha).split()
    assert "dir" in tree
    assert "dir/a" not in tree


async def test_a_sparse_checkout_is_not_taken_for_deletions(world: GitRepositories) -> None:
    world.agent("-c", "core.sparseCheckout=true", "update-index", "--skip-worktree", "dir/a", "dir/b")
    (world.path / "dir" / "a").unlink()
    assert await rescued(world) == (None, None)
    write(world, "dir/b", "edited all the same\n")
    found = await kept(world)
    assert git(world.clone.path, "show", f"{found.ref}:dir/a") == "a"
    assert git(world.clone.path, "show", f"{found.ref}:dir/b") == "edited all the same"
    assert found.files == 1


async def test_what_is_staged_where_a_sparse_checkout_has_no_file_is_kept(world: GitRepositories) -> None:
    content = git(world.clone.path, "rev-parse", "refs/remotes/origin/main:dir/b")
    world.agent("update-index", "--cacheinfo", f"100644,{content},dir/a")
    world.agent("update-index", "--skip-worktree", "dir/a")
    (world.path / "dir" / "a").unlink()
    found = await kept(world)
    assert git(world.clone.path, "show", f"{found.ref}:dir/a") == "b"


async def test_modes_and_bytes_are_rescued_as_they_are(world: GitRepositories) -> None:
    before = photo(world.path)
    (world.path / "run.sh").chmod(0o755)
    write(world, "new.lfs", b"1\r\n2\n")
    found = await kept(world)
    assert photo(world.path) != before
    assert "100755" in git(world.clone.path, "ls-tree", found.sha, "run.sh")
    assert git(world.clone.path, "cat-file", "-s", f"{found.ref}:new.lfs") == "5"
