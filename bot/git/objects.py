"""Questions about the objects of a bare repository, to one git process that answers them all.

https://git-scm.com/docs/git-cat-file#_batch_output
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from bot.git import refs
from bot.git.errors import GitError, GitProblem
from bot.process import ProcessGroup

FORMAT = "%(objectname) %(objecttype) %(objectsize)"
ANSWER_SECONDS = 60.0
# A larger object is read by a process of its own.
MOST_BYTES = 4 << 20
# https://git-scm.com/docs/git-commit-tree#_commit_information
_TIME = re.compile(r"> (\d{1,12}) [+-]\d{4}$")
_FOUND = re.compile(rb"([0-9a-f]{40,64}) ([a-z]+) (\d+)\n")


@dataclass(frozen=True, slots=True)
class Object:
    """An object's name, its kind (`commit`, `tree`, `blob` or `tag`) and its size in bytes."""

    name: str
    kind: str
    size: int


class Objects:
    """A reader of one repository. git starts with the first question and sees what other processes write later."""

    def __init__(self, directory: Path, start: Callable[[], Awaitable[ProcessGroup]]) -> None:
        self._directory = directory
        self._opened: int | None = None
        self._start = start
        self._process: ProcessGroup | None = None
        self._turn = asyncio.Lock()

    async def info(self, revision: str) -> Object | None:
        """Return the object that a revision stands for, None if there is none. Raises GitError."""
        found, _ = await self._ask("info", revision)
        return found

    async def content(self, revision: str) -> tuple[Object, bytes] | None:
        """Return an object with its content, None if there is none. Raises GitError, also for more than MOST_BYTES."""
        known = await self.info(revision)
        if known is None:
            return None
        if known.size > MOST_BYTES:
            raise GitError(GitProblem.OTHER, "cat-file", f"{known.name} has more than {MOST_BYTES >> 20} MiB")
        found, content = await self._ask("contents", known.name)
        return (found, content) if found is not None else None

    async def parents(self, commit: str) -> tuple[str, ...]:
        """Return the parents of a commit. Raises GitError."""
        header = await self._header(commit)
        return tuple(line.removeprefix("parent ") for line in header if line.startswith("parent "))

    async def committed_at(self, commit: str) -> int:
        """Return the committer's time of a commit in seconds. Raises GitError."""
        lines = [line for line in await self._header(commit) if line.startswith("committer ")]
        found = _TIME.search(lines[0]) if lines else None
        if found is None:
            raise GitError(GitProblem.CORRUPT, "cat-file", f"{commit} has no time")
        return int(found[1])

    async def subject(self, commit: str) -> str | None:
        """Return the subject of a commit as git shows it, None where that is not in UTF-8. Raises GitError."""
        header, message = await self._commit(commit)
        if any(line.startswith("encoding ") for line in header):
            return None
        lines = (line.rstrip() for line in message.decode(errors="replace").lstrip("\n").split("\n"))
        return " ".join(takewhile(bool, lines))

    async def _header(self, commit: str) -> list[str]:
        return (await self._commit(commit))[0]

    async def _commit(self, commit: str) -> tuple[list[str], bytes]:
        found = await self.content(commit)
        if found is None or found[0].kind != "commit":
            raise GitError(GitProblem.CORRUPT, "cat-file", f"{commit} is no commit")
        header, _, message = found[1].partition(b"\n\n")
        return header.decode(errors="replace").split("\n"), message

    async def line(self, commit: str, ends: Set[str], most: int) -> tuple[list[str], str] | None:
        """Return the commits from `commit` down to the first of `ends`, without it, and that end.

        None where there is a merge, no end or more than `most` commits between. Raises GitError.
        """
        found: list[str] = []
        while commit not in ends:
            above = await self.parents(commit) if len(found) < most else ()
            if len(above) != 1:
                return None
            found.append(commit)
            [commit] = above
        return found, commit

    async def steps(self, ancestor: str, descendant: str, most: int) -> int | None:
        """Return how many commits after `ancestor` the commit `descendant` is, as `line`. Raises GitError."""
        found = await self.line(descendant, {ancestor}, most)
        return len(found[0]) if found is not None else None

    async def close(self) -> None:
        """End git; a later question starts it again."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _ask(self, command: str, revision: str) -> tuple[Object | None, bytes]:
        if not revision.isprintable():
            raise GitError(GitProblem.OTHER, "cat-file", f"not a revision: {revision!r}")
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._exchange(f"{command} {revision}\n".encode())
            except BaseException as error:
                # Half an answer may be on its way.
                await asyncio.shield(self.close())
                if isinstance(error, TimeoutError):
                    raise GitError(GitProblem.TIMEOUT, "cat-file", f"not done after {ANSWER_SECONDS:g} s") from error
                if isinstance(error, (asyncio.IncompleteReadError, OSError, ValueError)):
                    raise GitError(GitProblem.OTHER, "cat-file", "git ended without an answer") from error
                raise

    async def _exchange(self, question: bytes) -> tuple[Object | None, bytes]:
        now = self._directory.stat().st_ino
        if now != self._opened:
            # Another repository was put in the place of the one that git has open.
            await self.close()
            self._opened = now
        process = self._process = self._process or await self._start()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("stdin and stdout are not pipes")
        process.stdin.write(question)
        await process.stdin.drain()
        line = await process.stdout.readuntil(b"\n")
        match = _FOUND.fullmatch(line)
        if match is None:
            return None, b""
        found = Object(match[1].decode(), match[2].decode(), int(match[3]))
        if not refs.is_commit(found.name):
            raise ValueError(line)
        if question.startswith(b"info "):
            return found, b""
        content = await process.stdout.readexactly(found.size + 1)
        return found, content[:-1]
