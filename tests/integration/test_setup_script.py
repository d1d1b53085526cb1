"""A repository's set-up script: its source, its run and its end."""

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from bot.agents.driver import Launch
from bot.node.setup_script import (
    MAX_SCRIPT_BYTES,
    Ended,
    SetUp,
    command_for,
    readable,
    run_script,
    script_of,
    shown,
)
from bot.redaction import Redactor
from bot.sandbox.bwrap import Bind, agent_argv
from bot.tree import open_clone
from tests.support.git_repositories import SANDBOXES, SEARCH_PATH, GitRepositories, git
from tests.support.patience import until_exists, until_true
from tests.support.sleeping_processes import new_sleep, runs

SCRIPT = Path(".threadtree", "setup")


@pytest.fixture(params=SANDBOXES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> GitRepositories:
    sandbox: Literal["off", "bwrap"] = request.param
    return await GitRepositories.make(tmp_path, sandbox).with_worktree()


def launch(world: GitRepositories, text: str, folder: Path) -> Launch:
    """Run the script as the bot does: in the worktree, in the sandbox if there is one."""
    file = folder / "script"
    file.write_text(text)
    command = command_for(text.encode(), file)
    argv = tuple(world.agent_argv(*command, binds=(Bind(file),)))
    if not world.clone.git.sandbox.isolates:
        argv = agent_argv(command)
    return Launch(argv, {"PATH": SEARCH_PATH, "HOME": str(world.home)}, world.path)


async def found(world: GitRepositories) -> bytes | SetUp | None:
    await world.update()
    async with open_clone(world.clone) as opened:
        return await script_of(opened)


async def test_it_is_the_one_on_the_branch_that_is_the_default_now(tmp_path: Path) -> None:
    world = GitRepositories.make(tmp_path)
    assert await found(world) is None
    world.someone_pushes("topic", {str(SCRIPT): "echo topic\n"}, start="origin/main")
    assert await found(world) is None
    world.someone_pushes("main", {str(SCRIPT): "echo main\n"})
    assert await found(world) == b"echo main\n"
    git(world.remote, "symbolic-ref", "HEAD", "refs/heads/topic")
    assert await found(world) == b"echo topic\n"


@pytest.mark.parametrize("what", ["link", "folder", "too big"])
async def test_what_is_no_ordinary_file_is_not_run(tmp_path: Path, what: str) -> None:
    world = GitRepositories.make(tmp_path)
    place = world.person / SCRIPT
    place.parent.mkdir()
    match what:
        case "link":
            place.symlink_to("/etc/hostname")
        case "folder":
            place.mkdir()
            (place / "file").write_text("x")
        case _:
            place.write_bytes(b"#" * (MAX_SCRIPT_BYTES + 1))
    world.push_commit("main", {})
    assert await found(world) == SetUp("on `main` is not a regular file of at most 1 MiB, and was not run")


async def test_an_empty_repository_has_none(tmp_path: Path) -> None:
    assert await found(GitRepositories.make(tmp_path, empty=True)) is None


async def test_it_runs_in_the_worktree_and_what_it_says_is_kept(world: GitRepositories, tmp_path: Path) -> None:
    ended = await run_script(launch(world, "pwd\ncat README.md >&2\nexit 4\n", tmp_path), 30)
    assert ended == Ended(4, f"{world.path.resolve()}\nhello")


async def test_its_first_line_says_what_runs_it(world: GitRepositories, tmp_path: Path) -> None:
    text = "#!/usr/bin/env python3\nprint(6 * 7)\n"
    assert await run_script(launch(world, text, tmp_path), 30) == Ended(0, "42")


async def test_processes_of_the_script_end_with_it(world: GitRepositories, tmp_path: Path) -> None:
    sleep = new_sleep()
    text = f"{sleep} &\necho begun\n"
    assert await run_script(launch(world, text, tmp_path), 30) == Ended(0, "begun")
    await until_true(lambda: not runs(sleep))


async def test_a_script_over_its_limit_is_ended_with_its_processes(world: GitRepositories, tmp_path: Path) -> None:
    sleep = new_sleep()
    text = f"echo begun\n{sleep} & {sleep}\n"
    ended = await run_script(launch(world, text, tmp_path), 2)
    assert ended == Ended(None, "begun")
    await until_true(lambda: not runs(sleep))


async def test_a_run_that_is_cancelled_leaves_nothing_running(world: GitRepositories, tmp_path: Path) -> None:
    sleep = new_sleep()
    text = f"touch begun\n{sleep}\n"
    running = asyncio.create_task(run_script(launch(world, text, tmp_path), 30))
    await until_exists(world.path / "begun")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_true(lambda: not runs(sleep))


async def test_an_output_without_end_is_kept_to_its_end(world: GitRepositories, tmp_path: Path) -> None:
    ended = await run_script(launch(world, "seq 1 200000\n", tmp_path), 30)
    assert ended.output.endswith("\n199999\n200000")
    assert len(ended.output) <= 1 << 16


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (b"echo\n", ("/bin/sh", "/s")),
        (b"", ("/bin/sh", "/s")),
        (b"#!\n", ("/bin/sh", "/s")),
        (b"#!/bin/bash", ("/bin/bash", "/s")),
        (b"#! /usr/bin/env  -S a  b\r\n", ("/usr/bin/env", "-S a  b", "/s")),
        (b"#!/bin/\0sh\n", ("/bin/sh", "/s")),
    ],
)
def test_a_first_line_is_read_as_the_kernel_does(text: bytes, command: tuple[str, ...]) -> None:
    assert command_for(text, Path("/s")) == command


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\n", "red x"),
        (b"10 %\r20 %\r30 %\r\nnext\r\n", "30 %\nnext"),
        (b"a\x00b\x07c\xff\td", "abc\ufffd\td"),
    ],
)
def test_output_is_read_as_a_terminal_would_show_it(output: bytes, text: str) -> None:
    assert readable(output) == text


def test_a_secret_that_is_cut_by_the_last_lines_is_none_any_more() -> None:
    secret = "first-half-of-it\nsecond-half-of-it"
    output = "\n".join(["x"] * 10 + [secret] + ["y"] * 59)
    assert "half" not in shown(output, Redactor([secret]))
    assert len(shown("z" * 10_000, Redactor())) == 6000
