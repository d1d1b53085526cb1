"""The rights of a claim, its loss, and the end of a turn (DESIGN.md §2 and §3.9)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import asyncpg
import pytest

from bot import counters
from bot.model import Target, ThreadRef
from bot.redaction import Redactor
from bot.store import conversations, turns
from bot.store.database import Connection, Pool, database
from bot.store.turns import Claim, ClaimedTurn, ClaimLostError
from bot.turn import request_rows as requests
from bot.turn.context import TurnContext
from bot.turn.runner import Runner
from bot.verbs.stop import stop_turns
from tests.support.patience import PATIENCE_SECONDS
from tests.support.turn_rows import NODE, NOON, TurnRows, held, is_waiting, request, until

LATER = NOON + timedelta(hours=1)
STOPPED = "Stopped by @ada."


@pytest.fixture
async def turn(world: TurnRows) -> ClaimedTurn:
    conversation, _ = await world.home()
    await world.ask(conversation)
    return await world.claimed()


async def everything(db: Connection) -> list[Any]:
    """Return everything that a run could have written."""
    return [
        await db.fetch(f"select t.*, t.xmin from {table} t order by id")  # noqa: S608 -- a test's own
        for table in ("turns", "worktrees", "sessions")
    ]


Write = Callable[[Connection, Claim], Awaitable[object]]
WRITES: dict[str, Write] = {
    "look_again": turns.stop_requested,
    "save_answer": lambda db, claim: turns.save_answer(db, claim, "answer", ("notice",), ()),
    "record_read": lambda db, claim: turns.record_read(db, claim, ("the description",), whole_thread=True),
    "save_worktree": lambda db, claim: turns.save_worktree(db, claim, "branch", "main", "a" * 40),
    "start_session": lambda db, claim: turns.start_session(db, claim, "custom", "s1"),
    "join_session": lambda db, claim: turns.use_session(db, claim, 1),
    "put back": lambda db, claim: turns.put_back(db, claim, "It waits.", LATER, NOON, NOON, (), goes_on=False),
    "end": lambda db, claim: turns.end(db, claim, "done", None, ("notice",)),
    "end failed": lambda db, claim: turns.end(db, claim, "failed", "It broke."),
}


# Lost claims


@pytest.mark.parametrize("loss", ["cut off", "handed back", "ended", "another token", "another turn"])
async def test_a_lost_claim_writes_nothing_and_says_so(world: TurnRows, turn: ClaimedTurn, loss: str) -> None:
    claim = turn.claim
    await turns.use_session(world.db, claim, await turns.start_session(world.db, claim, "custom", "s0"))
    await conversations.end_session(world.db, turn.conversation.id, "reset-requested")
    match loss:
        case "cut off":
            assert await turns.requeue(world.db, claim, crashed=True)
            await world.claimed()
        case "handed back":
            assert await turns.requeue(world.db, claim)
        case "ended":
            await world.end(claim)
        case "another token":
            claim = replace(claim, token=uuid4())
        case _:
            claim = replace(claim, turn_id=await world.ask(turn.conversation.id))
    before = await everything(world.db)

    for name, write in WRITES.items():
        with pytest.raises(ClaimLostError):
            await write(world.db, claim)
        assert await everything(world.db) == before, name


async def test_a_lost_claim_cannot_be_requeued(world: TurnRows, turn: ClaimedTurn) -> None:
    assert await turns.requeue(world.db, turn.claim)
    again = await world.claimed()
    before = await everything(world.db)

    assert not await turns.requeue(world.db, turn.claim)
    assert not await turns.requeue(world.db, turn.claim, crashed=True)

    assert await everything(world.db) == before
    assert [claim.token for claim in await turns.running_on(world.db, NODE)] == [again.claim.token]


# Ends


async def test_a_turn_that_ended_frees_its_worktree_for_the_next(world: TurnRows, turn: ClaimedTurn) -> None:
    later = await world.ask(turn.conversation.id)

    await turns.end(world.db, turn.claim, "failed", "It broke.", ("one", "two"))

    row = await world.row(turn.id)
    assert (row["state"], row["reason"], row["notices"]) == ("failed", "It broke.", ["one", "two"])
    assert row["claim"] is None
    assert row["worker"] is None
    assert row["finished_at"] is not None
    assert (await world.claimed()).id == later


async def test_an_end_without_notices_keeps_those_that_were_there(world: TurnRows) -> None:
    await world.ask((await world.home())[0], notices=("moved",))
    turn = await world.claimed()

    await turns.end(world.db, turn.claim, "interrupted", "It was cut off twice.")

    assert (await world.row(turn.id))["notices"] == ["moved"]


async def test_an_end_other_than_done_needs_a_reason(world: TurnRows, turn: ClaimedTurn) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await turns.end(world.db, turn.claim, "failed", None)


async def test_a_requeued_turn_continues_with_its_answer(world: TurnRows, turn: ClaimedTurn) -> None:
    await turns.save_answer(world.db, turn.claim, "all done", ("noticed",), ("7 I kept it.",))
    assert await turns.requeue(world.db, turn.claim)

    again = await world.claimed(now=LATER)

    assert again.id == turn.id
    assert again.claim.token != turn.claim.token
    assert (again.so_far.resuming, again.so_far.answer, again.so_far.notices) == (True, "all done", ("noticed",))
    assert again.so_far.thread_answers == ("7 I kept it.",)
    assert again.started_at == turn.started_at
    assert (await world.row(turn.id))["cut_offs"] == 0


async def test_text_is_cleaned_where_it_enters_a_row(world: TurnRows, turn: ClaimedTurn, database_url: str) -> None:
    secret = "s3cr3t-of-the-bot"
    async with database(database_url, size=1, redactor=Redactor([secret])) as pool, pool.acquire() as db:
        await turns.save_answer(db, turn.claim, f"O\0K \ud800 {secret}", (f"see {secret}", "half \udfff\0"), ())
    row = await world.row(turn.id)
    assert (row["answer"], row["notices"]) == ("OK \ufffd [redacted]", ["see [redacted]", "half \ufffd"])


async def test_a_requeue_never_counts_as_a_crash(world: TurnRows, turn: ClaimedTurn) -> None:
    claim = turn.claim
    for _ in range(3):
        assert await turns.requeue(world.db, claim)
        claim = (await world.claimed()).claim

    assert await turns.requeue(world.db, claim, crashed=True)


async def test_a_turn_survives_one_crash_and_not_two(world: TurnRows, turn: ClaimedTurn) -> None:
    later = await world.ask(turn.conversation.id)
    assert await turns.requeue(world.db, turn.claim, crashed=True)

    again = await world.claimed()
    assert (again.id, again.so_far.resuming) == (turn.id, True)

    assert not await turns.requeue(world.db, again.claim, crashed=True)
    assert await world.state("turns", turn.id) == "running"
    await turns.end(world.db, again.claim, "interrupted", "It was cut off twice.")
    assert (await world.claimed()).id == later


async def test_a_resumed_turn_keeps_the_commit_it_began_at(world: TurnRows, turn: ClaimedTurn) -> None:
    first = await turns.save_worktree(world.db, turn.claim, "threadtree/issue-1", "main", "a" * 40)
    assert await turns.requeue(world.db, turn.claim)
    again = await world.claimed()
    second = await turns.save_worktree(world.db, again.claim, "threadtree/issue-1", "main", "b" * 40)

    assert (first, second) == ("a" * 40, "a" * 40)


async def test_a_worktree_that_was_made_is_known_with_its_branch(world: TurnRows, turn: ClaimedTurn) -> None:
    assert not turn.worktree.is_made
    await turns.save_worktree(world.db, turn.claim, "threadtree/issue-1", "main", "a" * 40)
    await world.end(turn.claim)
    await world.ask(turn.conversation.id)

    again = await world.claimed()

    assert (again.worktree.is_made, again.worktree.branch, again.worktree.base_branch) == (
        True,
        "threadtree/issue-1",
        "main",
    )


async def test_what_runs_on_a_node_is_known_with_its_worker(world: TurnRows, turn: ClaimedTurn) -> None:
    await world.ask((await world.home(node="there"))[0])
    await world.claimed(node="there")

    assert await turns.running_on(world.db, NODE) == [turn.claim]


async def test_the_last_request_that_was_not_done_can_be_asked_again(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    assert await requests.last_not_done(world.db, conversation) is None
    await requests.enqueue(world.db, conversation, worktree, request("first"), NOON, refused="No.")
    await world.ask(conversation, "second")
    await world.end((await world.claimed()).claim)
    await world.ask(conversation, "waiting")
    await requests.enqueue(world.db, (await world.home())[0], None, request("elsewhere"), NOON, refused="No.")

    last = await requests.last_not_done(world.db, conversation)

    assert last is not None
    assert last[0].text == "first"


async def test_an_answer_finds_its_thread(world: TurnRows, turn: ClaimedTurn) -> None:
    place = await turns.of_thread(world.db, turn.id)

    assert place is not None
    assert place.thread_ref == ThreadRef(turn.worktree.repository, turn.conversation.id)
    assert (place.worktree_id, place.ask.target) == (turn.worktree.id, Target("comment", 11))


# Stopping


async def test_a_stop_request_reaches_the_process_that_runs_the_turn(
    world: TurnRows, turn: ClaimedTurn, pool: Pool, database_url: str
) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    process = await asyncpg.connect(database_url)
    try:
        await process.add_listener("threadtree_stop", lambda *message: heard.put_nowait(message[-1]))
        async with held(pool) as decide:
            assert await requests.stop_running(decide, turn.conversation.id, STOPPED, LATER) == [turn.id]
        assert await asyncio.wait_for(heard.get(), PATIENCE_SECONDS) == str(turn.id)
    finally:
        await process.close()

    assert await turns.stop_requested(world.db, turn.claim) == STOPPED


async def test_what_a_run_writes_after_it_has_looked_at_its_claim_comes_before_the_end_of_the_turn(
    world: TurnRows, turn: ClaimedTurn, pool: Pool
) -> None:
    """Progress that overtakes the final answer would stand in its place."""
    await world.db.execute("set lock_timeout = '50ms'")
    async with pool.acquire() as run, run.transaction():
        assert await turns.stop_requested(run, turn.claim) is None
        with pytest.raises(asyncpg.LockNotAvailableError):
            await turns.end(world.db, turn.claim, "interrupted", STOPPED)
    await turns.end(world.db, turn.claim, "interrupted", STOPPED)
    with pytest.raises(ClaimLostError):
        await turns.stop_requested(world.db, turn.claim)


async def test_a_turn_that_nobody_stopped_goes_on(world: TurnRows, turn: ClaimedTurn) -> None:
    assert await turns.stop_requested(world.db, turn.claim) is None


async def test_the_first_reason_to_stop_stays(world: TurnRows, turn: ClaimedTurn) -> None:
    await requests.stop_running(world.db, turn.conversation.id, STOPPED, LATER)

    assert await requests.stop_running(world.db, turn.conversation.id, "Stopped by @bob.", LATER) == []
    assert await turns.stop_requested(world.db, turn.claim) == STOPPED


async def test_stopping_one_thread_leaves_another_in_the_same_worktree(world: TurnRows, turn: ClaimedTurn) -> None:
    sharing = await world.thread(worktree=turn.worktree.id)
    waiting = await world.ask(sharing)

    assert await requests.stop_running(world.db, sharing, STOPPED, LATER) == []
    assert await requests.stop_queued(world.db, turn.conversation.id, STOPPED, LATER) == []
    assert await world.state("turns", waiting) == "queued"


async def test_waiting_turns_that_are_stopped_are_over(world: TurnRows, turn: ClaimedTurn) -> None:
    waiting = await world.ask(turn.conversation.id, target=Target("review", 12))

    (stopped,) = await requests.stop_queued(world.db, turn.conversation.id, STOPPED, LATER)
    assert (stopped.id, stopped.ask.by.login, stopped.ask.target) == (waiting, "ada", Target("review", 12))

    row = await world.row(waiting)
    assert (row["state"], row["reason"]) == ("stopped", STOPPED)
    assert row["finished_at"] is not None
    assert await world.state("turns", turn.id) == "running"


async def test_a_request_after_the_stop_is_not_stopped(world: TurnRows, turn: ClaimedTurn) -> None:
    waiting = await world.ask(turn.conversation.id, at=LATER)

    assert await requests.stop_running(world.db, turn.conversation.id, STOPPED, NOON) == []
    assert await requests.stop_queued(world.db, turn.conversation.id, STOPPED, LATER) == []
    assert await world.state("turns", waiting) == "queued"


async def test_a_turn_that_is_to_stop_is_not_put_back(world: TurnRows, turn: ClaimedTurn) -> None:
    await requests.stop_running(world.db, turn.conversation.id, STOPPED, LATER)
    assert not await turns.put_back(world.db, turn.claim, "It waits.", LATER, NOON, NOON, (), goes_on=True)
    assert await world.state("turns", turn.id) == "running"


async def test_a_turn_that_is_put_back_at_the_moment_of_its_stop_is_stopped(
    world: TurnRows, turn: ClaimedTurn, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_running = requests.stop_running
    putting_back: asyncio.Task[bool] | None = None

    async def put_back_first(*asked: Any) -> list[int]:
        nonlocal putting_back
        run = turns.put_back(world.db, turn.claim, "It waits.", LATER, NOON, NOON, (), goes_on=True)
        putting_back = asyncio.create_task(run)
        await until(partial(done_or_waiting, pool, putting_back))
        return await stop_running(*asked)

    monkeypatch.setattr(requests, "stop_running", put_back_first)
    async with held(pool) as decide:
        thread = ThreadRef(turn.worktree.repository, turn.conversation.id)
        assert await stop_turns(decide, thread, 1, "", STOPPED, asked_before=LATER, now=NOON) == 1
    assert putting_back is not None
    assert not await putting_back
    assert await turns.stop_requested(world.db, turn.claim) == STOPPED


async def done_or_waiting(pool: Pool, task: asyncio.Task[bool]) -> bool:
    """Return whether the task is done, or some transaction waits for a lock of another."""
    return task.done() or await is_waiting(pool)


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_turn_that_is_put_back_waits_for_its_time_and_keeps_its_place(
    world: TurnRows, turn: ClaimedTurn, *, goes_on: bool
) -> None:
    behind = await world.ask(turn.conversation.id)
    until = NOON + timedelta(minutes=10)
    assert await turns.put_back(world.db, turn.claim, "It waits.", until, NOON, NOON, ("n",), goes_on=goes_on)

    assert await world.claim(now=until - timedelta(seconds=1)) is None
    assert await world.line(behind) == [(1, "It waits.")]
    assert await world.line(behind, now=until) == [(1, None)]
    again = await world.claimed(now=until)
    assert (again.id, again.so_far.was_put_back, again.so_far.resuming, again.so_far.waiting_since) == (
        turn.id,
        True,
        goes_on,
        NOON,
    )
    assert again.so_far.notices == ("n",)
    # The wait is no work: what was done before counts, if the turn goes on.
    assert again.started_at == (turn.started_at + timedelta(minutes=10) if goes_on else until)


async def test_a_stop_survives_a_crash(world: TurnRows, turn: ClaimedTurn) -> None:
    await requests.stop_running(world.db, turn.conversation.id, STOPPED, LATER)
    assert await turns.requeue(world.db, turn.claim, crashed=True)

    again = await world.claimed()

    assert await turns.stop_requested(world.db, again.claim) == STOPPED


# Sessions


async def test_a_thread_has_one_active_session(world: TurnRows, turn: ClaimedTurn) -> None:
    first = await turns.start_session(world.db, turn.claim, "custom", "s1")
    assert await turns.active_session(world.db, turn.conversation.id) == (first, "s1", "custom")

    with pytest.raises(asyncpg.UniqueViolationError, match="sessions_one_active_per_conversation"):
        await turns.start_session(world.db, turn.claim, "custom", "s2")


async def test_after_a_reset_a_new_session_starts_and_the_old_one_is_remembered(
    world: TurnRows, turn: ClaimedTurn
) -> None:
    first = await turns.start_session(world.db, turn.claim, "custom", "s1")

    assert await conversations.end_session(world.db, turn.conversation.id, "reset-requested")
    assert not await conversations.end_session(world.db, turn.conversation.id, "reset-requested")
    assert await turns.active_session(world.db, turn.conversation.id) is None
    second = await turns.start_session(world.db, turn.claim, "custom", "s2")

    ended = await world.db.fetchrow("select * from sessions where id = $1", first)
    assert (ended["active"], ended["end_reason"]) == (False, "reset-requested")
    assert await turns.active_session(world.db, turn.conversation.id) == (second, "s2", "custom")


async def test_a_turn_keeps_its_session_alive(world: TurnRows, turn: ClaimedTurn) -> None:
    session = await turns.start_session(world.db, turn.claim, "custom", "s1")

    async def age() -> timedelta:
        age: timedelta = await world.db.fetchval("select now() - last_active_at from sessions where id = $1", session)
        return age

    for touch in (turns.use_session(world.db, turn.claim, session), world.end(turn.claim)):
        await world.db.execute("update sessions set last_active_at = now() - interval '1 day'")
        await touch
        assert await age() < timedelta(hours=1)

    assert (await world.row(turn.id))["session_id"] == session


@pytest.mark.parametrize(
    "change",
    [
        "active = false",
        "ended_at = now()",
        "active = false, ended_at = now()",
        "end_reason = 'reset-requested'",
        "active = false, ended_at = now(), end_reason = 'bored'",
    ],
)
async def test_a_session_that_is_half_ended_is_impossible(world: TurnRows, turn: ClaimedTurn, change: str) -> None:
    await turns.start_session(world.db, turn.claim, "custom", "s1")

    with pytest.raises(asyncpg.CheckViolationError):
        await world.db.execute(f"update sessions set {change}")  # noqa: S608 -- a test's own


async def test_an_effect_is_seen_once(world: TurnRows, pool: Pool) -> None:
    assert await conversations.first_seen(world.db, b"key")
    assert not await conversations.first_seen(world.db, b"key")

    async def see() -> bool:
        async with pool.acquire() as db:
            return await conversations.first_seen(db, b"another")

    assert sorted(await asyncio.gather(see(), see(), see())) == [False, False, True]


async def test_an_effect_of_a_transaction_that_failed_was_not_seen(world: TurnRows) -> None:
    async def fail() -> None:
        async with world.db.transaction():
            assert await conversations.first_seen(world.db, b"key")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()

    assert await conversations.first_seen(world.db, b"key")


async def test_a_turn_that_ends_while_lost_claims_are_looked_for_is_not_counted_as_cut_off(
    pool: Pool, world: TurnRows, turn: ClaimedTurn, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters.take()
    running_on = turns.running_on

    async def ends_then(connection: Connection, node: str) -> list[Claim]:
        found = await running_on(connection, node)
        await world.end(turn.claim)
        return found

    monkeypatch.setattr(turns, "running_on", ends_then)
    ctx = cast("TurnContext", SimpleNamespace(pool=pool, node=NODE))
    # It has the claim's worker for this process, whose run is over by now.
    await Runner(ctx, turn.claim.worker, 1, 1).recover()

    assert await world.state("turns", turn.id) == "done"
    assert not [name for name, _ in counters.take()[0] if "recoveries" in name]
