"""What a run writes into rows while its agent works."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from bot.agents.driver import ToolEnded, ToolPrinted, ToolStarted, Usage
from bot.model import ThreadRef
from bot.operator.api import listings
from bot.sandbox.net.model_answers import ModelAnswers
from bot.store import turns
from bot.store.database import Pool
from bot.store.scope import EVERYTHING
from bot.store.turns import ClaimLostError, Use
from bot.turn.context import SpentToday, spent_today
from bot.turn.progress import MAX_OUTPUT_CHARACTERS, Progress
from tests.support.patience import PATIENCE_SECONDS, eventually, until_true
from tests.support.turn_rows import NODE, NOON, TurnRows, repository


async def test_a_step_that_is_just_written_when_the_agent_ends_is_written_once(
    pool: Pool, world: TurnRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    written, answered = asyncio.Event(), asyncio.Event()
    save_steps = turns.save_steps

    async def save_then_wait(*given: Any) -> None:
        await save_steps(*given)
        written.set()
        await answered.wait()

    monkeypatch.setattr(turns, "save_steps", save_then_wait)
    progress = Progress(str)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with progress.shown(pool, ThreadRef(repository(), conversation), turn, lambda: NOON):
            progress.note(ToolStarted("Read a.txt"))
            await written.wait()
            asyncio.get_running_loop().call_soon(answered.set)  # after the end has come

    assert [row["words"] for row in await world.db.fetch("select words from steps")] == ["Read a.txt"]


async def test_a_running_command_shows_whole_words_of_what_it_has_printed_so_far(pool: Pool, world: TurnRows) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    progress = Progress(lambda text: text.replace("hunter2", "***"))

    async def shows(output: str) -> None:
        async def is_there() -> bool:
            return bool(await world.db.fetchval("select exists (select from steps where output = $1)", output))

        await eventually(is_there)

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with progress.shown(pool, ThreadRef(repository(), conversation), turn, lambda: NOON):
            progress.note(ToolPrinted("none", "of no call\n"))
            progress.note(ToolStarted("make test", "call"))
            progress.note(ToolPrinted("call", "2 passed\nthe key is hunt"))
            await shows("2 passed\nthe key is ")
            progress.note(ToolPrinted("call", "2 passed\nthe key is hunter2\n"))
            await shows("2 passed\nthe key is ***\n")
            page = await listings.turn(world.db, turn.id, EVERYTHING)
            assert page is not None
            assert page["latest_output"] == "2 passed\nthe key is ***\n"
            progress.note(ToolEnded("make test", ok=True, call="call", output="3 passed"))
            await shows("3 passed")


async def test_what_a_command_prints_while_its_output_is_written_is_written_next(
    pool: Pool, world: TurnRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    newer = [ToolPrinted("call", "1 passed\n2 passed\n")]
    save_steps = turns.save_steps

    async def save_then_print(*given: Any) -> None:
        await save_steps(*given)
        if newer and "1 passed\n" in given[-1]:
            progress.note(newer.pop())

    monkeypatch.setattr(turns, "save_steps", save_then_print)
    progress = Progress(str)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with progress.shown(pool, ThreadRef(repository(), conversation), turn, lambda: NOON):
            progress.note(ToolStarted("make test", "call"))
            progress.note(ToolPrinted("call", "1 passed\n"))
            await until_true(lambda: not newer)

    assert [row["output"] for row in await world.db.fetch("select output from steps")] == ["1 passed\n2 passed\n"]


async def test_what_the_agent_tells_is_in_the_row_before_the_turn_ends_and_later_runs_add_to_it(
    pool: Pool, world: TurnRows
) -> None:
    """A process that is killed at any moment leaves what it knew a second before."""
    conversation, _ = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    answers, progress = ModelAnswers(), Progress(str)
    answers.named("a-model", 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with progress.shown(pool, ThreadRef(repository(), conversation), turn, lambda: NOON):
            progress.model_answered(answers)
            progress.note(Usage(tokens=20))
            progress.note(Usage(tokens=30))
            await eventually(partial(world.db.fetchval, "select tokens = 30 from turns"))
    left = Use(*await world.db.fetchrow("select cost_usd, tokens, model from turns"))
    assert left == Use(None, 30, "a-model")
    resumed = Progress(str, (), left)
    resumed.note(Usage(tokens=40))
    resumed.agent_goes_on()
    resumed.note(Usage(tokens=30))
    assert resumed.use == Use(None, 100, "a-model")


async def test_the_cost_of_a_turn_is_what_its_runs_added_to_the_session(world: TurnRows) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()

    beyond: list[float] = []

    async def record(cost: float | None, tokens: int | None, model: str | None) -> Use:
        counted = await turns.record_use(world.db, turn.claim, cost, tokens, model, 5.0)
        beyond.append(counted.beyond_usd or 0)
        return Use(counted.cost_usd, counted.tokens, counted.model)

    assert await record(None, 5, None) == Use(None, 5, None), "it has no session yet"
    session = await turns.start_session(world.db, turn.claim, "claude", "s-1")
    await turns.use_session(world.db, turn.claim, session)
    assert await record(0.5, 10, "a-model") == Use(0.5, 10, "a-model")
    assert await record(0.5, 10, "a-model") == Use(0.5, 10, "a-model"), "it may be repeated"
    assert await record(0.75, 20, None) == Use(0.75, 20, "a-model")
    assert await record(0.1, None, None) == Use(0.75, 20, "a-model"), "a session that was lost begins at nothing"
    with pytest.raises(ClaimLostError):
        await turns.record_use(world.db, replace(turn.claim, token=uuid4()), 9.0, 9, None, 5.0)
    # An agent may say anything: no more counts than the turn's limit, and what it says next is not lost.
    assert [(await record(cost, None, None)).cost_usd for cost in (900, 900, 1)] == [5, 5, 5]
    assert [round(one) for one in beyond] == [0] * 5 + [896, 0, 0], "a leap is told once"
    assert await world.db.fetchval("select cost_usd from sessions") == 1


async def test_caps_of_the_day_count_what_is_known_of_running_turns_on_all_nodes(world: TurnRows) -> None:
    here, _ = await world.home()
    there, _ = await world.home(node="other")
    for conversation in (here, there):
        await world.ask(conversation)
    day = partial(spent_today, world.db, repository())
    assert await day() == SpentToday(0, 0)
    for node, cost in ((NODE, 1.5), ("other", 2.5)):
        turn = await world.claimed(node=node)
        await turns.use_session(world.db, turn.claim, await turns.start_session(world.db, turn.claim, "claude", node))
        await turns.record_use(world.db, turn.claim, cost, 10, None, 10.0)
    assert await day() == SpentToday(4, 4)


async def test_a_step_that_fails_after_it_was_written_is_the_same_row(pool: Pool, world: TurnRows) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    progress = Progress(str)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with progress.shown(pool, ThreadRef(repository(), conversation), turn, lambda: NOON):
            progress.note(ToolStarted("make test"))
            await until_true(lambda: not progress._unsaved)
            progress.note(ToolEnded("make test", ok=False, output="1 failed"))
    assert await world.db.fetch("select words, output from steps") == [("make test (failed)", "1 failed")]


async def test_what_steps_print_is_kept_up_to_a_limit_for_each_turn(pool: Pool, world: TurnRows) -> None:
    conversation, _ = await world.home()
    await world.ask(conversation)
    turn = await world.claimed()
    progress = Progress(str)
    async with progress.shown(pool, ThreadRef(repository(), conversation), turn, lambda: NOON):
        for call in range(200):
            progress.note(ToolStarted("Print", str(call)))
            progress.note(ToolEnded("Print", ok=True, call=str(call), output="x" * 30_000))
    kept = await world.db.fetchrow("select count(*), count(output), sum(length(output)) from steps")
    assert (kept[0], 0 < kept[1] < 20) == (200, True), "what comes too fast is not held in memory"
    for place in range(201, 401):
        await turns.save_steps(world.db, turn.claim, [place], ["Print"], ["x" * MAX_OUTPUT_CHARACTERS])
    kept = await world.db.fetchval("select sum(length(output)) from steps")
    assert turns.MOST_OUTPUT_BYTES <= kept < turns.MOST_OUTPUT_BYTES + 2 * MAX_OUTPUT_CHARACTERS
