"""Prompting an agent over ACP: the scripted agent as a real process, in its own session."""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from bot.agents.acp import AcpDriver
from bot.agents.acp_link import content_of
from bot.agents.driver import (
    AgentDone,
    AgentEvent,
    Block,
    Cancelled,
    CannotOpenError,
    Failed,
    Image,
    Launch,
    Outcome,
    PromptLimits,
    Said,
    SessionOpened,
    ToolEnded,
    ToolStarted,
)
from bot.agents.mcp import McpServer
from bot.agents.prompt_loop import AgentDriver
from bot.sandbox.bwrap import agent_argv, agent_environment
from tests.support.patience import PATIENCE_SECONDS

GENEROUS = PromptLimits(total_seconds=120, idle_seconds=120, cancel_grace_seconds=120)
IMPATIENT = PromptLimits(total_seconds=120, idle_seconds=120, cancel_grace_seconds=0.2)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    (tmp_path / "worktree").mkdir()
    (tmp_path / "home").mkdir()
    return Launch(
        argv=agent_argv([sys.executable, "-m", "bot.simulated.agent"]),
        environment=agent_environment(tmp_path / "home", os.environ["PATH"], "C.UTF-8", {"NAMED": "value"}),
        cwd=tmp_path / "worktree",
    )


class Heard(list[AgentEvent]):
    """The events of a prompt; sets `stop` when the expected event comes."""

    def __init__(self, stop_at: Callable[[AgentEvent], bool] = lambda _: False) -> None:
        super().__init__()
        self.stop = asyncio.Event()
        self._stop_at = stop_at

    def __call__(self, event: AgentEvent) -> None:
        self.append(event)
        if self._stop_at(event):
            self.stop.set()


async def opened(agent: AgentDriver, resume: str | None = None) -> SessionOpened:
    result = await agent.open(resume)
    assert isinstance(result, SessionOpened)
    return result


async def ask(agent: AgentDriver, *lines: str, limits: PromptLimits = GENEROUS, heard: Heard | None = None) -> Outcome:
    heard = Heard() if heard is None else heard
    return await agent.prompt(["some context", "\n".join(lines)], limits, heard.stop, heard)


async def answer(launch: Launch, *lines: str, limits: PromptLimits = GENEROUS, heard: Heard | None = None) -> Outcome:
    """Return the result of one prompt in a fresh session."""
    async with aclosing(AcpDriver(launch)) as agent:
        await opened(agent)
        return await ask(agent, *lines, limits=limits, heard=heard)


async def test_a_request_is_answered_and_the_edit_is_in_the_worktree(launch: Launch) -> None:
    heard = Heard()
    outcome = await answer(launch, "@bot write notes/a.md: hello", "say All written.", heard=heard)
    assert outcome == AgentDone("All written.")
    assert (launch.cwd / "notes/a.md").read_text() == "hello\n"
    assert heard == [
        ToolStarted("Edit a.md"),
        ToolEnded("Edit a.md", ok=True),
        Said("All written."),
    ]


async def test_an_mcp_server_that_the_agent_cannot_use_is_named(launch: Launch) -> None:
    here = replace(launch, mcp_servers=(McpServer("docs", "stdio", ("true",)),))
    assert isinstance(await answer(here, "say Hello."), AgentDone), "every agent takes servers on stdio"
    there = replace(launch, mcp_servers=(McpServer("wiki", "http", url="https://wiki.corp/mcp"),))
    with pytest.raises(CannotOpenError, match="cannot use the MCP server `wiki` over http"):
        await answer(there, "say Hello.")


async def test_every_block_reaches_the_agent_verbatim(launch: Launch) -> None:
    async with aclosing(AcpDriver(launch)) as agent:
        await opened(agent)
        stop = asyncio.Event()
        outcome = await agent.prompt(["one\n\ttwo  ", "", "ünï\n\necho prompt"], GENEROUS, stop, lambda _: None)
    assert outcome == AgentDone("[block 1]\none\n\ttwo  \n[block 2]\n\n[block 3]\nünï\n\necho prompt")


async def test_a_line_far_beyond_asyncios_limit_passes(launch: Launch) -> None:
    outcome = await answer(launch, "long 200000")
    assert isinstance(outcome, AgentDone)
    assert len(outcome.text) == 200_000


async def test_a_message_of_ten_megabytes_ends_the_agent(launch: Launch) -> None:
    outcome = await answer(launch, "long 10000000")
    assert outcome == Failed("The agent sent a message of more than 2 MB in the middle of its work.", "")


async def test_an_image_reaches_an_agent_that_takes_images(launch: Launch) -> None:
    picture = launch.cwd / "picture.png"
    picture.write_bytes(b"five!")
    async with aclosing(AcpDriver(launch)) as agent:
        await opened(agent)
        blocks: list[Block] = ["Look:", Image(picture, "image/png"), "echo prompt"]

        outcome = await agent.prompt(blocks, GENEROUS, asyncio.Event(), lambda _: None)

    assert isinstance(outcome, AgentDone)
    assert "[block 2]\n[image/png, 5 bytes]\n[block 3]" in outcome.text


async def test_an_agent_without_images_gets_the_texts(tmp_path: Path) -> None:
    blocks: list[Block] = ["Look:", Image(tmp_path / "gone.png", "image/png"), "say it"]

    assert content_of(blocks, {"promptCapabilities": {"image": False}}) == [
        {"type": "text", "text": "Look:"},
        {"type": "text", "text": "say it"},
    ]


async def test_an_error_of_the_agent_fails_the_prompt_but_not_the_session(launch: Launch) -> None:
    async with aclosing(AcpDriver(launch)) as agent:
        await opened(agent)
        failed = await ask(agent, "stderr a last word", "fail the model is overloaded")
        assert failed == Failed("`the model is overloaded`", "a last word")
        assert await ask(agent, "say Better now.") == AgentDone("Better now.")


async def test_a_crash_is_reported_with_exit_status_and_the_end_of_stderr(launch: Launch) -> None:
    outcome = await answer(launch, "stderr " + "x" * 200_000, "stderr out of luck", "crash 3")
    assert isinstance(outcome, Failed)
    assert outcome.reason == "The agent ended with exit status 3 in the middle of its work."
    assert outcome.stderr_tail.endswith("out of luck")
    assert len(outcome.stderr_tail) <= 4096


@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "max_turn_requests", "brand_new_reason"])
async def test_any_other_stop_reason_fails_and_is_named(launch: Launch, reason: str) -> None:
    outcome = await answer(launch, "say Half an answer", f"stop {reason}")
    assert isinstance(outcome, Failed)
    assert reason in outcome.reason


async def test_an_end_without_text_is_a_failure(launch: Launch) -> None:
    outcome = await answer(launch, "empty")
    assert outcome == Failed("The agent ended without an answer.", "")


def tool_ended(event: AgentEvent) -> bool:
    return isinstance(event, ToolEnded)


async def test_a_stop_ends_the_prompt_and_the_session_continues(launch: Launch) -> None:
    async with aclosing(AcpDriver(launch)) as agent:
        await opened(agent)
        assert await ask(agent, "write a: b", "hang", heard=Heard(stop_at=tool_ended)) == Cancelled()
        assert await ask(agent, "say Next.") == AgentDone("Next.")


async def test_a_stop_before_the_start_sends_nothing(launch: Launch) -> None:
    heard = Heard()
    heard.stop.set()
    assert await answer(launch, "write a: b", heard=heard) == Cancelled()
    assert not (launch.cwd / "a").exists()


async def test_an_agent_that_ignores_the_stop_is_killed(launch: Launch) -> None:
    heard = Heard(stop_at=tool_ended)
    assert await answer(launch, "write a: b", "hang deaf", limits=IMPATIENT, heard=heard) == Cancelled()


@pytest.mark.parametrize("flags", [(), ("--resume",), ("--resume", "--no-load")])
async def test_a_session_continues_in_a_new_process(launch: Launch, flags: tuple[str, ...]) -> None:
    launch = Launch((*launch.argv, *flags), launch.environment, launch.cwd)
    async with aclosing(AcpDriver(launch)) as agent:
        first = await opened(agent)
        await ask(agent, "remember apricot")
    async with aclosing(AcpDriver(launch)) as agent:
        assert await opened(agent, resume=first.assistant_session_id) == SessionOpened(
            first.assistant_session_id, resumed=True, lost=None
        )
        # The replayed past is not part of the new answer.
        assert await ask(agent, "recall") == AgentDone("I remember: apricot.")


async def test_an_agent_without_stored_sessions_starts_a_new_one_and_says_so(launch: Launch) -> None:
    launch = Launch((*launch.argv, "--no-load"), launch.environment, launch.cwd)
    async with aclosing(AcpDriver(launch)) as agent:
        first = await opened(agent, resume="0a1b")
        assert first.lost == "the agent cannot continue earlier sessions"
        assert not first.resumed
        assert await ask(agent, "recall") == AgentDone("I remember: nothing.")


async def test_a_session_the_agent_does_not_know_is_lost(launch: Launch) -> None:
    async with aclosing(AcpDriver(launch)) as agent:
        fresh = await opened(agent, resume="no-such-session")
        assert fresh.lost is not None
        assert "Resource not found" in fresh.lost
        assert fresh.assistant_session_id != "no-such-session"
        assert await ask(agent, "say Hello.") == AgentDone("Hello.")


async def test_an_error_in_the_callback_comes_out_of_the_prompt(launch: Launch) -> None:
    def burst(_: AgentEvent) -> None:
        raise LookupError("in the callback")

    async with aclosing(AcpDriver(launch)) as agent:
        await opened(agent)
        with pytest.raises(LookupError, match="in the callback"):
            await agent.prompt(["write a: b"], GENEROUS, asyncio.Event(), burst)


async def test_nothing_is_left_behind_when_the_task_is_cancelled(launch: Launch) -> None:
    working = asyncio.Event()

    async def turn() -> None:
        async with aclosing(AcpDriver(launch)) as agent:
            await opened(agent)
            await agent.prompt(["write a: b\nhang"], GENEROUS, asyncio.Event(), lambda _: working.set())

    task = asyncio.create_task(turn())
    await asyncio.wait_for(working.wait(), PATIENCE_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}
