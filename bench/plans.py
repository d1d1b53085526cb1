"""How long each named statement takes on a database with a million deliveries, effects, turns and comments."""

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import orjson

from bot.operator.api import listings
from bot.postgres.embedded import embedded_postgres
from bot.store import deliveries
from bot.store.database import Connection
from bot.store.migrate import migrate
from bot.thread import outbox_rows as outbox
from bot.turn import request_rows as requests
from bot.turn.context import spent_today
from tests.integration.test_query_plans import ASKED, FILTERED_BY_INDEX, STATEMENTS
from tests.support.asks import ask

LIMIT_MS = 20.0
"""Limit of one statement on a way that people wait for."""
SLOWER_MS = {
    "requests found by a word of some": 20.0,
    "costs of 30 days of a repository": 20.0,
    "costs of 30 days": 50.0,
    "costs of 30 days by person": 100.0,
    "how 30 days ended": 50.0,
}
"""Limits of those that read many rows: a thousand that a word finds, or 86,000 turns in an index."""
MANY = 1_000_000

FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "8GB",
    "maintenance_work_mem": "256MB",
}
"""Of the bench's own server, to fill it: reads and plans are as on any other."""
SECONDARY_INDEXES = """
select i.indexrelid::regclass::text as name, pg_get_indexdef(i.indexrelid) as definition
from pg_index i join pg_class c on c.oid = i.indrelid
where c.relnamespace = 'public'::regnamespace and c.relname not like 'procrastinate%'
  and not exists (select from pg_constraint o where o.conindid = i.indexrelid)
"""

HISTORY = """
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
insert into turns (conversation_id, worktree_id, state, requested_by_id, started_at, finished_at, created_at, answer,
                   cost_usd, tokens, queue_node, queue_platform, queue_repository_id, outcome, settled, pushed_to)
select 1 + n % ({many} / 10), 1 + n % 12000, 'done', n % 3000, now() - ({many} - n) * interval '30 seconds',
       now() - ({many} - n - n % 40) * interval '30 seconds', now() - ({many} - n) * interval '30 seconds', 'Done.',
       n % 997 / 100.0, n % 9973, 'here', 'github.com', 1 + (1 + n % ({many} / 10)) % 500,
       case when n % 10 = 0 then '{{"asked": true}}'::jsonb end, n < {many} * 9 / 10 or n % 200 > 0,
       case when n % 7 = 0 then 'threadtree/issue-' || 1 + n % ({many} / 10) end
from generate_series(1, {many}) n;
-- Five hundred questions of a million turns wait for people, and five hundred pull requests.
insert into pull_requests (platform, repository_id, number, branch, closes, titles, texts, check_at)
select 'github.com', 1 + n % 500, n, 'threadtree/issue-' || n, n, '{{}}', '{{}}', case when n % 40 = 0 then now() end
from generate_series(1, 20000) n;
insert into requests (turn_id, conversation_id, ask, words)
select id, conversation_id, {ask},
       to_tsvector('simple', 'ada octo do it ' || id % 1000 || ' n' || id) from turns;
insert into deliveries (guid, event, conversation, state, body, received_at)
select lpad(to_hex(n), 32, '0')::uuid::text, 'issue_comment', 'octo/repo-' || 1 + n % 500 || '#' || n % 9973, 'done',
       case when n > {many} * 9 / 10 then '{{}}'::bytea end,
       now() - ({many} - n) * interval '30 seconds'
from generate_series(1, {many}) n;
insert into effects (key, seen_at)
select int8send(n) || sha256('')::bytea, now() - ({many} - n) * interval '30 seconds' from generate_series(1, {many}) n;
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, content, state, created_at)
select 'github.com/token', 1 + n % ({many} / 10), 'comment', n, 1, 1, 'issue', 'Done.', 'sent',
       now() - ({many} - n) * interval '30 seconds'
from generate_series(1, {many}) n;
insert into operations (node, kind, requested_by, state, outcome, finished_at)
select (select id from nodes limit 1), 'prune', 'ada', 'done', 'It was pruned.', now()
from generate_series(1, {many} / 100) n;
insert into rescues (worktree_id, ref, removal, conversations)
select n, 'refs/threadtree/rescue/' || n || '/1', 'closed', array[n] from generate_series(1, 3000) n;
"""
WAITING = """
-- What waits now: ten thousand turns, writes and decisions.
insert into turns (conversation_id, worktree_id, requested_by_id)
select 50 * (1 + n % 200), 50 * (1 + n % 200), n % 300 from generate_series(1, 10000) n;
insert into requests (turn_id, conversation_id, ask) select id, conversation_id, {ask}
from turns where state = 'queued';
insert into outbox (writer, conversation_id, kind, urgency, target_kind, target_id, content, asked_by, due_at)
select 'github.com/token', 50 * (1 + n % 200), 'reaction', 0, 'comment', n, 'eyes', n % 300, '-infinity'
from generate_series(1, 10000) n;
insert into procrastinate_workers default values;
"""
DECISIONS = """
select count(procrastinate_defer_jobs_v1(array[
    ('decide', 'decide', 0, 'github.com/1#' || n % 1000, null, '{}', null)::procrastinate_job_to_defer_v1]))
from generate_series($1::integer, $2::integer) n
"""

NOW = datetime.now(UTC)
MONTH = NOW.date() - timedelta(days=29)
_WRITE = ("github.com/token", 50, None, None, 0, "issue", None, "Hello", None, 7, None)
_DELIVERY = ("guid", "x", "y", "octo/repo#1", "github.com/1#1", "received", None, None, 0, b"")
_STORED: tuple[Any, ...] = tuple([value] for value in _DELIVERY)
MORE: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "store a delivery": (deliveries.STORE, _STORED),
    "fetch a decision": ("select id from procrastinate_fetch_job_v2(array['decide'], 1)", ()),
    "forgotten deliveries": (deliveries.FORGOTTEN_DELIVERIES, ()),
    "queue a turn": (requests.enqueue.sql, (50, 50, *ASKED)),
    "queue a write": (outbox.ENQUEUE_COMMENT, _WRITE),
    "the next write": (outbox.next_to_send.sql, ("github.com/token", NOW, False, [])),
    "when to write next": (outbox.next_due.sql, ("github.com/token", NOW, 3)),
    "comments within an hour": (outbox.silent_until.sql, (5, 30, NOW)),
    "next edit": (outbox.next_to_send.sql, ("github.com/token", NOW, True, [])),
    "writers without a job": (outbox.forgotten_writers.sql, (NOW,)),
    "a page of turns": (listings.NEWEST.format("turns", ""), (50, None, None)),
    "requests found by a word of many": (listings.FOUND, (50, None, None, None, "octo & it")),
    "requests found by a word of some": (listings.FOUND, (50, None, None, None, "77")),
    "requests found by a rare word": (listings.FOUND, (50, None, None, None, "'n4711':*")),
    "a page of deliveries": (listings.NEWEST.format("deliveries", ""), (50, None, None)),
    "costs of 30 days": (listings.costs_by_repository.sql, (MONTH, None)),
    "costs of 30 days by person": (listings.costs_by_person.sql, (MONTH, None)),
    "costs of 30 days of a repository": (listings.costs_by_repository.sql, (MONTH, "octo/repo-7")),
    "cost of today": (spent_today.sql, ("github.com", 1)),
    "how 30 days ended": (listings.days.sql, (MONTH,)),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """The least times of a statement in milliseconds, planning included: right after a flood, and once analysed."""

    name: str
    sudden_ms: float
    analysed_ms: float

    @property
    def holds(self) -> bool:
        """Return whether the limit is kept."""
        return max(self.sudden_ms, self.analysed_ms) <= SLOWER_MS.get(self.name, LIMIT_MS)


@asynccontextmanager
async def filled(many: int) -> AsyncIterator[Connection]:
    """Yield a connection to a new database with that much history, at least 100,000."""
    with tempfile.TemporaryDirectory(prefix="threadtree-bench-", ignore_cleanup_errors=True) as directory:
        async with embedded_postgres(Path(directory) / "postgres", None, FAST) as dsn:
            await migrate(dsn)
            db = await asyncpg.connect(dsn)
            await _fill(db, many)
            yield db
            await db.close()


async def _fill(db: Connection, many: int) -> None:
    """Write the history without triggers and secondary indexes, then what waits as the bot does.

    The statistics are those of the history, as they are after a sudden flood: nothing waits.
    """
    indexes = await db.fetch(SECONDARY_INDEXES)
    await db.execute("set session_replication_role = replica")
    await db.execute(f"drop index {', '.join(index['name'] for index in indexes)}")
    await db.execute(HISTORY.format(many=many, ask=ask(target="id")))
    for index in indexes:
        await db.execute(index["definition"])
    await db.execute("set session_replication_role = origin")
    await db.execute("vacuum analyze")
    await db.execute(WAITING.format(ask=ask(target="id")))
    await db.fetch(DECISIONS, 1, 100)
    await db.execute("analyze procrastinate_jobs")  # a small table is analysed every minute
    await db.fetch(DECISIONS, 101, 10_000)


async def measure(many: int, runs: int) -> list[Figure]:
    """Explain and run each statement `runs` times; what it writes is rolled back."""
    async with filled(many) as db:
        sudden = await _took_all(db, runs)
        await db.execute("vacuum analyze")
        analysed = await _took_all(db, runs)
        return [Figure(name, ms, analysed[name]) for name, ms in sudden.items()]


async def _took_all(db: Connection, runs: int) -> dict[str, float]:
    return {
        name: min([await _took(db, sql, values) for _ in range(runs)])
        for name, (sql, values) in {**STATEMENTS, **FILTERED_BY_INDEX, **MORE}.items()
    }


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
    print(f"at most {LIMIT_MS:g} ms for a statement, {SLOWER_MS}; 10,000 turns, writes and decisions wait")
    print(f"{'':34}   not yet analysed    analysed")
    for one in sorted(figures, key=lambda figure: -max(figure.sudden_ms, figure.analysed_ms)):
        over = "" if one.holds else "  over the limit"
        print(f"{one.name:34} {one.sudden_ms:15.2f} ms {one.analysed_ms:8.2f} ms{over}")
    return all(one.holds for one in figures)
