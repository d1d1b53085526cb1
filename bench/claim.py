"""How long a claim takes while ten thousand turns wait, beside the claim of the only turn that waits."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from bot.postgres.embedded import embedded_postgres
from bot.store.database import Connection
from bot.store.migrate import migrate
from bot.turn import claims
from tests.support.asks import ask

LIMIT_MS = 10.0
"""Limit of one claim, however many turns wait."""

ROWS = f"""
insert into nodes (id) values ('here');
insert into codebases (platform, repository_id, owner, name, folder)
select 'github.com', n, 'octo', 'repo-' || n, 'octo/repo-' || n from generate_series(1, 20) n;
insert into worktrees (platform, repository_id, node, path, branch, start_kind, start_number, state)
select 'github.com', 1 + n % 20, 'here', 'worktrees/' || n, 'threadtree/issue-' || n, 'issue', n, 'ready'
from generate_series(1, 1000) n;
insert into conversations (platform, repository_id, number, kind, worktree_id)
select 'github.com', 1 + n % 20, n, 'issue', n from generate_series(1, 1000) n;
insert into turns (conversation_id, worktree_id, state, requested_by_id, finished_at)
select 1 + n % 1000, 1 + n % 1000, 'done', 7, now() from generate_series(1, 100000) n;
insert into requests (turn_id, conversation_id, ask) select id, conversation_id, {ask(target="id")} from turns;
"""  # noqa: S608 -- constants
ASK = f"""
with asked as (
    insert into turns (conversation_id, worktree_id, state, requested_by_id, claim)
    select thread, thread, state, 7, case when state = 'running' then gen_random_uuid() end
    from (select 1 + case when $3 then n / 10 else n end % 1000 as thread,
                 case when n < $2 then 'running' else 'queued' end as state
          from generate_series(0, $1 - 1) n) as turn
    returning id, conversation_id
)
insert into requests (turn_id, conversation_id, ask) select id, conversation_id, {ask(target="id")} from asked
"""  # noqa: S608 -- constants


@dataclass(frozen=True, slots=True)
class Queue:
    """Turns of 1,000 threads in 20 repositories, `running` of them; each thread's one after the other if `in_a_row`."""

    name: str
    turns: int
    running: int = 0
    per_repository: int = 100
    in_a_row: bool = False

    @property
    def is_blocked(self) -> bool:
        """Return whether every repository runs as many turns as it may."""
        return self.running >= 20 * self.per_repository


QUEUES = (
    Queue("one waits", 1),
    Queue("10,000 wait, over 1,000 threads", 10_000),
    Queue("10,000 wait, a thread's in a row", 10_000, in_a_row=True),
    Queue("900 threads run, the others wait", 10_000, running=900),
    Queue("each repository runs what it may", 10_000, running=40, per_repository=2),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """The median time of a claim from this queue."""

    queue: Queue
    claim_ms: float

    @property
    def holds(self) -> bool:
        """Return whether the limit is kept."""
        return self.claim_ms <= LIMIT_MS


async def measure(runs: int) -> list[Figure]:
    """Claim `runs` times from each queue; each claim is rolled back."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        async with embedded_postgres(Path(directory) / "postgres", None) as dsn:
            await migrate(dsn)
            db = await asyncpg.connect(dsn)
            await db.execute(ROWS)
            found = [Figure(queue, await _claim(db, queue, runs)) for queue in QUEUES]
            await db.close()
            return found


async def _claim(db: Connection, queue: Queue, runs: int) -> float:
    await db.execute("delete from turns where state in ('queued', 'running')")
    await db.execute(ASK, queue.turns, queue.running, queue.in_a_row)
    await db.execute("vacuum analyze turns")
    taken = []
    for _ in range(runs):
        transaction = db.transaction()
        await transaction.start()
        begin = time.perf_counter()
        claimed = await claims.claim_next(
            db, "here", "worker", queue.per_repository, datetime.now(UTC), with_agent=True
        )
        taken.append(1000 * (time.perf_counter() - begin))
        await transaction.rollback()
        if (claimed is None) != queue.is_blocked:
            raise RuntimeError(f"{queue.name}: {claimed}")
    return statistics.median(taken)


def report(figures: Sequence[Figure]) -> bool:
    """Print the figures, beside the claim of the only turn that waits; return whether all keep the limit."""
    print(f"at most {LIMIT_MS:g} ms for a claim")
    for one in figures:
        ratio = one.claim_ms / figures[0].claim_ms
        print(f"{one.queue.name:34} {one.claim_ms:8.2f} ms {ratio:6.1f} x{'' if one.holds else '  over the limit'}")
    return all(one.holds for one in figures)
