"""`turns` as the queue: which turn is claimed next, and by which worker (DESIGN.md §2)."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bot.ask import Part, Review, seen
from bot.care import removal_rows as removals
from bot.model import Actor, Conversation, IssueBranch, Target
from bot.store import conversations, turns
from bot.store.database import Pool
from bot.turn import message_rows as messages
from bot.turn import request_rows as requests
from tests.support.turn_rows import NODE, NOON, TurnRows, held, repository, request, until_waiting
from tests.support.worktree_jobs import begin_removal

# Order


async def test_without_requests_there_is_nothing_to_claim(world: TurnRows) -> None:
    await world.home()

    assert await world.claim() is None


async def test_the_oldest_turn_goes_first(world: TurnRows) -> None:
    threads = [(await world.home())[0] for _ in range(3)]
    asked = [await world.ask(thread) for thread in reversed(threads)]

    assert await world.claim_all() == asked


async def test_an_agent_is_told_so_many_messages_and_no_more(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.make(worktree)
    await world.ask(conversation)
    turn = await world.claimed()
    session = await turns.start_session(world.db, turn.claim, "custom", "abc")
    await turns.use_session(world.db, turn.claim, session)
    for _ in range(3):
        await messages.offer(world.db, await world.ask(conversation))

    for _ in range(2):
        message = await messages.next_for(world.db, turn.claim, most=2)
        assert message is not None
        assert await messages.take(world.db, turn.claim, message.turn_id, message.ask)
        assert await messages.end(world.db, turn.claim, message.turn_id, "told")
    assert await messages.next_for(world.db, turn.claim, most=2) is None
    assert await messages.next_for(world.db, turn.claim) is not None


async def test_a_stop_locks_every_unfinished_turn_of_its_thread(world: TurnRows, pool: Pool) -> None:
    conversation, _ = await world.home()
    for _ in range(3):
        await world.ask(conversation)

    async with held(pool) as db:
        await requests.lock_unfinished(db, conversation)

        assert await world.db.fetch("select id from turns for update skip locked") == []


async def test_a_claimed_turn_brings_everything_its_run_needs(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    shared = await world.thread(worktree=worktree, number=50)
    asked = request(
        "fix\n\nit",
        target=Target("review-comment", 12),
        review=Review((12,), 3),
        pinned_sha="abc",
        context="about a.py",
        of={"plan": 7},
    )
    await requests.enqueue(world.db, shared, worktree, asked, NOON, ("moved",))

    turn = await world.claimed()

    assert turn.ask == asked
    assert (turn.so_far.notices, turn.so_far.resuming, turn.so_far.answer) == (("moved",), False, None)
    assert (turn.worktree.repository, turn.worktree.folder) == (repository(), "octo/repo-1")
    assert turn.conversation == Conversation(shared, 50, "issue", "A title", None, None, None)
    assert (turn.worktree.id, turn.worktree.is_made, turn.worktree.branch) == (worktree, False, None)
    assert (turn.worktree.owner, turn.worktree.start) == (1, IssueBranch(1))
    assert 50 in turn.worktree.conversations
    assert len(turn.worktree.conversations) == 2
    assert conversation != shared


async def test_a_conversations_turns_run_one_after_the_other_in_order(world: TurnRows) -> None:
    conversation, _ = await world.home()
    asked = [await world.ask(conversation) for _ in range(3)]

    ran = []
    while (turn := await world.claim()) is not None:
        assert await world.claim() is None
        ran.append(turn.id)
        await world.end(turn.claim)

    assert ran == asked


async def test_conversations_that_share_a_worktree_lock_queues(world: TurnRows) -> None:
    issue, worktree = await world.home()
    pull = await world.thread(worktree=worktree)
    asked = [await world.ask(issue), await world.ask(pull), await world.ask(issue)]

    ran = []
    while (turn := await world.claim()) is not None:
        assert await world.claim() is None
        ran.append(turn.id)
        await world.end(turn.claim)

    assert ran == asked


async def test_a_later_turn_waits_for_an_earlier_one_that_runs_in_another_worktree(world: TurnRows) -> None:
    conversation, _ = await world.home()
    earlier = await world.ask(conversation)
    await conversations.use_worktree(world.db, conversation, await world.worktree())
    later = await world.ask(conversation)

    running = await world.claimed()
    assert running.id == earlier
    assert await world.claim() is None

    await world.end(running.claim)
    assert (await world.claimed()).id == later


async def test_a_later_turn_waits_for_an_earlier_one_that_cannot_run_yet(world: TurnRows) -> None:
    conversation, old = await world.home()
    await world.ask(conversation)
    await conversations.use_worktree(world.db, conversation, await world.worktree())
    await world.ask(conversation)
    await world.db.execute("update worktrees set state = 'lost' where id = $1", old)

    assert await world.claim() is None


async def test_a_requeued_turn_keeps_its_place(world: TurnRows) -> None:
    conversation, _ = await world.home()
    first = await world.ask(conversation)
    await world.ask(conversation)
    turn = await world.claimed()

    assert await turns.requeue(world.db, turn.claim)

    assert (await world.claimed()).id == first


async def test_the_place_in_line_counts_the_worktree_and_the_thread(world: TurnRows) -> None:
    issue, worktree = await world.home()
    pull = await world.thread(worktree=worktree)
    elsewhere, _ = await world.home()
    await world.ask(elsewhere)
    asked = [
        await requests.enqueue(world.db, conversation, worktree, request(), NOON)
        for conversation in (issue, pull, pull)
    ]
    lines = [turn.id for turn in asked]

    assert [turn.ahead for turn in asked] == [0, 1, 2]
    assert await world.line(*lines) == [(0, None), (1, None), (2, None)]

    await world.claim_all()
    assert await world.line(*lines) == [(1, None), (2, None)]

    running = next(claim for claim in await turns.running_on(world.db, NODE) if claim.turn_id == lines[0])
    await world.end(running)
    assert await world.line(lines[2]) == [(1, None)]


# Fairness and limits


async def test_the_repository_with_fewer_running_turns_goes_first(world: TurnRows) -> None:
    busy = [await world.ask((await world.home(repo=1))[0]) for _ in range(3)]
    quiet = [await world.ask((await world.home(repo=2))[0]) for _ in range(2)]

    assert await world.claim_all() == [busy[0], quiet[0], busy[1], quiet[1], busy[2]]


async def test_a_person_who_asks_much_delays_another_by_one_turn(world: TurnRows) -> None:
    async def asks(person: int, repo: int = 1) -> int:
        return await world.ask((await world.home(repo=repo))[0], by=Actor("ada", person))

    async def run_next(count: int) -> list[int]:
        """Run this many turns one after the other: no repository has more of them than another."""
        done = []
        for _ in range(count):
            turn = await world.claimed()
            await world.end(turn.claim)
            done.append(turn.id)
        return done

    noisy = [await asks(1) for _ in range(6)]
    quiet = [await asks(2), await asks(2)]
    elsewhere = await asks(3, repo=2)
    assert await run_next(5) == [noisy[0], quiet[0], elsewhere, noisy[1], quiet[1]]

    late = [await asks(4), await asks(4), await asks(4)]
    more = await asks(1)
    assert await run_next(7) == [noisy[2], late[0], noisy[3], late[1], noisy[4], late[2], noisy[5]]
    assert await run_next(1) == [more]
    assert (await world.row(await asks(1)))["round"] == 0, "nothing else waits"


async def test_a_repository_runs_no_more_turns_at_once_than_it_may(world: TurnRows) -> None:
    first = [await world.ask((await world.home(repo=1))[0]) for _ in range(3)]
    other = await world.ask((await world.home(repo=2))[0])

    assert await world.claim_all(per_repository=2) == [first[0], other, first[1]]

    running = await turns.running_on(world.db, NODE)
    await world.end(next(claim for claim in running if claim.turn_id == other))
    assert await world.claim(per_repository=2) is None
    await world.end(next(claim for claim in running if claim.turn_id == first[0]))
    assert (await world.claimed(per_repository=2)).id == first[2]


async def test_what_runs_on_another_node_does_not_count_here(world: TurnRows) -> None:
    await world.ask((await world.home(node="there"))[0])
    thread_ref = await world.ask((await world.home())[0])
    await world.claimed(node="there")

    assert (await world.claimed(per_repository=1)).id == thread_ref


async def test_a_node_claims_only_turns_of_its_own_worktrees(world: TurnRows) -> None:
    thread_ref = await world.ask((await world.home(node=NODE))[0])
    there = await world.ask((await world.home(node="there"))[0])

    assert await world.claim_all(node="there") == [there]
    assert await world.claim_all(node="nowhere") == []
    assert await world.claim_all() == [thread_ref]


# Worktrees that are being removed


async def test_a_turn_waits_while_its_path_is_still_being_removed(world: TurnRows) -> None:
    old = await world.worktree(path="/worktrees/same")
    conversation = await world.thread(worktree=old)
    await world.close(conversation)
    await conversations.release_worktree(world.db, old)
    removal = await begin_removal(world.db, NODE)
    assert removal is not None

    await conversations.use_worktree(world.db, conversation, await world.worktree(path="/worktrees/same"))
    asked = await world.ask(conversation)
    assert await world.claim() is None

    await removals.finish(world.db, removal, NODE)
    assert (await world.claimed()).id == asked


async def test_the_same_path_on_another_node_is_another_worktree(world: TurnRows) -> None:
    old = await world.worktree(path="/worktrees/same", node="there")
    await world.db.execute("update worktrees set state = 'removing' where id = $1", old)
    asked = await world.ask(await world.thread(worktree=await world.worktree(path="/worktrees/same")))

    assert (await world.claimed()).id == asked


@pytest.mark.parametrize("state", ["removing", "removed", "lost"])
async def test_nothing_runs_in_a_worktree_that_is_gone(world: TurnRows, state: str) -> None:
    conversation, worktree = await world.home()
    await world.ask(conversation)
    await world.db.execute("update worktrees set state = $2 where id = $1", worktree, state)

    assert await world.claim() is None


# Constraints of the schema


async def test_two_running_turns_in_one_worktree_are_impossible(world: TurnRows) -> None:
    issue, worktree = await world.home()
    pull = await world.thread(worktree=worktree)
    await world.ask(issue)
    second = await world.ask(pull)
    await world.claimed()

    with pytest.raises(asyncpg.UniqueViolationError, match="turns_one_running_per_worktree"):
        await world.db.execute("update turns set state = 'running', claim = gen_random_uuid() where id = $1", second)


@pytest.mark.parametrize(
    "change",
    [
        "state = 'running'",
        "claim = gen_random_uuid()",
        "finished_at = now()",
        "state = 'done'",
        "state = 'failed', finished_at = now()",
        "state = 'sleeping'",
        "worktree_id = 999",
        "expired = true",
    ],
)
async def test_a_turn_in_half_a_state_is_impossible(world: TurnRows, change: str) -> None:
    turn = await world.ask((await world.home())[0])

    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await world.db.execute(f"update turns set {change} where id = $1", turn)  # noqa: S608 -- a test's own


@pytest.mark.parametrize("change", ["ask = ask - 'verb'", "turn_id = 999", "conversation_id = 999"])
async def test_a_request_without_its_turn_is_impossible(world: TurnRows, change: str) -> None:
    turn = await world.ask((await world.home())[0])

    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await world.db.execute(f"update requests set {change} where turn_id = $1", turn)  # noqa: S608 -- a test's own


async def test_two_live_rows_for_one_directory_are_impossible(world: TurnRows) -> None:
    await world.worktree(path="/worktrees/same")
    await world.worktree(path="/worktrees/same", node="there")
    other = await world.worktree(path="/worktrees/same")

    with pytest.raises(asyncpg.UniqueViolationError, match="worktrees_one_live_per_path"):
        await world.db.execute("update worktrees set path = '/worktrees/same' where id = $1", other)


# Many workers at once


async def test_each_turn_goes_to_one_of_many_workers(world: TurnRows, pool: Pool) -> None:
    asked = [await world.ask((await world.home(repo=1 + number % 3))[0]) for number in range(12)]

    async def worker() -> list[int]:
        async with pool.acquire() as db:
            return await world.claim_all(db=db)

    claimed = [turn for turns_of_one in await asyncio.gather(*(worker() for _ in range(6))) for turn in turns_of_one]

    assert sorted(claimed) == asked


async def test_workers_that_claim_at_once_stay_within_the_repositorys_limit(world: TurnRows, pool: Pool) -> None:
    for _ in range(8):
        await world.ask((await world.home())[0])

    async def worker() -> list[int]:
        async with pool.acquire() as db:
            return await world.claim_all(db=db, per_repository=2)

    claimed = await asyncio.gather(*(worker() for _ in range(6)))

    assert sum(map(len, claimed)) == 2


async def test_a_turn_that_is_being_stopped_is_passed_over(world: TurnRows, pool: Pool) -> None:
    stopped_thread, worktree = await world.home()
    sharing = await world.thread(worktree=worktree)
    await world.ask(stopped_thread)
    next_one = await world.ask(sharing)

    async with held(pool) as other:
        assert await requests.stop_queued(other, stopped_thread, "Stopped by @ada.", NOON.replace(hour=13))
        assert (await world.claimed()).id == next_one

    assert await world.claim() is None


async def test_claims_of_one_node_wait_for_each_other(world: TurnRows, pool: Pool) -> None:
    await world.ask((await world.home())[0])
    await world.ask((await world.home())[0])

    async with held(pool) as other:
        first = await world.claimed(db=other, per_repository=1)
        second = asyncio.create_task(world.claim(per_repository=1))
        await until_waiting(pool)

    assert await second is None
    assert [claim.turn_id for claim in await turns.running_on(world.db, NODE)] == [first.id]


Step = tuple[str, int]
HISTORIES = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "claim", "end", "hand back", "cut off"]), st.integers(0, 4)),
    min_size=5,
    max_size=25,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HISTORIES)
async def test_whatever_happens_every_turn_runs_to_its_end_once_and_in_order(
    world: TurnRows, history: list[Step]
) -> None:
    await world.db.execute("truncate turns, conversations, worktrees, codebases, nodes restart identity cascade")
    shared = await world.worktree()
    threads = [await world.thread(worktree=shared), await world.thread(worktree=shared)]
    threads += [(await world.home(repo=repo))[0] for repo in (1, 2, 2)]
    asked: dict[int, int] = {}
    running: list[turns.ClaimedTurn] = []
    ended: list[int] = []

    async def finish(turn: turns.ClaimedTurn) -> None:
        await world.end(turn.claim)
        ended.append(turn.id)

    for step, which in history:
        if step == "ask":
            asked[await world.ask(threads[which])] = threads[which]
        elif step == "claim":
            running += [turn for turn in [await world.claim(per_repository=2)] if turn is not None]
        elif running:
            turn = running.pop(which % len(running))
            if step == "hand back":
                assert await turns.requeue(world.db, turn.claim)
            elif step == "end" or not await turns.requeue(world.db, turn.claim, crashed=True):
                await finish(turn)
        assert max(Counter(turn.worktree.id for turn in running).values(), default=0) <= 1
        assert max(Counter(turn.worktree.repository.id for turn in running).values(), default=0) <= 2

    for turn in running:
        await finish(turn)
    while (last := await world.claim()) is not None:
        await finish(last)

    assert sorted(ended) == sorted(asked)
    for thread in threads:
        of_thread = [turn for turn in ended if asked[turn] == thread]
        assert of_thread == sorted(of_thread)


# Asking


async def test_the_comments_of_one_review_are_one_turn(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    elsewhere, _ = await world.home()
    changes: dict[str, Any] = {"target": Target("review", 500), "review": Review((), 500)}

    await requests.enqueue(world.db, conversation, worktree, request(**changes), NOON)
    with pytest.raises(asyncpg.UniqueViolationError):
        await requests.enqueue(world.db, conversation, worktree, request("again", **changes), NOON)
    await requests.enqueue(world.db, elsewhere, worktree, request(**changes), NOON)


async def test_a_part_of_a_review_joins_its_turn_until_the_agent_was_asked(world: TurnRows) -> None:
    conversation, _ = await world.home()

    async def join(part: int, text: str) -> bool | None:
        return await requests.join_turn_of_review(world.db, conversation, 500, Part(part, text, f"code of {part}"))

    assert await join(11, "rename x") is None
    turn_id = await world.ask(conversation, "rename x", review=Review((11,), 500))
    assert await join(11, "rename x") is True
    assert await join(-500, "and test it") is True
    assert await join(-500, "and test it") is True
    assert (await world.row(turn_id))["text"] == "rename x\n\nand test it"

    turn = await world.claimed()
    assert turn.ask.text == "rename x\n\nand test it"
    assert turn.ask.context.endswith("code of -500")
    assert await join(12, "drop y") is False
    assert await join(-500, "and test it") is True
    # Cut off after the agent answered: it is not asked again.
    await turns.save_answer(world.db, turn.claim, "Done.", (), ())
    await turns.requeue(world.db, turn.claim)
    assert await join(12, "drop y") is False


async def test_a_refused_turn_is_over_when_it_is_written(world: TurnRows) -> None:
    conversation, _ = await world.home()

    refused = await requests.enqueue(world.db, conversation, None, request(), NOON, refused="Too many today.")

    row = await world.row(refused.id)
    assert (row["state"], row["reason"]) == ("refused", "Too many today.")
    assert row["finished_at"] is not None
    assert await world.claim() is None


async def test_refused_turns_and_those_of_yesterday_do_not_count_against_a_person(world: TurnRows) -> None:
    conversation, worktree = await world.home()
    await world.ask(conversation)
    old = await world.ask(conversation)
    await world.db.execute("update turns set created_at = now() - interval '25 hours' where id = $1", old)
    await world.ask(conversation, by=Actor("bob", 8))
    await requests.enqueue(world.db, conversation, worktree, request(), NOON, refused="No.")

    assert (await requests.before_a_turn(world.db, conversation, 7)).turns_today == 1


@pytest.mark.parametrize(("seconds", "found"), [(0, True), (60, True), (-60, True), (61, False), (-61, False)])
async def test_a_threads_text_asked_within_a_minute_is_one_request(world: TurnRows, seconds: int, found: bool) -> None:
    conversation, _ = await world.home()
    elsewhere, _ = await world.home()
    await world.ask(conversation, "the body", target=Target("issue"), seen=seen("the body"))
    at = NOON + timedelta(seconds=seconds)

    assert await requests.is_repeated(world.db, conversation, seen("the body"), at, None, 7) is found
    assert not await requests.is_repeated(world.db, conversation, seen("another body"), at, None, 7)
    assert not await requests.is_repeated(world.db, elsewhere, seen("the body"), at, None, 7)


async def test_a_comment_with_the_same_text_is_another_request(world: TurnRows) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation, "the body", target=Target("comment", 11))

    assert not await requests.is_repeated(world.db, conversation, seen("the body"), NOON, None, 7)


async def test_a_label_of_the_same_person_names_the_agent_of_the_request_that_waits(world: TurnRows) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation, "the body", target=Target("issue"), seen=seen("the body"))
    assert await requests.is_repeated(world.db, conversation, seen("the body"), NOON, "codex", 8)
    assert await world.db.fetchval("select ask->>'agent' from requests") is None, "it is another person's"
    assert await requests.is_repeated(world.db, conversation, seen("the body"), NOON, "codex", 7)
    assert await requests.is_repeated(world.db, conversation, seen("the body"), NOON, "claude", 7)
    assert (await world.claimed()).ask.agent == "codex"
