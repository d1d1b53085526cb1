"""The two clocks of a prompt on a loop whose time is moved by hand, and what updates mean."""

import asyncio
import selectors
from typing import Any

import pytest
from acp.schema import PermissionOption, SessionNotification

from bot.agents.acp_link import unattended_choice
from bot.agents.acp_progress import Answered, Inbox, PromptProgress, Stopped, follow
from bot.agents.driver import AgentEvent, AgentText, Limits, TimedOut, ToolEnded, ToolStarted, Usage

LIMITS = Limits(total_seconds=100, idle_seconds=10)
END = Answered({"stopReason": "end_turn"})


class _Jump(selectors.SelectSelector):
    """Passes the time a loop would sleep instead of sleeping it."""

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
    """How following a prompt ends when these items come in at these seconds."""

    async def run() -> Any:
        inbox: Inbox = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for at, item in script:
            loop.call_at(at, inbox.put_nowait, item)
        return await follow(inbox, LIMITS, PromptProgress(), lambda _: None)

    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        return runner.run(run())


def test_silence_ends_a_prompt() -> None:
    assert follow_script((11, END)) == TimedOut("idle", 10)


def test_every_sign_of_life_starts_the_idle_clock_again() -> None:
    commands = update(sessionUpdate="available_commands_update", availableCommands=[])
    assert follow_script((9, text("a")), (18, commands), (27, text("b")), (36, END)) == END


def test_the_idle_clock_pauses_while_a_tool_call_is_open() -> None:
    assert follow_script((1, tool("in_progress")), (90, tool("completed")), (99, END)) == END


def test_the_idle_clock_goes_on_after_the_tool_call() -> None:
    assert follow_script((1, tool("in_progress")), (50, tool("failed")), (61, END)) == TimedOut("idle", 10)


def test_the_total_time_ends_a_prompt_also_with_a_tool_call_open() -> None:
    assert follow_script((1, tool("in_progress")), (101, END)) == TimedOut("total", 100)


def test_the_total_time_ends_a_prompt_that_never_is_silent() -> None:
    assert follow_script(*((second, text("x")) for second in range(1, 120))) == TimedOut("total", 100)


def test_a_stop_ends_the_following() -> None:
    assert isinstance(follow_script((1, text("a")), (2, Stopped()), (3, END)), Stopped)


def events_of(*notifications: SessionNotification) -> list[AgentEvent]:
    progress = PromptProgress()
    return [event for notification in notifications for event in progress.apply(notification)]


def test_a_tool_call_starts_once_and_ends_once() -> None:
    start = update(sessionUpdate="tool_call", toolCallId="1", title="Look", kind="read")
    assert events_of(start, start, tool("in_progress"), tool("completed"), tool("completed")) == [
        ToolStarted("1", "Look", "read"),
        ToolEnded("1", "Look", ok=True),
    ]


def test_a_tool_call_that_is_only_heard_of_at_its_end_is_told_whole() -> None:
    assert events_of(tool("failed")) == [ToolStarted("1", "Look", "other"), ToolEnded("1", "Look", ok=False)]


def test_the_pieces_of_text_are_the_answer() -> None:
    progress = PromptProgress()
    pieces = [
        event.text
        for item in (text("One"), text(" two."), tool("in_progress"), tool("completed"), text("Three."))
        for event in progress.apply(item)
        if isinstance(event, AgentText)
    ]
    assert "".join(pieces) == progress.text == "One two.\n\nThree."


def test_usage_comes_from_updates_and_from_the_answer() -> None:
    progress = PromptProgress()
    assert progress.usage({}) is None
    list(progress.apply(update(sessionUpdate="usage_update", used=5, size=9, cost={"amount": 0.5, "currency": "USD"})))
    told = {"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}}
    assert progress.usage(told) == Usage(1, 2, 3, session_cost=0.5, currency="USD")


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
