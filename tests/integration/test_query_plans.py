"""The frequent statements find their rows by index, for any size of the history."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest

from bot.store import (
    claims,
    conversations,
    deliveries,
    doorbell,
    listings,
    operations,
    outbox,
    pull_requests,
    recoveries,
    removals,
    requests,
    rescues,
    retention,
    turns,
    upkeep,
    worktrees,
)
from bot.store.database import Connection
from tests.support.turn_rows import NODE, NOON

HISTORY = """
insert into nodes (id) values ('here');
insert into codebases (platform, repository_id, owner, name, folder)
select 'github.com', n, 'octo', 'repo-' || n, 'octo/repo-' || n from generate_series(1, 40) n;
insert into worktrees (platform, repository_id, node, path, branch, start_kind, start_number, state)
select 'github.com', 1 + n % 40, 'here', '/worktrees/' || n, 'threadtree/issue-' || n, 'issue', n,
       case when n % 50 = 0 then 'ready' when n % 997 = 0 then 'removing' else 'removed' end
from generate_series(1, 10000) n;
insert into conversations (platform, repository_id, number, kind, worktree_id)
select 'github.com', 1 + n % 40, n, 'issue', n from generate_series(1, 10000) n;
insert into sessions (conversation_id, agent, active, ended_at, end_reason)
select n, 'custom', false, now(), 'conversation-closed' from generate_series(1, 10000) n;
insert into turns (conversation_id, worktree_id, state, reason, request, request_hash, requested_by, requested_by_id,
                   asked_at, source_kind, source_id, finished_at, claim, created_at)
select 1 + n % 10000, 1 + n % 10000,
       case when n % 1000 = 49 then 'running' when n % 500 = 99 then 'queued' else 'done' end, null,
       'do it', '', 'ada', n % 300, now(), 'comment', n,
       case when n % 1000 = 49 or n % 500 = 99 then null else now() end,
       case when n % 1000 = 49 then gen_random_uuid() end,
       now() - n * interval '10 minutes'
from generate_series(1, 10000) n;
insert into deliveries (guid, event, state, body, received_at)
select gen_random_uuid()::text, 'issue_comment', 'done', case when n > 30000 then '{}'::bytea end,
       now() - (40000 - n) * interval '4 minutes'
from generate_series(1, 40000) n;
insert into effects (key, seen_at)
select sha256(n::text::bytea), now() - (40000 - n) * interval '4 minutes' from generate_series(1, 40000) n;
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, content, state, waits_for,
                    posted_at)
select 'github.com/token', 1 + n % 10000, 'comment', n, 1, 1, 'issue', 'Done.', 'sent', nullif(n - 1, 0),
       now() - n * interval '10 minutes'
from generate_series(1, 10000) n;
insert into operations (worktree_id, kind, requested_by, asked_at, state, outcome, finished_at)
select n, 'reset', 'ada', now(), case when n % 500 = 0 then 'queued' else 'done' end, 'It was reset.',
       case when n % 500 = 0 then null else now() end from generate_series(1, 10000) n;
insert into rescues (worktree_id, ref, removal, conversations)
select n, 'refs/threadtree/rescue/' || n || '/1', 'closed', array[n] from generate_series(1, 10000) n;
"""
TOKEN = UUID(int=1)
LATER = datetime.now(UTC) + timedelta(days=1)
_REPOSITORY = ("github.com", 1, "octo", "hello", "main", None)
STATEMENTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "claim a turn": (claims.CLAIM_NEXT, (NODE, TOKEN, "worker", 2, NOON)),
    "read the claimed turn": (claims.CLAIMED_TURN, (5,)),
    "look again": (turns.STOP_REQUEST, (5, TOKEN)),
    "end a turn": (turns.END_TURN, (5, TOKEN, "done", None, None)),
    "hand back": (turns.REQUEUE_TURN, (5, TOKEN, True)),
    "stop what is not over": (requests.LOCK_UNFINISHED, (5,)),
    "stop what runs": (requests.STOP_RUNNING, (5, "Stopped.", NOON, None)),
    "stop what waits": (requests.STOP_QUEUED, (5, "Stopped.", NOON, None, None)),
    "what runs on the node": (turns.RUNNING_ON_NODE, (NODE,)),
    "what keeps turns waiting": (requests.WHY_TURNS_WAIT, ([99, 599], NOON, 30)),
    "cost of a day": (listings.COSTS, (date(2099, 1, 1), None)),
    "last request not done": (requests.LAST_NOT_DONE, (5,)),
    "what a turn depends on": (requests.BEFORE_A_TURN, (5, 7)),
    "asked just now": (requests.SAME_TEXT_WITHIN_A_MINUTE, (5, "do it", NOON)),
    "active session": (turns.ACTIVE_SESSION, (5,)),
    "end a session": (conversations.END_SESSION, (5, "reset-requested")),
    "find a thread": (conversations.FIND_CONVERSATION, ("github.com", 5, 44)),
    "own worktree": (conversations.LIVE_WORKTREE, (50,)),
    "own worktree that is in use": (conversations.OWN_READY_WORKTREE, (50,)),
    "worktrees of issues": (conversations.WORKTREES_OF_ISSUES, ("github.com", 5, [44, 84])),
    "worktree on a branch": (conversations.WORKTREE_ON_BRANCH, ("github.com", 5, "feature", "threadtree/issue-", None)),
    "let a worktree go": (conversations.RELEASE_WORKTREE, (50,)),
    "status": (conversations.STATUS_OF_THREAD, (5, NOON, 30)),
    "claim an operation": (operations.CLAIM, (NODE, 50, TOKEN)),
    "read the claimed operation": (operations.CLAIMED, (500,)),
    "where an operation stands": (operations.STATUS, (500,)),
    "ask for an operation": (operations.ENQUEUE, (50, "reset", 50, "comment", 5, "ada", NOON, None, None, None)),
    "end an operation": (operations.FINISH, (500, TOKEN, "done", "It was reset.")),
    "ring for work": (doorbell.RING, (NODE,)),
    "withdraw operations": (operations.WITHDRAW, (5, NOON, "Closed.")),
    "restore before a turn": (operations.RESTORE_BEFORE, (5,)),
    "whether a missed text was answered": (recoveries.WAS_ANSWERED, ("github.com", 1, 5, "comment", 7)),
    "whether a thread's own text was answered": (recoveries.WAS_ANSWERED, ("github.com", 1, 5, "issue", None)),
    "only gestures asked": (recoveries.ONLY_GESTURES, ("github.com", 1, 5)),
    "a thread's own text asked": (recoveries.TEXT_ASKED, ("github.com", 1, 5)),
    "what is to be brought back": (rescues.PENDING_RESTORE, (5,)),
    "rescues of a thread": (rescues.RESCUES_OF_CONVERSATION, (5, 1)),
    "rescues of a worktree": (rescues.RESCUES_OF_WORKTREE, (5,)),
    "revive a worktree": (worktrees.RESERVE_AGAIN, (50,)),
    "a worktree at a glance": (worktrees.WORKTREE_OF_THREAD, (50,)),
    "what is known of a thread": (conversations.STANDING_OF_THREAD, ("github.com", 1, 5)),
    "save a thread": (conversations.SAVE_THREAD, (*_REPOSITORY, 5, "issue", "A title", None)),
    "turns on a branch": (pull_requests.TURNS_ON_BRANCH, ("github.com", 5, "threadtree/issue-44")),
    "claim a removal": (removals.CLAIM, (50, NODE, TOKEN)),
    "what nobody needs of a home": (retention.UNUSED_HOMES, ([5, 6, 7],)),
    **{f"old {what}": (statement, (timedelta(days=365), 100)) for what, statement in upkeep.DELETE_OLD.items()},
    "what names a turn": ("select from outbox where turn_id = $1", (5,)),
    "what waits for a comment": ("select from outbox where waits_for = $1", (5,)),
    "operations before a turn": ("select from operations where turn_id = $1", (5,)),
    "operations told in a comment": ("select from operations where reply_id = $1", (5,)),
    "the next write": (outbox.NEXT, ("github.com/token", NOON, False, [])),
    "when to write next": (outbox.NEXT_DUE, ("github.com/token", NOON, 3)),
    "what was written in an hour": (outbox.CREATED_SINCE, ("github.com/token", LATER, 0)),
    "whom most was written for": (outbox.CREATED_MOST_FOR, ("github.com/token", LATER, 400)),
    "load a delivery": (deliveries.LOAD, ("guid",)),
    "end a delivery": (deliveries.END, ("guid", "done", None)),
}
FLOOD = """
insert into turns (conversation_id, worktree_id, request, request_hash, requested_by, requested_by_id, asked_at,
                   source_kind, source_id)
select 50 * (1 + n % 20), 50 * (1 + n % 20), 'do it', '', 'ada', n % 30, now(), 'comment', n
from generate_series(1, 3000) n;
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, content, due_at, waits_for)
select 'github.com/token', 50, 'comment', id, 1 + id % 2, 1, 'issue', 'Done.', '-infinity', null
from turns where request_hash = '' and state = 'queued' and source_id < 3001;
"""
_ASKED: tuple[Any, ...] = ("do it", "ada", 7, NOON, "comment", 1, None, None, "", [], "queued", None, None, [], None)
AFTER_A_FLOOD: dict[str, tuple[str, tuple[Any, ...]]] = {
    "queue a turn": (requests.ENQUEUE_TURN, (50, NOON, 50, *_ASKED)),
    "queue a write": (outbox.ENQUEUE_COMMENT, ("github.com/token", 50, None, None, 0, "issue", None, "Hello", None, 7)),
    "the next write": (outbox.NEXT, ("github.com/token", LATER, False, [])),
    "when to write next": (outbox.NEXT_DUE, ("github.com/token", LATER, 3)),
    "claim a turn": (claims.CLAIM_NEXT, (NODE, TOKEN, "worker", 2, LATER)),
    "ask for an operation": (operations.ENQUEUE, (50, "reset", 50, "comment", 5, "ada", NOON, None, None, None)),
}
FILTERED_BY_INDEX: dict[str, tuple[str, tuple[Any, ...]]] = {
    "what was written in an hour": (outbox.CREATED_SINCE, ("github.com/token", LATER, 0)),
    "whom most was written for": (outbox.CREATED_MOST_FOR, ("github.com/token", LATER, 400)),
}
MOST_REJECTED = 100
MOST_BLOCKS = 400
"""Of a statement that finds its rows by index; to read the flood takes more than 3,000."""
GROWING = {
    "turns",
    "worktrees",
    "deliveries",
    "conversations",
    "sessions",
    "effects",
    "operations",
    "rescues",
    "outbox",
}


@pytest.fixture
async def busy(database_url: str) -> AsyncIterator[Connection]:
    """Yield a database with a long history and little current work."""
    db = await asyncpg.connect(database_url)
    await db.execute(HISTORY)
    await db.execute("analyze")
    yield db
    await db.close()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all nodes of a plan."""
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


async def read_whole(db: Connection, statement: str, arguments: tuple[Any, ...]) -> set[str]:
    """Return the tables that the statement scans completely."""
    async with db.transaction():
        found = await db.fetchval(f"explain (format json) {statement}", *arguments)
    plan = orjson.loads(found)[0]["Plan"]
    return {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"} & GROWING


async def blocks(db: Connection, statement: str, arguments: tuple[Any, ...]) -> int:
    """Return how many blocks the statement reads, with its triggers; what it writes is rolled back."""
    transaction = db.transaction()
    await transaction.start()
    found = await db.fetchval(f"explain (analyze, buffers, format json) {statement}", *arguments)
    await transaction.rollback()
    plan = orjson.loads(found)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def rejected(db: Connection, statement: str, arguments: tuple[Any, ...]) -> int:
    """Return how many rows the statement reads in vain."""
    found = await db.fetchval(f"explain (analyze, format json) {statement}", *arguments)
    reasons = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(int(node.get(reason, 0)) for node in nodes(orjson.loads(found)[0]["Plan"]) for reason in reasons)


async def test_the_frequent_statements_scan_no_growing_table(busy: Connection) -> None:
    slow = {name: found for name, (sql, values) in STATEMENTS.items() if (found := await read_whole(busy, sql, values))}

    assert slow == {}


async def test_a_flood_that_no_analysis_has_seen_is_not_read_for_each_row(busy: Connection) -> None:
    await busy.execute(FLOOD)

    read = {name: await blocks(busy, sql, values) for name, (sql, values) in AFTER_A_FLOOD.items()}

    assert max(read.values()) <= MOST_BLOCKS, read
    in_vain = {name: await rejected(busy, sql, values) for name, (sql, values) in FILTERED_BY_INDEX.items()}
    assert max(in_vain.values()) <= MOST_REJECTED, in_vain


async def test_a_full_scan_is_noticed(busy: Connection) -> None:
    assert await read_whole(busy, "select * from turns where request = $1", ("x",)) == {"turns"}
