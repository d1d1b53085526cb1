"""How long each named statement takes on a database with a million deliveries, effects, turns and comments."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from bot.postgres.embedded import embedded_postgres
from bot.store import deliveries, listings, outbox, requests
from bot.store.database import Connection
from bot.store.migrate import migrate
from tests.integration.test_query_plans import STATEMENTS
from tests.support.turn_rows import NOON

LIMIT_MS = 5.0
"""Limit of one statement on a way that people wait for."""
MANY = 1_000_000

ROWS = """
set session_replication_role = replica;  -- no triggers: these rows are history
insert into nodes (id) values ('here');
insert into codebases (platform, repository_id, owner, name, folder)
select 'github.com', n, 'octo', 'repo-' || n, 'octo/repo-' || n from generate_series(1, 500) n;
insert into worktrees (platform, repository_id, node, path, branch, start_kind, start_number, state)
select 'github.com', 1 + n % 500, 'here', '/worktrees/' || n, 'threadtree/issue-' || n, 'issue', n,
       case when n % 50 = 0 then 'ready' when n % 9970 = 0 then 'removing' else 'removed' end
from generate_series(1, 12000) n;
insert into conversations (platform, repository_id, number, kind, worktree_id)
select 'github.com', 1 + n % 500, n, 'issue', case when n < 12000 then n end from generate_series(1, {many} / 10) n;
insert into sessions (conversation_id, agent, active, ended_at, end_reason)
select n, 'custom', false, now(), 'conversation-closed' from generate_series(1, {many} / 10) n;
insert into turns (conversation_id, worktree_id, state, request, request_hash, requested_by, requested_by_id,
                   asked_at, source_kind, source_id, finished_at, created_at, answer)
select 1 + n % ({many} / 10), 1 + n % 12000, 'done', 'do it', '', 'ada', n % 3000, now(), 'comment', n,
       now() - ({many} - n) * interval '30 seconds', now() - ({many} - n) * interval '30 seconds', 'Done.'
from generate_series(1, {many}) n;
insert into deliveries (guid, event, state, body, received_at)
select gen_random_uuid()::text, 'issue_comment', 'done', case when n > {many} * 9 / 10 then '{{}}'::bytea end,
       now() - ({many} - n) * interval '30 seconds'
from generate_series(1, {many}) n;
insert into effects (key, seen_at)
select sha256(n::text::bytea), now() - ({many} - n) * interval '30 seconds' from generate_series(1, {many}) n;
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, content, state, created_at)
select 'github.com/token', 1 + n % ({many} / 10), 'comment', n, 1, 1, 'issue', 'Done.', 'sent',
       now() - ({many} - n) * interval '30 seconds'
from generate_series(1, {many}) n;
insert into operations (worktree_id, kind, requested_by, asked_at, state, outcome, finished_at)
select 1 + n % 12000, 'reset', 'ada', now(), 'done', 'It was reset.', now() from generate_series(1, {many} / 100) n;
insert into rescues (worktree_id, ref, removal, conversations)
select n, 'refs/threadtree/rescue/' || n || '/1', 'closed', array[n] from generate_series(1, 3000) n;
set session_replication_role = origin;
-- What waits now: ten thousand turns, writes and decisions.
insert into turns (conversation_id, worktree_id, request, request_hash, requested_by, requested_by_id, asked_at,
                   source_kind, source_id)
select 50 * (1 + n % 200), 50 * (1 + n % 200), 'do it', '', 'ada', n % 300, now(), 'comment', n
from generate_series(1, 10000) n;
insert into outbox (writer, conversation_id, kind, urgency, target_kind, target_id, content, asked_by, due_at)
select 'github.com/token', 50 * (1 + n % 200), 'reaction', 0, 'comment', n, 'eyes', n % 300, '-infinity'
from generate_series(1, 10000) n;
insert into procrastinate_workers default values;
select count(procrastinate_defer_jobs_v1(array[
    ('decide', 'decide', 0, 'github.com/1#' || n % 1000, null, '{{}}', null)::procrastinate_job_to_defer_v1]))
from generate_series(1, 10000) n;
"""

_ASKED: tuple[Any, ...] = ("do it", "ada", 7, NOON, "comment", 1, None, None, "", [], "queued", None, None, [], None)
_WRITE = ("github.com/token", 50, None, None, 0, "issue", None, "Hello", None, 7)
_DELIVERY = ("guid", "x", "y", "octo/repo#1", "github.com/1#1", "received", b"", None, None, 0)
_STORED: tuple[Any, ...] = tuple([value] for value in _DELIVERY)
MORE: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "store a delivery": (deliveries.STORE, _STORED),
    "fetch a decision": ("select id from procrastinate_fetch_job_v2(array['decide'], 1)", ()),
    "forgotten deliveries": (deliveries.FORGOTTEN_DELIVERIES, ()),
    "queue a turn": (requests.ENQUEUE, (50, 50, *_ASKED)),
    "queue a write": (outbox.ENQUEUE_COMMENT, _WRITE),
    "next edit": (outbox.NEXT, ("github.com/token", NOON, True)),
    "next write due": (outbox.NEXT_DUE, ("github.com/token", NOON, 3)),
    "writers without a job": (outbox.WRITERS_WITHOUT_A_JOB, (NOON,)),
    "a page of turns": (listings.LIST_TURNS, (50, None, None, None)),
    "a page of deliveries": (listings.LIST_DELIVERIES, (50, None, None, None)),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """The least time of a statement in milliseconds, planning included."""

    name: str
    ms: float


@asynccontextmanager
async def filled(many: int) -> AsyncIterator[Connection]:
    """Yield a connection to a new database with that much history, at least 100,000."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        async with embedded_postgres(Path(directory) / "postgres", None) as dsn:
            await migrate(dsn)
            db = await asyncpg.connect(dsn)
            await db.execute(ROWS.format(many=many))
            await db.execute("vacuum analyze")
            yield db
            await db.close()


async def measure(many: int, runs: int) -> list[Figure]:
    """Explain and run each statement `runs` times; what it writes is rolled back."""
    async with filled(many) as db:
        return [
            Figure(name, min([await _took(db, sql, values) for _ in range(runs)]))
            for name, (sql, values) in {**STATEMENTS, **MORE}.items()
        ]


async def _took(db: Connection, sql: str, values: tuple[Any, ...]) -> float:
    transaction = db.transaction()
    await transaction.start()
    try:
        found = orjson.loads(await db.fetchval(f"explain (analyze, timing off, format json) {sql}", *values))[0]
    finally:
        await transaction.rollback()
    return float(found["Planning Time"] + found["Execution Time"])


def report(figures: list[Figure]) -> bool:
    """Print the figures, the slowest first; return whether all keep the limit."""
    print(f"at most {LIMIT_MS:g} ms for a statement")
    for one in sorted(figures, key=lambda figure: -figure.ms):
        print(f"{one.name:34} {one.ms:8.2f} ms{'' if one.ms <= LIMIT_MS else '  over the limit'}")
    return all(one.ms <= LIMIT_MS for one in figures)
