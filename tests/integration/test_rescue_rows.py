"""Rows of what was rescued, and of worktrees that are used again; turns that work on a worktree itself."""

from datetime import timedelta

import pytest

from bot.node import rescue_rows as rescues
from bot.store import conversations, turns, worktrees
from bot.turn import request_rows as requests
from tests.support.doorbells import Rung
from tests.support.turn_rows import NODE, NOON, TurnRows, repository

LATER = NOON + timedelta(hours=1)


# Turns that work on a worktree itself: `test_claim_choice` has their order


async def test_a_turn_without_an_agent_counts_for_no_limit_and_no_round(world: TurnRows, rung: Rung) -> None:
    thread, worktree = await world.home()
    await world.ask_alone(worktree, "reset", thread)
    assert await rung() == [NODE], "also a worker without a free place"
    asked = await world.ask(thread)
    await world.db.execute("update turns set requested_by_id = 7")

    assert (await requests.before_a_turn(world.db, thread, 7)).turns_today == 1
    assert (await world.row(asked))["round"] == 0
    assert (await world.claimed(per_repository=0)).worktree.id == worktree
    assert await world.claim(per_repository=0) is None


async def test_an_operators_turn_is_on_no_thread_and_seen_in_that_of_its_worktree(world: TurnRows) -> None:
    thread, worktree = await world.home()
    turn = await world.ask_alone(worktree)

    claimed = await world.claimed()

    assert (claimed.id, claimed.conversation.id, claimed.ask.by.login) == (turn, 0, "the operator")
    [shown] = await requests.unfinished(world.db, thread)
    assert (shown.id, shown.number, shown.ask.verb) == (turn, None, "reset")
    assert await requests.stop_running(world.db, thread, "Stopped.", LATER) == []
    assert await requests.stop_running(world.db, 0, "Stopped.", LATER, turn) == [turn]


async def test_an_operators_turn_that_has_begun_is_not_withdrawn(world: TurnRows) -> None:
    _, worktree = await world.home()
    begun, waits = [await world.ask_alone(worktree) for _ in range(2)]
    await world.claimed()
    for turn in (begun, waits):
        await requests.withdraw(world.db, turn, "Nobody waits.")
    assert [await world.state("turns", turn) for turn in (begun, waits)] == ["running", "stopped"]


# Rescued work comes back


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
    turn = await world.ask(thread)
    assert await rescues.pending_restore(world.db, thread) is not None, "the turn has not begun"
    claimed = await world.claimed(now=LATER)
    assert await rescues.pending_restore(world.db, thread) is None
    assert await rescues.pending_restore(world.db, thread, turn) is not None, "it comes back before the turn itself"
    await turns.save_worktree(world.db, claimed.claim, "threadtree/issue-1", "main", "a" * 40)
    assert await rescues.pending_restore(world.db, thread, turn) is None, "the turn went on without it"


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
