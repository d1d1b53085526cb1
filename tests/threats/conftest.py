"""A bot's machine with secrets and data, and an attacking program that runs as the agent of one conversation."""

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bot.model import IssueBranch
from bot.sandbox.limits import Limits
from bot.tree.clone.admin import Missing
from bot.tree.clone.checkout import Seen, inspect, require_checkout
from bot.tree.clone.clone import clone_lock
from bot.tree.clone.fetch import fetch
from bot.tree.commit import commit_all, return_to_branch
from bot.tree.git.errors import GitError
from bot.tree.push import Push, push
from bot.tree.sync import sync
from tests.support.git_repositories import BOT, LABEL, PERSON, RESCUE, SEARCH_PATH, GitRepositories, git, unchecked
from tests.support.patience import PATIENCE_SECONDS

BRANCH, OTHER_BRANCH = "threadtree/issue-1", "threadtree/issue-2"
SECRET = "canary-8f2c61d0"
LIMITS = Limits(processes=64, memory_bytes=1 << 30, scratch_bytes=32 << 20, file_bytes=64 << 20, disk_bytes=64 << 20)

# Every attack knows these paths; a real one would know less.
PRELUDE = """
import os, pathlib, shutil, socket, subprocess, sys, time
root, data, worktree, clone, other, trap = (pathlib.Path(word.removeprefix("path=")) for word in sys.argv[1:7])
admin = clone / "worktrees" / "issue-1"
def git(*args, check=False, **more):
    return subprocess.run(["git", *map(str, args)], capture_output=True, text=True, check=check, **more)
def attempt(action, *args):
    try:
        return action(*args)
    except OSError as error:
        print("refused:", error)
def show(path):
    text = attempt(lambda: pathlib.Path(path).read_bytes())
    print(path, text)
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """The world of one attack. `trap` writes `ran` if it runs outside the sandbox."""

    world: GitRepositories
    trap: Path
    ran: Path
    other: Path
    secrets: tuple[Path, ...]

    def command(self, program: str) -> list[str]:
        """Return the attack's argv as the bot would start it."""
        known = (
            self.world.root,
            self.world.root / "data",
            self.world.path,
            self.world.clone.path,
            self.other,
            self.trap,
        )
        script = (sys.executable, "-c", PRELUDE + program, *("path=" + str(path) for path in known))
        return self.world.agent_argv(*script)

    def environment(self) -> dict[str, str]:
        return {"PATH": SEARCH_PATH, "HOME": str(self.world.home), "PYTHONUNBUFFERED": "1", **PERSON}

    def attack(self, program: str) -> str:
        """Run the attack to its end; return its output, which is all that it learned."""
        done = subprocess.run(
            self.command(program),
            cwd=self.world.path,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def after_the_turn(self) -> list[object]:
        """Do what the host does with a worktree: deliver, then prepare the next turn. An error is a valid result."""
        world, results = self.world, list[object]()
        async with clone_lock(world.clone) as lock:
            try:
                results.append(await return_to_branch(await require_checkout(lock, world.path), BRANCH, LABEL))
                results.append(await commit_all(await require_checkout(lock, world.path), "the turn", BOT, None))
                results.append(
                    await push(
                        await require_checkout(lock, world.path), Push(BRANCH, f"{BRANCH}-turn-1", BOT), unchecked
                    )
                )
                await fetch(lock)
                if isinstance(await inspect(world.clone, world.path), Seen):
                    results.append(await sync(await require_checkout(lock, world.path), BRANCH, RESCUE))
            except GitError as error:
                results.append(error)
        return results

    def fired(self) -> bool:
        return self.ran.exists()

    def pushed_text(self) -> str:
        return git(self.world.remote, "log", "--all", "-p", "--no-textconv", "--format=%H %an %s%n%b")

    async def everybody_else_is_unharmed(self) -> None:
        clone, git_dir = self.world.clone, self.world.clone.path
        git(git_dir, "fsck", "--connectivity-only", "--no-dangling")
        assert await clone.commit_at(f"refs/heads/{OTHER_BRANCH}") == self.world.remote_tip("main")
        assert git(git_dir, "config", "--get", "remote.origin.url") == self.world.url
        state = await inspect(clone, self.other)
        assert not isinstance(state, Missing), state
        assert (self.other / "notes.txt").read_text() == SECRET
        for secret in self.secrets:
            assert SECRET in secret.read_text()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    world = await GitRepositories.make(tmp_path, "bwrap", limits=LIMITS).with_worktree()
    other = world.path.with_name("issue-2")
    await world.created(IssueBranch(2), other)
    data = tmp_path / "data"
    secrets = (
        tmp_path / ".env",
        tmp_path / "private-key.pem",
        data / "homes" / "2" / ".credentials.json",
        data / "postgres" / "postgresql.conf",
        data / "workers" / "token",
    )
    for file in secrets:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SECRET)
    (other / "notes.txt").write_text(SECRET)
    ran, trap = tmp_path / "ran", tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\necho ran >> {ran}\ncat\n")
    trap.chmod(0o755)
    machine = Machine(world, trap, ran, other, secrets)
    yield machine
    for path in (world.path, other):
        world.forget(path)
    assert not machine.fired(), "something planted ran outside the sandbox"
    assert SECRET not in machine.pushed_text()
    await machine.everybody_else_is_unharmed()
