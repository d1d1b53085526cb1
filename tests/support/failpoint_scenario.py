"""A story with kills in it: the common parts of every scenario of failpoints."""

import asyncio
import signal
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
    """A story that is killed once at each failpoint of a list, one after the other, and goes on after each kill.

    It is played once for each of its lists, `failpoints`. The worker that serves it is killed, at first `command` where
    it has one, which runs while no worker does. `settings` are for all of them. `cut_offs` is what the turn counts as
    its crashes until then.
    """

    failpoints: Sequence[str] = ()
    command: Sequence[str] = ()
    settings: Mapping[str, str] = {}
    cut_offs = 0

    def __init__(self, here: Deployment, names: str, listed: Path) -> None:
        self.here = here
        self._names = names
        self._listed = listed

    async def play(self) -> None:
        """Prepare, act, kill at each failpoint, and leave a worker that goes on to the end of the story."""
        ready = await self.here.listen_here(**self.settings)
        process = await self._start("worker")
        await ready()
        await self.prepare()
        if self.command:
            assert await process.terminate() == 0
            await self.act()
        self._listed.write_text(self._names)
        if self.command:
            process = await self._start(*self.command)
        else:
            await self.act()
        for _ in self._names.split():
            assert await process.ended() == -signal.SIGKILL, (self._listed.read_text(), process.stderr)
            await self.here.no_agents()
            # One crash after the other would end the turn as interrupted.
            await self.execute(f"update turns set cut_offs = {self.cut_offs} where state = 'running'")  # noqa: S608
            process = await self._start("worker")

    async def prepare(self) -> None:
        """Do what comes before, with no failpoint listed yet."""
        return

    @abstractmethod
    async def act(self) -> None:
        """Do what reaches the failpoints."""

    @abstractmethod
    async def check(self) -> None:
        """Check the state at the end, besides what always holds."""

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
            *(kill_at_failpoint.__file__, str(self._listed), *command),
            command=command[0],
            **self.settings,
        )
