"""Submodules are filled by the host, from what it fetched, in the worktree's sandbox."""

from pathlib import Path

import pytest

from bot.model import IssueBranch
from bot.tree import Removed, submodules
from bot.tree.submodules import repository_at
from tests.support.git_repositories import BOT, LABEL, GitRepositories, git

BRANCH = "threadtree/issue-1"
SERVER = "https://github.example"


@pytest.fixture
def world(tmp_path: Path) -> GitRepositories:
    return GitRepositories.make(tmp_path, "bwrap")


def repository(world: GitRepositories, name: str, files: dict[str, str], **inside: str) -> str:
    """Make a repository on the server with these files and submodules, or go on in it; return its commit."""
    place, work = world.root / f"{name}.git", world.root / "work" / name
    if not place.exists():
        git(world.root, "init", "-q", "--bare", "--initial-branch=main", str(place))
        git(world.root, "clone", "-q", str(place), str(work))
        git(work, "checkout", "-q", "-B", "main")
    for file, text in files.items():
        (work / file).write_text(text)
    names(work, **inside)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", f"change {name}")
    git(work, "push", "-q", "origin", "HEAD:main")
    return git(work, "rev-parse", "HEAD")


def names(work: Path, **inside: str) -> None:
    """Add submodules: `path="URL COMMIT"`."""
    for path, told in inside.items():
        url, commit = told.split(" ")
        with (work / ".gitmodules").open("a") as file:
            file.write(f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n')
        git(work, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
        (work / path).mkdir()


def publish(world: GitRepositories, **inside: str) -> None:
    """Publish submodules on the default branch."""
    git(world.person, "checkout", "-q", "-B", "main", "origin/main")
    names(world.person, **inside)
    world.push_commit("main", {})


async def filled(world: GitRepositories, default: str | None = "main") -> dict[str, str]:
    async with world.open() as tree:
        await tree.update(world.url)
        head = (await tree.checkout()).commit
        assert head is not None
        return await tree.fill_submodules(head, world.root.as_uri(), "octo/hello", default)


async def test_nested_submodules_at_relative_addresses_are_filled(world: GitRepositories) -> None:
    inner = repository(world, "octo/inner", {"deep.txt": "deep\n"})
    lib = repository(world, "octo/lib", {"hello.txt": "hello\n"}, inner=f"../inner.git {inner}")
    publish(world, lib=f"../lib {lib}", other=f"https://elsewhere.example/o/r.git {lib}", gone=f"../gone.git {lib}")
    await world.created()
    assert await filled(world) == {
        "other": submodules.NOT_HERE,
        "gone": submodules.UNREADABLE,
    }
    assert (world.path / "lib" / "inner" / "deep.txt").read_text() == "deep\n"
    status = world.agent("submodule", "status", "--recursive").splitlines()
    assert [line[0] for line in status] == ["-", " ", " ", "-"]
    assert world.agent("status", "--porcelain") == ""
    assert git(world.path, "status", "--porcelain") == ""


async def test_a_submodule_follows_its_pointer_and_what_was_moved_there_stays(world: GitRepositories) -> None:
    first = repository(world, "octo/lib", {"hello.txt": "1\n"})
    publish(world, lib=f"../lib.git {first}")
    await world.created()
    assert await filled(world) == {}
    second = repository(world, "octo/lib", {"hello.txt": "2\n"})
    git(world.person, "update-index", "--cacheinfo", f"160000,{second},lib")
    world.push_commit("main", {})
    async with world.open() as tree:
        await tree.update(world.url)
        assert await tree.check_out(BRANCH, world.remote_tip("main"))
    assert await filled(world) == {}
    assert (world.path / "lib" / "hello.txt").read_text() == "2\n"
    assert world.agent("status", "--porcelain") == ""

    world.agent("-C", "lib", "checkout", "-q", first)
    third = repository(world, "octo/lib", {"hello.txt": "3\n"})
    world.agent("update-index", "--cacheinfo", f"160000,{third},lib")
    world.agent("commit", "-q", "-m", "another pointer")
    await world.bring_home()
    assert await filled(world) == {"lib": submodules.MOVED}
    assert (world.path / "lib" / "hello.txt").read_text() == "1\n"


async def test_a_bump_of_the_pointer_is_committed_and_pushed(world: GitRepositories) -> None:
    first = repository(world, "octo/lib", {"hello.txt": "1\n"})
    second = repository(world, "octo/lib", {"hello.txt": "2\n"})
    publish(world, lib=f"../lib.git {first}")
    await world.created()
    assert await filled(world) == {}
    world.agent("-C", "lib", "checkout", "-q", "origin/main")
    async with world.open() as tree:
        committed = await tree.commit("bump", BOT, None)
        assert committed.left_out == {}
        await tree.adopt(BRANCH)
    assert (await world.pushed()).how == "pushed"
    assert second in git(world.remote, "ls-tree", BRANCH, "lib")
    assert await filled(world) == {}


@pytest.mark.parametrize("change", ["nothing", "a file", "a commit", "a commit in a nested one", "a stash"])
async def test_only_a_submodule_with_work_of_its_own_keeps_the_directory(world: GitRepositories, change: str) -> None:
    inner = repository(world, "octo/inner", {"deep.txt": "deep\n"})
    lib = repository(world, "octo/lib", {"hello.txt": "hello\n"}, inner=f"../inner.git {inner}")
    publish(world, lib=f"../lib.git {lib}")
    await world.created()
    assert await filled(world) == {}
    place = "lib/inner" if change == "a commit in a nested one" else "lib"
    if change != "nothing":
        (world.path / place / ("hello.txt" if change == "a stash" else "new.txt")).write_text("mine\n")
    if change.startswith("a commit"):
        world.agent("-C", place, "checkout", "-q", "-b", "mine")
        world.agent("-C", place, "add", "-A")
        world.agent("-C", place, "commit", "-q", "-m", "mine")
        world.agent("-C", place, "checkout", "-q", "HEAD~1")
    if change == "a stash":
        world.agent("-C", place, "stash", "-q")
    async with world.open() as tree:
        gone = await tree.remove(LABEL, base_branch="main", only_clean=change == "nothing")
    assert isinstance(gone, Removed), gone
    assert (gone.kept is None) == (change == "nothing")


async def test_a_reset_worktree_is_filled_again(world: GitRepositories) -> None:
    lib = repository(world, "octo/lib", {"hello.txt": "hello\n"})
    publish(world, lib=f"../lib.git {lib}")
    await world.created()
    await filled(world)
    (world.path / "lib" / "hello.txt").unlink()
    async with world.open() as tree:
        await tree.update(world.url)
        await tree.reset(IssueBranch(1), LABEL)
    assert not (world.path / "lib" / "hello.txt").exists()
    assert await filled(world) == {}
    assert (world.path / "lib" / "hello.txt").read_text() == "hello\n"


async def test_the_bots_credentials_are_for_what_the_default_branch_and_its_owner_name(world: GitRepositories) -> None:
    none = "0" * 39 + "1"
    lib = repository(world, "octo/lib", {"a.txt": "a\n"}, wanted=f"../wanted.git {none}")
    evil = repository(world, "evil/lib", {"a.txt": "a\n"}, nested=f"../../octo/nested.git {none}")
    publish(world, lib=f"../lib.git {lib}", evil=f"../../evil/lib.git {evil}")
    await world.created()
    more = repository(world, "evil/more", {"a.txt": "a\n"}, deeper=f"../../octo/deeper.git {none}")
    names(world.path, named=f"../named.git {none}", more=f"../../evil/more.git {more}")
    git(world.path, "add", ".gitmodules")
    git(world.path, "commit", "-q", "-m", "more")
    found = await filled(world)
    assert found == {
        "lib/wanted": submodules.UNREADABLE, "evil/nested": submodules.NOT_NAMED, "named": submodules.NOT_NAMED,
        "more/deeper": submodules.NOT_NAMED,
    }  # fmt: skip
    asked = {place.parent.name for place in world.clone.path.glob("modules/bot/*/*.git/HEAD")}
    assert asked == {"wanted.git"}
    assert set((await filled(world, None)).values()) == {submodules.NOT_NAMED}


@pytest.mark.parametrize(
    "section",
    [
        '[submodule "lib"]\n\tpath = lib\n\turl = --upload-pack=touch ran\n',
        '[submodule "lib"]\n\tpath = lib\n\turl = ext::sh -c touch% ran\n',
        '[submodule "lib"]\n\tpath = lib\n\turl = file:///etc\n',
        '[submodule "lib"]\n\tpath = lib\n\turl = ../../../../../etc/lib\n',
        '[submodule "../../hooks"]\n\tpath = lib\n\turl = ../lib.git\n',
        '[submodule "lib.update=!touch ran #"]\n\tpath = lib\n\turl = ../lib.git\n',
        '[submodule "lib"]\n\tpath = ../lib\n\turl = ../lib.git\n',
        '[submodule "lib"]\n\tpath = -lib\n\turl = ../lib.git\n',
        "[include]\n\tpath = /etc/passwd\n",
        "no file of git",
        "[submodule",
    ],
)
async def test_what_git_would_not_take_for_a_submodule_stays_empty(world: GitRepositories, section: str) -> None:
    lib = repository(world, "octo/lib", {"hello.txt": "hello\n"})
    git(world.person, "update-index", "--add", "--cacheinfo", f"160000,{lib},lib")
    (world.person / "lib").mkdir()
    world.push_commit("main", {".gitmodules": section})
    await world.created()
    assert set((await filled(world)).values()) <= {submodules.NOT_HERE}
    assert list((world.path / "lib").iterdir()) == []
    assert not list(world.root.glob("**/ran"))


async def test_what_updates_a_submodule_runs_nothing_of_the_repository(world: GitRepositories) -> None:
    lib = repository(world, "octo/lib", {"hello.txt": "hello\n"})
    publish(world, lib=f"../lib.git {lib}")
    with (world.person / ".gitmodules").open("a") as file:
        file.write("\tupdate = !touch ran\n")
    world.push_commit("main", {})
    await world.created()
    assert await filled(world) == {"lib": submodules.REFUSED}
    assert not list(world.root.glob("**/ran"))


@pytest.mark.parametrize(
    ("url", "repository"),
    [
        (f"{SERVER}/a/b.git", "a/b"),
        (f"{SERVER}/a/b", "a/b"),
        (f"{SERVER}/a/b/", "a/b"),
        ("../lib.git", "octo/lib"),
        ("./../lib", "octo/lib"),
        ("../../other/lib.git", "other/lib"),
        ("../../../x/y/z.git", None),
        ("../../lib.git", None),
        ("../..", None),
        ("./lib.git", None),
        (f"{SERVER}.evil.example/a/b.git", None),
        (f"{SERVER}@evil.example/a/b.git", None),
        (f"{SERVER}:444/a/b.git", None),
        (f"{SERVER}/a/../b.git", None),
        (f"{SERVER}/a/b.git?x=y", None),
        (f"{SERVER}/a/b%2f..", None),
        (f"{SERVER}/-u/b", None),
        (f"{SERVER}/a/..", None),
        (f"{SERVER}/a/b\n", None),
        ("http://github.example/a/b.git", None),
        ("git@github.example:a/b.git", None),
        ("ssh://git@github.example/a/b.git", None),
        ("/etc/passwd", None),
        ("", None),
    ],
)
def test_only_addresses_of_the_server_name_a_repository(url: str, repository: str | None) -> None:
    assert repository_at(url, SERVER, "octo/hello") == repository
