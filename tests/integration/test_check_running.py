"""A check runs in a real checkout of the commit: what fills it ends it, and nothing stays but what later runs need."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from bot.care.expire import expire
from bot.check import running
from bot.check.reports import Report
from bot.check.running import Check, Checked, check_commit, place_for
from bot.sandbox.bwrap import Bwrap
from tests.support.git_repositories import SANDBOXES, git
from tests.support.node import Node, prepared_node
from tests.support.sleeping_processes import new_sleep, runs

FOLDER = "octo/hello"


@pytest.fixture(params=SANDBOXES)
async def node(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url, request.param) as made:
        yield made


@pytest.fixture
async def sandboxed(tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url, "bwrap") as made:
        yield made


async def checked(
    node: Node, script: str, variables: Mapping[str, str] | None = None, *, commit: str = "", keep: bool = False
) -> Checked:
    """Run a script on a commit, that of the default branch where none is named."""
    [worktree] = [await node.row(row["id"]) for row in await node.db.fetch("select id from worktrees")] or [
        await node.row(await node.add(1))
    ]
    with place_for(node.ctx, FOLDER) as place:
        check = Check(node.ctx, place, script.encode(), variables or {})
        return await check_commit(check, worktree, commit or node.git.remote_tip("main"), keep=keep)


def left(node: Node) -> set[str]:
    """Return what is left in the places of checks."""
    return {file.name for file in node.ctx.checks.glob("*/*/*/*")} - {"lock"}


async def test_its_checkout_is_of_the_commit_and_its_variables_and_reports_are_there(node: Node) -> None:
    await node.add(1)
    before = sorted(one.name for one in (node.git.clone.path / "worktrees").iterdir())
    (node.path(1) / "new.txt").touch()
    script = 'test ! -e new.txt\ngit status --porcelain\necho "ok - $GIVEN" > "$THREADTREE_REPORTS/a.tap"\n'
    script += "git rev-parse HEAD\necho x > new\nexit 3\n"
    done = await checked(node, script.replace("\n", "\r\n"), {"GIVEN": "value"})
    assert replace(done, seconds=0) == Checked(
        "ended with exit status 3", node.git.remote_tip("main"), 0, Report(passed=frozenset({"value"}))
    )
    assert sorted(one.name for one in node.path(1).rglob("*") if one.is_file()) == [".git", "README.md", "new.txt"]
    assert sorted(one.name for one in (node.git.clone.path / "worktrees").iterdir()) == before
    assert left(node) == set()


async def test_a_report_without_end_ends_the_check_and_not_the_turn(sandboxed: Node) -> None:
    sandbox = sandboxed.ctx.git.sandbox
    assert isinstance(sandbox, Bwrap)
    limits = replace(sandbox.enforcement.limits, disk_bytes=4 << 20)
    small = replace(sandbox, enforcement=replace(sandbox.enforcement, limits=limits))
    sandboxed.ctx = replace(sandboxed.ctx, git=replace(sandboxed.ctx.git, sandbox=small))
    sleep = new_sleep()
    done = await checked(sandboxed, f"head -c 8000000 /dev/urandom > $THREADTREE_REPORTS/a.xml\n{sleep}\n")
    assert done.failure is not None
    assert "disk space" in done.failure
    assert not runs(sleep)
    assert left(sandboxed) == set()


async def test_what_a_run_on_the_default_branch_left_is_there_in_the_next_at_the_same_path(node: Node) -> None:
    base = node.git.someone_pushes("main", {".gitignore": "/-env/\n*.o\n", "old.txt": "x\n"})
    commit = node.git.someone_pushes("topic", {"topic.txt": "x\n"}, start="origin/main")
    await node.git.update()
    make = 'mkdir -p -- -env/bin deep "$HOME/.cache"; pwd > -env/bin/here; echo o > deep/a.o\n'
    make += "echo base | tee junk.txt old.txt > $HOME/.cache/pip\n"
    assert (await checked(node, make, commit=base, keep=True)).failure is None

    # It has the packages, and only these: no other file that the base has or left.
    look = "cat ./-env/bin/here $HOME/.cache/pip deep/a.o\nls\ncat old.txt\n"
    look += "echo forged > ./-env/bin/here; echo forged > $HOME/.cache/pip; exit 1\n"
    for _ in range(2):
        told = (await checked(node, look, commit=commit)).output.split()
        assert told[1:] == ["base", "o", "-env", "README.md", "deep", "old.txt", "topic.txt", "x"]
        assert told[0].endswith("checks/octo/hello/0/tree"), "nothing of an unmerged commit's run stays"
    assert "./-env" not in (await checked(node, "ls -d ./-env; exit 1", {"GIVEN": "1"}, commit=commit)).output.split()
    with place_for(node.ctx, FOLDER):
        assert (await checked(node, "ls -d ./-env; pwd; exit 1", commit=commit)).output.endswith("/1/tree"), "beside it"


async def test_a_commit_that_puts_a_link_where_packages_were_reaches_nothing(sandboxed: Node, tmp_path: Path) -> None:
    node, outside = sandboxed, tmp_path / "outside"
    outside.mkdir()
    base = node.git.someone_pushes("main", {".gitignore": "deep/env/\n", "deep/x": "x\n"})
    node.git.someone_pushes("topic", {"a": "a"}, start="origin/main")
    git(node.git.person, "rm", "-rq", "deep")
    (node.git.person / "deep").symlink_to(outside)
    git(node.git.person, "add", "deep")
    commit = node.git.push_commit("topic", {"b": "b"})
    await node.git.update()
    await checked(node, "mkdir deep/env; touch deep/env/file", commit=base, keep=True)
    assert (await checked(node, "true", commit=commit)).failure is None
    assert not list(outside.iterdir())


async def test_a_check_that_was_killed_leaves_nothing_for_the_next_and_packages_expire(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.add(1)
    before = sorted(one.name for one in (node.git.clone.path / "worktrees").iterdir())

    async def killed(*_: object) -> None:
        return None

    with monkeypatch.context() as patch:
        for _ in range(2):
            done = await checked(node, "test ! -e junk && echo junk > junk\n")
            assert done.failure is None
        patch.setattr(running, "clear", killed)
        await checked(node, "echo junk > junk\n")
    assert "tree" in left(node)
    assert (await checked(node, "test ! -e junk", keep=True)).failure is None
    for owner in ("a", "z"):  # whose clones are gone
        (node.ctx.checks / owner / "gone/0/tree").mkdir(parents=True)

    await expire(node.ctx, node.policy())

    assert left(node) == {"cache"}
    assert sorted(one.name for one in (node.git.clone.path / "worktrees").iterdir()) == before
    node.now[:] = [node.ctx.clock() + timedelta(days=400)]
    await expire(node.ctx, node.policy())
    assert left(node) == set()
