"""CI of the bot's own pull requests: failing checks of what it pushed start a turn, within limits."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from bot.simulated.github.faults import FailBefore
from bot.simulated.github.model import Pull
from bot.store.database import Connection
from bot.store.turns import Claim
from bot.turn import pull_request_rows as pull_requests
from bot.verbs.fix import rows
from tests.end_to_end.conftest import Worlds
from tests.support.world import Talk, World

WORK = "@threadtree-bot write cart.py: total = 0\nmend append cart.py: again"
STATEMENTS = {
    "whose head it is": (rows.own_head.sql, ("github.com", 1, "a" * 40)),
    "leave the checks of a head alone": (rows.leave_alone.sql, (5,)),
    "look at the checks of a head": (rows.NEWEST_HEAD, (5, True)),
    "choose for a thread and those of its branch": (rows.choose.sql, (5, True)),
}
SETTINGS = {"AUTOFIX": "true", "AUTO_PULL_REQUEST": "ready"}


@pytest.fixture
async def world(a_world: Worlds) -> AsyncIterator[World]:
    async with a_world(SETTINGS) as world:
        yield world


async def asked(world: World, words: str = WORK) -> Talk:
    """Let maria ask for a change on an issue, whose pull request the bot opens."""
    issue = await world.maria.opens_issue("Empty carts", "The total is None.")
    await issue.says(words)
    await issue.hears("**Changed**", "[Pull request #2]")
    await world.quiet()
    return issue


def pull_of(world: World) -> Pull:
    return world.repository.pulls[0]


def ci(world: World, log: str = "", sha: str | None = None, **conclusions: str) -> str:
    """Let the checks of the pull request's head end so; return the head."""
    head = sha or pull_of(world).head_sha
    world.github.end_checks(world.repository, head, conclusions, log)
    return head


async def fixes(world: World) -> list[Any]:
    return [turn for turn in await world.turns() if turn["verb"] == "fix"]


async def test_two_attempts_and_the_checks_pass_which_is_said_by_an_edit(world: World) -> None:
    issue = await asked(world, f"{WORK}\\nsave prompt {world.directory}/prompt")
    world.faults.add(FailBefore(404), path="*/check-suites", times=None)  # as an older server answers
    first = ci(world, "x" * 9000 + "AssertionError: None", tests="failure", lint="success")
    heard = await issue.hears(f"`tests` fails on [`{first[:7]}`](", "Attempt 1 of 3 to mend that.", "**Changed**")
    assert f"/acme/shop/commit/{first})" in heard
    assert "<sub>by itself, after [maria's request](" in heard
    prompt = (world.directory / "prompt").read_text()
    assert "AssertionError: None" in prompt
    assert "x" * 4001 not in prompt
    await world.quiet()

    second = ci(world, tests="failure", lint="success")
    assert second != first
    await issue.hears(f"`tests` fails on [`{second[:7]}`](", "Attempt 2 of 3")
    await world.quiet()
    comments = len(issue.from_bot)
    ci(world, tests="success", lint="neutral")
    assert (await issue.hears("Attempt 2 of 3")).partition("\n\n<!--")[0].endswith("**Checks pass now.**")

    assert len(issue.from_bot) == comments
    assert [(turn["requested_by"], orjson.loads(turn["ask"])["of"]) for turn in await fixes(world)] == [
        ("maria", {"head": first, "checks": ["tests"]}),
        ("maria", {"head": second, "checks": ["tests"]}),
    ]
    ci(world, tests="success")
    await world.quiet()
    assert not issue.unread, "it is said once"


async def test_it_gives_up_with_one_sentence_and_a_person_begins_a_new_chain(a_world: Worlds) -> None:
    async with a_world({**SETTINGS, "MAX_FIX_ATTEMPTS": "1"}) as world:
        issue = await asked(world)
        ci(world, tests="failure")
        await issue.hears("Attempt 1 of 1")
        await world.quiet()
        last = ci(world, tests="failure")
        await issue.hears(
            f"`tests` still fails on [`{last[:7]}`](", "after an attempt, and not on `main`: the bot stops here"
        )
        for conclusion in ("success", "failure", "failure"):  # a check that flaps
            ci(world, tests=conclusion)
            await world.quiet()
        assert len(await issue.hears_all()) == 1, "that it passed once was said by an edit"
        assert len(await fixes(world)) == 1

        await issue.says(WORK.replace("write", "append"))
        await issue.hears("**Changed**")
        await world.quiet()
        ci(world, tests="failure")
        await issue.hears("Attempt 1 of 1")


async def test_what_fails_on_the_base_too_starts_nothing(world: World) -> None:
    issue = await asked(world)
    base = (await world.branches())["main"]
    world.github.end_checks(world.repository, base, {"tests": "failure"})
    head = ci(world, tests="failure", lint="success")
    await world.quiet()
    assert await fixes(world) == []

    ci(world, lint="failure", tests="failure")
    await issue.hears(f"`lint` fails on [`{head[:7]}`](")
    await world.quiet()
    ci(world, lint="success", tests="failure")
    await issue.hears("**Checks pass now**, but for those that fail on the base too.")


async def test_two_failing_jobs_are_one_turn_once_all_have_ended(world: World) -> None:
    issue = await asked(world)
    ci(world, tests="failure", lint="failure", slow="")
    world.repository.statuses[pull_of(world).head_sha] = {"legacy": "error", "review": "pending"}
    await world.quiet()
    assert await fixes(world) == [], "one check runs"
    world.repository.busy_suites.add(pull_of(world).head_sha)
    ci(world, slow="success")
    await world.quiet()
    assert await fixes(world) == [], "a job follows"
    world.repository.busy_suites.clear()
    head = ci(world, slow="success", deploy="waiting")
    await issue.hears(f"`legacy`, `lint`, `tests` fail on [`{head[:7]}`](")
    for delivery in [one for one in world.github.deliveries if one.event in ("check_run", "check_suite")]:
        await world.github.redeliver(delivery.guid)
    ci(world, sha=head, tests="success")
    ci(world, sha=head, tests="failure")
    await world.quiet()
    assert len(await fixes(world)) == 1


async def test_a_push_by_a_person_in_between_ends_the_chain(world: World) -> None:
    issue = await asked(world)
    gate = world.gate()
    # Both wait for the same place in line: the check fails, and maria pushes before its turn begins.
    async with world.busy_clone():
        ci(world, tests="failure")
        await world.until("exists (select from turns join requests on turn_id = id where verb = 'fix')")
        pushed = await world.maria.pushes("threadtree/issue-1", {"cart.py": "total = 1\n"})
    await issue.hears("**Not started:** The branch has moved on from", "Attempt 1 of 3")
    ci(world, sha=pushed, tests="failure")
    await world.quiet()
    assert len(await fixes(world)) == 1, "that head is maria's"

    await issue.says(f"@threadtree-bot append cart.py: more\nwait {gate}")
    await issue.sees_working()
    gate.open()
    await issue.hears("**Changed**")
    await world.quiet()
    ci(world, tests="failure")
    await issue.hears("Attempt 1 of 3", "**Changed**")


async def test_a_push_by_a_person_during_an_attempt_begins_a_new_chain_and_a_bots_does_not(a_world: Worlds) -> None:
    async with a_world({**SETTINGS, "MAX_FIX_ATTEMPTS": "1"}) as world:
        formatter = world.someone("formatter[bot]", "Bot")
        world.repository.allow(formatter.user, "write")
        gate = world.gate()
        issue = await asked(world, WORK.replace("mend ", f"mend wait {gate}\\n"))
        ci(world, tests="failure")
        await issue.sees_working()
        await world.maria.pushes("threadtree/issue-1", {"mine.txt": "mine\n"})
        gate.open()
        await issue.hears("Attempt 1 of 1", "**Changed**")
        await world.quiet()
        gate.path.unlink()
        ci(world, tests="failure")
        await issue.sees_working()
        await formatter.pushes("threadtree/issue-1", {"formatted.txt": "so\n"})
        gate.open()
        await issue.hears("Attempt 1 of 1", "**Changed**")
        await world.quiet()
        ci(world, tests="failure")
        await issue.hears("the bot stops here")


async def test_an_attempt_that_pushes_nothing_is_the_last_and_a_passing_check_needs_none(world: World) -> None:
    issue = await asked(world, WORK.replace("append cart.py: again", "say It is the network."))
    head = ci(world, tests="failure")
    await issue.hears("It is the network.", "Nothing was pushed, so the checks do not run again")
    await world.quiet()
    assert pull_of(world).head_sha == head
    assert len(await fixes(world)) == 1

    await issue.says("@threadtree-bot append cart.py: more")
    await issue.hears("**Changed**")
    await world.quiet()
    async with world.busy_clone():
        ci(world, tests="failure")
        await world.until("exists (select from turns where state in ('queued', 'running'))")
        ci(world, tests="success")
        await world.github.settled()
    await issue.hears_all()
    assert [turn["state"] for turn in await fixes(world)] == ["done", "refused"]


async def test_a_limit_that_is_reached_ends_the_chain_with_its_number(a_world: Worlds) -> None:
    async with a_world({**SETTINGS, "MAX_COST_USD_PER_DAY": "1"}) as world:
        issue = await asked(world, f"{WORK}\ncost 1.5")
        ci(world, tests="failure")
        await issue.hears("**Not started:**", "$1.00", "`tests` fails on", "Attempt 1 of 3")
        ci(world, tests="failure")
        await world.quiet()
        assert [turn["state"] for turn in await fixes(world)] == ["refused"]


async def test_a_fork_and_other_heads_start_nothing(world: World) -> None:
    issue = await asked(world)
    head = pull_of(world).head_sha
    fork = await world.github.fork(world.repository, world.olaf.user)
    world.github.end_checks(world.repository, head, {"tests": "success"}, source=fork)
    await world.quiet()
    run = next(one for one in world.github.deliveries if one.event == "workflow_run")
    assert await world.database.fetchval("select state from deliveries where guid = $1", run.guid) == "ignored"

    await world.maria.person.close(pull_of(world))
    ci(world, tests="failure")
    await world.quiet()
    assert await fixes(world) == [], "its pull request is closed"
    await world.maria.person.reopen(pull_of(world))
    await issue.closes()
    ci(world, tests="failure")
    await world.quiet()
    await issue.reopens()
    ci(world, tests="failure")
    await world.quiet()
    assert await fixes(world) == [], "its thread was closed"


async def test_the_thread_switches_it_and_stop_ends_it(a_world: Worlds) -> None:
    async with a_world({"AUTO_PULL_REQUEST": "ready"}) as world:
        issue = await asked(world)
        ci(world, tests="failure")
        await issue.says("/autofix")
        await issue.hears("are not mended. This is the rule here; `/autofix on` changes that.")
        assert await fixes(world) == []
        await issue.says("/autofix on")
        await issue.hears("mended from now on", "at most 3 attempts after each request")
        await issue.hears("Attempt 1 of 3", "**Changed**")
        await world.quiet()
        pull = world.listen(pull_of(world), world.maria)
        await pull.hears("`tests` fails on", "The bot works on that and answers in [#1](")
        await pull.says("/stop")
        await pull.hears("nothing")
        ci(world, tests="failure")
        await world.quiet()
        await issue.says("/undo")
        await issue.hears("what turn 2 (maria's request) pushed")
        await world.quiet()
        ci(world, tests="failure")
        await world.quiet()
        await issue.says("/autofix off")
        await issue.hears("start no request any more")
        assert len(await fixes(world)) == 1


async def test_a_turn_on_the_pull_request_rings_at_its_end_for_what_the_issue_pushed(world: World) -> None:
    issue = await asked(world)
    pull = world.listen(pull_of(world), world.maria)
    for attempt in (1, 2):
        gate = world.gate()
        await pull.says(f"@threadtree-bot wait {gate}\nsay I have changed nothing.")
        await pull.sees_working()
        ci(world, tests="failure")
        await world.github.settled()
        assert len(await fixes(world)) == attempt - 1, "a turn runs in the worktree"
        if attempt == 2:
            # Its process is gone for the second time.
            gone = "update turns set claim = gen_random_uuid(), worker = 'gone', cut_offs = 1 where state = 'running'"
            await world.database.execute(gone)
            await pull.hears("**Interrupted:**")
        gate.open()
        if attempt == 1:
            await pull.hears("I have changed nothing.")
        await issue.hears(f"Attempt {attempt} of 3")
        await pull.hears("`tests` fails on", "The bot works on that and answers in [#1](")
        await world.quiet()


async def test_a_waiting_request_that_the_operator_stops_rings_too(a_world: Worlds) -> None:
    async with a_world({**SETTINGS, "ADMIN_TOKEN": "an-operators-token"}) as world:
        issue = await asked(world)
        pull = world.listen(pull_of(world), world.maria)
        await world.maria.person.review_comment(pull_of(world), "cart.py", 1, "Why zero?")
        await world.until('exists (select from requests where ask @> \'{"review": {"collects": true}}\')')
        ci(world, tests="failure")
        await world.github.settled()
        headers = {"Authorization": "Bearer an-operators-token"}
        async with httpx.AsyncClient(base_url=f"{world.pair.url}/api", headers=headers, timeout=60) as api:
            assert (await api.post("/turns/2/stop")).status_code == 202
        await issue.hears("Attempt 1 of 3")
        await pull.hears_all()


async def test_nothing_follows_a_stop_that_came_too_late_for_the_push(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue = await asked(world)
    record = pull_requests.record_push

    async def stopped_now(connection: Connection, claim: Claim, *values: Any, merged: bool) -> None:
        await connection.execute("update turns set stop_requested_at = now() where id = $1", claim.turn_id)
        await record(connection, claim, *values, merged=merged)

    monkeypatch.setattr("bot.turn.pull_request.record_push", stopped_now)
    ci(world, tests="failure")
    await issue.hears("Attempt 1 of 3", "**Changed**")
    await world.quiet()
    ci(world, tests="failure")
    await world.quiet()
    assert len(await fixes(world)) == 1


async def test_an_attempt_that_waits_is_not_started_once_it_is_switched_off_or_its_pull_request_is_closed(
    world: World,
) -> None:
    issue = await asked(world)
    waits = "exists (select from turns where state in ('queued', 'running'))"
    async with world.busy_clone():
        ci(world, tests="failure")
        await world.until(waits)
        await issue.says("/autofix off")
        await issue.hears("start no request any more")
    await issue.hears("**Not started:** Failing checks are not mended here any more.", "Attempt 1 of 3")
    await world.quiet()

    await issue.says("@threadtree-bot append cart.py: more")
    await issue.hears("**Changed**")
    await issue.says("/autofix on")
    await issue.hears("mended from now on")
    async with world.busy_clone():
        ci(world, tests="failure")
        await world.until(waits)
        await world.maria.person.close(pull_of(world))
    await issue.hears("**Not started:** The pull request of this branch is not open any more.", "Attempt 1 of 3")


async def test_the_pull_request_switches_it_for_its_issue_and_begins_what_failed_before_it_was_open(
    a_world: Worlds,
) -> None:
    async with a_world({}) as world:
        issue = await world.maria.opens_issue("Empty carts", "The total is None.")
        await issue.says(WORK)
        await issue.hears("**Changed**")
        await world.quiet()
        head = ci(world, sha=(await world.branches())["threadtree/issue-1"], tests="failure")
        await issue.says("/pr")
        await issue.hears("Opened the pull request")
        await world.quiet()
        assert await fixes(world) == []
        pull = world.listen(pull_of(world), world.maria)
        await pull.says("/autofix on")
        await pull.hears("mended from now on")
        await issue.hears(f"`tests` fails on [`{head[:7]}`](", "Attempt 1 of 3", "**Changed**")
        await world.quiet()
        await pull.hears("`tests` fails on", "The bot works on that and answers in [#1](")

        # What was pushed without a pull request waits for one, too.
        other = await world.maria.opens_issue("Full carts")
        await other.says(f"/autofix on\n\n{WORK}")
        await other.hears("mended from now on")
        await other.hears("**Changed**")
        await world.quiet()
        ci(world, sha=(await world.branches())[f"threadtree/issue-{other.number}"], tests="failure")
        await world.quiet()
        assert len(await fixes(world)) == 1
        await other.says("/pr")
        await other.hears("Opened the pull request")
        await other.hears("Attempt 1 of 3", "**Changed**")
        pull = world.listen(world.repository.pulls[1], world.maria)
        await pull.hears("`tests` fails on", "The bot works on that and answers in [#3](")
        await pull.says("@threadtree-bot append cart.py: more")
        await pull.hears("**Changed**")
        await world.quiet()
        ci(world, sha=(await world.branches())[f"threadtree/issue-{other.number}"], tests="failure")
        await pull.hears("Attempt 1 of 3")


async def test_checks_that_may_not_be_read_are_not_called_passing_and_logs_are_told_without_the_thread(
    world: World,
) -> None:
    issue = await asked(world, f"{WORK}\\nsave prompt {world.directory}/prompt")
    for path in ("*/check-runs", "/graphql", "*/status"):  # as to a fine-grained token
        world.faults.add(FailBefore(403), path=path, times=None)
    world.repository.busy_suites.add(pull_of(world).head_sha)
    ci(world, "AssertionError: None", tests="failure")
    await world.quiet()
    assert await fixes(world) == [], "a job follows"
    world.repository.busy_suites.clear()
    ci(world, "AssertionError: None", tests="failure")
    await issue.hears("Attempt 1 of 3", "Read: 1 failing check, could not be read: the thread.")
    assert "AssertionError: None" in (world.directory / "prompt").read_text()
    await world.quiet()
    ci(world, tests="success")
    await issue.hears("Attempt 1 of 3", "**Checks that the bot may read pass now.**")


async def test_where_each_request_begins_with_a_plan_an_attempt_does_so_and_is_approved(world: World) -> None:
    issue = await asked(world)
    await world.maria.pushes("main", {".threadtree/config.toml": 'require_plan = "always"\n'})
    head = ci(world, tests="failure")
    await issue.hears(f"`tests` fails on [`{head[:7]}`](", "begins with a plan", "This is a plan:")
    await world.quiet()
    assert pull_of(world).head_sha == head, "nothing is pushed before the approval"
    ci(world, tests="failure")
    await world.quiet()
    assert not issue.unread, "the plan counts as the attempt"
    await issue.says("/approve")
    await issue.hears("**Changed**")
