"""A remote repository, a person who pushes to it, and the bot's clone of it: real git in a temporary directory."""

import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bot.run import refs
from bot.run.clone import Clone, clone_at, clone_lock, ensure, fetch
from bot.run.git import Git, Identity
from bot.run.start import IssueBranch, Refused, Start
from bot.run.worktree import Created, create, recreate

BOT = Identity("threadtree[bot]", "bot@example.com")
RESCUE = refs.rescue_ref("w1", datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC))
GIT = Git(protocols=("file",))


def git(directory: Path, *args: str) -> str:
    """git as a person or an agent runs it: an identity of its own, and hooks that do run."""
    person = {f"GIT_{role}_{key}": f"person@{key}" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"} | person
    done = subprocess.run(["git", *args], cwd=directory, env=environment, capture_output=True, check=True)
    return os.fsdecode(done.stdout).rstrip("\n")


@dataclass(frozen=True, slots=True)
class GitWorld:
    root: Path
    remote: Path
    person: Path
    clone: Clone

    @classmethod
    def make(cls, root: Path, *, empty: bool = False) -> "GitWorld":
        remote, person = root / "remote.git", root / "person"
        git(root, "init", "-q", "--bare", "--initial-branch=main", str(remote))
        git(root, "clone", "-q", str(remote), str(person))
        git(person, "checkout", "-q", "-B", "main")
        world = cls(root, remote, person, clone_at(root / "data", "octo", "hello", GIT))
        if not empty:
            world.someone_pushes("main", {"README.md": "hello\n"})
        return world

    @property
    def path(self) -> Path:
        return self.root / "data" / "worktrees" / "octo" / "hello" / "issue-1"

    @property
    def url(self) -> str:
        return self.remote.as_uri()

    def someone_pushes(self, branch: str, files: dict[str, str], *, start: str = "") -> str:
        """A commit by somebody else on a branch of the remote; returns it."""
        git(self.person, "fetch", "-q", "--prune", "origin")
        known = git(self.person, "branch", "-r", "--list", f"origin/{branch}").strip()
        origin = f"origin/{branch}" if known else start
        git(self.person, "checkout", "-q", "-B", branch, *([origin] if origin else []))
        return self.push_commit(branch, files)

    def push_commit(self, branch: str, files: dict[str, str]) -> str:
        for name, content in files.items():
            (self.person / name).parent.mkdir(parents=True, exist_ok=True)
            (self.person / name).write_text(content)
        git(self.person, "add", "-A")
        git(self.person, "commit", "-q", "-m", f"change {', '.join(files)}")
        git(self.person, "push", "-q", "origin", f"HEAD:refs/heads/{branch}")
        return git(self.person, "rev-parse", "HEAD")

    def remote_tip(self, branch: str) -> str:
        return git(self.remote, "rev-parse", f"refs/heads/{branch}")

    async def update(self) -> None:
        async with clone_lock(self.clone) as lock:
            await ensure(lock, self.url)
            await fetch(lock)

    async def create(self, start: Start | None = None, path: Path | None = None) -> Created | Refused:
        async with clone_lock(self.clone) as lock:
            await ensure(lock, self.url)
            await fetch(lock)
            return await create(lock, path or self.path, start or IssueBranch(1), RESCUE)

    async def created(self, start: Start | None = None, path: Path | None = None) -> Created:
        made = await self.create(start, path)
        assert isinstance(made, Created), made
        return made

    async def recreate(self, branch: str | None, tip: str | None = None) -> Created | Refused:
        async with clone_lock(self.clone) as lock:
            return await recreate(lock, self.path, branch, tip, RESCUE)

    def agent_commits(self, files: dict[str, str], path: Path | None = None) -> str:
        worktree = path or self.path
        for name, content in files.items():
            (worktree / name).write_text(content)
        git(worktree, "add", "-A")
        git(worktree, "commit", "-q", "-m", "the agent's work")
        return git(worktree, "rev-parse", "HEAD")
