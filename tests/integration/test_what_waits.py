"""What waits for a person, and what ends it (DESIGN.md §4): each kind with each thing that people do."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest

from bot.operator.api import listings
from bot.store import conversations, turns
from bot.store.scope import EVERYTHING, Scope
from bot.thread.waits import WaitsFor
from bot.turn import pull_request_rows as pulls
from bot.turn import request_rows as requests
from bot.turn import waits_rows
from bot.verbs import plan
from tests.support.turn_rows import NOON, TurnRows, repository, request

FAILED, PASSED, BASE_TOO = (
    {"came": "changed", "check": {"state": state}} for state in ("failed", "passed", "failed-on-base-too")
)
PLAN, QUESTION, ANSWERED = {"came": "plan"}, {"came": "question", "asked": True}, {"came": "answered"}
PULL = 900


class Case:
    """A thread with a turn that ended."""

    def __init__(self, world: TurnRows, thread: int) -> None:
        self.world, self.thread, self.turn = world, thread, 0

    async def ends(
        self,
        state: turns.TurnState = "done",
        outcome: object = None,
        *,
        verb: str = "work",
        pushed: bool = False,
        undoes: int | None = None,
        of: dict[str, Any] | None = None,
    ) -> int:
        """Ask for a turn that runs and ends so; return it."""
        world = self.world
        if undoes is None:
            asked = await world.ask(self.thread, verb=verb, of=of or {})
        else:
            worktree = await conversations.worktree_of(world.db, self.thread)
            assert worktree is not None
            asked = await world.ask_alone(worktree, verb, self.thread)
        turn = await world.claimed()
        assert turn.id == asked
        session = await turns.active_session(world.db, self.thread)
        session_id = session[0] if session else await turns.start_session(world.db, turn.claim, "custom", "abc")
        await turns.use_session(world.db, turn.claim, session_id)
        await turns.save_answer(world.db, turn.claim, "An answer.", (), ())
        if pushed:
            await pulls.record_push(world.db, turn.claim, self.branch, "0" * 40, None, "1" * 40, merged=False)
        await world.db.execute("update turns set undoes = $2 where id = $1", asked, undoes)
        reason, came = None if state == "done" else "Because.", orjson.dumps(outcome).decode()
        await turns.end(world.db, turn.claim, state, reason, None, came)
        if state == "done":
            await waits_rows.settle(world.db, self.thread)
        return asked

    @property
    def branch(self) -> str:
        return f"threadtree/issue-{self.thread}"

    @property
    def number(self) -> int:
        """The pull request of its branch."""
        return PULL + self.thread

    async def opens(self) -> None:
        await pulls.adopt(self.world.db, repository(), self.number, self.branch, 1, "A title", "text")

    async def waits(self) -> WaitsFor | None:
        return await waits_rows.of_turn(self.world.db, self.turn)


Act = Callable[[Case], Awaitable[object]]
KINDS: dict[str, tuple[WaitsFor, Callable[[Case], Awaitable[int]]]] = {
    "plan": ("approve", lambda case: case.ends("done", PLAN, verb="plan")),
    "question": ("answer", lambda case: case.ends("done", QUESTION)),
    "failed": ("retry", lambda case: case.ends("failed")),
    "timed-out": ("retry", lambda case: case.ends("timed-out")),
    "interrupted": ("retry", lambda case: case.ends("interrupted")),
    "check": ("retry", lambda case: case.ends("done", FAILED, pushed=True)),
    "review": ("review", lambda case: case.ends("done", PASSED, pushed=True)),
}
FAILURES = {"failed", "timed-out", "interrupted"}


async def _nothing(case: Case) -> None:
    pass


async def _asked(case: Case, **more: Any) -> int:
    return await case.world.ask(case.thread, **more)


async def _stopped(case: Case) -> None:
    await _asked(case)
    await requests.stop_queued(case.world.db, case.thread, "Stopped.", NOON + timedelta(1))


async def _refused(case: Case) -> None:
    await requests.enqueue(case.world.db, case.thread, None, request(retry_of=case.turn), NOON, (), "Too much.")


async def _reopened(case: Case) -> None:
    await case.world.close(case.thread)
    await conversations.set_state(case.world.db, case.thread, None, NOON + timedelta(1))


async def _reviewed(case: Case) -> None:
    await pulls.record_review(case.world.db, repository(), case.number, NOON)


# What people do, and which of the kinds it ends.
ENDS: dict[str, tuple[Act, set[str]]] = {
    "nothing": (_nothing, set()),
    "another request": (_asked, {"plan", "question"}),
    "another plan": (lambda case: _asked(case, verb="plan"), {"plan", "question"}),
    "approved": (lambda case: _asked(case, of={"plan": case.turn}), {"plan", "question"}),
    "approved, and failed": (lambda case: case.ends("failed", of={"plan": case.turn}), {"question"}),
    "retried": (lambda case: _asked(case, verb="review", retry_of=case.turn), {"question", "check", *FAILURES}),
    "a retry that was refused": (_refused, set()),
    "a request that was stopped": (_stopped, set()),
    "a request that failed": (lambda case: case.ends("failed"), {"question"}),
    "a pull request made": (lambda case: case.world.ask_alone(case.thread, "pull-request", case.thread), set()),
    "undone": (lambda case: case.ends(verb="undo", undoes=case.turn), {"check", *FAILURES}),
    "done without a check": (lambda case: case.ends("done", ANSWERED), {"plan", "question", *FAILURES}),
    "done, the check passes": (lambda case: case.ends("done", PASSED), {"plan", "question", "check", *FAILURES}),
    "done, the base fails too": (lambda case: case.ends("done", BASE_TOO), {"plan", "question", "check", *FAILURES}),
    "done, the check fails": (lambda case: case.ends("done", FAILED), {"plan", "question"}),
    "closed": (lambda case: case.world.close(case.thread), set(KINDS)),
    "closed and reopened": (_reopened, set(KINDS) - {"review"}),
    "reset": (
        lambda case: conversations.end_session(case.world.db, case.thread, "reset-requested"),
        {"plan"},
    ),
    "the session was lost": (lambda case: conversations.end_session(case.world.db, case.thread, "agent-lost"), set()),
    "merged": (lambda case: pulls.check_no_more(case.world.db, repository(), case.number), {"review"}),
    "reviewed": (_reviewed, {"review"}),
    "pushed again": (lambda case: case.ends("done", PASSED, pushed=True), set(KINDS)),
}


async def a_case(world: TurnRows, kind: str) -> Case:
    """Return a thread on which something of this kind waits."""
    thread, worktree = await world.home()
    await world.make(worktree)
    case = Case(world, thread)
    case.turn = await KINDS[kind][1](case)
    if kind == "review":
        await case.opens()
    return case


@pytest.mark.parametrize("end", ENDS)
async def test_each_thing_that_waits_ends_by_the_act_itself(world: TurnRows, end: str) -> None:
    act, ended = ENDS[end]
    for kind, (waits_for, _) in KINDS.items():
        case = await a_case(world, kind)
        assert await case.waits() == waits_for

        await act(case)

        assert await case.waits() == (None if kind in ended else waits_for), kind
        if kind == "plan" and not end.startswith("closed"):
            newest = await plan.newest(world.db, case.thread)
            is_this = newest is not None and newest.turn_id == case.turn
            assert (is_this and plan.is_open(newest)) == (await case.waits() == "approve"), "`/approve` says the same"
        # The next one is claimed by itself.
        await world.db.execute("delete from turns where state = 'queued'")


async def test_a_pull_request_waits_with_the_turn_that_pushed_last(world: TurnRows) -> None:
    case = await a_case(world, "review")
    elsewhere, worktree = await world.home(repo=2)
    await world.make(worktree)
    await Case(world, elsewhere).ends(pushed=True)
    await _reviewed(case)
    assert await waits_rows.to_review(world.db, repository(), case.number) is None
    last = await case.ends("done", PASSED, pushed=True)
    await case.ends("done", ANSWERED)
    await _reviewed(case)  # it is told once more
    assert [await waits_rows.of_turn(world.db, turn) for turn in (case.turn, last)] == [None, "review"]
    assert await waits_rows.to_review(world.db, repository(), case.number) == last
    [shown] = await waits_rows.of_thread(world.db, case.thread)
    assert shown.line == f"Pull request #{case.number} waits for a review"

    red = await case.ends("done", FAILED, pushed=True)
    assert [one.waits_for for one in await waits_rows.of_thread(world.db, case.thread)] == ["retry"], "the first counts"
    await world.ask(case.thread, retry_of=red)
    assert await waits_rows.of_thread(world.db, case.thread) == [], "nobody reviews what is being mended"


async def test_what_waits_is_listed_oldest_first_and_ones_own_before(world: TurnRows) -> None:
    cases = [await a_case(world, kind) for kind in ("plan", "failed", "review", "question")]
    elsewhere, worktree = await world.home(repo=2)
    await world.make(worktree)
    other = Case(world, elsewhere)
    other.turn = await other.ends("failed")
    await world.db.execute(
        "update requests set ask = jsonb_set(ask, '{by,login}', '\"Bob\"') where turn_id = $1", cases[2].turn
    )

    async def listed(
        limit: int, skipped: int | None, repo: str | None, scope: Scope = EVERYTHING, login: str | None = None
    ) -> list[int]:
        found = await waits_rows.listed(world.db, limit, skipped, repo, scope, login)
        return [row["turn"] for row in found]

    in_order = [case.turn for case in (*cases, other)]
    assert await listed(50, None, None) == in_order
    assert await listed(2, 1, None) == in_order[1:3]
    assert await listed(50, None, "OCTO/repo-2") == [other.turn]
    assert await listed(50, None, None, scope=Scope("github.com", (1,))) == in_order[:4]
    assert await listed(50, None, None, login="bob") == [cases[2].turn, *in_order[:2], *in_order[3:]]
    rows = await listings.newest(world.db, "turns", None, scope=EVERYTHING)
    assert {row["id"]: row["waits_for"] for row in rows} == dict(
        zip(in_order, ("approve", "retry", "review", "answer", "retry"), strict=True)
    )


async def test_what_is_settled_is_looked_at_no_more(world: TurnRows) -> None:
    for kind in ("plan", "question", "failed", "check"):
        case = await a_case(world, kind)
        assert await world.db.fetchval("select count(*) from turns where needs is not null") == 1
        await (case.ends("done", PASSED) if kind != "plan" else world.close(case.thread))
        assert await world.db.fetchval("select count(*) from turns where needs is not null") == 0
