"""The worktree of a thread, and its removal, also with simultaneous acts (DESIGN.md §3.6 and §4)."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from bot.care import removal_rows as removals
from bot.model import DetachedHead, HeadBranch, IssueBranch, Start
from bot.sharing_rules import LiveWorktree
from bot.store import conversations, jobs, turns, worktrees
from bot.store.database import Pool
from bot.store.turns import ClaimLostError
from bot.thread.replies import Overview
from bot.turn import request_rows as requests
from bot.turn.pull_request_rows import record_push
from bot.verbs.status import overview
from tests.support.doorbells import Rung
from tests.support.turn_rows import NODE, NOON, TurnRows, held, repository, request, until_waiting
from tests.support.worktree_jobs import begin_removal, decide_and_begin

WORKER = "0123456789abcdef"
LATER = NOON + timedelta(minutes=1)


# Release


async def test_a_worktree_goes_when_its_only_thread_is_closed_and_its_node_hears_so(
    world: TurnRows, rung: Rung
) -> None:
    conversation, worktree = await world.home()
    await world.close(conversation)

    await conversations.release_worktree(world.db, worktree)

    assert await world.state("worktrees", worktree) == "removing"
    assert await rung() == [NODE]


async def test_a_worktree_stays_while_one_of_its_threads_is_open(world: TurnRows, rung: Rung) -> None:
    issue, worktree = await world.home()
    pull = await world.thread(worktree=worktree)

    await world.close(issue)
    await conversations.release_worktree(world.db, worktree)
    assert await world.state("worktrees", worktree) == "reserved"
    assert await rung() == []

    await world.close(pull)
    await conversations.release_worktree(world.db, worktree)
    assert await world.state("worktrees", worktree) == "removing"


async def test_a_worktree_stays_until_its_last_turn_has_ended(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.ask(conversation)
    await world.close(conversation)
    await conversations.release_worktree(world.db, worktree)
    assert await world.state("worktrees", worktree) == "reserved"

    turn = await world.claimed()
    await conversations.release_worktree(world.db, worktree)
    assert await world.state("worktrees", worktree) == "reserved"

    await world.end(turn.claim)
    await conversations.end_use(world.db, conversation, worktree)
    assert await world.state("worktrees", worktree) == "removing"


async def test_a_turn_that_ends_on_a_closed_thread_ends_its_session(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    await turns.start_session(world.db, turn.claim, "custom", "s1")
    await world.close(conversation)
    await world.end(turn.claim)

    await conversations.end_use(world.db, conversation, worktree)

    assert await world.db.fetchval("select end_reason from sessions") == "conversation-closed"


async def test_a_turn_that_ends_on_an_open_thread_leaves_everything(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    await turns.start_session(world.db, turn.claim, "custom", "s1")
    await world.end(turn.claim)

    await conversations.end_use(world.db, conversation, worktree)

    assert await turns.active_session(world.db, conversation) is not None
    assert await world.state("worktrees", worktree) == "reserved"


async def test_a_second_release_does_not_ring_again(world: TurnRows, rung: Rung) -> None:
    conversation, worktree = await world.home()
    await world.close(conversation)

    await conversations.release_worktree(world.db, worktree)
    await conversations.release_worktree(world.db, worktree)

    assert await rung() == [NODE]


async def test_two_threads_that_close_at_once_release_their_worktree(world: TurnRows, pool: Pool) -> None:
    issue, worktree = await world.home()
    pull = await world.thread(worktree=worktree)

    async def close_pull() -> None:
        async with held(pool) as db:
            await conversations.set_state(db, pull, NOON, NOON)
            await conversations.release_worktree(db, worktree)

    async with held(pool) as db:
        await conversations.set_state(db, issue, NOON, NOON)
        await conversations.release_worktree(db, worktree)
        other = asyncio.create_task(close_pull())
        await until_waiting(pool)
    await other

    assert await world.state("worktrees", worktree) == "removing"


async def test_a_worktree_stays_for_a_turn_that_is_asked_while_the_last_one_ends(world: TurnRows, pool: Pool) -> None:
    conversation, worktree = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    await world.close(conversation)

    async def finish() -> None:
        async with held(pool) as db:
            await turns.end(db, turn.claim, "done", None)
            await conversations.end_use(db, conversation, worktree)

    async with held(pool) as decide:
        assert await conversations.live_worktree(decide, worktree) is not None
        asked = await requests.enqueue(decide, conversation, worktree, request(), NOON)
        ending = asyncio.create_task(finish())
        await until_waiting(pool)
    await ending

    assert await world.state("worktrees", worktree) == "reserved"
    assert (await world.claimed()).id == asked.id


@pytest.mark.parametrize("by", ["closing reference", "branch"])
async def test_a_worktree_stays_for_a_pull_request_that_comes_to_share_it(world: TurnRows, pool: Pool, by: str) -> None:
    worktree = await world.worktree()
    issue = await world.thread(worktree=worktree, number=1)
    pull = await world.thread(number=2)

    async def close_issue() -> None:
        async with held(pool) as db:
            await conversations.set_state(db, issue, NOON, NOON)
            await conversations.release_worktree(db, worktree)

    async with held(pool) as decide:
        if by == "branch":
            assert await conversations.worktree_on_branch(decide, repository(), "threadtree/issue-1") is not None
        else:
            assert len(await conversations.worktrees_of_issues(decide, repository(), [1])) == 1
        closing = asyncio.create_task(close_issue())
        await until_waiting(pool)
        await conversations.use_worktree(decide, pull, worktree)
        asked = await requests.enqueue(decide, pull, worktree, request(), NOON)
    await closing

    assert await world.state("worktrees", worktree) == "reserved"
    assert (await world.claimed()).id == asked.id


async def test_a_pull_request_does_not_share_a_released_worktree(world: TurnRows, pool: Pool) -> None:
    worktree = await world.worktree()
    issue = await world.thread(worktree=worktree, number=1)

    async with held(pool) as db:
        await conversations.set_state(db, issue, NOON, NOON)
        await conversations.release_worktree(db, worktree)
        looking = asyncio.create_task(conversations.worktrees_of_issues(world.db, repository(), [1]))
        await until_waiting(pool)

    assert await looking == []
    assert await conversations.worktree_on_branch(world.db, repository(), "threadtree/issue-1") is None


# Close and reopen


async def test_a_thread_that_opens_again_takes_its_worktree_back(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.make(worktree)
    await world.close(conversation)
    await conversations.release_worktree(world.db, worktree)

    await conversations.set_state(world.db, conversation, None, LATER)
    live = await conversations.live_worktree(world.db, worktree)

    assert live == LiveWorktree(worktree, NODE, 1, "threadtree/issue-1", "worktrees/1")
    assert await world.state("worktrees", worktree) == "ready"
    assert await begin_removal(world.db, NODE) is None


async def test_a_worktree_that_was_never_made_is_taken_back_as_such(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.close(conversation)
    await conversations.release_worktree(world.db, worktree)

    assert await conversations.live_worktree(world.db, worktree) is not None
    await world.ask(conversation)

    assert not (await world.claimed()).worktree.is_made


async def test_a_worktree_that_is_being_removed_cannot_be_taken_back(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.close(conversation)
    await conversations.release_worktree(world.db, worktree)
    removal = await begin_removal(world.db, NODE)
    assert removal is not None

    assert await conversations.live_worktree(world.db, worktree) is None

    await removals.finish(world.db, removal, NODE)
    assert await world.state("worktrees", worktree) == "removed"
    assert await conversations.worktree_of(world.db, conversation) is None
    assert await conversations.live_worktree(world.db, worktree) is None


async def test_the_job_of_a_worktree_goes_on_with_a_removal_that_was_cut_off_and_it_ends_once(
    world: TurnRows,
) -> None:
    conversation, worktree = await world.home()
    await world.close(conversation)
    await conversations.release_worktree(world.db, worktree)
    first = await removals.begin(world.db, NODE, worktree)
    assert first is not None
    assert await removals.begin(world.db, "there", worktree) is None, "on its node"

    again = await removals.begin(world.db, NODE, worktree)

    assert again == first
    await removals.finish(world.db, again, NODE)
    assert await world.state("worktrees", worktree) == "removed"
    assert await removals.begin(world.db, NODE, worktree) is None
    await world.db.execute("update worktrees set state = 'ready'")
    await removals.finish(world.db, first, NODE)
    assert await world.state("worktrees", worktree) == "ready", "a second answer to the same end changes nothing"


async def test_a_removal_outside_of_the_worktrees_job_is_followed_by_the_job(world: TurnRows) -> None:
    _, worktree = await world.home()
    await world.make(worktree)
    assert await removals.decide(world.db, NODE, worktree, "retention")
    [job] = await world.db.fetch("select lock, scheduled_at > now() as is_later from procrastinate_jobs")
    assert (job["lock"], job["is_later"]) == (f"worktree:{worktree}", True)
    await jobs.ring_for_work(world.db, NODE)
    assert await world.db.fetchval("select count(*) from procrastinate_jobs") == 1


async def test_a_request_during_a_failed_removal_runs_in_the_kept_worktree(world: TurnRows) -> None:
    thread, worktree = await world.home()
    await world.make(worktree)
    path = await world.db.fetchval("select path from worktrees where id = $1", worktree)
    await world.close(thread)
    await conversations.release_worktree(world.db, worktree)
    removal = await begin_removal(world.db, NODE)
    assert removal is not None
    successor = await world.worktree(path=path)
    await conversations.use_worktree(world.db, thread, successor)
    asked = await world.ask(thread)
    assert await world.claim() is None  # its path is still being removed

    await removals.keep(world.db, removal, NODE)

    turn = await world.claim()
    assert turn is not None
    assert (turn.id, turn.worktree.id, turn.worktree.is_made) == (asked, worktree, True)
    assert await conversations.worktree_of(world.db, thread) == worktree


# The decision to remove


async def test_a_worktree_at_rest_is_claimed_for_removal_with_all_it_takes(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.make(worktree)

    removal = await decide_and_begin(world.db, NODE, worktree, "retention")

    assert removal is not None
    assert (removal.worktree.id, removal.removal, removal.worktree.branch) == (
        worktree,
        "retention",
        "threadtree/issue-1",
    )
    assert removal.users == (await world.db.fetchval("select number from conversations"),)
    assert await world.db.fetchval("select updated_at from worktrees") == removal.worktree.updated_at
    assert not await removals.decide(world.db, NODE, worktree, "retention")
    assert await begin_removal(world.db, NODE) is None
    assert await removals.begin(world.db, NODE, worktree) == removal
    assert await conversations.worktree_of(world.db, conversation) == worktree


@pytest.mark.parametrize("what", ["queued turn", "running turn", "queued reset", "running reset", "other node"])
async def test_a_worktree_that_is_needed_is_not_claimed_for_removal(world: TurnRows, what: str) -> None:
    conversation, worktree = await world.home()
    if what.endswith("turn"):
        await world.ask(conversation)
    if what.endswith("reset"):
        await world.ask_alone(worktree)
    if what.startswith("running"):
        await world.claimed()

    node = "there" if what == "other node" else NODE

    assert not await removals.decide(world.db, node, worktree, "retention")
    assert await world.state("worktrees", worktree) == "reserved"


async def test_a_request_during_the_claim_of_a_removal_is_seen(world: TurnRows, pool: Pool) -> None:
    conversation, worktree = await world.home()

    async def prune() -> bool:
        async with pool.acquire() as db:
            return await removals.decide(db, NODE, worktree, "retention")

    async with held(pool) as decide:
        assert await conversations.live_worktree(decide, worktree) is not None
        await requests.enqueue(decide, conversation, worktree, request(), NOON)
        pruning = asyncio.create_task(prune())
        await until_waiting(pool)
    assert not await pruning


async def test_a_turn_removes_before_what_waits_behind_it_which_makes_the_worktree_again(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.make(worktree)
    await world.ask_alone(worktree, "remove")
    removing = await world.claimed()
    asked = await world.ask(conversation)
    assert not await removals.decide(world.db, NODE, worktree, "command")

    removal = await decide_and_begin(world.db, NODE, worktree, "command", removing.id)

    assert removal is not None
    assert await world.claim() is None
    await removals.finish(world.db, removal, NODE)
    assert await world.state("worktrees", worktree) == "reserved"
    assert await conversations.worktree_of(world.db, conversation) == worktree
    await world.end(removing.claim)
    turn = await world.claimed()
    assert (turn.id, turn.worktree.is_made) == (asked, False)


async def test_a_removal_ends_the_sessions_of_those_who_used_the_worktree(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await session(world, conversation)
    removal = await decide_and_begin(world.db, NODE, worktree, "command")
    assert removal is not None

    await removals.finish(world.db, removal, NODE)

    assert await world.db.fetchval("select end_reason from sessions") == "worktree-removed"
    assert await conversations.worktree_of(world.db, conversation) is None


async def test_a_purged_worktree_keeps_its_conversations_and_their_sessions(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.make(worktree)
    await session(world, conversation)
    removal = await decide_and_begin(world.db, NODE, worktree, "purged")
    assert removal is not None

    await removals.finish(world.db, removal, NODE)

    assert await world.db.fetchrow("select state, removal from worktrees") == ("removed", "purged")
    assert await conversations.worktree_of(world.db, conversation) == worktree
    assert await turns.active_session(world.db, conversation) is not None
    live = await conversations.live_worktree(world.db, worktree)
    assert live is not None
    await world.ask(conversation)
    assert not (await world.claimed()).worktree.is_made


@pytest.mark.parametrize("why", ["purged", "command"])
async def test_what_was_asked_during_a_removal_goes_on_in_the_same_row(world: TurnRows, why: removals.Removal) -> None:
    thread, worktree = await world.home()
    other = await world.thread(worktree=worktree)
    await world.make(worktree)
    path = await world.db.fetchval("select path from worktrees where id = $1", worktree)
    await world.ask_alone(worktree, "remove")
    removing = await world.claimed()
    if why == "command":
        await world.ask(other)
    removal = await decide_and_begin(world.db, NODE, worktree, why, removing.id)
    assert removal is not None
    await conversations.use_worktree(world.db, thread, await world.worktree(path=path))
    asked = await world.ask(thread)

    await removals.finish(world.db, removal, NODE)
    await world.end(removing.claim)

    assert await world.state("worktrees", worktree) == "reserved"
    assert {await conversations.worktree_of(world.db, one) for one in (thread, other)} == {worktree}
    while (turn := await world.claimed()).id != asked:
        await world.end(turn.claim)
    assert turn.worktree.id == worktree


async def test_a_removal_that_failed_at_the_close_is_retried_later(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.make(worktree)
    await world.close(conversation)
    await conversations.release_worktree(world.db, worktree)
    removal = await begin_removal(world.db, NODE)
    assert removal is not None
    await removals.keep(world.db, removal, NODE)
    assert await removals.due_for_retry(world.db, NODE, timedelta(minutes=5)) == []
    assert await removals.due_for_retry(world.db, NODE, timedelta(0)) == [worktree]

    assert await conversations.live_worktree(world.db, worktree) is not None
    assert await removals.due_for_retry(world.db, NODE, timedelta(0)) == []


async def test_a_worktree_kept_before_it_was_made_is_made_by_the_next_turn(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    removal = await decide_and_begin(world.db, NODE, worktree, "retention")
    assert removal is not None
    await removals.keep(world.db, removal, NODE)
    await world.ask(conversation)
    assert not (await world.claimed()).worktree.is_made
    assert await removals.due_for_retry(world.db, NODE, timedelta(0)) == []


async def test_a_kept_worktree_with_a_new_request_is_not_removed_again(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.make(worktree)
    await world.close(conversation)
    await conversations.release_worktree(world.db, worktree)
    removal = await begin_removal(world.db, NODE)
    assert removal is not None
    await removals.keep(world.db, removal, NODE)
    assert await removals.due_for_retry(world.db, NODE, timedelta(0)) == [worktree]

    await worktrees.record_checkout(world.db, worktree, "threadtree/issue-1", "main", fresh=False)

    assert await removals.due_for_retry(world.db, NODE, timedelta(0)) == []


async def session(world: TurnRows, conversation: int) -> None:
    """Run a turn of the conversation to its end, with a session."""
    await world.ask(conversation)
    turn = await world.claimed()
    await turns.start_session(world.db, turn.claim, "custom", "s1")
    await world.end(turn.claim)


async def test_a_closed_thread_is_open_again_when_github_says_so(world: TurnRows) -> None:
    conversation, _ = await world.home()
    await world.close(conversation)
    assert await world.state("conversations", conversation) == "closed"

    await conversations.set_state(world.db, conversation, None, LATER)

    assert await world.state("conversations", conversation) == "open"


async def test_a_close_that_comes_after_the_reopening_that_followed_it_changes_nothing(world: TurnRows) -> None:
    conversation, _ = await world.home()
    await conversations.set_state(world.db, conversation, None, LATER)

    await conversations.set_state(world.db, conversation, NOON, NOON)
    assert await world.state("conversations", conversation) == "open"

    await conversations.set_state(world.db, conversation, LATER + timedelta(seconds=1), LATER + timedelta(seconds=1))
    assert await world.state("conversations", conversation) == "closed"


# Search


async def test_the_worktrees_of_closed_issues_come_in_the_pull_requests_order(world: TurnRows) -> None:
    first, second = await world.worktree(), await world.worktree()
    await world.thread(worktree=first, number=21)
    await world.thread(worktree=second, number=22)
    await world.thread(number=23)
    elsewhere = await world.worktree(repo=2)
    await world.thread(repo=2, worktree=elsewhere, number=24)

    found = await conversations.worktrees_of_issues(world.db, repository(), [24, 22, 99, 23, 21, 22])

    assert [(number, worktree.id) for number, worktree in found] == [(22, second), (21, first)]


async def test_issues_without_a_number_have_no_worktree(world: TurnRows) -> None:
    assert await conversations.worktrees_of_issues(world.db, repository(), []) == []


START_BRANCHES: list[tuple[Start, str | None]] = [
    (IssueBranch(5), "threadtree/issue-5"),
    (HeadBranch("feature", "a" * 40), "feature"),
    (DetachedHead("a" * 40, "refs/pull/5/head"), None),
]


@pytest.mark.parametrize(("start", "branch"), START_BRANCHES)
async def test_a_worktree_is_found_by_the_branch_it_will_have(
    world: TurnRows, start: Start, branch: str | None
) -> None:
    worktree = await world.worktree(owner=5, start=start)

    for name in ("threadtree/issue-5", "feature", "refs/pull/5/head"):
        found = await conversations.worktree_on_branch(world.db, repository(), name)
        assert (found and (found.id, found.branch)) == ((worktree, branch) if name == branch else None)


async def test_a_worktree_is_found_by_the_branch_it_has(world: TurnRows) -> None:
    worktree = await world.worktree(owner=5)
    await world.db.execute("update worktrees set state = 'ready', branch = 'threadtree/issue-5-2'")

    found = await conversations.worktree_on_branch(world.db, repository(), "threadtree/issue-5-2")

    assert found is not None
    assert found.id == worktree
    assert await conversations.worktree_on_branch(world.db, repository(), "threadtree/issue-5") is None
    assert await conversations.worktree_on_branch(world.db, repository(2), "threadtree/issue-5-2") is None


# Repositories and threads


async def test_a_renamed_repository_keeps_its_folder(world: TurnRows) -> None:
    assert await conversations.save_codebase(world.db, repository()) == "octo/repo-1"
    renamed = replace(repository(), name="renamed", default_branch="trunk")

    assert await conversations.save_codebase(world.db, renamed) == "octo/repo-1"
    assert await world.db.fetchrow("select name, default_branch from codebases") == ("renamed", "trunk")


async def test_a_reclaimed_name_gets_a_folder_of_its_own(world: TurnRows) -> None:
    await conversations.save_codebase(world.db, repository())
    reclaimed = replace(repository(2), name="repo-1")

    assert await conversations.save_codebase(world.db, reclaimed) == "octo/repo-1-2"
    assert await conversations.save_codebase(world.db, repository()) == "octo/repo-1"
    assert await conversations.save_codebase(world.db, reclaimed) == "octo/repo-1-2"


async def test_one_thread_is_one_conversation(world: TurnRows) -> None:
    await conversations.save_codebase(world.db, repository())
    first = await conversations.save_thread(world.db, repository(), 4, "issue", "A title", None)
    again = await conversations.save_thread(world.db, repository(), 4, "issue", "Renamed", NOON)

    assert again == first
    found = await conversations.find_conversation(world.db, repository(), 4)
    assert (found and found.id, first[1]) == (first[0], "octo/repo-1")
    assert await world.db.fetchrow("select title, state from conversations") == ("Renamed", "open")
    assert await conversations.find_conversation(world.db, repository(), 5) is None


async def test_the_status_of_a_thread_lists_running_and_waiting_turns(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.make(worktree)
    assert await overview(world.db, conversation) == Overview("threadtree/issue-1")
    asked = [await world.ask(conversation) for _ in range(3)]
    turn = await world.claimed()
    session = await turns.start_session(world.db, turn.claim, "custom", "s1")
    await turns.use_session(world.db, turn.claim, session)
    await turns.save_steps(world.db, turn.claim, [1, 2], ["Look", "Test"], [None, None])
    await record_push(world.db, turn.claim, "threadtree/issue-1", "a" * 40, (3, 2, 1), "b" * 40, merged=False)

    now = await overview(world.db, conversation)
    assert (now.pushed_to, now.net, now.agent, now.session_turns) == ("threadtree/issue-1", (3, 2, 1), "custom", 1)
    assert (now.turns, now.cost_usd) == (0, None), "of those that ended"
    found = await requests.unfinished(world.db, conversation)
    assert [(one.id, one.state, one.step) for one in found] == [
        (asked[0], "running", "Test"),
        (asked[1], "queued", None),
        (asked[2], "queued", None),
    ]
    assert (found[0].started_at, found[0].ask) == (turn.started_at, turn.ask)
    await turns.end(world.db, turn.claim, "done", None, ())
    await world.db.execute("update conversations set worktree_id = null")
    await world.db.execute("update worktrees set state = 'removed', removal = 'closed'")
    now = await overview(world.db, conversation)
    assert (now.branch, now.pushed_to, now.turns, now.untold) == (None, "threadtree/issue-1", 1, 1)
    with pytest.raises(ClaimLostError):
        await turns.stop_requested(world.db, replace(turn.claim, turn_id=turn.id + 1))
