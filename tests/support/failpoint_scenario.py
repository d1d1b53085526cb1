"""A story with one kill in it: the common parts of every scenario of a failpoint."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import asyncpg
import orjson

from bot.simulated.github.model import Issue
from tests.support import kill_at_failpoint
from tests.support.processes import BotProcess, Deployment
from tests.support.world import NOTHING_LEFT


class Scenario(ABC):
    """A story with one kill in it: of the worker that serves it, or of `command`, which runs while no other does.

    `settings` are for it and for the restarted bot.
    """

    command: Sequence[str] = ()
    settings: Mapping[str, str] = {}

    def __init__(self, here: Deployment, name: str, armed: Path) -> None:
        self.here = here
        self._name = name
        self._armed = armed

    async def play_until_killed(self) -> BotProcess:
        """Prepare, act until the failpoint is reached, and return the process that ended there."""
        ready = await self.here.listen_here(**self.settings)
        worker = await self._start("worker")
        await ready()
        await self.prepare()
        if self.command:
            assert await worker.terminate() == 0
            await self.act()
            self._armed.touch()
            return await self._start(*self.command)
        self._armed.touch()
        await self.act()
        return worker

    async def restart(self) -> None:
        """Start a worker after the kill; deliveries were stored meanwhile."""
        await self._start("worker")

    async def prepare(self) -> None:
        """Do what comes before, with the failpoint not yet armed."""
        return

    @abstractmethod
    async def act(self) -> None:
        """Do what reaches the failpoint."""

    @abstractmethod
    async def check(self) -> None:
        """Check the state after the restart, besides what always holds."""

    async def quiet(self) -> None:
        """Wait until nothing is left to do."""
        await self.here.github.settled()
        await self.here.until(NOTHING_LEFT)

    async def answers(self, thread: Issue, *phrases: str) -> None:
        """Check that the thread has one comment for each of these phrases, in this order, and no other."""
        bodies = [comment.body for comment in self.here.answers(thread)]
        assert len(bodies) == len(phrases), bodies
        for body, phrase in zip(bodies, phrases, strict=True):
            assert phrase in body, body

    async def pushed(self, branch: str, **files: str | None) -> None:
        """Check the text of these files (without `.txt`) on GitHub's branch."""
        found = await self.here.repository.git.files(branch)
        assert {name: found.get(f"{name}.txt") for name in files} == files

    async def execute(self, *statements: str) -> None:
        """Run SQL statements."""
        connection = await asyncpg.connect(self.here.dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def live(self) -> dict[str, str | None]:
        """Return the branches of the ready worktrees, by the names of their directories."""
        found = await self.here.value("select json_object_agg(path, branch) from worktrees where state = 'ready'")
        return {Path(path).name: branch for path, branch in orjson.loads(str(found) if found else "{}").items()}

    async def rescued(self) -> list[dict[str, str]]:
        """Return the files of each rescue in the clone."""
        names = (await self.git("for-each-ref", "--format=%(refname)", "refs/threadtree/rescue/")).split()
        found = []
        for ref in names:
            listed = (await self.git("ls-tree", "-r", "--name-only", ref)).split()
            found.append({name: (await self.git("show", f"{ref}:{name}")).strip() for name in listed})
        return found

    async def rescued_once(self) -> None:
        """Check that the uncommitted work is in the only rescue."""
        rescued = await self.rescued()
        assert [files.get("left.txt") for files in rescued] == ["unfinished"], rescued
        assert await self.here.value("select count(*) from rescues") == 1

    async def git(self, *arguments: str) -> str:
        """Run git in the clone."""
        clone = self.here.data_dir / "repos" / "acme" / "shop.git"
        process = await asyncio.create_subprocess_exec(
            *("git", f"--git-dir={clone}", *arguments), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        assert process.returncode == 0
        return said.decode().strip()

    async def _start(self, *command: str) -> BotProcess:
        return await self.here.start_program(
            *(kill_at_failpoint.__file__, self._name, str(self._armed), *command),
            command=command[0],
            **self.settings,
        )
