"""The setting of the story: a repository with a maintainer, and the actions, waits and queries of its steps."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from bot.demo.pair import Pair
from bot.demo.report import Report
from bot.simulated.github.git import BareRepository
from bot.simulated.github.model import Comment, Issue, Repository
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub
from bot.thread.marker import turn_marker

PATIENCE_SECONDS = 120.0
GATE = "go"
"""The scripted agent waits for this file in the first turn, so that the running turn can be seen."""


class StoryBrokeError(Exception):
    """An event that the story waits for did not happen; the report names it."""


@dataclass(slots=True)
class Stage:
    """The repository acme/shop, where `maria` may write, and the report of the story."""

    pair: Pair
    report: Report
    repository: Repository
    maria: Person
    _read: set[int] = field(default_factory=set)

    @classmethod
    async def set_up(cls, pair: Pair, report: Report) -> "Stage":
        """Create the repository, without a thread."""
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
        """Return the name by which people mention the bot."""
        return f"@{self.github.bot.login}"

    # Actions

    async def says(self, person: Person, thread: Issue, words: str) -> Comment:
        """Comment on a thread."""
        comment = await person.comment(thread, words)
        self.report.quote(f"#{thread.number} {person.login}", words)
        return comment

    # Waits; each raises StoryBrokeError when the event does not happen in time.

    async def new_comment(self, thread: Issue) -> Comment:
        """Wait for the bot's next unread comment on the thread."""
        await self.until("the bot answers", lambda: bool(self.unread(thread)))
        comment = self.unread(thread)[0]
        self._heard(thread, comment)
        return comment

    async def answer(self, thread: Issue, turn: int) -> Comment:
        """Wait until the turn's tracking comment shows its final text."""
        done = "select 1 from outbox where turn_id = $1 and part = 1 and urgency = 1 and sent_version = version"
        await self.until_rows("the answer is there", done, turn)
        marker = turn_marker(turn, 1)
        comment = next(comment for comment in thread.comments if comment.body.endswith(marker))
        self._heard(thread, comment)
        return comment

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until `holds` is true of GitHub's state, and report it as a check."""
        try:
            await self.github.wait_for(holds, PATIENCE_SECONDS)
        except TimeoutError as error:
            self.report.check(what, False, f"not within {PATIENCE_SECONDS:.0f} s")
            raise StoryBrokeError(what) from error
        self.report.check(what, True)

    async def until_rows(self, what: str, sql: str, *arguments: object) -> None:
        """Wait until the query returns rows, and report it as a check."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while not await self.rows(sql, *arguments):
            if asyncio.get_running_loop().time() > deadline:
                self.report.check(what, False, f"not within {PATIENCE_SECONDS:.0f} s")
                raise StoryBrokeError(what)
            await asyncio.sleep(0.1)
        self.report.check(what, True)

    # Queries

    def unread(self, thread: Issue) -> list[Comment]:
        """Return the bot's comments on the thread that no step has read."""
        return [comment for comment in thread.comments_by(self.github.bot) if comment.id not in self._read]

    async def worktree(self) -> dict[str, Any]:
        """Return the row of the only worktree, with its whole path."""
        rows = await self.rows("select id, path, branch, state from worktrees where state = 'ready'")
        found: dict[str, Any] = {"id": None, "path": "/nonexistent", "branch": None, "state": None}
        found |= dict(rows[0]) if rows else {}
        return {**found, "path": str(self.pair.settings.data_dir / found["path"])}

    async def rows(self, sql: str, *arguments: object) -> list[Any]:
        """Query the bot's database."""
        connection = await asyncpg.connect(self.pair.dsn)
        try:
            return list(await connection.fetch(sql, *arguments))
        finally:
            await connection.close()

    async def git(self, *args: str) -> str:
        """Run git in GitHub's repository and return its output."""
        return await self.repository.git.run(*args)

    async def clone(self, *args: str) -> str:
        """Run git in the bot's clone and return its output."""
        folder = self.pair.settings.data_dir / "repos" / f"{self.repository.full_name}.git"
        return await BareRepository(folder).run(*args)

    def _heard(self, thread: Issue, comment: Comment) -> None:
        self._read.add(comment.id)
        self.report.quote(f"#{thread.number} {self.github.bot.login}", comment.body)


def is_gone(path: str) -> bool:
    """Return whether nothing is at the path, not even a broken link."""
    return not os.path.lexists(path)
