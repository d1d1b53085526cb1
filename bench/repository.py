"""A repository of any size and the bot's clone of it, for the benchmarks of worktrees."""

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bot.clones.clone import Clone, CloneLock, clone_at, clone_lock
from bot.clones.fetch import update
from bot.clones.start import Refused
from bot.git.refs import rescue_ref
from bot.git.runner import Git
from bot.model import IssueBranch, worktree_path
from bot.rescue.message import RescueLabel
from bot.worktrees.create import create

FILES_PER_FOLDER = 100
GIT = Git(protocols=("file",))
_ROWS = """
insert into codebases (platform, repository_id, owner, name, folder, default_branch)
values ('github.com', 1, 'octo', 'big', 'octo/big', 'main');
insert into worktrees (platform, repository_id, node, path, branch, base_branch, start_kind, start_number, state,
                       updated_at)
select 'github.com', 1, '{node}', '{path}' || n, 'threadtree/issue-' || n, 'main', 'issue', n, 'ready',
       case when n <= {due} then now() - interval '1 year' else now() end
from generate_series(1, {total}) n;
insert into conversations (platform, repository_id, number, kind, worktree_id)
select 'github.com', 1, start_number, 'issue', id from worktrees;
analyze;
"""


@dataclass(frozen=True, slots=True)
class Repository:
    """The bot's clone in `data_dir`; its remote is a local directory."""

    data_dir: Path
    clone: Clone
    server_url: str

    @classmethod
    async def make(cls, directory: Path, files: int) -> "Repository":
        """Make the remote, with that many files on main, and its clone. Raises CalledProcessError, GitError."""
        remote = directory / "github" / "octo" / "big.git"
        git(directory, "init", "-q", "--bare", "--initial-branch=main", str(remote))
        git(remote, "fast-import", "--quiet", stdin=b"".join(stream(files)))
        clone = clone_at(directory / "data", "octo", "big", GIT)
        async with clone_lock(clone) as lock:
            await update(lock, remote.as_uri())
        return cls(directory / "data", clone, (directory / "github").as_uri())

    async def worktree(self, number: int) -> Path:
        """Create the worktree of an issue, as a turn does."""
        path = self.data_dir / "worktrees" / "octo" / "big" / f"issue-{number}"
        async with clone_lock(self.clone) as lock:
            made = await create(lock, path, IssueBranch(number), rescue_ref(str(number), self.label(number).at))
        if isinstance(made, Refused):
            raise RuntimeError(made.next_step)
        return path

    def label(self, number: int, turn: int = 0) -> RescueLabel:
        """Return the label of a rescue; another `turn` makes another rescue."""
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=turn)
        return RescueLabel(number, f"threadtree/issue-{number}", (number,), at)

    def locked(self) -> CloneLock:
        """Return the lock of the clone, which no other process uses."""
        return CloneLock(self.clone)


def git(directory: Path, *args: str, stdin: bytes | None = None) -> float:
    """Run git as an operator would; return the seconds it took. Raises CalledProcessError."""
    environment = {"PATH": GIT.search_path, "HOME": "/nonexistent", "GIT_OPTIONAL_LOCKS": "0"}
    begin = time.perf_counter()
    subprocess.run(["git", *args], cwd=directory, env=environment, input=stdin, capture_output=True, check=True)
    return time.perf_counter() - begin


def stream(files: int) -> Iterator[bytes]:
    """Return the input of git fast-import: https://git-scm.com/docs/git-fast-import"""
    yield b"commit refs/heads/main\ncommitter A <a@example.com> 1700000000 +0000\ndata 5\nfiles\n"
    for number in range(files):
        content = f"file {number}\n".encode() * 20
        name = f"d{number // FILES_PER_FOLDER:04}/f{number:06}.txt"
        yield b"M 100644 inline %s\ndata %d\n%s\n" % (name.encode(), len(content), content)
    yield b"done\n"


def worktree_rows(node: str, total: int, due: int) -> str:
    """Return the statements that write the rows of `total` worktrees of the node; `due` were last used a year ago."""
    return _ROWS.format(node=node, path=worktree_path("octo/big", "issue-"), total=total, due=due)
