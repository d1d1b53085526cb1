"""The frequent statements find their rows by index, for any size of the history."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest

from bot.ask import to_json
from bot.care import on_request_rows
from bot.care import removal_rows as removals
from bot.care import retention_rows as retention
from bot.care import upkeep_rows as upkeep
from bot.inbox import decider_rows
from bot.node import repository_names
from bot.node import rescue_rows as rescues
from bot.operator.api import board_rows, listings, thread_rows
from bot.store import conversations, deliveries, jobs, turns, worktrees
from bot.store.database import Connection
from bot.thread import outbox_rows as outbox
from bot.turn import blocked, claims, waits_rows
from bot.turn import message_rows as messages
from bot.turn import pull_request_rows as pull_requests
from bot.turn import request_rows as requests
from bot.verbs import start, undo
from tests.support.asks import ask
from tests.support.turn_rows import NODE, NOON, request

HISTORY = f"""
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
insert into turns (conversation_id, worktree_id, state, requested_by_id, finished_at, claim, created_at, outcome,
                   pushed_to)
select 1 + n % 10000, 1 + n % 10000,
       case when n % 1000 = 49 then 'running' when n % 500 = 99 then 'queued' else 'done' end,
       n % 300, case when n % 1000 = 49 or n % 500 = 99 then null else now() end,
       case when n % 1000 = 49 then gen_random_uuid() end,
       now() - n * interval '10 minutes', case when n % 200 = 7 then '{{"asked": true}}'::jsonb end,
       'threadtree/issue-' || 1 + n % 10000
from generate_series(1, 10000) n;
insert into requests (turn_id, conversation_id, ask) select id, conversation_id, {ask(target="id")} from turns;
insert into deliveries (guid, event, conversation, state, body, received_at)
select gen_random_uuid()::text, 'issue_comment', 'octo/repo-' || n % 40 || '#' || n, 'done',
       case when n > 30000 then '{{}}'::bytea end, now() - (40000 - n) * interval '4 minutes'
from generate_series(1, 40000) n;
insert into effects (key, seen_at)
select sha256(n::text::bytea), now() - (40000 - n) * interval '4 minutes' from generate_series(1, 40000) n;
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, content, state, waits_for,
                    posted_at)
select 'github.com/token', 1 + n % 10000, 'comment', n, 1, 1, 'issue', 'Done.', 'sent', nullif(n - 1, 0),
       now() - n * interval '10 minutes'
from generate_series(1, 10000) n;
insert into operations (node, kind, requested_by, state, outcome, finished_at)
select 'here', 'prune', 'ada', case when n % 500 = 0 then 'queued' else 'done' end,
       case when n % 500 = 0 then null else '1 removed.' end, case when n % 500 = 0 then null else now() end
from generate_series(1, 10000) n;
insert into rescues (worktree_id, ref, removal, conversations)
select n, 'refs/threadtree/rescue/' || n || '/1', 'closed', array[n] from generate_series(1, 10000) n;
insert into pull_requests (platform, repository_id, number, branch, closes, titles, texts, check_at)
select 'github.com', 1 + n % 40, n, 'threadtree/issue-' || n, n, '{{}}', '{{}}', case when n % 100 = 0 then now() end
from generate_series(1, 10000) n;
"""  # noqa: S608 -- a test's own
TOKEN = UUID(int=1)
LATER = datetime.now(UTC) + timedelta(days=1)
ALL, SOME = ("", None), ("github.com", [7, 8])
"""Scopes."""
VERBS = Path(__file__).parents[1] / "verbs"
_REPOSITORY = ("github.com", 1, "octo", "hello", "main", None)
ASKED: tuple[Any, ...] = (to_json(request()), NOON, [], None, None, None, None, True)
OF_VERBS = (import_module(f"tests.verbs.{path.stem}") for path in sorted(VERBS.glob("test_*.py")))
STATEMENTS: dict[str, tuple[str, tuple[Any, ...]]] = {
    **{name: one for tests in OF_VERBS for name, one in getattr(tests, "STATEMENTS", {}).items()},
    "claim a turn": (claims.CLAIM_NEXT, (NODE, TOKEN, "worker", 2, NOON, True, False)),
    "claim a turn without an agent": (claims.CLAIM_NEXT, (NODE, TOKEN, "worker", 2, NOON, False, False)),
    "read the claimed turn": (claims.CLAIMED_TURN, (5,)),
    "look again": (turns.stop_requested.sql, (5, TOKEN)),
    "end a turn": (turns.end.sql, (5, TOKEN, "done", None, None, None)),
    "hand back": (turns.requeue.sql, (5, TOKEN, True)),
    "stop what is not over": (requests.lock_unfinished.sql, (5,)),
    "stop what runs": (requests.stop_running.sql, (5, "Stopped.", NOON, None)),
    "stop what waits": (requests.stop_queued.sql, (5, "Stopped.", NOON, None, None)),
    "what runs on the node": (turns.running_on.sql, (NODE,)),
    "what keeps turns waiting": (requests.why_turns_wait.sql, ([99, 599], NOON, 30)),
    "cost of a day": (listings.costs_by_repository.sql, (date(2099, 1, 1), None, *ALL)),
    "cost of a day by person": (listings.costs_by_person.sql, (date(2099, 1, 1), None, *ALL)),
    "offer a message": (messages.offer.sql, (99,)),
    "the next message": (messages.next_for.sql, (49, TOKEN, 30)),
    "take a message": (messages.take.sql, (49, TOKEN, 99, ASKED[0])),
    "end a message": (messages.end.sql, (49, TOKEN, 99, "Given.")),
    "what a turn was told": (messages.told.sql, (5, True)),
    "what a session was told": (messages.told_in.sql, (5,)),
    "what runs and waits in a thread": (requests.unfinished.sql, (5,)),
    "how days ended": (listings.days.sql, (date(2099, 1, 1), *ALL)),
    "turns found by a word": (listings.FOUND, (51, None, None, None, "rare", *ALL)),
    "turns of some found by a word": (listings.FOUND, (51, None, None, None, "rare", *SOME)),
    "the board's first lane": (board_rows.at_work.sql, (21, *ALL)),
    "the board's lane of reviews": (board_rows.in_review.sql, (21, *ALL)),
    "the board's lane of merges": (board_rows.merged.sql, (21, NOON, *ALL)),
    "how checks ended": (board_rows.checks.sql, (8, *ALL)),
    "the story of a thread": (thread_rows.turns.sql, (5, 50, *ALL)),
    "the pull requests of a thread": (thread_rows.pull_requests.sql, (5,)),
    "turns in line": (listings.turns_in_line.sql, (51, None, None, *ALL)),
    "a turn": (listings.TURN, (5, *ALL)),
    "a turn of some": (listings.TURN, (5, *SOME)),
    "failed turns": (listings.NEWEST.format("turns", ""), (51, None, "failed")),
    "deliveries that are not ignored": (
        listings.NEWEST.format("deliveries", " and state <> 'ignored'"),
        (51, None, None),
    ),
    "what waits for people": (waits_rows.listed.sql, (51, None, None, *ALL, "ada")),
    "what waits for people of some": (waits_rows.listed.sql, (51, None, None, *SOME, None)),
    "what waits for people in a thread": (waits_rows.of_thread.sql, (5,)),
    "what a turn waits for": (waits_rows.of_turn.sql, (5,)),
    "whether a pull request waits": (waits_rows.to_review.sql, ("github.com", 5, 44)),
    "settle what waited": (waits_rows.settle.sql, (5,)),
    "whose a branch is": (pull_requests.issue_of_branch.sql, ("github.com", 5, "threadtree/issue-44")),
    "close a thread": (conversations.set_state.sql, (5, NOON, NOON)),
    "last request not done": (requests.last_not_done.sql, (5,)),
    "the end of an answer": (outbox.end_of_answer.sql, (5,)),
    "what a turn depends on": (requests.before_a_turn.sql, (5, 7)),
    "asked just now": (requests.is_repeated.sql, (5, "do it", NOON, "codex", 7)),
    "active session": (turns.active_session.sql, (5,)),
    "end a session": (conversations._end_session.sql, (5, "reset-requested")),
    "find a thread": (conversations.find_conversation.sql, ("github.com", 5, 44)),
    "own worktree": (conversations.live_worktree.sql, (50,)),
    "worktrees of issues": (conversations.worktrees_of_issues.sql, ("github.com", 5, [44, 84])),
    "worktree on a branch": (conversations.worktree_on_branch.sql, ("github.com", 5, "feature", None)),
    "let a worktree go": (conversations._release.sql, (50, "closed")),
    "where an operation stands": (on_request_rows.described.sql, (500, 30, *ALL)),
    "how a turn ended": (turns.end_of.sql, (5,)),
    "what may rescue": (requests.may_rescue.sql, (50,)),
    "the newest worktrees": (listings.NEWEST.format("worktrees", ""), (51, None, None)),
    "one worktree": (listings.find_worktree.sql, (NODE, 50, [])),
    "old sessions": (conversations.OLD_SESSIONS, (NOON, None, False)),
    "ring for work": (jobs.ring_for_work.sql, (NODE,)),
    "withdraw a turn": (requests.withdraw.sql, (5, "Closed.")),
    "what is to be brought back": (rescues.pending_restore.sql, (5, 99)),
    "rescues of a thread": (rescues.of_conversation.sql, (5, 1)),
    "rescues of a worktree": (rescues.of_worktree.sql, (5,)),
    "revive a worktree": (worktrees.reserve_again.sql, (50, [5])),
    "a worktree at a glance": (worktrees.worktree_of_thread.sql, (50,)),
    "what is known of a thread": (conversations.standing.sql, ("github.com", 1, 5)),
    "a repository by its id": (repository_names.known_codebase.sql, ("github.com", 1)),
    "save a thread": (conversations.SAVE_THREAD, ("github.com", 1, 5, "issue", "A title", None)),
    "the turn of a review": (requests.turn_of_review.sql, (5, 77)),
    "what collects a person's remarks": (requests.collecting_turn.sql, (99, 7)),
    "collect no more": (requests.collect_no_more.sql, (99,)),
    "blockers of a request": (blocked.waits_of.sql, ("github.com", 1, 40)),
    "is waited for": (blocked.is_waited_for.sql, ("octo/repo-1#40",)),
    "wake what waits for an issue": (blocked.wake_behind.sql, ("octo/repo-1#40",)),
    "wake a blocked request": (blocked.wake.sql, ("github.com", 1, 40)),
    "is started": (blocked._is_started.sql, (99,)),
    "start": (start._begin.sql, (99,)),
    "whether the bot opened it": (pull_requests.is_own_pull.sql, ("github.com", 5, 44)),
    "pull requests to ask about": (pull_requests.take_unchecked.sql, (NOON, 50)),
    "ask soon about those of a repository": (pull_requests.check_soon.sql, ("github.com", 5, NOON, None)),
    "ask soon about one": (pull_requests.check_soon.sql, ("github.com", 5, NOON, 44)),
    "whether a conflict is new": (pull_requests.is_new_conflict.sql, ("github.com", 5, 44, "0" * 40, True)),
    "changes on a branch": (undo.changes_on_branch.sql, (7, 1000, "threadtree/issue-44")),
    "what a thread pushed last": (requests.last_pushed_to.sql, (7,)),
    "turns on a branch": (pull_requests.turns_on_branch.sql, ("github.com", 5, "threadtree/issue-44")),
    "the description left for a branch": (pull_requests.description_left.sql, ("github.com", 5, "threadtree/issue-44")),
    "read a removal": (removals.decided.sql, (NODE, 50)),
    "what nobody needs of a home": (retention.unused_homes.sql, ([5, 6, 7],)),
    **{f"old {what}": (statement, (timedelta(days=365), 100)) for what, statement in upkeep.DELETE_OLD.items()},
    "what names a turn": ("select from outbox where turn_id = $1", (5,)),
    "what waits for a comment": ("select from outbox where waits_for = $1", (5,)),
    "what goes on as a turn": ("select from operations where turn_id = $1", (5,)),
    "the next write": (outbox.next_to_send.sql, ("github.com/token", NOON, False, [])),
    "when to write next": (outbox.next_due.sql, ("github.com/token", NOON, 3)),
    "comments within an hour": (outbox.silent_until.sql, (5, 30, NOON)),
    "what was written in an hour": (outbox.created_since.sql, ("github.com/token", LATER, LATER, 0)),
    "whom most was written for": (outbox.created_most_for.sql, ("github.com/token", LATER, 400)),
    "load a delivery": (decider_rows.LOAD, ("guid",)),
    "end a delivery": (deliveries.end.sql, ("guid", None)),
}
FLOOD = f"""
insert into turns (conversation_id, worktree_id, requested_by_id)
select 50 * (1 + n % 20), 50 * (1 + n % 20), n % 30 from generate_series(1, 3000) n;
insert into requests (turn_id, conversation_id, ask) select id, conversation_id, {ask(target="id")}
from turns where id > 10000;
insert into outbox (writer, conversation_id, kind, turn_id, part, urgency, target_kind, content, due_at, waits_for)
select 'github.com/token', 50, 'comment', id, 1 + id % 2, 1, 'issue', 'Done.', '-infinity', null
from turns where id > 10000;
"""  # noqa: S608 -- a test's own
AFTER_A_FLOOD: dict[str, tuple[str, tuple[Any, ...]]] = {
    "queue a turn": (requests.enqueue.sql, (50, 50, *ASKED)),
    "queue a write": (
        outbox.ENQUEUE_COMMENT,
        ("github.com/token", 50, None, None, 0, "issue", None, "Hello", None, 7, None),
    ),
    "the next write": (outbox.next_to_send.sql, ("github.com/token", LATER, False, [])),
    "when to write next": (outbox.next_due.sql, ("github.com/token", LATER, 3)),
    "claim a turn": (claims.CLAIM_NEXT, (NODE, TOKEN, "worker", 2, LATER, True, False)),
    "claim a turn without an agent": (claims.CLAIM_NEXT, (NODE, TOKEN, "worker", 2, LATER, False, False)),
}
FILTERED_BY_INDEX: dict[str, tuple[str, tuple[Any, ...]]] = {
    "what was written in an hour": (outbox.created_since.sql, ("github.com/token", LATER, LATER, 0)),
    "whom most was written for": (outbox.created_most_for.sql, ("github.com/token", LATER, 400)),
    **{
        f"{of} of a repository": (
            listings.NEWEST_BY_KEY.format(of, "", listings.NAMED),
            (51, None, None, "octo/repo-7"),
        )
        for of in listings.KEYED
    },
    **{
        f"{of} of some repositories": (
            listings.NEWEST_BY_KEY.format(of, "", listings.SEEN),
            (51, None, None, None, *SOME),
        )
        for of in listings.KEYED
    },
    "deliveries of a rare repository of some": (
        listings.NEWEST_BY_KEY.format("deliveries", listings.BY_NAME, listings.SEEN),
        (51, None, None, None, "github.com", [41]),
    ),
    "deliveries of a rare repository": (
        listings.NEWEST.format("deliveries", listings.OF_REPOSITORY),
        (51, None, None, "octo/none"),
    ),
}
MOST_REJECTED = 100
MOST_BLOCKS = 400
"""Of a statement that finds its rows by index; to read the flood takes more than 3,000."""
GROWING = {
    "turns",
    "requests",
    "worktrees",
    "deliveries",
    "conversations",
    "sessions",
    "effects",
    "operations",
    "rescues",
    "outbox",
    "pull_requests",
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
    assert await read_whole(busy, "select * from requests where ask->>'text' = $1", ("x",)) == {"requests"}
