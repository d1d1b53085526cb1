"""A person works with git on the bot's machine, in the worktree of a thread."""

from pathlib import Path

from tests.end_to_end.conftest import Worlds
from tests.support.git_repositories import git

BRANCH = "threadtree/issue-1"


async def test_what_a_person_commits_in_a_worktree_is_pushed_with_the_next_request_or_kept(
    a_world: Worlds, sandboxed_settings: dict[str, str]
) -> None:
    async with a_world(sandboxed_settings) as world:
        talk = await world.maria.opens_issue("Work")
        await talk.says("@threadtree-bot write a.txt: text")
        await talk.hears("1 file +")
        (path,) = (Path(one) for one in world.data_dir.glob("worktrees/acme/shop/*/"))
        assert git(path, "status", "--porcelain") == ""

        (path / "mine.txt").write_text("mine\n")
        git(path, "add", "mine.txt")
        git(path, "commit", "-q", "-m", "A person's work")
        (path / "README.md").write_text("edited\n")
        await talk.says("@threadtree-bot write b.txt: text")
        assert "kept" not in await talk.hears("2 files +")
        assert {"a.txt", "b.txt", "mine.txt"} <= (await world.files(BRANCH)).keys()
        assert (await world.files(BRANCH))["README.md"] == "edited"
        assert "A person's work" in await world.repository.git.run("log", "--format=%s", BRANCH)
        assert git(path, "status", "--porcelain") == ""

        tree = git(path, "rev-parse", "HEAD^{tree}")
        made = git(path, "commit-tree", tree, "-p", "HEAD", "-m", "Made without files")
        (clone,) = world.data_dir.glob("repos/acme/shop.git")
        git(clone, "update-ref", f"refs/heads/{BRANCH}", made)
        await talk.says("@threadtree-bot write c.txt: text")
        said = await talk.hears("could not stay on the branch", "refs/threadtree/rescue/")
        assert git(path, "rev-parse", said.partition("kept there as `")[2].partition("`")[0]) == made
