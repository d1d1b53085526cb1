"""Names of a bare repository's objects, asked of one git process that answers all questions.

https://git-scm.com/docs/git-cat-file#_batch_output
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

from bot.sandbox.process import ProcessGroup
from bot.tree.git.errors import GitError, GitProblem

FORMAT = "%(objectname)"
ANSWER_SECONDS = 60.0
_NAME = re.compile(rb"([0-9a-f]{40}(?:[0-9a-f]{24})?)\n")


class Objects:
    """A reader of one repository. git starts with the first question and sees what other processes write later."""

    def __init__(self, start: Callable[[], Awaitable[ProcessGroup]]) -> None:
        self._start = start
        self._process: ProcessGroup | None = None
        self._turn = asyncio.Lock()

    async def name(self, revision: str) -> str | None:
        """Return the name of the object that a revision stands for, None if there is none. Raises GitError."""
        if not revision.isprintable():
            raise GitError(GitProblem.OTHER, "cat-file", f"not a revision: {revision!r}")
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._exchange(revision)
            except BaseException as error:
                # Half an answer may be on its way.
                await asyncio.shield(self.close())
                if isinstance(error, TimeoutError):
                    raise GitError(GitProblem.TIMEOUT, "cat-file", f"not done after {ANSWER_SECONDS:g} s") from error
                if isinstance(error, (asyncio.IncompleteReadError, OSError, ValueError)):
                    raise GitError(GitProblem.OTHER, "cat-file", "git ended without an answer") from error
                raise

    async def close(self) -> None:
        """End git; a later question starts it again, also on a repository that was put in the place of this one."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _exchange(self, revision: str) -> str | None:
        process = self._process = self._process or await self._start()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("stdin and stdout are not pipes")
        process.stdin.write(f"info {revision}\n".encode())
        await process.stdin.drain()
        found = _NAME.fullmatch(await process.stdout.readuntil(b"\n"))
        return found[1].decode() if found is not None else None
