"""A repository of any size and the bot's clone of it, for the benchmarks of worktrees."""

import random
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

from bot.model import IssueBranch
from bot.refs import rescue_ref
from bot.tree.clone.clone import CheckoutRefused, Clone, CloneLock, clone_lock
from bot.tree.clone.fetch import update
from bot.tree.create import create
from bot.tree.git.runner import Git
from bot.tree.rescue.message import RescueLabel
from bot.turn.choose_worktree import worktree_path

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
        git(remote, "fast-import", "--quiet", stdin=stream(files))
        clone = Clone.at(directory / "data", "octo/big", GIT)
        async with clone_lock(clone) as lock:
            await update(lock, remote.as_uri())
        return cls(directory / "data", clone, (directory / "github").as_uri())

    async def worktree(self, number: int) -> Path:
        """Create the worktree of an issue, as a turn does."""
        path = self.data_dir / "worktrees" / "octo" / "big" / f"issue-{number}"
        async with clone_lock(self.clone) as lock:
            made = await create(lock, path, IssueBranch(number), rescue_ref(str(number), self.label(number).at))
        if isinstance(made, CheckoutRefused):
            raise RuntimeError(made.next_step)
        return path

    def label(self, number: int, turn: int = 0) -> RescueLabel:
        """Return the label of a rescue; another `turn` makes another rescue."""
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=turn)
        return RescueLabel(number, f"threadtree/issue-{number}", (number,), at)

    def locked(self) -> CloneLock:
        """Return the lock of the clone, which no other process uses."""
        return CloneLock(self.clone)


def git(
    directory: Path, *args: str, stdin: Iterable[bytes] = (), environment: Mapping[str, str] = MappingProxyType({})
) -> float:
    """Run git as an operator would; return the seconds it took. Raises CalledProcessError."""
    whole = {"PATH": GIT.search_path, "HOME": "/nonexistent", "GIT_OPTIONAL_LOCKS": "0", **environment}
    begin = time.perf_counter()
    with subprocess.Popen(
        ["git", *args], cwd=directory, env=whole, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        process.stdin.writelines(stdin)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return time.perf_counter() - begin


def stream(files: int) -> Iterator[bytes]:
    """Return the input of git fast-import: https://git-scm.com/docs/git-fast-import"""
    yield b"commit refs/heads/main\ncommitter A <a@example.com> 1700000000 +0000\ndata 5\nfiles\n"
    for number in range(files):
        yield _blob(_name(number), f"file {number}\n".encode() * 20)
    yield b"done\n"


def make_large(path: Path, files: int, commits: int) -> None:
    """Make a bare repository with a long history, packed as GitHub does it. Raises CalledProcessError.

    20,000 files and 3,000 commits are 650 MB, of which a checkout without history gets 100 MB.
    """
    git(path.parent, "init", "-q", "--bare", "--initial-branch=main", str(path))
    git(path, "-c", "core.compression=1", "fast-import", "--quiet", stdin=_history(files, commits))
    packing = ("repack", "-adfq", "--write-bitmap-index", "--window=10")
    git(path, "-c", "core.bigFileThreshold=64k", "-c", "repack.writeBitmaps=true", *packing)


def _history(files: int, commits: int) -> Iterator[bytes]:
    """Return the input of git fast-import: each commit changes six texts and replaces an image."""
    chance = random.Random(7)  # noqa: S311 -- the same history in each run
    for commit in range(commits + 1):
        yield b"commit refs/heads/main\ncommitter A <a@example.com> %d +0000\ndata 4\nmore" % (1_500_000_000 + commit)
        for number in chance.sample(range(files), 6) if commit else range(files):
            yield _blob(_name(number), _text(number, commit))
        if commit:
            yield _blob(f"images/{commit % 200:03}.png", chance.randbytes(chance.randrange(90_000, 270_000)))
    yield b"done\n"


def _text(number: int, edit: int) -> bytes:
    """Return a text of some kilobytes that compresses to half; each edit changes one line of it."""
    chance = random.Random(number)  # noqa: S311 -- the same text each time
    lines = [chance.randbytes(32).hex() for _ in range(chance.randrange(45, 140))]
    lines[edit % len(lines)] = f"edit {edit}"
    return "\n".join(lines).encode()


def _name(number: int) -> str:
    return f"d{number // FILES_PER_FOLDER:04}/f{number:06}.txt"


def _blob(name: str, content: bytes) -> bytes:
    return b"M 100644 inline %s\ndata %d\n%s\n" % (name.encode(), len(content), content)


def worktree_rows(node: str, total: int, due: int) -> str:
    """Return the statements that write the rows of `total` worktrees of the node; `due` were last used a year ago."""
    return _ROWS.format(node=node, path=worktree_path("octo/big", "issue-"), total=total, due=due)
