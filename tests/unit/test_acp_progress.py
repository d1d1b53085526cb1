"""The two time limits of a prompt, on a loop with a manual clock, and the meaning of updates."""

import asyncio
import selectors
from typing import Any

import pytest
from acp.schema import PermissionOption, SessionNotification

from bot.agents.acp_link import unattended_choice
from bot.agents.acp_progress import AcpProgress, Answered, FormAsked, Item, PlanProposed
from bot.agents.driver import (
    AgentDone,
    AgentEvent,
    Cancelled,
    Failed,
    PlanChanged,
    PromptLimits,
    TimedOut,
    ToolEnded,
    ToolPrinted,
    ToolStarted,
    Usage,
)
from bot.agents.prompt_loop import MAX_ANSWER_CHARACTERS, MAX_TOOL_CALLS, Inbox, Told, follow

LIMITS = PromptLimits(total_seconds=100, idle_seconds=10)
END = Answered({"stopReason": "end_turn"})
STOP = object()


class _Jump(selectors.SelectSelector):
    """A selector that advances the loop's clock instead of sleeping."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def update(**fields: Any) -> SessionNotification:
    return SessionNotification.model_validate({"sessionId": "s", "update": fields})


def text(words: str) -> SessionNotification:
    return update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": words})


def tool(status: str, **fields: Any) -> SessionNotification:
    return update(sessionUpdate="tool_call_update", toolCallId="1", title="Look", status=status, **fields)


def follow_script(*script: tuple[float, Any]) -> Any:
    """Follow a prompt with these items at these seconds; return its end."""

    async def run() -> Any:
        inbox: Inbox[Item] = asyncio.Queue()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for at, item in ((0, text("x")), *script):
            if item is STOP:
                loop.call_at(at, stop.set)
            else:
                loop.call_at(at, inbox.put_nowait, item)
        return await follow(inbox, LIMITS, stop, AcpProgress(), lambda _: None)

    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        return runner.run(run())


def test_silence_ends_a_prompt() -> None:
    assert follow_script((11, END)) == TimedOut("idle", 10)


def test_every_sign_of_life_starts_the_idle_clock_again() -> None:
    commands = update(sessionUpdate="available_commands_update", availableCommands=[])
    assert follow_script((9, text("a")), (18, commands), (27, text("b")), (36, END)) == AgentDone("xab")


def test_a_message_starts_the_idle_clock_again_and_not_the_limit_of_the_whole() -> None:
    assert follow_script((9, Told()), (18, END)) == AgentDone("x")
    assert follow_script(*((at, Told()) for at in range(9, 100, 9)), (101, END)) == TimedOut("total", 100)


def test_the_idle_clock_pauses_while_a_tool_call_is_open() -> None:
    assert follow_script((1, tool("in_progress")), (90, tool("completed")), (99, END)) == AgentDone("x")


def test_the_idle_clock_goes_on_after_the_tool_call() -> None:
    assert follow_script((1, tool("in_progress")), (50, tool("failed")), (61, END)) == TimedOut("idle", 10)


def test_the_total_time_ends_a_prompt_also_with_a_tool_call_open() -> None:
    assert follow_script((1, tool("in_progress")), (101, END)) == TimedOut("total", 100)


def test_the_total_time_ends_a_prompt_that_never_is_silent() -> None:
    assert follow_script(*((second, text("x")) for second in range(1, 120))) == TimedOut("total", 100)


def test_a_stop_ends_the_following() -> None:
    assert isinstance(follow_script((1, text("a")), (2, STOP), (3, END)), Cancelled)


def events_of(*notifications: SessionNotification) -> list[AgentEvent]:
    progress = AcpProgress()
    return [event for notification in notifications for event in progress.events(notification)]


def test_a_tool_call_starts_once_and_ends_once() -> None:
    start = update(sessionUpdate="tool_call", toolCallId="1", title="Look", kind="read")
    assert events_of(start, start, tool("in_progress"), tool("completed"), tool("completed")) == [
        ToolStarted("Look"),
        ToolEnded("Look", ok=True),
    ]


def test_a_tool_call_that_is_only_heard_of_at_its_end_is_told_whole() -> None:
    assert events_of(tool("failed")) == [ToolStarted("Look"), ToolEnded("Look", ok=False)]


def test_what_a_running_tool_has_printed_is_told_as_the_agent_tells_it() -> None:
    piece = {"type": "content", "content": {"type": "text", "text": "1 passed"}}
    told = events_of(tool("in_progress", content=[piece]), tool("completed"), tool("in_progress", content=[piece]))
    assert told == [ToolStarted("Look"), ToolPrinted("1", "1 passed"), ToolEnded("Look", ok=True)]


def test_what_a_tool_printed_is_told_with_its_end_within_limits() -> None:
    def output_of(**fields: Any) -> str:
        [_, ended] = events_of(tool("completed", **fields))
        assert isinstance(ended, ToolEnded)
        return ended.output

    pieces = [{"type": "content", "content": {"type": "text", "text": text}} for text in ("60 passed", "in 2 s")]
    assert output_of(content=pieces, rawOutput="other") == "60 passed\nin 2 s"
    assert output_of(rawOutput={"exit_code": 0, "formatted_output": "60 passed"}) == "60 passed"
    assert output_of(rawOutput="60 passed") == "60 passed"
    assert output_of(rawOutput=[1], content=[{"type": "diff", "path": "a", "newText": "b"}]) == ""
    long = output_of(rawOutput="a" + "x" * 1_000_000 + "z")
    assert (long[0], long[-1], len(long) < 40_000) == ("a", "z", True)


def test_the_pieces_of_text_are_the_answer() -> None:
    progress = AcpProgress()
    for item in (text("One"), text(" two."), tool("in_progress"), tool("completed"), text("Three.")):
        list(progress.events(item))
    assert progress.answer == "One two.\n\nThree."


def test_usage_comes_from_updates_and_from_the_answer() -> None:
    progress = AcpProgress()
    list(progress.events(text("x")))
    assert list(progress.events(END)) == []
    for currency, usage in (("EUR", []), ("USD", [Usage(session_cost_usd=0.5)])):
        cost = {"amount": 0.5, "currency": currency}
        assert list(progress.events(update(sessionUpdate="usage_update", used=5, size=9, cost=cost))) == usage
    told = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
    stopped = Answered({"stopReason": "cancelled", "usage": told})
    assert list(progress.events(stopped)) == [Usage(3, 0.5)]


@pytest.mark.parametrize(("status", "has_failed"), [("systemError", True), ("active", False)])
def test_codex_tells_by_its_threads_status_that_it_gave_up(status: str, has_failed: bool) -> None:
    progress = AcpProgress()
    meta = {"codex": {"threadStatus": {"type": status}}}
    for item in (text("I look."), update(sessionUpdate="session_info_update", _meta=meta), text("last status: 429")):
        list(progress.events(item))
    ended = progress.end(END)
    assert isinstance(ended, Failed) == has_failed
    if isinstance(ended, Failed):
        assert ended.reason == "`last status: 429`"


def test_the_rest_of_a_very_long_answer_is_left_out_and_counted() -> None:
    progress = AcpProgress()
    for _ in range(3):
        list(progress.events(text("x" * (MAX_ANSWER_CHARACTERS - 1))))
    left_out = 2 * MAX_ANSWER_CHARACTERS - 3
    assert progress.answer == "x" * MAX_ANSWER_CHARACTERS + f"\n\n[{left_out} more characters were left out.]"


def test_a_plan_is_bounded() -> None:
    entries = [{"content": "x" * 10_000, "status": "pending", "priority": "low"}] * 1000
    [plan] = AcpProgress().events(update(sessionUpdate="plan", entries=entries))
    assert isinstance(plan, PlanChanged)
    assert (len(plan.entries), len(plan.entries[0].text)) == (50, 200)


def test_tool_calls_are_bounded() -> None:
    progress = AcpProgress()
    starts = (update(sessionUpdate="tool_call", toolCallId=str(number), title="x" * 10_000) for number in range(5000))
    events = [event for start in starts for event in progress.events(start)]
    assert len(events) == 1000
    assert all(event == ToolStarted("x" * 200) for event in events)


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        (["reject_once", "allow_always", "allow_once"], "allow_once"),
        (["reject_always", "allow_always"], "allow_always"),
        (["reject_always", "reject_once"], "reject_once"),
        ([], None),
    ],
)
def test_the_narrowest_yes_is_chosen_when_nobody_can_be_asked(kinds: list[Any], chosen: str | None) -> None:
    options = [PermissionOption(option_id=kind, name=kind, kind=kind) for kind in kinds]
    assert unattended_choice(options) == chosen
    assert unattended_choice(options, refuses=True) in (*(kind for kind in kinds if kind.startswith("reject")), None)


def test_a_plan_that_wants_approval_is_the_answer() -> None:
    assert follow_script((1, PlanProposed(" 1. Do it. ")), (2, text("Not heard."))).text == "1. Do it."


def test_a_form_becomes_questions_with_their_options() -> None:
    colours = [{"const": "red", "title": "Red", "description": "Like a rose"}, {"const": "blue"}]
    fields = {
        "question_0": {"type": "string", "title": "Colour", "description": "Which colour?", "oneOf": colours},
        "question_0_custom": {"type": "string", "title": "Other"},
        "question_1": {"type": "array", "description": "Which\nsizes?", "items": {"enum": ["S", "L"]}},
        "odd": 7,
    }
    both = follow_script((1, FormAsked("Please answer the following questions.", fields)))
    assert both.text == (
        "**1. Which colour?**\n\n- Red: Like a rose\n- blue\n\n**2. Which sizes?**\n\n- S\n- L\n\n"
        "Several of these are possible.\n\nTo answer, mention the bot in a comment. It continues from here.\n\n"
        "The agent wrote before it asked:\n\nx"
    )
    plain = follow_script((1, FormAsked("What is it called?", {"name": {"type": "string"}})))
    assert plain.text.startswith("**What is it called?**\n\nTo answer, ")


def test_tool_calls_beyond_what_is_remembered_are_no_steps() -> None:
    progress = AcpProgress()
    started = [event for n in range(MAX_TOOL_CALLS + 5) for event in progress._tool_started(str(n), "Look")]
    assert len(started) == MAX_TOOL_CALLS
    assert [*progress._tool_ended("0", ok=True)] == [ToolEnded("Look", ok=True, call="0")]
    assert [*progress._tool_started("more", "Look")] == [ToolStarted("Look", "more")]
