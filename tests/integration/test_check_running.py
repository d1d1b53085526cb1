"""A check runs in a real worktree: nobody's work is lost to it, what it fills ends it, and nothing stays behind."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bot.care.expire import expire
from bot.check import running
from bot.check.reports import Report
from bot.check.running import Check, Checked, check_commit, check_result
from bot.sandbox.bwrap import Bwrap
from tests.support.git_repositories import SANDBOXES
from tests.support.node import Node, prepared_node
from tests.support.sleeping_processes import new_sleep, runs

TURN = 7


@pytest.fixture(params=SANDBOXES)
async def node(tmp_path: Path, database_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url, request.param) as made:
        yield made


@pytest.fixture
async def sandboxed(tmp_path: Path, database_url: str) -> AsyncIterator[Node]:
    async with prepared_node(tmp_path, database_url, "bwrap") as made:
        yield made


def check(node: Node, script: str, variables: Mapping[str, str] | None = None) -> Check:
    return Check(node.ctx, 1, script.encode(), node.ctx.checks / str(TURN), variables or {})


async def checked(node: Node, script: str, number: int = 1) -> Checked:
    """Run a script in the worktree of an issue, on what is checked out there."""
    worktree = await node.row(await node.add(number))
    return await check_result(check(node, script), worktree, node.git.remote_tip("main"))


async def test_files_that_were_there_before_are_never_deleted(node: Node) -> None:
    head = node.git.someone_pushes("main", {".gitignore": "secret\n/sub/\n"})
    await node.git.update()
    worktree, path = await node.row(await node.add(1)), node.path(1)
    for name in ("secret", "left-out"):
        (path / name).write_text("mine\n")
    script = "echo x > new\necho x >> left-out\nmkdir deep\necho '!secret' > deep/.gitignore\n"
    script += "git config core.excludesFile /dev/null\necho '!secret' > .gitignore\ngit rm -q README.md\n"

    done = await check_result(check(node, script), worktree, head)

    assert (path / "secret").read_text() == "mine\n"
    assert (path / "left-out").read_text() == "mine\nx\n"
    assert (path / "README.md").read_text() == "hello\n"
    assert (path / ".gitignore").read_text() == "secret\n/sub/\n"
    assert set(done.left) == {"new", "deep/.gitignore"}, "where it changed what git ignores, nothing is deleted"
    assert done.failure is None


async def test_what_it_made_is_gone_and_its_variables_and_reports_were_there(node: Node) -> None:
    worktree = await node.row(await node.add(1))
    script = 'echo x > new\nmkdir -p a/b\necho x > a/b/c\necho "ok - $GIVEN" > "$THREADTREE_REPORTS/a.tap"\nexit 3\n'
    as_on_windows = script.replace("\n", "\r\n")
    done = await check_result(check(node, as_on_windows, {"GIVEN": "value"}), worktree, node.git.remote_tip("main"))
    assert replace(done, seconds=0) == Checked(
        "ended with exit status 3", "", 0, Report(passed=frozenset({"value"})), left=()
    )
    assert sorted(one.name for one in node.path(1).rglob("*") if one.is_file()) == [".git", "README.md"]
    assert not node.ctx.checks.exists()


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
    assert not sandboxed.ctx.checks.exists()


async def test_the_base_is_checked_in_a_checkout_of_its_own_that_goes(node: Node) -> None:
    worktree = await node.row(await node.add(1))
    before = sorted(one.name for one in (node.git.clone.path / "worktrees").iterdir())
    (node.path(1) / "new.txt").touch()
    script = "test ! -e new.txt && git rev-parse HEAD && git status --porcelain && exit 4\n"
    done = await check_commit(check(node, script), worktree, node.git.remote_tip("main"))
    assert (done.failure, done.output) == ("ended with exit status 4", node.git.remote_tip("main"))
    assert sorted(one.name for one in (node.git.clone.path / "worktrees").iterdir()) == before
    assert not node.ctx.checks.exists()


async def test_the_checkout_of_a_killed_check_is_made_anew_and_goes_when_its_turn_has_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    worktree = await node.row(await node.add(1))
    before = sorted(one.name for one in (node.git.clone.path / "worktrees").iterdir())

    async def killed(*_: object) -> None:
        return None

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(running, "remove_checkout", killed)
            script = "test ! -e junk && echo junk > junk\n"
            done = await check_commit(check(node, script), worktree, node.git.remote_tip("main"))
        assert done.failure is None
    assert (node.ctx.checks / str(TURN) / "base/octo/hello/junk").exists()

    await expire(node.ctx, node.policy())

    assert sorted(one.name for one in (node.git.clone.path / "worktrees").iterdir()) == before
    assert not (node.ctx.checks / str(TURN)).exists()
