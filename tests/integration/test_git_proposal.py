"""What a pull request of a branch would hold: its commits, its base, and the repository's template."""

from pathlib import Path

import pytest

from bot.tree.proposal import TEMPLATE_BYTES, Proposal, proposal_of
from tests.support.git_repositories import GitRepositories, git

BRANCH = "threadtree/issue-1"


async def proposed(world: GitRepositories, base: str | None = "main") -> Proposal | None:
    await world.update()
    return await proposal_of(world.clone, BRANCH, base, "main")


async def test_the_commits_that_the_base_lacks_are_proposed_in_their_order(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    assert await proposed(world) is None
    start = world.someone_pushes("main", {"a.txt": "a\n"})
    git(world.person, "push", "-q", "origin", f"main:{BRANCH}")
    assert await proposed(world) == Proposal("main", start, is_new=False)

    git(world.person, "checkout", "-q", "-B", BRANCH)
    world.push_commit(BRANCH, {"b.txt": "b\n"})
    tip = world.push_commit(BRANCH, {"c.txt": "c\n"})

    subjects = ("change b.txt", "change c.txt")
    assert await proposed(world) == Proposal("main", tip, subjects, None)
    assert await proposed(world, base="gone") == Proposal("main", tip, subjects, None), "GitHub lacks that base"


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"Pull_Request_Template.md": "root", "docs/pull_request_template.md": "docs"}, "root"),
        ({".github/PULL_REQUEST_TEMPLATE.MD": "github", "pull_request_template.md": "root"}, "github"),
        ({"docs/pull_request_template.txt": "docs"}, "docs"),
        ({".github/PULL_REQUEST_TEMPLATE/one.md": "one"}, "one"),
        ({".github/PULL_REQUEST_TEMPLATE/one.md": "one", ".github/PULL_REQUEST_TEMPLATE/default.md": "two"}, "two"),
        ({".github/PULL_REQUEST_TEMPLATE/one.md": "one", ".github/PULL_REQUEST_TEMPLATE/b.md": "two"}, None),
        ({"pull_request_template.md": "x" * (TEMPLATE_BYTES + 1)}, None),
        ({"src/pull_request_template.md": "elsewhere"}, None),
    ],
)
async def test_the_template_is_found_where_github_looks(
    tmp_path: Path, files: dict[str, str], template: str | None
) -> None:
    world = GitRepositories.make(tmp_path, files=files)
    world.someone_pushes(BRANCH, {"pull_request_template.md": "of the branch"}, start="origin/main")

    found = await proposed(world)

    assert found is not None
    assert found.template == template


async def test_a_link_is_no_template(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    git(world.person, "checkout", "-q", "-B", "main", "origin/main")
    (world.person / "pull_request_template.md").symlink_to("/etc/passwd")
    world.push_commit("main", {"a.txt": "a\n"})
    world.someone_pushes(BRANCH, {"b.txt": "b\n"}, start="origin/main")

    found = await proposed(world)

    assert found is not None
    assert found.template is None


async def test_what_a_later_commit_took_back_is_not_proposed(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    git(world.person, "checkout", "-q", "-B", BRANCH)
    for name in ("a", "b", "c", "d"):
        world.push_commit(BRANCH, {f"{name}.txt": "1\n"})
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    git(world.person, *identity, "revert", "--no-edit", "HEAD~2")  # of b
    git(world.person, *identity, "revert", "--no-edit", "HEAD~1")  # of d
    git(world.person, *identity, "revert", "--no-edit", "HEAD")  # and back
    git(world.person, "push", "-q", "origin", f"HEAD:{BRANCH}")

    found = await proposed(world)

    assert found is not None
    assert found.subjects == ("change a.txt", "change c.txt", "change d.txt")
