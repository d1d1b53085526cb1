"""A remote repository, a person who pushes to it, and the bot's clone of it: real git in a temporary directory."""

import atexit
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pytest

from bot import refs
from bot.files import real_path
from bot.model import IssueBranch, Start
from bot.sandbox.bwrap import Bind, Bwrap, Unusable, bwrap_for
from bot.sandbox.limits import Limits
from bot.sandbox.view import PUBLISHED, View
from bot.tree import OpenTree, Tree
from bot.tree.clone.admin import Missing, admin_directory
from bot.tree.clone.checkout import Entry, Seen, all_entries, look_at
from bot.tree.clone.clone import CheckoutRefused, Clone
from bot.tree.create import Created
from bot.tree.git.runner import Git, Identity
from bot.tree.push import Push, Pushed, push
from bot.tree.rescue.message import RescueLabel

BOT = Identity("threadtree[bot]", "bot@example.com")
LABEL = RescueLabel(1, "threadtree/issue-1", (1,), datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC))
RESCUE = refs.rescue_ref(str(LABEL.worktree_id), LABEL.at)
GIT = Git(protocols=("file",))
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
SANDBOXES: tuple[Literal["off", "bwrap"], ...] = ("bwrap",)


PERSON = {f"GIT_{role}_{key}": f"person@{key}" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}


async def unchecked(commit: str, target: str) -> None:
    """Let every push happen."""


def lfs_pointer(content: bytes) -> str:
    """Return what git stores of a file under Git LFS."""
    oid = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"


def git(directory: Path, *args: str) -> str:
    """Run git as a person or an agent does: with an identity, and with hooks."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"} | PERSON
    return output(["git", *args], directory, environment)


def output(argv: Sequence[str], directory: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(argv, cwd=directory, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, os.fsdecode(done.stderr)
    return os.fsdecode(done.stdout).rstrip("\n")


def lose_published(clone: Path, sha: str) -> None:
    """Delete an object that the clone fetched, which may be in a pack."""
    store = clone / PUBLISHED
    environment = os.environ | {"GIT_OBJECT_DIRECTORY": str(store)}
    for pack in (store / "pack").glob("*.pack"):
        content = pack.rename(clone / pack.name).read_bytes()
        subprocess.run(["git", "unpack-objects", "-q"], cwd=clone, input=content, env=environment, check=True)
    (store / sha[:2] / sha[2:]).unlink()


async def entry_of(clone: Clone, path: Path) -> Entry | None:
    """Return git's entry of the worktree at this path."""
    return next((entry for entry in await all_entries(clone) if entry.path == real_path(path)), None)


def usable_sandbox(data_dir: Path, limits: Limits | None = None) -> Bwrap:
    """Return the sandbox of this machine; skip the test if there is none."""
    if why := why_no_sandbox():
        pytest.skip(why)
    return bwrap_for(data_dir, SEARCH_PATH, limits)


@functools.cache
def why_no_sandbox() -> str | None:
    """Return why this machine has no usable sandbox, None where it has one."""
    answer = bwrap_for(_folder(), SEARCH_PATH).probe()
    return answer.why if isinstance(answer, Unusable) else None


def require_git_lfs() -> None:
    """Skip the test where this machine has no git-lfs."""
    if shutil.which("git-lfs") is None:
        pytest.skip("Files under Git LFS are tested with its program: install Debian's package `git-lfs`.")


def _folder() -> Path:
    """Return a new folder that stays until this process ends."""
    root = Path(tempfile.mkdtemp(prefix="threadtree-tests-"))
    root.chmod(0o755)  # Some tests continue as an ordinary user.
    atexit.register(shutil.rmtree, root)
    return root


@functools.cache
def _remote_and_person(files: tuple[tuple[str, str], ...] | None) -> Path:
    """Return a folder with `remote.git` and `person`, to be copied; with None nothing is committed yet."""
    root = _folder()
    remote, person = root / "remote.git", root / "person"
    git(root, "init", "-q", "--bare", "--initial-branch=main", str(remote))
    git(root, "clone", "-q", str(remote), str(person))
    git(person, "remote", "set-url", "origin", f"../{remote.name}")
    git(person, "checkout", "-q", "-B", "main")
    for sample in root.glob("**/hooks/*.sample"):
        sample.unlink()
    if files is not None:
        commit_and_push(person, "main", {"README.md": "hello\n"})
        if files:
            commit_and_push(person, "main", dict(files))
    return root


def commit_and_push(person: Path, branch: str, files: Mapping[str, str]) -> str:
    """Commit these files on the checked-out branch, and push it to this branch; return the commit."""
    for name, content in files.items():
        (person / name).parent.mkdir(parents=True, exist_ok=True)
        (person / name).write_text(content)
    git(person, "add", "-A")
    git(person, "commit", "-q", "-m", f"change {', '.join(files)}")
    git(person, "push", "-q", "origin", f"HEAD:refs/heads/{branch}")
    return git(person, "rev-parse", "HEAD")


@dataclass(frozen=True, slots=True)
class GitRepositories:
    """A remote, a person's clone of it and the bot's clone, all below `root`."""

    root: Path
    remote: Path
    person: Path
    clone: Clone

    @classmethod
    def make(
        cls,
        root: Path,
        sandbox: Literal["off", "bwrap"] = "off",
        files: Mapping[str, str] = MappingProxyType({}),
        *,
        empty: bool = False,
        limits: Limits | None = None,
    ) -> "GitRepositories":
        """Make a remote with a README on `main`, and `files` in a second commit; the bot has no clone yet."""
        data = root / "data"
        runner = GIT if sandbox == "off" else replace(GIT, sandbox=usable_sandbox(data, limits))
        shutil.copytree(_remote_and_person(None if empty else tuple(files.items())), root, dirs_exist_ok=True)
        return cls(root, root / "remote.git", root / "person", Clone.at(data, "octo/hello", runner))

    async def with_worktree(self) -> "GitRepositories":
        """Do what `created` does, by a copy of the first, for tests of what comes later."""
        return await self._copied("worktree", GitRepositories.created)

    async def with_clone(self) -> "GitRepositories":
        """Do what the first `update` does, in the same way."""
        return await self._copied("clone", GitRepositories.update)

    async def _copied(self, what: str, make: Callable[["GitRepositories"], Awaitable[object]]) -> "GitRepositories":
        """Copy what this process has made of the same remote the first time."""
        key = (what, self.clone.git.sandbox.isolates, git(self.remote, "for-each-ref"))
        if (first := _MADE.get(key)) is None:
            root = _folder()
            shutil.copytree(self.remote, root / "remote.git")
            runner = replace(GIT, sandbox=usable_sandbox(root / "data")) if self.clone.git.sandbox.isolates else GIT
            clone = Clone.at(root / "data", "octo/hello", runner)
            _MADE[key] = first = GitRepositories(root, root / "remote.git", root / "person", clone)
            await make(first)
        shutil.copytree(first.root / "data", self.root / "data", symlinks=True)
        for file in (
            self.clone.path / "config",
            *self.root.glob("data/worktrees/*/*/*/.git"),
            *self.root.glob("data/**/gitdir"),
        ):
            file.write_text(file.read_text().replace(str(first.root), str(self.root)))
        if self.path.exists():
            place = {"GIT_DIR": self.state, "GIT_COMMON_DIR": self.clone.path, "GIT_WORK_TREE": self.path}
            environment = {"PATH": os.environ["PATH"]} | {name: str(path) for name, path in place.items()}
            output(["git", "update-index", "-q", "--refresh"], self.path, environment)
        return self

    @property
    def path(self) -> Path:
        return self.root / "data" / "worktrees" / "octo" / "hello" / "issue-1"

    @property
    def url(self) -> str:
        return self.remote.as_uri()

    def known(self) -> dict[str, str]:
        """Return the remote's branches as the clone knows them."""
        listed = git(self.clone.path, "for-each-ref", "--format=%(refname:lstrip=3) %(objectname)", "refs/remotes")
        return dict(line.split(" ") for line in listed.splitlines())

    def someone_pushes(self, branch: str, files: dict[str, str], *, start: str = "") -> str:
        """Commit as another person on a branch of the remote; return the commit."""
        git(self.person, "fetch", "-q", "--prune", "origin")
        known = git(self.person, "branch", "-r", "--list", f"origin/{branch}").strip()
        origin = f"origin/{branch}" if known else start
        git(self.person, "checkout", "-q", "-B", branch, *([origin] if origin else []))
        return self.push_commit(branch, files)

    def push_commit(self, branch: str, files: Mapping[str, str]) -> str:
        """Commit on the branch that the person has checked out, and push it to this branch; return the commit."""
        return commit_and_push(self.person, branch, files)

    def remote_tip(self, branch: str) -> str:
        return git(self.remote, "rev-parse", f"refs/heads/{branch}")

    def open(self, path: Path | None = None) -> AbstractAsyncContextManager[OpenTree]:
        """Open the worktree, for its context."""
        return Tree(self.clone, path or self.path).open()

    async def update(self) -> None:
        async with self.open() as tree:
            await tree.update(self.url)

    async def create(
        self, start: Start | None = None, path: Path | None = None, *, lets_go: bool = False
    ) -> Created | CheckoutRefused:
        async with self.open(path) as tree:
            await tree.update(self.url)
            tree.lets_go = lets_go
            return await tree.make(start or IssueBranch(1), RESCUE)

    async def created(self, start: Start | None = None, path: Path | None = None) -> Created:
        made = await self.create(start, path)
        assert isinstance(made, Created), made
        return made

    async def recreate(self, branch: str | None, tip: str | None = None) -> Created | CheckoutRefused:
        async with self.open() as tree:
            return await tree.make_again(branch, tip, RESCUE)

    def forget(self, path: Path) -> None:
        """Remove everything of this worktree from the kernel."""
        if isinstance(self.clone.git.sandbox, Bwrap):
            self.clone.git.sandbox.enforcement.remove_group(self.view(path).name)

    @property
    def home(self) -> Path:
        return self.root / "data" / "homes" / "1"

    def view(self, path: Path | None = None) -> View:
        """Return an agent's view of the worktree."""
        sandbox, worktree = self.clone.git.sandbox, real_path(path or self.path)
        admin = admin_directory(self.clone.path, worktree)
        assert isinstance(admin, Path)
        return sandbox.view(self.clone.path.resolve(), worktree, admin)

    def agent_argv(self, *command: str, path: Path | None = None, binds: Sequence[Bind] = ()) -> list[str]:
        """Return the argv with which the bot starts an agent in this worktree."""
        sandbox = self.clone.git.sandbox
        if not sandbox.isolates:
            return list(command)
        self.home.mkdir(parents=True, exist_ok=True)
        return list(sandbox.agent_argv(self.view(path), command, self.home, path or self.path, binds=binds))

    def agent(self, *args: str, path: Path | None = None) -> str:
        """Run git as the agent does, in its sandbox if there is one."""
        environment = {"PATH": SEARCH_PATH, "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"} | PERSON
        return output(self.agent_argv("git", *args, path=path), path or self.path, environment)

    def agent_commits(self, files: dict[str, str], path: Path | None = None) -> str:
        worktree = path or self.path
        for name, content in files.items():
            (worktree / name).write_text(content)
        self.agent("add", "-A", path=worktree)
        self.agent("commit", "-q", "-m", "the agent's work", path=worktree)
        return self.agent("rev-parse", "HEAD", path=worktree)

    async def bring_home(self, branch: str = "threadtree/issue-1") -> None:
        """Import the agent's commits into the clone."""
        async with self.open() as tree:
            await tree.adopt(branch)

    async def publish(self, branch: str = "threadtree/issue-1") -> None:
        """Push the agent's commits to the remote."""
        await self.bring_home(branch)
        git(self.clone.path, "push", "-q", "origin", f"refs/heads/{branch}")

    async def pushed(
        self, branch: str = "threadtree/issue-1", *, began: str | None = None, is_linear: bool = False
    ) -> Pushed:
        """Push the worktree's branch, without the rules of a guard, for a turn that began at this commit."""
        async with self.open() as tree:
            wanted = Push(branch, f"{branch}-turn-7", BOT, began, ("main",), is_linear, RESCUE)
            return await push(await tree.checkout(), wanted, unchecked)

    async def seen(self, path: Path | None = None) -> tuple[str | None, str | None, int | None] | Missing:
        """Return commit, branch and number of uncommitted files of a finished worktree."""
        found = await Tree(self.clone, path or self.path).look()
        return found if isinstance(found, Missing) else (found.commit, found.branch, found.files)

    async def looked_at(self) -> Seen:
        """Return the worktree as the host reads it."""
        found = await look_at(self.clone, self.path)
        assert isinstance(found, Seen), found
        return found

    @property
    def state(self) -> Path:
        """Return the folder with the worktree's HEAD and index."""
        return self.view().state if self.clone.git.sandbox.isolates else self.clone.path / "worktrees" / self.path.name


_MADE: dict[tuple[str, bool, str], GitRepositories] = {}
