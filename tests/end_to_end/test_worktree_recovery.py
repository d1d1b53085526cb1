"""Worktrees and clones that were damaged by hand are repaired or made again, and the thread is told."""

import shutil
from pathlib import Path

from tests.end_to_end.conftest import Worlds
from tests.support.git_repositories import git
from tests.support.world import Talk, World


async def an_issue_with_work(world: World) -> Talk:
    issue = await world.maria.opens_issue("Greet people")
    await issue.says("@threadtree-bot remember blue\nwrite hello.txt: hello")
    await issue.hears("1 file +1 −0")
    return issue


def leave_a_file(worktree: str) -> None:
    Path(worktree, "precious.txt").write_text("nobody committed this")


async def test_what_is_at_its_path_is_kept_and_the_worktree_is_created_again(world: World) -> None:
    issue = await an_issue_with_work(world)
    [path] = await world.worktrees("path")
    leave_a_file(path)
    Path(path, ".git").unlink()  # noqa: ASYNC240

    await issue.says("@threadtree-bot recall\nappend hello.txt: again")

    answer = await issue.hears("were checked out again from `threadtree/issue-1`", "I remember: nothing.", "1 file +")
    assert "This thread's files were damaged" in answer
    assert (await world.files("threadtree/issue-1"))["hello.txt"] == "hello\nagain"
    assert await world.worktrees("path", "state") == [(path, "ready")]
    [place] = (world.data_dir / "kept").glob("issue-1.*Z.*[!t]")
    assert f"The damaged files are kept on the bot's machine as `kept/{place.name}`." in answer
    assert await world.database.fetchval("select kept from rescues") == place.name


async def test_a_damaged_clone_is_kept_with_the_directories_of_its_worktrees_and_fetched_anew(world: World) -> None:
    issue = await world.maria.opens_issue("Half done")
    await issue.says("@threadtree-bot remember blue\nwrite half.txt: half\ncommit Half\nfail after the commit")
    await issue.hears("**Failed:**")
    other = await world.maria.opens_issue("Another", "@threadtree-bot remember red\nwrite other.txt: other")
    await other.hears("1 file +")
    leave_a_file(str(world.data_dir / "worktrees" / "acme" / "shop" / "issue-2"))
    clone = world.data_dir / "repos" / "acme" / "shop.git"
    unpushed = git(clone, "rev-parse", "threadtree/issue-1")
    (clone / "refs" / "heads" / "broken").write_text(f"{'01' * 20}\n")

    await issue.says("@threadtree-bot recall\nwrite rest.txt: rest")

    answer = await issue.hears(
        "The bot's copy of the repository was damaged and was fetched again.",
        "This thread's files were damaged and were checked out again from `threadtree/issue-1`",
        "I remember: nothing.",
        "1 file +",
    )
    [kept] = (world.data_dir / "kept").glob("shop.git.*")
    assert f"kept on the bot's machine as `kept/{kept.name}`" in answer
    assert git(kept, "rev-parse", "threadtree/issue-1") == unpushed
    [directory] = (world.data_dir / "kept").glob("issue-1.*/half.txt")
    assert f"`kept/{directory.parent.name}`" in answer
    assert (await world.files("threadtree/issue-1")).keys() == {"README.md", "rest.txt"}

    await other.says("@threadtree-bot recall\nappend other.txt: again")

    answer = await other.hears("were checked out again from `threadtree/issue-2`", "I remember: nothing.", "1 file +")
    [directory] = (world.data_dir / "kept").glob("issue-2.*/precious.txt")
    assert f"`kept/{directory.parent.name}`" in answer
    assert (await world.files("threadtree/issue-2"))["other.txt"] == "other\nagain"
    reasons = await world.database.fetch("select end_reason from sessions where end_reason is not null")
    assert [row["end_reason"] for row in reasons] == ["worktree-missing", "worktree-missing"]


def cut_off(clone: Path, path: Path) -> None:
    """Leave what a kill leaves in the middle of a checkout of `main`: a file is gone already."""
    commits = git(clone, "rev-parse", "refs/heads/threadtree/issue-1", "refs/remotes/origin/main").split()
    (clone / "worktrees" / path.name / "threadtree-checkout").write_text(" ".join(commits))
    (path / "hello.txt").unlink()


async def test_work_on_another_branch_from_an_earlier_request_is_reported(world: World) -> None:
    issue = await an_issue_with_work(world)
    await issue.says("@threadtree-bot switch idea\nwrite idea.txt: idea\ncommit Idea\nfail on the way")
    await issue.hears("**Failed:**")

    await issue.says("@threadtree-bot echo prompt")

    await issue.hears(
        "An earlier request left `idea` checked out. "
        "Its commits go to `threadtree/issue-1` if they build on that branch.",
        'from="git">idea&lt;/data-',
    )
    assert (await world.files("threadtree/issue-1")).keys() == {"README.md", "hello.txt", "idea.txt"}


async def test_a_lost_record_of_git_in_a_sandbox_costs_neither_files_nor_context(
    a_world: Worlds, sandboxed_settings: dict[str, str]
) -> None:
    async with a_world(sandboxed_settings) as world:
        issue = await world.maria.opens_issue("Half done")
        await issue.says("@threadtree-bot remember blue\nwrite half.txt: half\ncommit Half\nwrite rest.txt: rest\nfail")
        await issue.hears("**Failed:**")
        shutil.rmtree(world.data_dir / "repos" / "acme" / "shop.git")

        await issue.says("@threadtree-bot recall\nwrite more.txt: more")

        await issue.hears(
            "Git had lost its record of this thread's files, and the bot repaired it. Files and commits are unchanged.",
            "I remember: blue.",
        )
        assert (await world.files("threadtree/issue-1")).keys() == {"README.md", "half.txt", "rest.txt", "more.txt"}


async def test_a_lost_context_is_told_where_there_was_one(world: World) -> None:
    issue = await world.maria.opens_issue("Lost", "@threadtree-bot say First.")
    await issue.hears("First.")
    for ends_context in (False, True):
        if ends_context:
            await issue.says("/reset-context")
            await issue.hears("AI context reset.")
        [path] = await world.worktrees("path")
        shutil.rmtree(path)
        await issue.says("@threadtree-bot say Next.")
        answer = await issue.hears("Next.", "This thread's files were missing and were checked out again from")
        assert ("without its earlier context" in answer) is not ends_context
