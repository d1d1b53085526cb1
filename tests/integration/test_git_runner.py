"""The runner: git's input, failures and hangs."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from bot.sandbox.view import open_view
from bot.tree.git import runner
from bot.tree.git.errors import GitError, GitProblem, redact
from bot.tree.git.runner import Completed, Git, Identity
from tests.support.git_repositories import GIT, git
from tests.support.patience import PATIENCE_SECONDS, until_true


async def until_written(path: Path) -> None:
    await until_true(lambda: path.exists() and bool(path.read_text().strip()))


def process_is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


async def hanging_git(tmp_path: Path) -> tuple[Sequence[str], Path]:
    """Return a git command whose child writes its process id and then never ends."""
    git(tmp_path, "init", "-q")
    started = tmp_path / "started"
    return ("-c", f"alias.hang=!echo $$ > {started}; exec sleep 1000", "hang"), started


async def test_git_sees_none_of_the_bots_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_secret")
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    listed = await GIT.run("-c", "alias.environment=!env", "environment", cwd=None)
    names = {line.split("=", 1)[0] for line in listed.text.splitlines()}
    assert "GITHUB_TOKEN" not in names
    assert "HOME=/nonexistent" in listed.text.splitlines()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Timeout]:
    """Return the limits of the commands that the test runs."""
    found: list[asyncio.Timeout] = []

    def noted(seconds: float) -> asyncio.Timeout:
        found.append(asyncio.timeout(seconds))
        return found[-1]

    monkeypatch.setattr(runner, "asyncio", SimpleNamespace(**{**vars(asyncio), "timeout": noted}))
    return found


async def test_a_command_past_its_time_limit_ends_with_all_its_children(
    tmp_path: Path, limits: list[asyncio.Timeout]
) -> None:
    command, started = await hanging_git(tmp_path)
    task = asyncio.create_task(GIT.run(*command, cwd=tmp_path))
    await until_written(started)
    await until_true(lambda: bool(limits))  # it runs a moment before its output is read
    limits[0].reschedule(0)
    with pytest.raises(GitError) as caught:
        await task
    assert caught.value.problem is GitProblem.TIMEOUT
    assert process_is_gone(int(started.read_text()))


async def test_endless_output_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_OUTPUT_BYTES", 1 << 20)
    command = ("-c", f"alias.flood=!echo $$ > {tmp_path}/started; exec yes", "flood")
    with pytest.raises(GitError, match="more than 1 MiB of output"):
        await GIT.run(*command, cwd=tmp_path)
    assert process_is_gone(int((tmp_path / "started").read_text()))


async def test_a_cancelled_command_ends_with_all_its_children(tmp_path: Path) -> None:
    command, started = await hanging_git(tmp_path)
    task = asyncio.create_task(GIT.run(*command, cwd=tmp_path))
    await until_written(started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert process_is_gone(int(started.read_text()))


@pytest.mark.parametrize("turns_of_the_loop", range(6))
async def test_cancelling_while_git_starts_does_not_wait_for_ever(tmp_path: Path, turns_of_the_loop: int) -> None:
    command, _ = await hanging_git(tmp_path)
    task = asyncio.create_task(GIT.run(*command, cwd=tmp_path))
    for _ in range(turns_of_the_loop):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
    assert done
    assert task.cancelled()


async def test_a_command_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    started = tmp_path / "started"
    stubborn = f"!trap '' TERM; echo $$ > {started}; while :; do sleep 1; done"
    task = asyncio.create_task(GIT.run("-c", f"alias.hang={stubborn}", "hang", cwd=tmp_path))
    await until_written(started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_true(lambda: process_is_gone(int(started.read_text())))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("ls-remote", "file:///nowhere/at/all.git"), GitProblem.NOT_FOUND),
        (("rev-parse", "--verify", "refs/heads/none"), GitProblem.NOT_FOUND),
        (("ls-remote", "http://127.0.0.1:9/x.git"), GitProblem.NETWORK),
    ],
)
async def test_failures_are_classified(tmp_path: Path, command: Sequence[str], problem: GitProblem) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(GitError) as caught:
        await Git(protocols=("file", "http")).run(*command, cwd=tmp_path)
    assert caught.value.problem is problem, caught.value


async def on_worktree(runner: Git, path: Path, *args: str) -> Completed:
    return await runner.in_sandbox(open_view(path / ".git", path, path / ".git"), *args)


async def test_a_leftover_lock_is_distinguished_from_other_failures(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".git" / "index.lock").touch()
    (tmp_path / "file").touch()
    with pytest.raises(GitError) as caught:
        await on_worktree(GIT, tmp_path, "add", "--", "file")
    assert caught.value.problem is GitProblem.LOCKED


async def test_only_the_allowed_protocols_are_spoken(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "r.git")
    with pytest.raises(GitError, match="transport 'file' not allowed"):
        await Git().run("ls-remote", (tmp_path / "r.git").as_uri(), cwd=tmp_path)


async def test_credentials_are_for_the_clone_and_never_for_a_worktree(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    runner = Git(remote_config=(("credential.https://example.com.helper", "/bot/helper"),))
    on_clone = await runner.on_clone(tmp_path / ".git", "config", "--get-regexp", "^credential")
    told = await on_worktree(runner, tmp_path, "config", "--get-regexp", "^credential")
    assert "/bot/helper" in on_clone.text
    assert "/bot/helper" not in told.text


async def test_a_directory_that_vanished_is_not_taken_for_the_repository_above_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "inside").mkdir()
    with pytest.raises(GitError, match="not a git repository"):
        await on_worktree(GIT, tmp_path / "inside", "status")
    with pytest.raises(GitError) as caught:
        await on_worktree(GIT, tmp_path / "gone", "status")
    assert caught.value.problem is GitProblem.NOT_FOUND


def test_errors_hold_no_credential() -> None:
    said = redact("fatal: https://x:ghs_abc@h/r failed\nAuthorization: basic Zm9v\nghp_0123 github_pat_1A_b")
    for secret in ("ghs_abc", "Zm9v", "ghp_0123", "github_pat_1A"):
        assert secret not in said
    assert "https://***@h/r failed" in said


def test_an_identity_cannot_break_out_of_its_line() -> None:
    assert str(Identity("Eve <e@x>\nSigned-off-by: root", "e@example.com>")) == (
        "Eve  e@x  Signed-off-by: root <e@example.com>"
    )


async def test_with_progress_the_limit_is_on_silence(tmp_path: Path, limits: list[asyncio.Timeout]) -> None:
    heard: list[bytes] = []
    ends: list[float] = []

    def hear(piece: bytes) -> None:
        heard.append(piece)
        ends.append(limits[0].when() or 0)
        (tmp_path / f"heard-{len(heard)}").touch()

    git(tmp_path, "init", "-q")
    steps = "for step in 1 2 3; do echo step $step >&2; while [ ! -e heard-$step ]; do sleep 0.01; done; done"
    began = asyncio.get_running_loop().time()
    done = await GIT.run("-c", f"alias.work=!{steps}", "work", cwd=tmp_path, timeout_seconds=300, on_stderr=hear)
    assert done.stderr.count("step") == b"".join(heard).count(b"step") == 3
    assert began + 300 < ends[0] < ends[1] < ends[2]
    with pytest.raises(GitError) as caught:
        await GIT.run("-c", "alias.hang=!exec sleep 1000", "hang", cwd=tmp_path, timeout_seconds=1, on_stderr=print)
    assert caught.value.problem is GitProblem.TIMEOUT
    assert "without a sign of progress" in str(caught.value)


@pytest.mark.parametrize("program", [("git",), ("sh", "-c", 'git "$@"; exit $?', "in a sandbox")])
async def test_a_killed_git_has_answered_nothing(tmp_path: Path, program: Sequence[str]) -> None:
    with pytest.raises(GitError) as caught:
        await GIT.run("-c", "alias.die=!kill -9 $PPID", "die", cwd=tmp_path, program=program, check=False)
    assert caught.value.problem is GitProblem.KILLED


async def test_a_git_that_ends_without_a_word_lost_the_process_that_talks_to_the_server(tmp_path: Path) -> None:
    helper = tmp_path / "git-remote-silent"
    helper.write_text("#!/bin/sh\n")
    helper.chmod(0o755)
    program = ("env", f"PATH={tmp_path}:{os.environ['PATH']}", "git")
    with pytest.raises(GitError) as caught:
        await Git(protocols=("silent",)).run("ls-remote", "silent::x", cwd=tmp_path, program=program)
    assert caught.value.problem is GitProblem.KILLED
