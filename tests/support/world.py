"""A bot and a GitHub in one process, told as a conversation: comments, the bot's answers, the rows."""

import codecs
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import asyncpg

from bot.demo.pair import Pair, running_bot, settings_for
from bot.serve.parts import Surroundings
from bot.simulated.github.faults import Faults
from bot.simulated.github.git import Files
from bot.simulated.github.model import Comment, Issue, Pull, Repository, Review, ReviewComment, User
from bot.simulated.github.person import Person
from bot.simulated.github.server import SimulatedGitHub
from bot.thread import tracking
from tests.support.clock import HandMovedClock
from tests.support.patience import PATIENCE_SECONDS, eventually, until_true

PROGRESS = ("Queued.", "Waiting.", "Waiting for ", "Working on it", "Given to the agent")
PREPARING = ("Cloning the repository", "Fetching new commits", tracking.SETTING_UP, tracking.READING)
"""What is shown before the agent starts, on a slow machine also where it usually takes a moment."""
EMOJI = {"eyes": "👀", "confused": "😕"}

More = Mapping[str, str] | Callable[[SimulatedGitHub], Mapping[str, str]]
Row = dict[str, Any]

NOTHING_LEFT = """
-- Nothing is being done and nothing waits: what did not happen by now does not happen.
select not exists (select from deliveries where state = 'received')
   and not exists (select from turns where state in ('queued', 'running'))
   and not exists (select from operations where state in ('queued', 'running'))
   and not exists (select from outbox where state in ('waiting', 'sending'))
   and not exists (select from worktrees where state = 'removing')
   and not exists (
       select from procrastinate_jobs where status in ('todo', 'doing') and task_name <> 'chore'
          -- Of a removal whose process might have died; what it would go on with is in the rows above.
          and not (task_name = 'worktree' and status = 'todo' and scheduled_at > now()))
"""
TURNS = """
select r.*, t.*, c.number, w.path, r.ask->>'text' as text from turns t join requests r on r.turn_id = t.id
join conversations c on c.id = t.conversation_id left join worktrees w on w.id = t.worktree_id order by t.id
"""
SESSIONS = "select s.*, c.number from sessions s join conversations c on c.id = s.conversation_id order by s.id"
WORKTREES = """
select w.*, array(select c.number from conversations c where c.worktree_id = w.id order by c.number) as conversations
from worktrees w order by w.id
"""


def unseen(*lines: str) -> str:
    """Return lines for the scripted agent in a form in which the bot does not see the secrets in them."""
    return "".join(f"\nrot13 {codecs.encode(line, 'rot13')}" for line in lines)


@dataclass(frozen=True, slots=True)
class Said:
    """One text that a person wrote to the bot."""

    world: "World"
    comment: Comment | Issue

    @property
    def reactions(self) -> list[str]:
        """Return the bot's reactions."""
        bot = self.world.github.bot
        return [EMOJI.get(r.content, r.content) for r in self.comment.reactions if r.user.id == bot.id]

    async def gets(self, emoji: str) -> None:
        """Wait for the bot's reaction."""
        await self.world.github.wait_for(lambda: emoji in self.reactions, PATIENCE_SECONDS)


@dataclass(slots=True)
class Talk:
    """A thread, and the position of its reader. `hears` returns each final text of the bot once."""

    world: "World"
    thread: Issue
    opener: "Someone"
    read: dict[int, str] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.thread.number

    @property
    def pull(self) -> Pull:
        assert isinstance(self.thread, Pull)
        return self.thread

    @property
    def opening(self) -> Said:
        """Return the thread's own text."""
        return Said(self.world, self.thread)

    @property
    def from_bot(self) -> list[Comment]:
        """Return all comments of the bot here, inline or not, oldest first."""
        inline = self.thread.review_comments if isinstance(self.thread, Pull) else []
        mine = [one for one in (*self.thread.comments, *inline) if one.author.id == self.world.github.bot.id]
        return sorted(mine, key=lambda comment: comment.id)

    @property
    def unread(self) -> list[Comment]:
        return [comment for comment in self.from_bot if self.read.get(comment.id) != comment.body]

    async def says(self, text: str, by: "Someone | None" = None) -> Said:
        """Comment on the thread, by default as the person who opened it."""
        return Said(self.world, await (by or self.opener).person.comment(self.thread, text))

    async def hears(self, *phrases: str) -> str:
        """Wait for the bot's next final text, check that it has the phrases, and mark it as read."""
        comment = await self.world.github.wait_for(self._next_final, PATIENCE_SECONDS)
        assert comment is not None
        body = self.read[comment.id] = comment.body
        for phrase in phrases:
            assert phrase in body, f"{phrase!r} is not in what the bot said:\n{body}"
        return body

    async def hears_all(self) -> list[str]:
        """Wait until the bot has nothing left to do; return all its new texts, oldest comment first."""
        await self.world.quiet()
        bodies = [comment.body for comment in self.unread]
        self.read |= {comment.id: comment.body for comment in self.unread}
        return bodies

    async def sees(self, phrase: str) -> None:
        """Wait until a comment of the bot shows this text or has shown it; that does not mark it as read."""

        def shown() -> bool:
            return any(phrase in text for one in self.from_bot for text in (one.original, *one.edits))

        await self.world.github.wait_for(shown, PATIENCE_SECONDS)

    async def sees_working(self) -> None:
        """Wait until an unread comment shows that the agent is at work: nothing is prepared any more."""

        def at_work(text: str) -> bool:
            return text.startswith("Working on it") and not any(phase in text for phase in PREPARING)

        await self.world.github.wait_for(lambda: any(at_work(one.body) for one in self.unread), PATIENCE_SECONDS)

    async def closes(self, comment: str | None = None, by: "Someone | None" = None) -> None:
        await (by or self.opener).person.close(self.thread, comment)

    async def reopens(self) -> None:
        await self.opener.person.reopen(self.thread)

    async def merges(self) -> None:
        await self.opener.person.merge(self.pull)

    @property
    def reviews_of_bot(self) -> list[Review]:
        return [one for one in self.pull.reviews if one.author.id == self.world.github.bot.id and one.body]

    async def reviewed(self, *phrases: str) -> tuple[str, list[ReviewComment]]:
        """Wait until nothing is left to do; return the bot's newest review, without its marker, and its remarks."""
        await self.world.quiet()
        review = self.reviews_of_bot[-1]
        body = (review.body or "").rpartition("\n\n<!-- ")[0]
        for phrase in phrases:
            assert phrase in body, f"{phrase!r} is not in the review:\n{body}"
        remarks = [one for one in self.pull.review_comments if one.review is review]
        self.read |= {one.id: one.body for one in remarks}
        return body, remarks

    async def reviews(self, body: str | None, *inline: tuple[str, int, str]) -> Review:
        return await self.opener.person.review(self.pull, body, comments=inline)

    def _next_final(self) -> Comment | None:
        return next((one for one in self.unread if not one.body.startswith(PROGRESS)), None)


@dataclass(frozen=True, slots=True)
class Someone:
    """A person and their acts on GitHub."""

    world: "World"
    user: User

    @property
    def person(self) -> Person:
        return self.world.github.person(self.user.login)

    async def opens_issue(
        self, title: str, body: str | None = None, *, labels: Sequence[str] = (), repository: Repository | None = None
    ) -> Talk:
        thread = await self.person.open_issue(repository or self.world.repository, title, body, labels)
        return self.world.listen(thread, self)

    async def opens_pull(
        self, title: str, body: str | None = None, *, head: str, fork: Repository | None = None
    ) -> Talk:
        thread = await self.person.open_pull(self.world.repository, head=head, title=title, body=body, head_repo=fork)
        return self.world.listen(thread, self)

    async def pushes(self, branch: str, files: Files, *, to: Repository | None = None, base: str | None = None) -> str:
        """Push a commit and return it."""
        return await self.person.push(to or self.world.repository, branch, files, "By hand", base)


@dataclass(frozen=True, slots=True)
class Gate:
    """A file for which the agent waits: `wait {gate}` in a request."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> None:
        self.path.touch()


@dataclass(slots=True)
class World:
    """The bot, its GitHub, a repository and two people: maria may write, olaf may not."""

    github: SimulatedGitHub
    repository: Repository
    clock: HandMovedClock
    database: asyncpg.Connection
    pair: Pair
    directory: Path
    talks: list[Talk] = field(default_factory=list)
    gates: int = 0

    @property
    def maria(self) -> Someone:
        return self.someone("maria")

    @property
    def olaf(self) -> Someone:
        return self.someone("olaf")

    @property
    def faults(self) -> Faults:
        return self.github.faults

    @property
    def data_dir(self) -> Path:
        return self.pair.settings.data_dir

    def someone(self, login: str, kind: Literal["User", "Bot"] = "User") -> Someone:
        return Someone(self, self.github.world.user(login, kind))

    def listen(self, thread: Issue, opener: Someone) -> Talk:
        """Return the talk of an opened thread."""
        self.talks.append(Talk(self, thread, opener))
        return self.talks[-1]

    def gate(self) -> Gate:
        """Return a closed gate."""
        self.gates += 1
        return Gate(self.directory / f"gate-{self.gates}")

    @asynccontextmanager
    async def busy_clone(self) -> AsyncIterator[None]:
        """Hold the lock of the repository's clone: all work on its worktrees waits."""
        with (self.data_dir / "repos" / "acme" / "shop.git.lock").open("w") as lock:
            # Polled: the bot runs in this event loop, and could not release the lock while flock waits for it.
            await until_true(partial(_try_lock, lock))
            yield

    async def turns(self, *columns: str) -> list[Any]:
        """Return the turns, oldest first: whole rows, or only these columns."""
        return await self._rows(TURNS, columns)

    async def sessions(self, *columns: str) -> list[Any]:
        """Return the sessions, oldest first."""
        return await self._rows(SESSIONS, columns)

    async def worktrees(self, *columns: str) -> list[Any]:
        """Return the worktrees, oldest first, with the numbers of the `conversations` that use them."""
        return await self._rows(WORKTREES, columns)

    async def quiet(self) -> None:
        """Wait until nothing is left to do on either side."""

        async def nothing_left() -> bool:
            await self.github.settled()
            return await self.database.fetchval(NOTHING_LEFT) and await self._settled()

        await eventually(nothing_left, PATIENCE_SECONDS, what=self._state)

    async def until(self, condition: str) -> None:
        """Wait until an SQL condition on the rows holds."""
        await eventually(lambda: self.database.fetchval(f"select {condition}"), PATIENCE_SECONDS, what=self._state)

    @staticmethod
    def text_of(worktree: str, name: str) -> str | None:
        """Return a file on the bot's own disk, None if it does not exist."""
        file = Path(worktree, name)
        return file.read_text() if file.is_file() else None

    async def branches(self) -> dict[str, str]:
        """Return the branches on GitHub with their commits."""
        return await self.repository.git.branches()

    async def files(self, revision: str) -> dict[str, str]:
        """Return the files of a branch or commit on GitHub."""
        return await self.repository.git.files(revision)

    async def _settled(self) -> bool:
        before = len(self.github.deliveries)
        await self.github.settled()
        return len(self.github.deliveries) == before

    async def _rows(self, statement: str, columns: Sequence[str]) -> list[Any]:
        rows = [dict(row) for row in await self.database.fetch(statement)]
        for row in rows:
            if row.get("path") is not None:
                row["path"] = str(self.data_dir / row["path"])
        match len(columns):
            case 0:
                return rows
            case 1:
                return [row[columns[0]] for row in rows]
            case _:
                return [tuple(row[column] for column in columns) for row in rows]

    async def _state(self) -> str:
        """Return what is unfinished, for the message of a failed test."""
        lines = [str(row) for row in await self.turns("number", "state", "reason")]
        lines += [str(row) for row in await self.worktrees("path", "state")]
        lines += [str(dict(row)) for row in await self.database.fetch("select kind, state, outcome from operations")]
        lines += [str(dict(row)) for row in await self.database.fetch("select kind, state, error, due_at from outbox")]
        jobs = "select task_name, status, args, attempts, scheduled_at from procrastinate_jobs"
        return "\n".join([*lines, *(str(dict(row)) for row in await self.database.fetch(jobs))])


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@asynccontextmanager
async def open_world(
    database_url: str,
    directory: Path,
    more: More | None = None,
    *,
    installation_id: int | None = None,
) -> AsyncIterator[World]:
    """Run a pair with the repository acme/shop; at the end every text of the bot must have been read.

    `more`: settings of the bot, or a function of GitHub that returns them.
    """
    clock = HandMovedClock()
    async with SimulatedGitHub.running(directory / "github", clock, installation_id=installation_id) as github:
        github.webhook_timeout_seconds = PATIENCE_SECONDS
        repository = await github.create_repository("acme/shop", {"README.md": "# shop\n"})
        repository.allow(github.person("maria"), "write")
        settings = settings_for(
            github,
            directory / "data",
            os.environ["PATH"],
            **{"SHUTDOWN_GRACE_SECONDS": "0", **((more(github) if callable(more) else more) or {})},
        )
        connection = await asyncpg.connect(database_url)
        try:
            async with running_bot(github, settings, database_url, Surroundings(clock, clock.sleep)) as pair:
                world = World(github, repository, clock, connection, pair, directory)
                yield world
                await world.quiet()
                unread = [comment for talk in world.talks for comment in talk.unread]
                assert not unread, f"the bot said what nobody heard: {unread}"
                said = [comment.body for talk in world.talks for comment in talk.from_bot]
                shown = [body for body in said if str(directory / "data") in body]
                assert not shown, f"the bot shows a path of the machine: {shown}"
        finally:
            await connection.close()
