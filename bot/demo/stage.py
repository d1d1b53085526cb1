"""What the story is told on: a repository with a maintainer, and how its steps act, wait and look."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from bot.demo.pair import Pair
from bot.demo.report import Report
from bot.messages.marker import turn_marker
from bot.simulated.github.git import BareRepository
from bot.simulated.github.model import Comment, Issue, Repository
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub

PATIENCE_SECONDS = 30.0
GATE = "go"
"""The file the scripted agent waits for in the first turn, so that there is time to see it at work."""


class StoryBrokeError(Exception):
    """Something the story waits for did not happen; the report says what."""


@dataclass(slots=True)
class Stage:
    """The repository acme/shop, where `maria` may write, and the report of what happens there."""

    pair: Pair
    report: Report
    repository: Repository
    maria: Person
    _read: set[int] = field(default_factory=set)

    @classmethod
    async def set_up(cls, pair: Pair, report: Report) -> "Stage":
        """A new repository, without a thread yet."""
        files = {"README.md": "# The shop\n", ".gitignore": f"/{GATE}\n"}
        repository = await pair.github.create_repository("acme/shop", files)
        maria = pair.github.person("maria")
        repository.allow(maria, "maintain")
        return cls(pair, report, repository, maria)

    @property
    def github(self) -> SimulatedGitHub:
        return self.pair.github

    @property
    def bot(self) -> str:
        """How the bot is mentioned."""
        return f"@{self.github.bot.login}"

    # What happens

    async def says(self, person: Person, thread: Issue, words: str) -> Comment:
        """A comment on a thread."""
        comment = await person.comment(thread, words)
        self.report.quote(f"#{thread.number} {person.login}", words)
        return comment

    # What is waited for; each raises StoryBrokeError at what never happens

    async def new_comment(self, thread: Issue) -> Comment:
        """The bot's next comment on the thread that nobody has read."""
        await self.until("the bot answers", lambda: bool(self.unread(thread)))
        comment = self.unread(thread)[0]
        self._heard(thread, comment)
        return comment

    async def answer(self, thread: Issue, turn: int) -> Comment:
        """The turn's tracking comment once GitHub shows what its end wished for."""
        done = "select 1 from outbox where turn_id = $1 and part = 1 and urgency = 1 and sent_version = version"
        await self.until_rows("the answer is there", done, turn)
        marker = turn_marker(turn, 1)
        comment = next(comment for comment in thread.comments if comment.body.endswith(marker))
        self._heard(thread, comment)
        return comment

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """GitHub's state is such that `holds`, which is a check of the report."""
        try:
            await self.github.wait_for(holds, PATIENCE_SECONDS)
        except TimeoutError as error:
            self.report.check(what, False, f"not within {PATIENCE_SECONDS:.0f} s")
            raise StoryBrokeError(what) from error
        self.report.check(what, True)

    async def until_rows(self, what: str, sql: str, *arguments: object) -> None:
        """The query finds something, which is a check of the report."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not await self.rows(sql, *arguments):
            if asyncio.get_running_loop().time() > deadline:
                self.report.check(what, False, f"not within {PATIENCE_SECONDS:.0f} s")
                raise StoryBrokeError(what)
            await asyncio.sleep(0.1)
        self.report.check(what, True)

    # What is looked at

    def unread(self, thread: Issue) -> list[Comment]:
        """What the bot said on the thread and no step has read."""
        return [comment for comment in thread.comments_by(self.github.bot) if comment.id not in self._read]

    async def worktree(self) -> dict[str, Any]:
        """The only one there is."""
        rows = await self.rows("select id, path, branch, state from worktrees where state = 'ready'")
        return dict(rows[0]) if rows else {"id": None, "path": "/nonexistent", "branch": None, "state": None}

    async def rows(self, sql: str, *arguments: object) -> list[Any]:
        """What the bot's database answers."""
        connection = await asyncpg.connect(self.pair.dsn)
        try:
            return list(await connection.fetch(sql, *arguments))
        finally:
            await connection.close()

    async def git(self, *args: str) -> str:
        """What GitHub's own repository answers."""
        return await self.repository.git.run(*args)

    async def clone(self, *args: str) -> str:
        """What the bot's clone answers."""
        folder = self.pair.settings.data_dir / "repos" / f"{self.repository.full_name}.git"
        return await BareRepository(folder).run(*args)

    def _heard(self, thread: Issue, comment: Comment) -> None:
        self._read.add(comment.id)
        self.report.quote(f"#{thread.number} {self.github.bot.login}", comment.body)


def is_gone(path: str) -> bool:
    """Nothing is there, not even a broken link."""
    return not os.path.lexists(path)
