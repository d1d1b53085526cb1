"""The rows of shared worktrees, also with simultaneous requests and turns (DESIGN.md §4, the worktree)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from bot.model import HeadBranch, Target, Thread, ThreadRef
from bot.rules import Rules
from bot.sharing_rules import LiveWorktree, SharingRefused, WorktreeUsage
from bot.store import conversations, turns
from bot.store.conversations import save_codebase
from bot.store.database import Connection, Pool
from bot.store.turns import ClaimedTurn, ClaimLostError
from bot.thread import notices
from bot.thread.authority import Policy
from bot.turn import request_rows as requests
from bot.turn import sharing_rows as sharing
from bot.turn.choose_worktree import PullRequestHead
from bot.turn.parsing import Request
from bot.turn.queueing import queue_turn
from bot.turn.request import Nodes, RequestContext, save_thread
from bot.verbs import VERBS
from tests.support.doorbells import Rung
from tests.support.turn_rows import NODE, NOON, TurnRows, held, repository, request, until_waiting

SHA = "a" * 40
ISSUE, PULL = 1, 9


@pytest.fixture
async def world(pool: Pool) -> AsyncIterator[TurnRows]:
    async with pool.acquire() as db:
        await db.execute("insert into nodes (id) values ($1)", NODE)
        yield TurnRows(db)


async def asks(db: Connection, number: int, *, head: str | None = None, closes: tuple[int, ...] = (ISSUE,)) -> int:
    """Write, in a transaction, what decide writes for a request on an issue or (`head`) a pull request."""
    thread = Thread(number, "pull" if head else "issue", "A title", None)
    await save_codebase(db, repository())
    thread_ref, folder = await save_thread(db, repository(), thread)
    pull = PullRequestHead(head, SHA, same_repository=True, head_is_protected=False, closes=closes) if head else None
    ask = request(target=Target("comment", number))
    ctx = RequestContext(
        connection=db,
        nodes=Nodes(NODE),
        verbs=VERBS,
        thread_ref=thread_ref,
        number=number,
        folder=folder,
        pull=pull,
        request=Request(repository(), thread, ask, "", asks=True),
        policy=Policy(99, "tree-bot[bot]", "tree-bot", "threadtree"),
        rules=Rules(agents=("custom",), agent="custom"),
        server_url="https://github.example",
        now=NOON,
    )
    await queue_turn(ctx, ask)
    return thread_ref.conversation_id


async def made(world: TurnRows, number: int = ISSUE, branch: str | None = None) -> int:
    """Ask once on the issue and make its worktree; return the conversation."""
    conversation = await asks(world.db, number)
    turn = await world.claimed()
    await turns.save_worktree(world.db, turn.claim, branch or f"threadtree/issue-{number}", "main", SHA)
    await world.end(turn.claim)
    return conversation


async def placed(world: TurnRows) -> list[tuple[int, str, str | None, list[str]]]:
    """Return (thread, directory, required branch, notices) of the waiting turns, in their order."""
    rows = await world.db.fetch(
        "select c.number, w.path, t.switch_to, t.notices from turns t join conversations c on c.id = t.conversation_id"
        " join worktrees w on w.id = t.worktree_id where t.state = 'queued' order by t.id"
    )
    return [(row["number"], row["path"].rpartition("/")[2], row["switch_to"], row["notices"]) for row in rows]


IN_ISSUES = notices.in_worktree_of(ISSUE)


def own(why: SharingRefused, branch: str = "feature") -> str:
    return notices.not_shared(why, branch)


# Writes of decide


async def test_a_pull_request_shares_the_worktree_that_can_be_switched_and_its_turn_says_to_what(
    world: TurnRows,
) -> None:
    await made(world)

    await asks(world.db, PULL, head="feature")

    assert await placed(world) == [(PULL, "issue-1", "feature", [IN_ISSUES])]
    assert (await world.claimed()).switch_to == "feature"


async def test_a_waiting_request_of_the_issue_keeps_its_worktree(world: TurnRows) -> None:
    await made(world)
    await asks(world.db, ISSUE)

    await asks(world.db, PULL, head="feature")

    assert (await placed(world))[1] == (PULL, "pr-9", None, [own(SharingRefused(ISSUE, "busy"))])


async def test_a_running_request_of_the_issue_keeps_its_worktree(world: TurnRows) -> None:
    await made(world)
    await asks(world.db, ISSUE)
    await world.claimed()

    await asks(world.db, PULL, head="feature")

    assert await placed(world) == [(PULL, "pr-9", None, [own(SharingRefused(ISSUE, "busy"))])]


async def test_what_an_operator_asked_of_the_worktree_keeps_it(world: TurnRows) -> None:
    await made(world)
    [worktree] = await world.db.fetch("select id from worktrees")
    await world.ask_alone(worktree["id"])

    await asks(world.db, PULL, head="feature")

    assert await placed(world) == [(PULL, "pr-9", None, [own(SharingRefused(ISSUE, "busy"))])]


async def test_a_worktree_that_is_not_made_is_not_switched(world: TurnRows) -> None:
    issue = await asks(world.db, ISSUE)
    await requests.stop_queued(world.db, issue, "Stopped.", NOON + timedelta(days=1))

    await asks(world.db, PULL, head="feature")

    assert await placed(world) == [(PULL, "pr-9", None, [own(SharingRefused(ISSUE, "not-made"))])]


async def test_a_thread_whose_directory_another_one_uses_gets_a_new_one_beside_it(world: TurnRows) -> None:
    issue = await made(world)
    await asks(world.db, PULL, head="feature")
    await conversations.use_worktree(world.db, issue, None)  # its worktree was another one, and was removed

    await asks(world.db, ISSUE)

    assert [(number, path) for number, path, _, _ in await placed(world)] == [(PULL, "issue-1"), (ISSUE, "issue-1-2")]


async def test_the_first_of_two_pull_requests_for_one_issue_shares(world: TurnRows) -> None:
    await made(world)

    await asks(world.db, PULL, head="feature")
    await asks(world.db, 10, head="another")

    assert await placed(world) == [
        (PULL, "issue-1", "feature", [IN_ISSUES]),
        (10, "pr-10", None, [own(SharingRefused(ISSUE, "other-pull", PULL), "another")]),
    ]


async def test_the_first_suitable_of_two_issues_is_shared(world: TurnRows) -> None:
    await made(world)
    await made(world, 2)
    await asks(world.db, ISSUE)

    await asks(world.db, PULL, head="feature", closes=(ISSUE, 2))

    assert (await placed(world))[1] == (PULL, "issue-2", "feature", [notices.in_worktree_of(2)])


async def test_a_second_pull_request_of_the_same_head_shares_the_same_worktree(world: TurnRows) -> None:
    await made(world)
    await asks(world.db, PULL, head="feature")

    await asks(world.db, 10, head="feature", closes=())

    words = notices.in_worktree_on_branch(ISSUE, "feature")
    assert (await placed(world))[1] == (10, "issue-1", "feature", [words])


async def test_every_turn_asks_for_the_switch_until_one_has_made_it(world: TurnRows) -> None:
    await made(world)
    pull = await asks(world.db, PULL, head="feature")
    turn = await world.claimed()
    await turns.end(world.db, turn.claim, "refused", "No longer allowed.")

    await asks(world.db, PULL, head="feature")
    assert await placed(world) == [(PULL, "issue-1", "feature", [])]

    turn = await world.claimed()
    await turns.save_worktree(world.db, turn.claim, "feature", None, SHA)
    await world.end(turn.claim)
    await asks(world.db, PULL, head="feature")
    assert await placed(world) == [(PULL, "issue-1", None, [])]
    assert await sharing.pending_switch(world.db, pull) is None


async def test_an_issue_of_another_repository_shares_nothing(world: TurnRows) -> None:
    elsewhere = await world.worktree(repo=2)
    await world.thread(repo=2, worktree=elsewhere, number=ISSUE)
    await world.make(elsewhere)

    await asks(world.db, PULL, head="feature")

    assert await placed(world) == [(PULL, "pr-9", None, [])]


async def test_the_turn_goes_to_the_node_that_has_the_issues_worktree(world: TurnRows, rung: Rung) -> None:
    worktree = await world.worktree(node="there")
    await world.thread(worktree=worktree, number=ISSUE)
    await world.make(worktree)

    await asks(world.db, PULL, head="feature")

    assert await world.claim() is None
    assert (await world.claimed(node="there")).switch_to == "feature"
    assert await rung() == ["there"]


# Simultaneous requests


async def decided(pool: Pool, number: int, head: str | None = None, closes: tuple[int, ...] = (ISSUE,)) -> None:
    async with held(pool) as db:
        await asks(db, number, head=head, closes=closes)


async def test_a_pull_request_that_comes_with_its_issue_waits_for_what_becomes_of_it(
    world: TurnRows, pool: Pool
) -> None:
    async with held(pool) as db:
        await asks(db, ISSUE)
        other = asyncio.create_task(decided(pool, PULL, "threadtree/issue-1"))
        await until_waiting(pool)
    await other

    assert await placed(world) == [
        (ISSUE, "issue-1", None, []),
        (PULL, "issue-1", "threadtree/issue-1", []),
    ]


async def test_an_issue_that_comes_with_its_pull_request_finds_its_worktree_taken_or_not_at_all(
    world: TurnRows, pool: Pool
) -> None:
    await made(world)
    async with held(pool) as db:
        await asks(db, PULL, head="feature")
        other = asyncio.create_task(decided(pool, ISSUE))
        await until_waiting(pool)
    await other

    assert [place[:3] for place in await placed(world)] == [(PULL, "issue-1", "feature"), (ISSUE, "issue-1", None)]
    turn = await world.claimed()
    uses = dict(await sharing.usage(world.db, [turn.worktree.id], turn.conversation.id))
    assert uses == {turn.worktree.id: WorktreeUsage(ISSUE, made=True, busy=True)}, (
        "the node makes the pull request its own"
    )


async def test_two_pull_requests_of_one_head_that_come_at_once_share_one_worktree(world: TurnRows, pool: Pool) -> None:
    async with held(pool) as db:
        await asks(db, PULL, head="feature")
        other = asyncio.create_task(decided(pool, 10, "feature"))
        await until_waiting(pool)
    await other

    assert [place[1] for place in await placed(world)] == ["pr-9", "pr-9"]


async def test_two_pull_requests_for_one_issue_that_come_at_once_do_not_both_take_it(
    world: TurnRows, pool: Pool
) -> None:
    await made(world)
    async with held(pool) as db:
        await asks(db, PULL, head="feature")
        other = asyncio.create_task(decided(pool, 10, "another"))
        await until_waiting(pool)
    await other

    assert [place[1] for place in await placed(world)] == ["issue-1", "pr-10"]


async def test_a_request_that_comes_while_its_thread_goes_elsewhere_goes_there_too(world: TurnRows, pool: Pool) -> None:
    turn = await to_switch(world)
    async with held(pool) as db:
        await goes_elsewhere(db, turn)
        other = asyncio.create_task(decided(pool, PULL, "feature"))
        await until_waiting(pool)
    await other

    assert [place[:2] for place in await placed(world)] == [(PULL, "pr-9"), (PULL, "pr-9")]


async def test_a_thread_that_goes_elsewhere_takes_a_request_along_that_came_at_that_moment(
    world: TurnRows, pool: Pool
) -> None:
    turn = await to_switch(world)

    async def going() -> None:
        async with held(pool) as db:
            await goes_elsewhere(db, turn)

    async with held(pool) as db:
        await asks(db, PULL, head="feature")
        other = asyncio.create_task(going())
        await until_waiting(pool)
    await other

    assert [place[:2] for place in await placed(world)] == [(PULL, "pr-9"), (PULL, "pr-9")]


async def test_a_branch_for_which_a_worktree_is_just_reserved_gets_no_other(world: TurnRows, pool: Pool) -> None:
    turn = await to_switch(world)
    async with held(pool) as db:
        await goes_elsewhere(db, turn)
        other = asyncio.create_task(decided(pool, 10, "feature", closes=()))
        await until_waiting(pool)
    await other

    assert [place[:2] for place in await placed(world)] == [(PULL, "pr-9"), (10, "pr-9")]


# Writes of the node


async def to_switch(world: TurnRows) -> ClaimedTurn:
    """Return the claimed turn of a pull request that will switch the worktree of issue 1."""
    await made(world)
    await asks(world.db, PULL, head="feature")
    return await world.claimed()


async def goes_elsewhere(db: Connection, turn: ClaimedTurn) -> None:
    await sharing.lock_turn(db, turn)
    reserved = await conversations.reserve_worktree(
        db, repository(), node=NODE, path="/worktrees/pr-9", owner=PULL, start=HeadBranch("feature", SHA)
    )
    await sharing.move_turn(db, turn, reserved, NODE, ["why"])


async def test_a_switch_is_written_once_and_tells_who_else_works_there(world: TurnRows) -> None:
    turn = await to_switch(world)
    issue = await conversations.find_conversation(world.db, repository(), ISSUE)
    assert issue is not None

    async with world.db.transaction():
        assert await sharing.lock_turn(world.db, turn) == (IN_ISSUES,)
        others = await sharing.record_switch(world.db, turn, "feature", [IN_ISSUES, "and more"])

    assert others == [(ThreadRef(turn.worktree.repository, issue.id), Target("issue"))]
    assert await world.db.fetchval("select branch from worktrees where id = $1", turn.worktree.id) == "feature"
    assert (await world.row(turn.id))["notices"] == [IN_ISSUES, "and more"]


async def test_a_closed_thread_is_not_told(world: TurnRows) -> None:
    turn = await to_switch(world)
    issue = await conversations.find_conversation(world.db, repository(), ISSUE)
    assert issue is not None
    await world.close(issue.id)

    async with world.db.transaction():
        await sharing.lock_turn(world.db, turn)
        assert await sharing.record_switch(world.db, turn, "feature", []) == []


async def test_a_run_that_lost_its_claim_changes_nothing(world: TurnRows) -> None:
    turn = await to_switch(world)
    await turns.requeue(world.db, turn.claim)

    with pytest.raises(ClaimLostError):
        async with world.db.transaction():
            await sharing.lock_turn(world.db, turn)


async def test_a_thread_goes_elsewhere_with_all_that_waits_there_in_its_order(world: TurnRows) -> None:
    turn = await to_switch(world)
    await asks(world.db, PULL, head="feature")
    await world.ask_alone(turn.worktree.id, "reset", turn.conversation.id)
    await asks(world.db, ISSUE)

    async with world.db.transaction():
        await goes_elsewhere(world.db, turn)

    assert await placed(world) == [
        (PULL, "pr-9", "feature", ["why"]),
        (PULL, "pr-9", "feature", []),
        (PULL, "pr-9", None, []),
        (ISSUE, "issue-1", None, []),
    ]
    again = await world.claimed()
    assert (again.id, again.so_far.resuming, again.worktree.is_made) == (turn.id, False, False)
    with pytest.raises(ClaimLostError):
        await turns.stop_requested(world.db, turn.claim)


async def test_the_worktree_that_was_left_goes_if_nobody_else_needs_it(world: TurnRows) -> None:
    turn = await to_switch(world)
    issue = await conversations.find_conversation(world.db, repository(), ISSUE)
    assert issue is not None
    await world.close(issue.id)

    async with world.db.transaction():
        await goes_elsewhere(world.db, turn)

    assert await world.state("worktrees", turn.worktree.id) == "removing"


async def test_the_holder_of_a_branch_is_another_live_worktree(world: TurnRows) -> None:
    turn = await to_switch(world)
    own = turn.worktree.id
    assert await conversations.worktree_on_branch(world.db, repository(), "threadtree/issue-1", other_than=own) is None
    reserved = await world.worktree(owner=7, start=HeadBranch("feature", SHA))

    holder = await conversations.worktree_on_branch(world.db, repository(), "feature", other_than=own)
    assert holder == LiveWorktree(reserved, NODE, 7, "feature", "worktrees/1")

    await world.db.execute("update worktrees set state = 'removed' where id = $1", reserved)
    assert await conversations.worktree_on_branch(world.db, repository(), "feature", other_than=own) is None
