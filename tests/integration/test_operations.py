"""An operation on a worktree is queued in line with its turns, runs once, and survives its worker."""

import asyncio
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from bot.model import Target
from bot.operations.set_up import only_here
from bot.store import conversations, operations, rescues, turns, worktrees
from bot.store.database import Pool
from bot.store.jobs import ring_for_work
from bot.store.operations import Operation, OperationKind, RequestedBy
from bot.store.turns import ClaimLostError
from tests.support.doorbells import Rung
from tests.support.turn_rows import NODE, NOON, TurnRows, held, repository, until_waiting
from tests.support.worktree_jobs import begin_operation, begin_removal

WORKER = "0123456789abcdef"
LATER = NOON + timedelta(hours=1)


async def ask(world: TurnRows, worktree: int, kind: OperationKind = "reset", conversation: int | None = None) -> int:
    """Ask for an operation as maria on the thread, or as an operator."""
    target = Target("comment", 5) if conversation else None
    return await operations.enqueue(world.db, worktree, kind, RequestedBy("maria", NOON, conversation, target))


async def claim(world: TurnRows, node: str = NODE, worktree: int | None = None) -> Operation | None:
    return await begin_operation(world.db, node, worktree)


async def claimed(world: TurnRows) -> Operation:
    operation = await claim(world)
    assert operation is not None
    return operation


async def finish(world: TurnRows, operation: Operation) -> None:
    async with world.db.transaction():
        await operations.finish(world.db, operation, "done", "It was reset.", NODE)


async def state(world: TurnRows, operation: int) -> str:
    return (await operations.status_of(world.db, operation)).state


def test_a_second_process_that_carries_an_operation_out_stays_out_while_the_script_of_the_first_may_run(
    tmp_path: Path,
) -> None:
    with only_here(tmp_path), pytest.raises(ClaimLostError), only_here(tmp_path):
        pass
    with pytest.raises(BlockingIOError), only_here(tmp_path):
        raise BlockingIOError  # of the work itself: it says nothing of the claim


# In line with the turns


async def test_turns_requested_before_an_operation_run_first(world: TurnRows) -> None:
    thread, worktree = await world.home()
    first, second = await world.ask(thread), await world.ask(thread)
    operation = await ask(world, worktree)
    assert await claim(world) is None
    assert (await operations.status_of(world.db, operation)).turns_ahead == 2

    for turn in (first, second):
        running = await world.claimed()
        assert running.id == turn
        assert await claim(world) is None, "a turn runs"
        await world.end(running.claim)

    assert (await claimed(world)).id == operation


async def test_turns_requested_after_an_operation_wait_for_its_end(world: TurnRows) -> None:
    thread, worktree = await world.home()
    before = await world.ask(thread)
    await ask(world, worktree)
    after = await world.ask(thread)
    assert await world.claim_all() == [before]
    running = (await turns.running_on(world.db, NODE))[0]
    await world.end(running)
    assert await world.claim() is None, "the operation waits and goes before it"

    operation = await claimed(world)
    assert await world.claim() is None, "the operation runs"
    await finish(world, operation)

    assert (await world.claimed()).id == after


async def test_turns_of_threads_that_share_the_worktree_wait_too(world: TurnRows) -> None:
    issue, worktree = await world.home()
    pull = await world.thread(worktree=worktree)
    await ask(world, worktree, conversation=issue)

    await world.ask(pull)

    assert await world.claim() is None


async def test_an_operation_does_not_wait_for_other_worktrees(world: TurnRows) -> None:
    busy, _ = await world.home()
    await world.ask(busy)
    await world.claimed()
    _, worktree = await world.home()

    operation = await ask(world, worktree)

    assert (await claimed(world)).id == operation


async def test_a_turn_of_another_worktree_does_not_wait_for_it(world: TurnRows) -> None:
    _, worktree = await world.home()
    await ask(world, worktree)
    other, _ = await world.home()
    turn = await world.ask(other)

    assert (await world.claimed()).id == turn


async def test_a_requeued_turn_keeps_its_place_before_the_operation(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await world.ask(thread)
    running = await world.claimed()
    await ask(world, worktree)

    assert await turns.requeue(world.db, running.claim)

    assert await claim(world) is None
    assert (await world.claimed()).id == running.id


async def test_operations_of_a_worktree_are_done_in_the_order_they_were_asked(world: TurnRows) -> None:
    _, worktree = await world.home()
    first, second = await ask(world, worktree, "reset"), await ask(world, worktree, "remove")

    operation = await claimed(world)
    assert operation.id == first
    assert await claim(world) is None, "one at a time"
    await finish(world, operation)

    assert (await claimed(world)).id == second


async def test_an_operation_belongs_to_the_node_of_its_worktree(world: TurnRows) -> None:
    _, worktree = await world.home(node="there")
    await ask(world, worktree)

    assert await claim(world) is None
    assert await claim(world, worktree=worktree) is None
    assert await claim(world, node="there") is not None


async def test_an_operator_claims_what_is_due_in_the_worktree_they_named(world: TurnRows) -> None:
    _, first = await world.home()
    _, second = await world.home()
    await ask(world, first)
    mine = await ask(world, second)

    operation = await claim(world, worktree=second)

    assert operation is not None
    assert operation.id == mine


async def test_an_operation_waits_while_its_path_is_being_removed(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await world.close(thread)
    await conversations.release_worktree(world.db, worktree)
    removal = await begin_removal(world.db, NODE)
    assert removal is not None
    await ask(world, worktree, "restore")
    assert await claim(world) is None

    await world.db.execute("update worktrees set state = 'removed', removal_began = false")

    assert (await claimed(world)).worktree.state == "removed"


async def jobs(world: TurnRows) -> list[tuple[str, str]]:
    rows = await world.db.fetch("select queue_name, lock from procrastinate_jobs order by id")
    return [(row["queue_name"], row["lock"]) for row in rows]


async def test_an_operation_gets_a_job_when_it_may_begin_and_one_waits_for_a_worktree(world: TurnRows) -> None:
    thread, worktree = await world.home()
    turn = await world.ask(thread)
    await ask(world, worktree)
    assert await jobs(world) == []
    running = await world.claimed()
    assert running.id == turn
    await world.end(running.claim)

    for _ in range(2):
        await ring_for_work(world.db, NODE)

    assert await jobs(world) == [("node:here", f"worktree:{worktree}")]


async def test_the_end_of_an_operation_enqueues_the_next_one(world: TurnRows) -> None:
    _, worktree = await world.home()
    await ask(world, worktree)
    await ask(world, worktree)
    await world.db.execute("update procrastinate_jobs set status = 'doing'")
    await finish(world, await claimed(world))
    assert await jobs(world) == [("node:here", f"worktree:{worktree}")] * 2


async def test_a_removal_that_is_decided_gets_a_job(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await world.close(thread)
    async with world.db.transaction():
        await conversations.release_worktree(world.db, worktree)
    assert await jobs(world) == [("node:here", f"worktree:{worktree}")]


@pytest.mark.parametrize("first", ["turn", "operation"])
async def test_a_turn_and_an_operation_are_never_claimed_at_once(world: TurnRows, pool: Pool, first: str) -> None:
    thread, worktree = await world.home()
    await world.ask(thread)
    await ask(world, worktree)
    await world.db.execute("update operations set after_turn = $1", 0 if first == "operation" else 99)

    async def run_turn() -> bool:
        async with pool.acquire() as db:
            return await world.claim(db=db) is not None

    async def operate() -> bool:
        async with pool.acquire() as db:
            return await operations.begin(db, NODE, worktree) is not None

    async with held(pool) as db:
        if first == "turn":
            assert await world.claim(db=db) is not None
        else:
            assert await begin_operation(db, NODE) is not None
        other = asyncio.create_task(operate() if first == "turn" else run_turn())
        await until_waiting(pool)
    assert not await other


async def test_two_operations_that_run_in_one_worktree_are_impossible(world: TurnRows) -> None:
    _, worktree = await world.home()
    await ask(world, worktree)
    await ask(world, worktree)

    with pytest.raises(asyncpg.UniqueViolationError, match="operations_one_running_per_worktree"):
        await world.db.execute("update operations set state = 'running'")


# Its data and its end


async def test_an_operation_has_its_author_and_the_other_threads_of_the_worktree(world: TurnRows) -> None:
    issue, worktree = await world.home()
    await world.thread(worktree=worktree, number=77)
    number = await world.db.fetchval("select number from conversations where id = $1", issue)
    await ask(world, worktree, "remove", issue)

    operation = await claimed(world)

    assert (operation.kind, operation.requested_by) == ("remove", "maria")
    assert (operation.conversation_id, operation.target) == (issue, Target("comment", 5))
    assert (operation.number, operation.others, operation.worktree.conversations) == (number, (77,), (number, 77))
    assert operation.worktree.repository == repository()


async def test_the_end_of_an_operation_rings_for_waiting_turns(world: TurnRows, rung: Rung) -> None:
    _, worktree = await world.home()
    operation = await ask(world, worktree)
    assert await rung() == [NODE]

    await finish(world, await claimed(world))

    assert await rung() == [NODE]
    standing = await operations.status_of(world.db, operation)
    assert (standing.state, standing.outcome) == ("done", "It was reset.")


async def test_an_operation_ends_once(world: TurnRows) -> None:
    _, worktree = await world.home()
    await ask(world, worktree)
    operation = await claimed(world)
    await operations.abandon(world.db, operation.id, "Its machine is silent.", also_begun=True)

    with pytest.raises(ClaimLostError):
        await operations.finish(world.db, operation, "done", "It was reset.", NODE)

    assert (await operations.status_of(world.db, operation.id)).outcome == "Its machine is silent."


async def test_an_operation_that_moved_to_another_worktree_does_not_end_here(world: TurnRows) -> None:
    _, worktree = await world.home()
    await ask(world, worktree)
    operation = await claimed(world)
    await world.db.execute("update operations set worktree_id = $1", await world.worktree(node="there"))

    assert await operations.begun(world.db, NODE, worktree) is None
    with pytest.raises(ClaimLostError):
        await operations.finish(world.db, operation, "done", "It was reset.", NODE)


async def test_an_operation_of_a_dead_worker_is_begun_again_at_its_old_place(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await ask(world, worktree)
    dead = await claimed(world)
    await world.ask(thread)
    assert await operations.begin(world.db, "there", worktree) is None, "on its node"

    again = await operations.begin(world.db, NODE, worktree)

    assert await world.claim() is None
    assert again is not None
    assert again.id == dead.id
    await operations.finish(world.db, again, "done", "It was reset.", NODE)
    with pytest.raises(ClaimLostError):
        await operations.finish(world.db, dead, "done", "It was reset.", NODE)


async def test_a_withdrawn_operation_is_not_done(world: TurnRows) -> None:
    _, worktree = await world.home()
    first, second = await ask(world, worktree), await ask(world, worktree)
    await claimed(world)

    for operation in (first, second):
        await operations.abandon(world.db, operation, "Nobody waits.")

    assert await state(world, first) == "running", "a running operation continues"
    assert await state(world, second) == "failed"


# Closed threads


async def test_a_worktree_is_not_released_while_an_operation_is_queued(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await ask(world, worktree)
    await world.close(thread)

    assert not await conversations.release_worktree(world.db, worktree)
    operation = await claimed(world)
    assert not await conversations.release_worktree(world.db, worktree)
    await finish(world, operation)

    assert await conversations.release_worktree(world.db, worktree)


async def test_an_operation_and_a_close_at_the_same_moment_see_each_other(world: TurnRows, pool: Pool) -> None:
    thread, worktree = await world.home()

    async def close() -> bool:
        async with held(pool) as db:
            await conversations.set_state(db, thread, NOON, NOON)
            return await conversations.release_worktree(db, worktree)

    async with held(pool) as db:
        await operations.enqueue(db, worktree, "reset", RequestedBy("maria", NOON))
        closing = asyncio.create_task(close())
        await until_waiting(pool)
    assert not await closing


async def test_operations_requested_before_the_close_are_withdrawn(world: TurnRows) -> None:
    thread, worktree = await world.home()
    other = await world.thread(worktree=worktree)
    begun = await ask(world, worktree, "reset", thread)
    await claimed(world)
    waiting = await ask(world, worktree, "remove", thread)
    of_another = await ask(world, worktree, "remove", other)
    of_an_operator = await ask(world, worktree, "reset")

    assert await operations.withdraw(world.db, thread, NOON, "Closed.") == []
    assert await operations.withdraw(world.db, thread, LATER, "Closed.") == [
        operations.Withdrawn("remove", Target("comment", 5), None)
    ]

    found = [await state(world, one) for one in (begun, waiting, of_another, of_an_operator)]
    assert found == ["running", "failed", "queued", "queued"]


# Rescued work comes back before a turn


async def rescued(world: TurnRows, worktree: int, removal: str | None = "closed") -> int:
    """Record a removed worktree and its rescue."""
    await world.db.execute(
        "update worktrees set state = $3, removal = $2 where id = $1",
        worktree,
        removal,
        "removing" if removal else "ready",
    )
    await rescues.record(world.db, worktree, NOON, ref="refs/threadtree/rescue/1/x", files=2, commits=1, size=300)
    if removal is not None:
        await world.db.execute("update worktrees set state = 'removed' where id = $1", worktree)
        await world.db.execute("update conversations set worktree_id = null where worktree_id = $1", worktree)
    rescue: int = await world.db.fetchval("select max(id) from rescues")
    return rescue


async def test_a_rescue_records_its_thread_and_its_reason(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await world.make(worktree)
    number = await world.db.fetchval("select number from conversations where id = $1", thread)
    await rescued(world, worktree)
    await rescues.record(world.db, worktree, NOON, ref="refs/threadtree/rescue/1/x", files=9)

    [rescue] = await rescues.of_conversation(world.db, thread)

    assert rescue == (await rescues.of_worktree(world.db, worktree))[0] == (await rescues.latest(world.db))[0]
    assert (rescue.removal, rescue.conversations, rescue.branch) == ("closed", (number,), "threadtree/issue-1")
    assert (rescue.files, rescue.commits, rescue.bytes, rescue.codebase) == (2, 1, 300, "octo/repo-1")


async def test_a_rescue_of_a_thread_of_the_same_number_elsewhere_is_not_its_own(world: TurnRows) -> None:
    thread, worktree = await world.home()
    number = await world.db.fetchval("select number from conversations where id = $1", thread)
    elsewhere = await world.thread(repo=2, number=number)
    await rescued(world, worktree)

    assert await rescues.of_conversation(world.db, elsewhere) == []
    assert await rescues.pending_restore(world.db, elsewhere) is None


@pytest.mark.parametrize(
    ("removal", "comes_back"), [("closed", True), ("retention", True), ("command", False), (None, False)]
)
async def test_only_work_that_was_not_removed_by_request_comes_back_automatically(
    world: TurnRows, removal: str | None, comes_back: bool
) -> None:
    thread, worktree = await world.home()
    await rescued(world, worktree, removal)

    assert (await rescues.pending_restore(world.db, thread) is not None) == comes_back


async def test_restored_or_refused_work_does_not_come_back_again(world: TurnRows) -> None:
    thread, worktree = await world.home()
    rescue = await rescued(world, worktree)
    found = await rescues.pending_restore(world.db, thread)
    assert found is not None
    assert found.id == rescue

    await rescues.mark_restored(world.db, rescue, LATER)
    assert await rescues.pending_restore(world.db, thread) is None
    await world.db.execute("update rescues set restored_at = null")
    assert await worktrees.reserve_again(world.db, worktree, found.conversations)
    await world.ask(thread)
    assert await rescues.pending_restore(world.db, thread) is not None, "the turn has not begun"
    await world.claimed(now=LATER)
    assert await rescues.pending_restore(world.db, thread) is None


async def test_a_restore_runs_before_the_waiting_turn_and_is_queued_once(world: TurnRows, rung: Rung) -> None:
    thread, _ = await world.home()
    turn = await world.ask(thread)
    assert await rung() == [NODE], "a worker with a free place for the turn"
    await operations.restore_before_newest_turn(world.db, thread)
    await operations.restore_before_newest_turn(world.db, thread)
    assert await rung() == [NODE], "also a worker without one"
    assert await world.claim() is None

    operation = await claimed(world)
    assert (operation.kind, operation.turn_id, operation.conversation_id) == ("restore", turn, None)
    await turns.add_notice(world.db, turn, "Brought back.")
    await finish(world, operation)

    assert (await world.claimed()).so_far.notices == ("Brought back.",)
    assert await claim(world) is None


async def test_a_restore_ends_with_its_turn(world: TurnRows) -> None:
    thread, _ = await world.home()
    await world.ask(thread)
    await operations.restore_before_newest_turn(world.db, thread)

    assert await operations.withdraw(world.db, thread, LATER, "Closed.") == [
        operations.Withdrawn("restore", None, None)
    ]


async def test_a_removed_worktree_is_revived_at_its_path_with_the_threads_that_have_none(world: TurnRows) -> None:
    issue, worktree = await world.home()
    pull = await world.thread(worktree=worktree, number=77)
    moved = await world.thread(worktree=worktree, number=78)
    await rescued(world, worktree)
    elsewhere = await world.worktree()
    await conversations.use_worktree(world.db, moved, elsewhere)
    [rescue] = await rescues.of_worktree(world.db, worktree)

    assert await worktrees.reserve_again(world.db, worktree, rescue.conversations)
    assert not await worktrees.reserve_again(world.db, worktree, rescue.conversations)

    assert await world.state("worktrees", worktree) == "reserved"
    found = [await conversations.worktree_of(world.db, one) for one in (issue, pull, moved)]
    assert found == [worktree, worktree, elsewhere]


async def test_a_removed_worktree_is_not_revived_where_another_is(world: TurnRows) -> None:
    _, worktree = await world.home()
    path = await world.db.fetchval("select path from worktrees where id = $1", worktree)
    await rescued(world, worktree)
    successor = await world.worktree(path=path)
    await world.thread(worktree=successor, number=77)

    assert not await worktrees.reserve_again(world.db, worktree, ())
    assert await worktrees.threads_at_path(world.db, worktree) == (77,)


# Purged worktrees


async def purge(world: TurnRows, worktree: int) -> None:
    await world.make(worktree)
    await world.db.execute("update worktrees set state = 'removed', removal = 'purged' where id = $1", worktree)


async def test_a_purged_worktree_is_reserved_again_by_the_next_request(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await purge(world, worktree)

    live = await conversations.live_worktree(world.db, worktree)

    assert live is not None
    assert live.branch == await world.db.fetchval("select branch from worktrees where id = $1", worktree)
    assert await world.state("worktrees", worktree) == "reserved"
    assert await world.db.fetchval("select removal from worktrees where id = $1", worktree) is None
    await world.ask(thread)
    assert not (await world.claimed()).worktree.is_made


async def test_a_purged_worktree_is_found_by_its_branch_and_its_issue_and_used_again(world: TurnRows) -> None:
    worktree = await world.worktree()
    await world.thread(worktree=worktree, number=1)
    await purge(world, worktree)
    on_branch = await conversations.worktree_on_branch(world.db, repository(), "threadtree/issue-1")
    [(_, of_issue)] = await conversations.worktrees_of_issues(world.db, repository(), [1])
    assert on_branch == of_issue

    assert await conversations.live_worktree(world.db, of_issue.id) == of_issue

    assert await world.state("worktrees", worktree) == "reserved"


async def test_a_cancelled_removal_leaves_no_reason(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await world.make(worktree)
    await world.close(thread)
    await conversations.release_worktree(world.db, worktree)
    assert await world.db.fetchval("select removal from worktrees") == "closed"

    await conversations.live_worktree(world.db, worktree)

    assert await world.db.fetchrow("select state, removal from worktrees") == ("ready", None)


# Worktrees of closed threads


async def test_worktrees_used_only_by_closed_threads_are_left_over(world: TurnRows) -> None:
    closed, kept = await world.home()
    await world.close(closed)
    _, used = await world.home()
    shared = await world.worktree()
    await world.close(await world.thread(worktree=shared))
    await world.thread(worktree=shared)
    unused = await world.worktree()
    elsewhere, other_repository = await world.home(repo=2)
    await world.close(elsewhere)

    async with world.db.transaction():
        found = await worktrees.with_all_threads_closed(world.db, repository())

    assert found == [kept]
    assert not {used, shared, unused, other_repository} & set(found)
