"""The bare repositories of the simulation: real git, argv only, with an environment built from scratch."""

import asyncio
import io
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

GIT_TIMEOUT_SECONDS = 60
NO_COMMIT = "0" * 40

Files = Mapping[str, str | bytes | None]


class GitFailedError(Exception):
    """Git failed; the message has its arguments and standard error."""

    def __init__(self, argv: Sequence[str], status: int, stderr: str) -> None:
        super().__init__(f"git {' '.join(argv)} ended with {status}: {stderr.strip()}")
        self.status = status


class MergeConflictError(Exception):
    """The two sides conflict."""


def git_environment() -> dict[str, str]:
    """Return the whole environment of every git process, without configuration of the user or the machine."""
    executable = shutil.which("git")
    if executable is None:
        raise FileNotFoundError("git is not installed")
    return {
        "PATH": os.pathsep.join([str(Path(executable).parent), os.defpath]),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


@dataclass(frozen=True, slots=True)
class NewCommit:
    """A commit to make: `tree` replaces all files, `files` changes single paths (None deletes)."""

    branch: str
    message: str
    author: str
    at: datetime
    parents: tuple[str, ...]
    tree: str | None = None
    files: Files = field(default_factory=dict)

    def as_fast_import(self) -> bytes:
        """Return the input of git fast-import for this commit; fast-import then prints its id."""
        login = self.author
        signature = f"{login} <{login}@users.noreply.github.com> {int(self.at.timestamp())} +0000"
        lines = [f"commit refs/heads/{self.branch}\nmark :1\nauthor {signature}\ncommitter {signature}\n".encode()]
        lines.append(_data(self.message.encode()))
        for keyword, parent in zip(("from", *["merge"] * len(self.parents)), self.parents, strict=False):
            lines.append(f"{keyword} {parent}\n".encode())
        if self.tree is not None:
            lines.append(f'M 040000 {self.tree} ""\n'.encode())
        for path, content in self.files.items():
            if content is None:
                lines.append(f"D {path}\n".encode())
            else:
                lines.append(f"M 100644 inline {path}\n".encode())
                lines.append(_data(content.encode() if isinstance(content, str) else content))
        return b"".join([*lines, b"get-mark :1\ndone\n"])


@dataclass(frozen=True, slots=True)
class BareRepository:
    """One bare repository on disk."""

    path: Path

    @classmethod
    async def create(cls, path: Path, default_branch: str) -> "BareRepository":
        """Create an empty repository."""
        await asyncio.to_thread(path.mkdir, parents=True)
        repository = cls(path)
        await repository.run("init", "--quiet", "--bare", f"--initial-branch={default_branch}", ".")
        await repository.run("config", "gc.auto", "0")
        return repository

    async def run(self, *argv: str, stdin: bytes = b"") -> str:
        """Run git here and return its output without the last line end. Raises GitFailedError."""
        return (await self._output(*argv, stdin=stdin)).decode().rstrip("\n")

    async def _output(self, *argv: str, stdin: bytes) -> bytes:
        process = await asyncio.create_subprocess_exec(
            "git",
            *argv,
            cwd=self.path,
            env=git_environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(GIT_TIMEOUT_SECONDS):
                stdout, stderr = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if (status := process.returncode) != 0:
            raise GitFailedError(argv, status if status is not None else -1, stderr.decode(errors="replace"))
        return stdout

    async def branches(self) -> dict[str, str]:
        """Return every branch with its commit."""
        listing = await self.run("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads")
        pairs = (line.rsplit(" ", 1) for line in listing.splitlines())
        return {name.removeprefix("refs/heads/"): commit for name, commit in pairs}

    async def commit(self, new: NewCommit) -> str:
        """Make the commit, move its branch to it and return its id."""
        return await self.run("fast-import", "--quiet", "--done", stdin=new.as_fast_import())

    async def merge_tree(self, base: str, head: str) -> str:
        """Return the tree of merging head into base. Raises MergeConflictError."""
        try:
            return await self.run("merge-tree", "--write-tree", base, head)
        except GitFailedError as error:
            if error.status == 1:
                raise MergeConflictError from error
            raise

    async def fetch_pull_head(self, number: int, source: "BareRepository", commit: str) -> None:
        """Keep the commit as refs/pull/N/head, as GitHub does for every pull request, including forks."""
        ref = f"refs/pull/{number}/head"
        if source.path != self.path:
            await self.run("fetch", "--quiet", "--no-tags", str(source.path), f"+{commit}:{ref}")
        else:
            await self.run("update-ref", ref, commit)

    async def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        try:
            await self.run("merge-base", "--is-ancestor", ancestor, descendant)
        except GitFailedError as error:
            if error.status == 1:
                return False
            raise
        return True

    async def files(self, revision: str) -> dict[str, str]:
        """Return every file of a revision with its text, for assertions."""
        listing = (await self.run("ls-tree", "-r", "-z", revision)).split("\0")
        facts = (line.partition("\t") for line in listing if line)
        blobs = {name: told.split()[2] for told, _, name in facts if " commit " not in told}  # no submodules
        found = io.BytesIO(await self._output("cat-file", "--batch", stdin="\n".join([*blobs.values(), ""]).encode()))
        texts = {}
        for name in blobs:
            size = int(found.readline().split()[2])
            texts[name] = found.read(size + 1).decode().rstrip("\n")
        return texts

    async def log(self, *revisions: str) -> list[tuple[str, str, str]]:
        """Return the commits of a revision range, oldest first: id, message, author's name."""
        listing = await self.run("log", "--reverse", "-z", "--format=%H%n%an%n%B", *revisions)
        rows = (entry.split("\n", 2) for entry in listing.split("\0") if entry)
        return [(commit, message.strip(), author) for commit, author, message in rows]


def _data(content: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(content), content)
