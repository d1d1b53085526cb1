"""Rows of repositories, threads, worktrees and turns on a real database."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

import asyncpg

from bot.ask import Ask
from bot.model import Actor, IssueBranch, Repository, Start, Target
from bot.store import conversations, turns
from bot.store.database import Connection, Pool
from bot.store.turns import Claim, ClaimedTurn
from bot.turn import claims
from bot.turn import request_rows as requests
from tests.support.patience import PATIENCE_SECONDS

NODE = "here"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def repository(number: int = 1) -> Repository:
    """Return the repository with this id."""
    return Repository("github.com", number, "octo", f"repo-{number}", "main")


def request(text: str = "do it", **changes: Any) -> Ask:
    """Return a request of ada by a comment at noon, with the `changes`."""
    return replace(Ask(text, Actor("ada", 7), NOON, Target("comment", 11)), **changes)


class TurnRows:
    """Writes the rows that decide would write. `db` is a connection outside any transaction."""

    def __init__(self, db: Connection) -> None:
        self.db = db
        self._numbers = count(1)

    async def thread(self, *, repo: int = 1, worktree: int | None = None, number: int | None = None) -> int:
        """Create an open issue in this worktree; return the conversation's id."""
        await conversations.save_codebase(self.db, repository(repo))
        conversation, _ = await conversations.save_thread(
            self.db, repository(repo), number or next(self._numbers), "issue", "A title", None
        )
        await conversations.use_worktree(self.db, conversation, worktree)
        return conversation

    async def worktree(
        self,
        *,
        repo: int = 1,
        node: str = NODE,
        path: str | None = None,
        owner: int | None = None,
        start: Start | None = None,
    ) -> int:
        """Create a reserved worktree; return its id."""
        await conversations.save_codebase(self.db, repository(repo))
        await self.db.execute("insert into nodes (id) values ($1) on conflict do nothing", node)
        number = next(self._numbers)
        owner, start = owner or number, start or IssueBranch(owner or number)
        where = path or f"worktrees/{number}"
        return await conversations.reserve_worktree(
            self.db, repository(repo), node=node, path=where, owner=owner, start=start
        )

    async def home(self, *, repo: int = 1, node: str = NODE) -> tuple[int, int]:
        """Create a thread with its own worktree; return (conversation, worktree)."""
        worktree = await self.worktree(repo=repo, node=node)
        return await self.thread(repo=repo, worktree=worktree), worktree

    async def ask(self, conversation: int, text: str = "do it", notices: Sequence[str] = (), **changes: Any) -> int:
        """Ask for a turn; return its id."""
        worktree = await conversations.worktree_of(self.db, conversation)
        return (await requests.enqueue(self.db, conversation, worktree, request(text, **changes), NOON, notices)).id

    async def ask_alone(self, worktree: int, verb: str = "reset", conversation: int | None = None) -> int:
        """Ask for a turn without an agent, as an operator or in a thread; return its id."""
        words = f"worktrees {verb} {worktree}"
        if conversation is None:
            return await requests.enqueue_for_operator(self.db, worktree, verb, words, "the operator", NOON)
        asked = request(words, verb=verb)
        return (await requests.enqueue(self.db, conversation, worktree, asked, NOON, needs_agent=False)).id

    async def line(self, *turn_ids: int, now: datetime | None = None) -> list[tuple[int, str | None]]:
        """Return for those of the turns that wait how many go before, and what the first of these waits for."""
        rows = await requests.why_turns_wait(self.db, turn_ids, now or NOON, 60)
        return [(row.ahead, row.wait) for row in sorted(rows, key=lambda row: turn_ids.index(row.id))]

    async def claim(
        self,
        *,
        node: str = NODE,
        per_repository: int = 100,
        db: Connection | None = None,
        now: datetime | None = None,
    ) -> ClaimedTurn | None:
        """Claim as a worker of the node does when the doorbell rings."""
        where, at = (node, "0123456789abcdef", per_repository), now or NOON
        alone = await claims.claim_next(db or self.db, *where, at, with_agent=False)
        return alone or await claims.claim_next(db or self.db, *where, at, with_agent=True)

    async def claimed(self, **options: Any) -> ClaimedTurn:
        """Claim a turn that must exist."""
        turn = await self.claim(**options)
        assert turn is not None
        return turn

    async def claim_all(self, **options: Any) -> list[int]:
        """Return the ids of the turns that can run at once, in the order they were claimed."""
        found = []
        while (turn := await self.claim(**options)) is not None:
            found.append(turn.id)
        return found

    async def end(self, claim: Claim) -> None:
        """End the turn as done."""
        await turns.end(self.db, claim, "done", None)

    async def close(self, conversation: int) -> None:
        """Close the thread."""
        await conversations.set_state(self.db, conversation, NOON, NOON)

    async def make(self, worktree: int) -> None:
        """Record that the worktree was made on its branch."""
        await self.db.execute(
            "update worktrees set state = 'ready', branch = 'threadtree/issue-' || start_number where id = $1", worktree
        )

    async def state(self, table: str, row_id: int) -> str:
        """Return the state of a row."""
        state: str = await self.db.fetchval(f"select state from {table} where id = $1", row_id)  # noqa: S608 -- a test's own
        return state

    async def row(self, turn_id: int) -> asyncpg.Record:
        """Return the row of a turn, with what was asked."""
        return await self.db.fetchrow(
            "select *, ask->>'text' as text from turns join requests on turn_id = id where id = $1", turn_id
        )


@asynccontextmanager
async def held(pool: Pool) -> AsyncIterator[Connection]:
    """Yield another transaction, committed at the end."""
    async with pool.acquire() as connection, connection.transaction():
        yield connection


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for a condition for which Postgres has no event."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110 -- see above
            await asyncio.sleep(0.01)


async def until_waiting(pool: Pool) -> None:
    """Wait until some transaction waits for a lock of another."""
    await until(partial(is_waiting, pool))


async def is_waiting(pool: Pool) -> bool:
    """Return whether some transaction waits for a lock of another."""
    waiting: bool = await pool.fetchval(
        "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')"
    )
    return waiting
