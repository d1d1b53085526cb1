"""The statement that claims a turn chooses what a plain reading of the rules chooses, in any queue (DESIGN.md §2)."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bot.store.database import Connection
from tests.support.asks import asks
from tests.support.turn_rows import NODE, NOON, TurnRows

NODES = [NODE, NODE, NODE, "there"]
WORKTREES = st.lists(
    st.tuples(
        st.integers(1, 3),  # repository
        st.sampled_from(NODES),
        st.sampled_from(["ready", "ready", "ready", "reserved", "removed", "lost", "removing"]),
        st.integers(0, 5),  # of one that is being removed: whose path it has
    ),
    min_size=1,
    max_size=6,
)
TURNS = st.lists(
    st.tuples(
        st.integers(0, 4),  # conversation
        st.integers(0, 5),  # worktree
        st.sampled_from(["queued", "queued", "queued", "running", "done"]),
        st.sampled_from([None, None, None, -1, 0, 1]),  # minutes until its time
        st.sampled_from([1, 2, 3, None]),  # person, or none
        st.sampled_from([True, True, True, False]),  # whether it needs an agent
    ),
    max_size=14,
)


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def write(db: Connection, worktrees: list[Any], turns: list[Any], held: bool) -> None:
    """Write such rows; what the schema forbids becomes something near that it allows."""
    await db.execute("truncate turns, conversations, worktrees, codebases, nodes, writers restart identity cascade")
    await db.executemany("insert into nodes (id) values ($1)", [(node,) for node in set(NODES)])
    await db.executemany(
        "insert into codebases (platform, repository_id, owner, name, folder, installation_id)"
        " values ('github.com', $1, 'octo', 'repo', $2, $3)",
        [(1, "one", None), (2, "two", 5), (3, "three", 5)],
    )
    await db.executemany(
        "insert into worktrees (platform, repository_id, node, path, start_kind, start_number, state)"
        " values ('github.com', $1, $2, $4, 'issue', $5, $3)",
        [
            (*row[:3], f"/w/{row[3] % len(worktrees) if row[2] == 'removing' else at}", 1 + at % 2)
            for at, row in enumerate(worktrees)
        ],
    )
    await db.execute(
        "insert into conversations (platform, repository_id, number, kind)"
        " select 'github.com', 1, n, 'issue' from generate_series(1, 5) n"
    )
    running: set[int] = set()
    for conversation, worktree, wanted, minutes, person, needs_agent in turns:
        where = 1 + worktree % len(worktrees)
        state = "queued" if wanted == "running" and where in running else wanted
        running |= {where} if state == "running" else set()
        await db.execute(
            "insert into turns (conversation_id, worktree_id, state, requested_by_id, not_before, needs_agent, claim,"
            " finished_at) values ($1, $2, $3, $5, $4, $6,"
            " case when $3 = 'running' then gen_random_uuid() end, case when $3 = 'done' then now() end)",
            1 + conversation,
            where,
            state,
            None if minutes is None or state != "queued" else NOON + timedelta(minutes=minutes),
            person,
            needs_agent,
        )
    await db.execute(asks("turns"))
    if held:
        await db.execute("insert into writers values ('github.com/5', $1)", NOON + timedelta(minutes=1))


async def expected(db: Connection, per_repository: int) -> int | None:
    """Return the turn to be claimed, by the rules as DESIGN.md tells them."""
    turns = await db.fetch("select * from turns where state in ('queued', 'running') order by id")
    worktrees = {row["id"]: row for row in await db.fetch("select * from worktrees")}
    codebases = {row["repository_id"]: row for row in await db.fetch("select * from codebases")}
    held = {row["writer"] for row in await db.fetch("select * from writers where held_until > $1", NOON)}
    running = [turn for turn in turns if turn["state"] == "running"]
    busy = Counter(
        worktrees[turn["worktree_id"]]["repository_id"]
        for turn in running
        if worktrees[turn["worktree_id"]]["node"] == NODE and turn["needs_agent"]
    )

    def can_run(turn: asyncpg.Record) -> bool:
        worktree = worktrees[turn["worktree_id"]]
        writer = f"github.com/{codebases[worktree['repository_id']]['installation_id'] or 'token'}"
        return (
            turn["state"] == "queued"
            and (turn["not_before"] is None or turn["not_before"] <= NOON)
            and worktree["node"] == NODE
            and worktree["state"] in ("reserved", "ready", *(() if turn["needs_agent"] else ("removed",)))
            and not (turn["needs_agent"] and (writer in held or busy[worktree["repository_id"]] >= per_repository))
            and all(other["worktree_id"] != worktree["id"] for other in running)
            and all(other["conversation_id"] != turn["conversation_id"] or other["id"] >= turn["id"] for other in turns)
            and not any(
                other["node"] == NODE
                and other["state"] in ("removing", "lost")
                and (other["path"] == worktree["path"] or issue_of(other) == issue_of(worktree))
                for other in worktrees.values()
            )
            and not any(
                other["worktree_id"] == worktree["id"]
                and other["id"] < turn["id"]
                and not (other["needs_agent"] and turn["needs_agent"])
                for other in turns
            )
        )

    choices = [
        (
            turn["needs_agent"],
            turn["needs_agent"] and turn["requested_by_id"] is None,
            busy[worktrees[turn["worktree_id"]]["repository_id"]],
            turn["round"],
            turn["id"],
        )
        for turn in turns
        if can_run(turn)
    ]
    return min(choices)[-1] if choices else None


def issue_of(worktree: asyncpg.Record) -> tuple[int, int]:
    return worktree["repository_id"], worktree["start_number"]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORKTREES, TURNS, st.booleans(), st.integers(1, 3))
@example([(1, NODE, "ready", 0)], [(0, 0, "queued", None, 1, False), (1, 0, "queued", None, 1, True)], False, 1)
@example([(1, NODE, "ready", 0), (1, NODE, "removing", 0)], [(0, 0, "queued", None, 1, True)], False, 1)
@example(
    [(1, NODE, "ready", 0), (2, NODE, "ready", 0), (1, NODE, "lost", 0)], [(0, 0, "queued", None, 1, True)], False, 1
)
@example([(1, NODE, "ready", 0)], [(0, 0, "queued", 1, 1, True), (0, 0, "queued", None, 2, True)], False, 1)
@example(
    [(2, NODE, "ready", 0), (1, NODE, "ready", 0)],
    [(0, 0, "queued", 0, 1, True), (1, 1, "queued", 0, 2, True)],
    True,
    1,
)
@example(
    [(1, NODE, "ready", 0)] * 3,
    [(0, 0, "queued", None, None, True), (1, 1, "queued", None, None, True), (2, 2, "queued", None, 1, True)],
    False,
    2,
)
@example(
    [(1, NODE, "ready", 0)] * 2 + [(2, NODE, "ready", 0)],
    [(0, 0, "running", None, 1, True), (1, 2, "queued", None, None, True), (2, 1, "queued", None, 2, True)],
    False,
    2,
)
@example(
    [(1, NODE, "ready", 0)] * 2 + [(2, NODE, "ready", 0)],
    [(0, 0, "running", None, 1, True), (1, 1, "queued", 0, 1, True), (2, 2, "queued", 0, 1, True)],
    False,
    2,
)
async def test_the_claimed_turn_is_the_one_that_the_rules_name(
    db: Connection, worktrees: list[Any], turns: list[Any], held: bool, per_repository: int
) -> None:
    await write(db, worktrees, turns, held)

    while True:
        wanted = await expected(db, per_repository)
        claimed = await TurnRows(db).claim(per_repository=per_repository)
        assert (claimed.id if claimed else None) == wanted
        if wanted is None:
            break
