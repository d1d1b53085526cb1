"""Rows of the take-over: what moves off a silent node, and what a node that is back lets go (DESIGN.md §4, nodes)."""

import pytest

from bot.model import HeadBranch, Target
from bot.store import conversations, operations, removals, requests, takeover, turns
from bot.store.claims import claims_of_node
from bot.store.conversations import own_live_worktree
from bot.store.operations import RequestedBy
from bot.store.scope import EVERYTHING
from tests.support.turn_rows import NOON, TurnRows
from tests.support.worktree_jobs import begin_operation, begin_removal

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


async def test_a_reset_of_a_silent_node_whose_script_may_still_run_is_not_ended_and_begins_anew_elsewhere(
    world: TurnRows,
) -> None:
    await world.worktree(node="here")
    thread, worktree = await world.home(node="there")
    asked = RequestedBy("ada", NOON, thread, Target("comment", 11))
    operation = await operations.enqueue(world.db, worktree, "reset", asked)
    await world.db.execute("update operations set state = 'running', outcome = 'The worktree was reset.'")
    await silent(world, "there")

    assert await takeover.unanswered(world.db, TIMEOUT) == []

    await world.ask(thread)
    successor = await moved(world, worktree)
    [row] = await world.db.fetch("select id, worktree_id, state, outcome from operations")
    assert tuple(row) == (operation, successor, "queued", None)


async def test_a_command_for_a_silent_node_is_answered_unless_a_request_takes_it_along(world: TurnRows) -> None:
    await world.worktree(node="here")
    (alone, idle), (asking, busy) = [await world.home(node="there") for _ in range(2)]
    asked = [
        await operations.enqueue(
            world.db, worktree, "reset", RequestedBy("ada", NOON, conversation, Target("comment", 11))
        )
        for conversation, worktree in ((alone, idle), (asking, busy))
    ]
    by_operator = await operations.enqueue(world.db, idle, "reset", RequestedBy("the operator", NOON))
    await world.ask(asking)
    assert await takeover.unanswered(world.db, TIMEOUT) == []
    await silent(world, "there")

    [found] = await takeover.unanswered(world.db, TIMEOUT)
    assert found.thread_ref is not None
    assert (found.id, found.thread_ref.conversation_id, found.kind, found.node_name) == (asked[0], alone, "reset", "")
    described = await operations.described(world.db, by_operator, scope=EVERYTHING)
    assert described is not None
    assert described["waits_for"] == ""
    await world.db.execute("update operations set created_at = now() - interval '2 minutes'")
    both = [(one.id, one.thread_ref is None) for one in await takeover.unanswered(world.db, TIMEOUT)]
    assert both == [(asked[0], False), (by_operator, True)], "a command line there would have begun"
    told = await conversations.overview(world.db, alone)
    assert (told.silent_node, told.silent_since is not None) == ("", True)
    successor = await moved(world, busy)
    rows = await world.db.fetch("select id, worktree_id, state from operations order by id")
    assert [tuple(row) for row in rows] == [
        (asked[0], idle, "queued"),
        (asked[1], successor, "queued"),
        (by_operator, idle, "queued"),
    ]


async def test_what_is_asked_of_a_whole_node_that_is_silent_ends_like_other_operations(world: TurnRows) -> None:
    await world.worktree(node="there")
    [asked] = await operations.enqueue_on_nodes(world.db, "prune", {}, RequestedBy("the operator", NOON), "there")
    await silent(world, "there")
    assert await takeover.unanswered(world.db, TIMEOUT) == [], "a command line there would begin it"
    await world.db.execute("update operations set created_at = now() - interval '2 minutes'")
    [found] = await takeover.unanswered(world.db, TIMEOUT)
    assert (found.id, found.kind, found.thread_ref, found.target) == (asked, "prune", None, None)
    await operations.abandon(world.db, asked, "It does not answer.")
    assert await operations.begin_on_node(world.db, asked, "there") is None, "a node that is back leaves it"


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
    asked = RequestedBy("ada", NOON, conversation, Target("comment", 11))
    fourth = await conversations.worktree_of(world.db, conversation)
    assert fourth is not None
    await operations.enqueue(world.db, fourth, "create", asked)
    pull = await world.worktree(node="there", start=HeadBranch("threadtree/issue-2"))
    other = await world.ask(await world.thread(worktree=pull))

    assert await world.claim(node="there") is None, "the removal of the directory would take that of the run with it"
    assert await begin_operation(world.db, "there") is None
    await world.db.execute("update worktrees set updated_at = now() - interval '2 minutes' where id = $1", lost)
    assert await takeover.let_go(world.db, "there", []) == [lost]
    removal = await begin_removal(world.db, "there")
    assert removal is not None
    await removals.keep(world.db, removal, "there", "The disk does not answer.")
    assert {one.id for one in await removals.blocked(world.db, lost)} == {turn, other}
    assert (await conversations.overview(world.db, conversation)).removal_error == "The disk does not answer."
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
