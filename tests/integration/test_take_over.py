"""Rows of the take-over: what moves off a silent node, and what a node that is back lets go (DESIGN.md §4, nodes)."""

import pytest

from bot.care import on_request_rows
from bot.care import removal_rows as removals
from bot.model import HeadBranch
from bot.store import conversations, turns
from bot.store.conversations import own_live_worktree
from bot.store.database import Pool
from bot.turn import request_rows as requests
from bot.turn import take_over_rows as takeover
from bot.turn.claims import claims_of_node
from bot.verbs.status import overview
from tests.support.turn_rows import NOON, TurnRows
from tests.support.worktree_jobs import begin_removal

TIMEOUT = 60
NOTICE = "The machine is silent."


async def silent(world: TurnRows, node: str, seconds: int = TIMEOUT + 1) -> None:
    await world.db.execute(
        "update nodes set heartbeat_at = now() - make_interval(secs => $2) where id = $1", node, seconds
    )


async def moved(world: TurnRows, worktree: int, to: str = "here") -> int | None:
    """Move what waits in the worktree, as a live worker does."""
    async with claims_of_node(world.db, "there"):
        found = await takeover.lock_stranded(world.db, worktree, TIMEOUT)
        if found is None:
            return None
        for claim in found.running:
            assert await turns.requeue(world.db, claim, crashed=True)
        return await takeover.move_waiting(world.db, worktree, to, NOTICE)


async def test_only_what_waits_for_a_silent_node_moves(world: TurnRows) -> None:
    await world.worktree(node="here")
    waiting, worktree = await world.home(node="there")
    await world.make(worktree)
    turn = await world.ask(waiting)
    _, idle = await world.home(node="there")
    assert await takeover.stranded(world.db, TIMEOUT) == []
    await silent(world, "there", TIMEOUT - 10)
    assert await takeover.stranded(world.db, TIMEOUT) == []
    await silent(world, "there")
    assert await takeover.stranded(world.db, TIMEOUT) == [(worktree, "there")]

    successor = await moved(world, worktree)

    assert successor is not None
    row = await world.db.fetchrow("select node, state, branch, path from worktrees where id = $1", successor)
    old = await world.db.fetchrow("select node, state, branch, path from worktrees where id = $1", worktree)
    assert (old["node"], old["state"]) == ("there", "lost")
    assert (row["node"], row["state"], row["branch"], row["path"]) == ("here", "reserved", old["branch"], old["path"])
    assert await world.state("worktrees", idle) == "reserved"
    claimed = await world.claimed(node="here")
    assert (claimed.id, claimed.worktree.id, claimed.so_far.notices) == (turn, successor, (NOTICE,))
    assert await world.claim(node="there") is None
    assert await takeover.stranded(world.db, TIMEOUT) == []


async def test_a_turn_that_ran_there_begins_anew_and_its_old_claim_is_lost(world: TurnRows) -> None:
    await world.worktree(node="here")
    conversation, worktree = await world.home(node="there")
    await world.make(worktree)
    await world.ask(conversation)
    ran = await world.claimed(node="there")
    session = await turns.start_session(world.db, ran.claim, "custom", "abc")
    await turns.use_session(world.db, ran.claim, session)
    await turns.save_worktree(world.db, ran.claim, "threadtree/issue-1", "main", "a" * 40)
    await turns.save_answer(world.db, ran.claim, "Done there.", (), ())
    await silent(world, "there")

    assert await moved(world, worktree) is not None

    with pytest.raises(turns.ClaimLostError):
        await turns.stop_requested(world.db, ran.claim)
    again = await world.claimed(node="here")
    row = await world.row(ran.id)
    assert (again.id, again.so_far.answer, again.so_far.resuming, row["head_before"], row["cut_offs"]) == (
        ran.id,
        None,
        False,
        None,
        1,
    )
    assert await world.db.fetchval("select end_reason from sessions") == "node-lost"


async def test_a_reset_that_a_thread_asked_of_a_silent_node_begins_anew_elsewhere(world: TurnRows) -> None:
    await world.worktree(node="here")
    thread, worktree = await world.home(node="there")
    await world.ask_alone(worktree, "reset", thread)
    ran = await world.claimed(node="there")
    await turns.save_answer(world.db, ran.claim, "The worktree was reset.", (), ())
    await silent(world, "there")

    successor = await moved(world, worktree)

    again = await world.claimed(node="here")
    assert (again.id, again.worktree.id) == (ran.id, successor)
    assert (again.so_far.answer, again.so_far.notices) == (None, (NOTICE,))


async def test_what_an_operator_asked_of_a_silent_node_ends_unless_it_runs_there(world: TurnRows, pool: Pool) -> None:
    words = (pool, TIMEOUT, "The node ", " is silent.")
    _, worktree = await world.home(node="there")
    await world.db.execute("update nodes set name = 'far'")
    runs, waits = [await world.ask_alone(worktree) for _ in range(2)]
    await world.claimed(node="there")
    [asked] = await on_request_rows.enqueue(world.db, "prune", {}, "the operator", "there")
    await silent(world, "there")
    assert await takeover.stranded(world.db, TIMEOUT) == [], "no thread waits there"
    assert await takeover.give_up_operators(*words) == [], "a command line there would have begun"
    assert await on_request_rows.give_up_silent(*words) == []

    for table in ("turns", "operations"):
        await world.db.execute(f"update {table} set created_at = now() - interval '2 minutes'")  # noqa: S608 -- names above
    assert await takeover.give_up_operators(*words) == [waits]
    assert await on_request_rows.give_up_silent(*words) == [asked]

    end = await turns.end_of(pool, waits)
    assert end is not None
    assert (end.state, end.words) == ("failed", "The node far is silent.")
    assert await world.state("turns", runs) == "running"
    assert await on_request_rows.begin(world.db, asked, "there") is None, "a node that is back leaves it"


async def test_a_node_that_is_back_in_time_keeps_its_work(world: TurnRows) -> None:
    conversation, worktree = await world.home(node="there")
    await world.ask(conversation)
    await silent(world, "there")
    assert await takeover.stranded(world.db, TIMEOUT)
    await silent(world, "there", 0)
    assert await moved(world, worktree) is None
    assert (await world.claimed(node="there")).worktree.id == worktree


async def test_threads_that_share_a_lost_worktree_keep_it_until_they_are_asked(world: TurnRows) -> None:
    await world.worktree(node="here")
    asked, worktree = await world.home(node="there")
    other = await world.thread(worktree=worktree)
    await world.make(worktree)
    await world.ask(asked)
    await silent(world, "there")
    successor = await moved(world, worktree)
    assert await conversations.worktree_of(world.db, other) == worktree
    assert await own_live_worktree(world.db, other) is None, "its next request chooses again, and finds the branch"
    assert await conversations.worktree_of(world.db, asked) == successor


async def test_the_path_is_another_where_it_is_taken(world: TurnRows) -> None:
    await world.worktree(node="here", path="worktrees/octo/repo-1/issue-1")
    conversation = await world.thread(
        worktree=(old := await world.worktree(node="there", path="worktrees/octo/repo-1/issue-1"))
    )
    await world.ask(conversation)
    await silent(world, "there")
    successor = await moved(world, old)
    path = await world.db.fetchval("select path from worktrees where id = $1", successor)
    assert path == f"worktrees/octo/repo-1/issue-1-{old}"


async def test_nothing_is_made_where_the_node_has_lost_a_directory_that_it_has_not_let_go(world: TurnRows) -> None:
    await world.worktree(node="here")
    conversation, lost = await world.home(node="there")
    await world.db.execute("update worktrees set state = 'ready', branch = 'threadtree/issue-2' where id = $1", lost)
    turn = await world.ask(conversation)
    await silent(world, "there")
    second = await moved(world, lost)
    assert second is not None
    # The other node goes too, and the first one is back before it has let go: the thread returns to it.
    await silent(world, "there", 0)
    await silent(world, "here")
    third = await moved(world, second, to="there")
    path = await world.db.fetchval("select path from worktrees where id = $1", third)
    assert path == await world.db.fetchval("select path from worktrees where id = $1", lost)
    pull = await world.worktree(node="there", start=HeadBranch("threadtree/issue-2"))
    other = await world.ask(await world.thread(worktree=pull))

    assert await world.claim(node="there") is None, "the removal of the directory would take that of the run with it"
    await world.db.execute("update worktrees set updated_at = now() - interval '2 minutes' where id = $1", lost)
    assert await takeover.let_go(world.db, "there", []) == [lost]
    removal = await begin_removal(world.db, "there")
    assert removal is not None
    await removals.keep(world.db, removal, "there", "The disk does not answer.")
    assert {one.id for one in await removals.blocked(world.db, lost)} == {turn, other}
    assert (await overview(world.db, conversation)).removal_error == "The disk does not answer."
    rows = await requests.why_turns_wait(world.db, [turn, other], NOON, TIMEOUT)
    assert {row.obstacle for row in rows} == {"directory"}
    assert {row.removal_error for row in rows} == {"The disk does not answer."}
    await world.db.execute("update worktrees set updated_at = now() - interval '2 minutes' where id = $1", lost)
    assert await takeover.let_go(world.db, "there", []) == [lost]
    removal = await begin_removal(world.db, "there")
    assert removal is not None
    assert await world.claim(node="there") is None, "its branch is checked out until it is gone"
    await removals.finish(world.db, removal, "there")
    assert {(await world.claimed(node="there")).id for _ in range(2)} == {turn, other}


async def test_a_directory_that_was_lost_before_its_branch_was_recorded_holds_up_its_issue_until_it_is_gone(
    world: TurnRows,
) -> None:
    await world.worktree(node="here")
    conversation, lost = await world.home(node="there")
    turn = await world.ask(conversation)
    await silent(world, "there")
    second = await moved(world, lost)
    assert second is not None
    await world.db.execute("update worktrees set state = 'ready', branch = 'threadtree/issue-1' where id = $1", second)
    await silent(world, "there", 0)
    await silent(world, "here")
    third = await moved(world, second, to="there")
    await world.db.execute("update worktrees set path = 'elsewhere', updated_at = now() where id = $1", third)
    await world.db.execute("update worktrees set updated_at = now() - interval '2 minutes' where id = $1", lost)
    assert await world.claim(node="there") is None
    assert await takeover.let_go(world.db, "there", []) == [lost]
    removal = await begin_removal(world.db, "there")
    assert removal is not None
    assert await world.claim(node="there") is None
    await removals.finish(world.db, removal, "there")
    assert (await world.claimed(node="there")).id == turn


async def test_a_node_that_is_back_removes_what_it_lost_and_nothing_brings_it_back(world: TurnRows) -> None:
    await world.worktree(node="here")
    asked, worktree = await world.home(node="there")
    other = await world.thread(worktree=worktree)
    await world.make(worktree)
    await world.ask(asked)
    await silent(world, "there")
    await moved(world, worktree)
    assert await takeover.let_go(world.db, "there", []) == [], "not at once: a run may still wind down"
    await world.db.execute("update worktrees set updated_at = now() - interval '2 minutes' where id = $1", worktree)
    assert await takeover.let_go(world.db, "there", [worktree]) == []
    assert await takeover.let_go(world.db, "there", []) == [worktree]
    assert await own_live_worktree(world.db, other) is None, "no request calls the removal off"

    removal = await begin_removal(world.db, "there")
    assert removal is not None
    assert removal.removal == "lost"
    numbers = await world.db.fetch("select number from conversations where id = any ($1) order by 1", [asked, other])
    assert removal.users == tuple(row["number"] for row in numbers), "both can have it back"
    await removals.keep(world.db, removal, "there")
    assert await world.state("worktrees", worktree) == "lost", "it is tried again"
    await world.db.execute("update worktrees set updated_at = now() - interval '2 minutes' where id = $1", worktree)
    await takeover.let_go(world.db, "there", [])
    removal = await begin_removal(world.db, "there")
    assert removal is not None
    await removals.finish(world.db, removal, "there")
    assert await world.state("worktrees", worktree) == "removed"
    assert (await world.claimed(node="here", now=NOON)).conversation.id == asked
