"""A tick in a box of the bot's is a request of whoever ticked it, by GitHub's history of the comment."""

import asyncio
import json
from pathlib import Path

import pytest

from bot.github.events import Ticked, Written
from bot.inbox.actions import Ignore, request_of
from bot.model import Actor
from bot.simulated.github.faults import Held
from bot.simulated.github.model import Comment
from bot.thread import boxes
from bot.thread import outbox_rows as outbox
from bot.thread.boxes import Box
from bot.thread.marker import turn_marker
from bot.thread.questions import TO_ANSWER
from bot.turn import questions_left
from bot.turn.parsing import Request
from bot.verbs import VERBS, plan
from tests.end_to_end.conftest import Worlds
from tests.end_to_end.test_confirmed_requests import forge, thread, unmoved
from tests.support.world import Someone, Talk, World
from tests.unit.test_actions import ADA, BOT, ISSUE, NOON, REPOSITORY, decide, remark

STATEMENTS = {"the comment with a tick": (outbox.comment_there.sql, (5, 7))}
BOX = f"- [ ] {plan.CARRY_OUT}"
TICKED = f"- [x] {plan.CARRY_OUT}"
# The agent's own box looks like the bot's.
POSTED = f"1. Say hello.\n{BOX}\n\n---\n\n{boxes.boxes((plan.CARRY_OUT,))}\n\n<sub>turn 3</sub>\n\n{turn_marker(3, 1)}"
HEAD, _, TAIL = POSTED.rpartition(BOX)
WITH_TICK = f"{HEAD}{TICKED}{TAIL}"
AGENTS_TICK = POSTED.replace(BOX, TICKED, 1)


@pytest.mark.parametrize(
    ("before", "after", "now", "asks"),
    [
        (POSTED, WITH_TICK, WITH_TICK, "as posted"),
        (POSTED, WITH_TICK.replace("[x]", "[X]"), WITH_TICK, "as posted"),
        (POSTED, WITH_TICK.replace("\n", "\r\n"), WITH_TICK, "as posted"),
        (POSTED, WITH_TICK, POSTED, None),  # taken back
        (WITH_TICK, POSTED, POSTED, None),
        (WITH_TICK, WITH_TICK, WITH_TICK, None),  # somebody else's tick
        (POSTED, AGENTS_TICK, AGENTS_TICK, "changed"),
        (POSTED, WITH_TICK.replace("hello", "bye"), WITH_TICK, "changed"),
        (POSTED.replace("hello", "bye"), WITH_TICK.replace("hello", "bye"), WITH_TICK, "changed"),
        (POSTED.replace("hello", "bye"), WITH_TICK, WITH_TICK, "changed"),
        (POSTED, WITH_TICK.replace("turn=3", "turn=2"), WITH_TICK, "changed"),
        (POSTED, f"{WITH_TICK}{TICKED}", WITH_TICK, "changed"),
        (POSTED, HEAD + f"{TICKED}\n- [x] Delete all" + TAIL, WITH_TICK, "changed"),
        (POSTED, f"{POSTED}\n\n{boxes.boxes((plan.CARRY_OUT,)).replace(BOX, TICKED)}", WITH_TICK, "changed"),
    ],
)
def test_only_a_tick_of_the_bots_own_box_asks(before: str, after: str, now: str, asks: str | None) -> None:
    edited = remark(after)
    action = request_of(Ticked(REPOSITORY, ADA, ISSUE, edited, "UCE", POSTED, before, now), VERBS.boxes)

    if asks is None:
        assert isinstance(action, Ignore)
        return
    assert isinstance(action, Request)
    assert (action.ticks, action.names) == (asks, ("approve",) if asks == "as posted" else ())
    assert (action.author, action.ask.at, action.identity, action.ask.gesture) == (ADA, NOON, "UCE", "UCE")


@pytest.mark.parametrize(
    ("sender", "author", "text", "before", "may"),
    [
        (ADA, BOT, WITH_TICK, POSTED, True),
        (BOT, BOT, WITH_TICK, POSTED, False),  # the bot edits its comments all the time
        (ADA, ADA, WITH_TICK, POSTED, False),
        (ADA, BOT, POSTED, WITH_TICK, False),
        (ADA, BOT, AGENTS_TICK, POSTED, False),
        (ADA, BOT, WITH_TICK, None, False),
    ],
)
def test_github_is_asked_only_where_a_person_may_have_ticked(
    sender: Actor, author: Actor, text: str, before: str | None, *, may: bool
) -> None:
    event = Written(REPOSITORY, sender, ISSUE, remark(text, author), NOON, before)

    assert isinstance(decide(event), Ticked) is may


def test_a_comment_shows_what_was_chosen_in_place_of_its_boxes() -> None:
    refused = boxes.with_answer(POSTED, "No.")
    assert boxes.with_answer(refused, "No, again.") == f"{HEAD}{BOX}\n\n> No, again.{TAIL}"
    shown = boxes.with_choice(refused, (Box("", plan.CARRY_OUT, True),), "ada", NOON)
    assert f"---\n\n`ada` chose, 2026-05-01 12:00 UTC:\n\n- ☑ {plan.CARRY_OUT}\n\n<sub>" in shown
    assert boxes.with_answer(shown, "Too late.") == shown


async def planned(talk: Talk, greeting: str) -> Comment:
    """Ask for a plan and return the comment that shows it."""
    await talk.says(f"/plan say {greeting}\nsay write a.txt: {greeting}")
    await talk.hears(greeting, BOX)
    return talk.from_bot[-1]


async def edits(talk: Talk, comment: Comment, before: str, after: str, by: Someone) -> None:
    """Edit a comment of the bot's, which is read then."""
    talk.read[comment.id] = comment.body.replace(before, after)
    await by.person.edit(comment, talk.read[comment.id])


async def test_a_plan_is_carried_out_by_a_tick(world: World) -> None:
    maria, olaf = world.maria, world.olaf
    issue = await maria.opens_issue("Greet people")
    old = await planned(issue, "hello")
    user = {"login": "threadtree-bot", "id": world.github.bot.id, "type": "User"}
    at = f"{world.clock():%Y-%m-%dT%H:%M:%SZ}"
    about = {"id": old.id, "node_id": old.node_id, "user": user, "created_at": at, "updated_at": at}
    forged = {"comment": {**about, "body": old.body.replace(BOX, TICKED)}, "changes": {"body": {"from": old.body}}}
    await forge(world, "issue_comment", action="edited", issue=thread(issue), **forged)
    await unmoved(world, 1)

    await edits(issue, old, BOX, TICKED, olaf)
    await issue.hears(BOX, "Nothing was done for `olaf`, who ticked: only people with write access")
    await edits(issue, old, "hello", "bye", maria)  # no tick: nobody is told anything
    await edits(issue, old, BOX, TICKED, maria)
    assert "bye" not in await issue.hears(BOX, boxes.CHANGED)
    world.faults.hold_webhooks("issue_comment", "edited")
    await edits(issue, old, BOX, TICKED, maria)
    await edits(issue, old, TICKED, BOX, maria)
    world.faults.release()
    await unmoved(world, 1)

    newest = await planned(issue, "good morning")
    await edits(issue, old, BOX, TICKED, maria)
    await issue.hears(BOX, plan.NOT_THE_NEWEST)
    world.faults.hold_webhooks("issue_comment", "edited")
    world.clock.move(5)
    for before, after in ((BOX, TICKED), (TICKED, BOX), (BOX, TICKED)):
        await edits(issue, newest, before, after, maria)
    world.faults.release()
    shown, answer = await issue.hears_all()
    assert BOX not in shown
    assert "`maria` chose, " in shown
    assert f"- ☑ {plan.CARRY_OUT}\n" in shown
    assert "1 file +1" in answer
    assert (await world.files("threadtree/issue-1"))["a.txt"] == "good morning"
    assert len(await world.turns()) == 3


LEFT = [
    {"question": "Which *colour*, @olaf?", "choices": ["red", "blue", "red"]},
    {"question": "Which file?", "choices": ["a.txt", "b.txt\n- [x] all"]},
]


async def test_questions_are_answered_when_each_has_a_tick(a_world: Worlds) -> None:
    async with a_world({"ALLOWED_USERS": "maria"}) as world:
        world.repository.allow(world.olaf.person, "write")
        issue = await world.maria.opens_issue("Paint it")
        await issue.says(f"@threadtree-bot out questions.json: {json.dumps(LEFT)}\nsay I need to know.")
        asked = await issue.hears("I need to know.", TO_ANSWER, "- [ ] red\n- [ ] blue\n\n**Which file?**")
        assert asked.count("- [ ] ") == 4
        assert "- [x]" not in asked
        await issue.says("/status")
        await issue.hears("The question of turn 1 waits for an answer")

        comment = issue.from_bot[0]
        await edits(issue, comment, "[ ] blue", "[x] blue", world.olaf)
        await issue.hears("Nothing was done for `olaf`", "[ ] blue")
        await edits(issue, comment, "[ ] blue", "[x] blue", world.maria)
        await unmoved(world, 1)
        held = asyncio.Event()
        world.faults.add(Held(held), method="PATCH", times=1)
        for before, after in (("[ ] a", "[x] a"), ("[x] a", "[ ] a"), ("[ ] a", "[x] a")):
            await edits(issue, comment, before, after, world.maria)
            # Each is decided before the comment shows what was chosen.
            await world.github.settled()
            await world.until("exists (select from turns where id = 2)")
            await world.until("not exists (select from deliveries where state = 'received')")
        held.set()
        shown, _ = await issue.hears_all()
        assert "`maria` chose, " in shown
        assert "blue\n- ☑ Which file?: a.txt\n" in shown
        assert "red" not in shown
        text = (await world.turns("text"))[-1]
        assert text == "> Which *colour*, @olaf?\n\nblue\n\n> Which file?\n\na.txt"
        assert await world.turns("state", "verb") == [("done", "work")] * 2


@pytest.mark.parametrize(
    ("left", "shown", "is_whole"),
    [
        ([], 0, True),
        (LEFT, 4, True),
        ([*LEFT, *({"question": f"{n}?", "choices": ["y", "n"]} for n in range(500))], 10, False),
        ([{"question": "Which?", "choices": list("abcdefg")}], 0, False),
        ([{"question": "Which?", "choices": ["a", "a"]}, *LEFT], 4, False),
        ([{"question": " ", "choices": ["a", "b"]}, {"question": 3}, 7, None, *LEFT, *LEFT], 4, False),
        ([{"question": "**Which?**\n- [x] x", "choices": ["<!-- /threadtree:boxes -->", 7]}], 0, False),
        ([{"question": "**Which?**\n- [x] x", "choices": ["<!-- /threadtree:boxes -->", "b"]}], 2, True),
        ({"question": "Which?", "choices": ["a", "b"]}, 0, False),
    ],
)
def test_only_whole_questions_are_asked(left: object, shown: int, tmp_path: Path, *, is_whole: bool) -> None:
    file = tmp_path / questions_left.QUESTIONS
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(left))

    section, notice = questions_left.read_left(tmp_path)
    found = boxes.boxes_of(f"An answer.\n\n{section}")
    assert len(found) == shown
    assert not any(box.is_ticked for box in found)
    assert (notice is None) is is_whole
