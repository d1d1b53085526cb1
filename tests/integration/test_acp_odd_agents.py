"""Agents that fail to start, lose their sessions, break the protocol or leave processes behind."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import pytest

from bot.agents.acp import AcpDriver, OpenTimeouts
from bot.agents.driver import (
    AgentDone,
    AgentEvent,
    Cancelled,
    CannotOpenError,
    Failed,
    Launch,
    Outcome,
    PromptLimits,
    Said,
    SessionOpened,
    ToolStarted,
)
from bot.agents.presets import SessionOptions
from bot.sandbox.bwrap import agent_argv
from tests.support import misbehaving_agent
from tests.support.patience import PATIENCE_SECONDS, until_true

GENEROUS = PromptLimits(total_seconds=120, idle_seconds=120, cancel_grace_seconds=120)
QUICK = OpenTimeouts(answer_seconds=60, quiet_seconds=0.3, busy_seconds=0.01)
CAN_RESUME = [{"result": {"protocolVersion": 1, "agentCapabilities": {"sessionCapabilities": {"resume": {}}}}}]
ENDS: dict[str, Any] = {"result": {"stopReason": "end_turn"}}
DIES = [{"exit": 7}]
_LOOK = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Look"}
TOOL_CALL = {"send": {"method": "session/update", "params": {"sessionId": "fresh", "update": _LOOK}}}
AUTH = [{"error": {"code": -32000, "message": "Authentication required", "data": {"details": "run login"}}}]

Plan = dict[str, list[list[dict[str, Any]]]]


def prompted(*reactions: dict[str, Any]) -> Plan:
    return {"session/prompt": [list(reactions)]}


@pytest.fixture
def odd(tmp_path: Path) -> Callable[[Plan], Launch]:
    """Return a launch of `misbehaving_agent.py` with this plan; its state is in the test's directory."""
    script = Path(misbehaving_agent.__file__)

    def launch(plan: Plan) -> Launch:
        argv = agent_argv([sys.executable, str(script), json.dumps(plan), str(tmp_path)])
        return Launch(argv, {"PATH": os.environ["PATH"]}, tmp_path)

    return launch


def heard(launch: Launch) -> list[Any]:
    """Return the messages that the agent received, in all its processes."""
    return [json.loads(line) for line in (launch.cwd / "heard.jsonl").read_text().splitlines() if line]


def methods(launch: Launch) -> list[str]:
    return [message["method"] for message in heard(launch)]


async def try_to_open(
    launch: Launch, resume: str | None = None, timeouts: OpenTimeouts = QUICK
) -> SessionOpened | CannotOpenError:
    async with aclosing(AcpDriver(launch, timeouts)) as agent:
        try:
            return await agent.open(resume)
        except CannotOpenError as error:
            return error


async def converse(
    launch: Launch, resume: str | None = None, timeouts: OpenTimeouts = QUICK, options: SessionOptions | None = None
) -> tuple[SessionOpened, Outcome]:
    async with aclosing(AcpDriver(launch, timeouts, options)) as agent:
        opened = await agent.open(resume)
        return opened, await agent.prompt(["hello"], GENEROUS, asyncio.Event(), lambda _: None)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# An agent that cannot be started


@pytest.mark.parametrize("sandboxed", [True, False])
async def test_a_command_that_does_not_exist_is_named(tmp_path: Path, sandboxed: bool) -> None:
    argv = agent_argv(["no-such-agent", "--acp"]) if sandboxed else ("no-such-agent", "--acp")
    failed = await try_to_open(Launch(argv, {"PATH": os.environ["PATH"]}, tmp_path))
    assert isinstance(failed, CannotOpenError)
    assert failed.reason.startswith("`no-such-agent --acp` ")
    assert "No such file" in failed.reason + failed.stderr_tail
    assert "AGENT_COMMAND" in failed.next_step


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    failed = await try_to_open(Launch(agent_argv(["cat"]), {"PATH": os.environ["PATH"]}, tmp_path / "gone"))
    assert isinstance(failed, CannotOpenError)
    assert failed.reason == f"`cat` could not be started: No such file or directory: {tmp_path / 'gone'}"


async def test_an_agent_that_never_answers_is_given_up(odd: Callable[[Plan], Launch]) -> None:
    failed = await try_to_open(odd({"initialize": [[]]}), timeouts=OpenTimeouts(answer_seconds=0.3))
    assert isinstance(failed, CannotOpenError)
    assert "gave no answer within 0.3 s when asked to start" in failed.reason


async def test_an_agent_of_another_protocol_version_is_refused(odd: Callable[[Plan], Launch]) -> None:
    failed = await try_to_open(odd({"initialize": [[{"result": {"protocolVersion": 2}}]]}))
    assert isinstance(failed, CannotOpenError)
    assert "speaks version 2 of the Agent Client Protocol, not 1" in failed.reason


@pytest.mark.parametrize("method", ["initialize", "session/new"])
async def test_an_agent_that_is_not_logged_in_says_so(odd: Callable[[Plan], Launch], method: str) -> None:
    failed = await try_to_open(odd({method: [AUTH]}))
    assert isinstance(failed, CannotOpenError)
    assert "wants to be logged in: Authentication required (run login)" in failed.reason
    assert "key or login" in failed.next_step


async def test_an_agent_that_dies_at_the_start_is_reported_with_its_status(odd: Callable[[Plan], Launch]) -> None:
    failed = await try_to_open(odd({"session/new": [DIES]}))
    assert isinstance(failed, CannotOpenError)
    assert "ended with exit status 7 when asked to begin a session" in failed.reason


# A stored session


async def test_resume_is_preferred_if_announced(odd: Callable[[Plan], Launch]) -> None:
    launch = odd({"initialize": [CAN_RESUME]})
    assert await try_to_open(launch, "kept") == SessionOpened("kept", resumed=True, lost=None)
    assert methods(launch) == ["initialize", "session/resume"]


@pytest.mark.parametrize("replay", ["before", "unknown"])
async def test_history_replayed_before_the_answer_is_not_the_answer(
    odd: Callable[[Plan], Launch], replay: Literal["before", "unknown"]
) -> None:
    past = {"text": "old words"}
    launch = odd({"session/load": [[past, past, {"result": {}}]]})
    # A wait for silence would take longer than the test's limit.
    assert await converse(launch, "kept", OpenTimeouts(quiet_seconds=1000), SessionOptions(replay=replay)) == (
        SessionOpened("kept", resumed=True, lost=None),
        AgentDone("the answer"),
    )


@pytest.mark.parametrize(("replay", "before"), [("after", [{"text": "old words"}]), ("unknown", [])])
async def test_history_replayed_after_the_answer_is_not_the_answer(
    odd: Callable[[Plan], Launch], replay: Literal["after", "unknown"], before: list[Any]
) -> None:
    past = {"text": "old words"}
    launch = odd({"session/load": [[*before, {"result": {}}, past, {"pause": 0.1}, past]]})
    options = SessionOptions(replay=replay)
    async with aclosing(AcpDriver(launch, OpenTimeouts(quiet_seconds=2), options)) as agent:
        assert await agent.open("kept") == SessionOpened("kept", resumed=True, lost=None)
        answer = await agent.prompt(["hello"], GENEROUS, asyncio.Event(), lambda _: None)
        assert answer == AgentDone("the answer")


async def test_text_of_another_session_is_not_the_answer(odd: Callable[[Plan], Launch]) -> None:
    launch = odd(prompted({"text": "A"}, {"text": "?", "session": "x"}, ENDS))
    _, outcome = await converse(launch)
    assert outcome == AgentDone("A")


async def test_a_missing_login_while_resuming_is_reported(odd: Callable[[Plan], Launch]) -> None:
    launch = odd({"session/load": [AUTH]})
    assert isinstance(await try_to_open(launch, "kept"), CannotOpenError)
    assert "session/new" not in methods(launch)


@pytest.mark.parametrize("words", ["Session is busy", "thread has an active writer"])
async def test_a_busy_session_is_asked_for_once_more(odd: Callable[[Plan], Launch], words: str) -> None:
    busy = [{"error": {"code": -32603, "message": "Internal error", "data": {"details": words}}}]
    launch = odd({"session/load": [busy, [{"result": {}}]]})
    assert await try_to_open(launch, "kept") == SessionOpened("kept", resumed=True, lost=None)


async def test_a_session_that_stays_busy_is_lost(odd: Callable[[Plan], Launch]) -> None:
    launch = odd({"session/load": [[{"error": {"code": -32603, "message": "busy"}}]]})
    assert await try_to_open(launch, "kept") == SessionOpened("fresh", False, "the agent could not continue it: busy")
    assert methods(launch).count("session/load") == 2


async def test_an_agent_that_dies_while_resuming_is_started_once_more(odd: Callable[[Plan], Launch]) -> None:
    launch = odd({"session/load": [DIES, [{"result": {}}]]})
    assert await try_to_open(launch, "kept") == SessionOpened("kept", resumed=True, lost=None)
    assert methods(launch) == ["initialize", "session/load"] * 2


async def test_a_session_that_always_kills_its_agent_is_lost(odd: Callable[[Plan], Launch]) -> None:
    launch = odd({"session/load": [DIES]})
    opened, outcome = await converse(launch, "kept")
    assert opened == SessionOpened("fresh", False, "the agent ended with exit status 7 when it should continue it")
    assert outcome == AgentDone("the answer")


async def test_a_session_that_never_loads_is_lost(odd: Callable[[Plan], Launch]) -> None:
    launch = odd({"initialize": [CAN_RESUME], "session/resume": [[]]})
    # Long enough for the other answers, which have the same limit.
    opened = await try_to_open(launch, "kept", OpenTimeouts(answer_seconds=10))
    assert opened == SessionOpened("fresh", False, "the agent did not continue it within 10 s")


async def test_a_session_that_comes_back_under_another_id_is_lost(odd: Callable[[Plan], Launch]) -> None:
    launch = odd({"session/load": [[{"result": {"sessionId": "other"}}]]})
    assert await try_to_open(launch, "kept") == SessionOpened("fresh", False, "the agent answered with another session")


# Protocol errors


@pytest.mark.parametrize(
    ("end", "words"),
    [({"exit": 0}, "ended with exit status 0"), ({"close_stdout": True}, "closed its connection")],
)
async def test_an_agent_that_leaves_in_the_middle_fails_the_prompt(
    odd: Callable[[Plan], Launch], end: dict[str, Any], words: str
) -> None:
    _, outcome = await converse(odd(prompted({"text": "I will"}, end)))
    assert outcome == Failed(f"The agent {words} in the middle of its work.", "")


async def test_text_around_a_tool_call_is_two_paragraphs(odd: Callable[[Plan], Launch]) -> None:
    said = ({"text": "Let "}, {"text": "me."}, TOOL_CALL, {"text": "Done."})
    _, outcome = await converse(odd(prompted(*said, ENDS)))
    assert outcome == AgentDone("Let me.\n\nDone.")


async def test_unknown_messages_of_a_newer_protocol_are_ignored(
    odd: Callable[[Plan], Launch], caplog: pytest.LogCaptureFixture
) -> None:
    strange: list[dict[str, Any]] = [
        {"send": {"method": "session/update", "params": {"sessionId": "fresh", "update": {"sessionUpdate": "dance"}}}},
        {"send": {"method": "session/update", "params": [1]}},
        {"send": {"method": "session/celebrate", "params": {}}},
        {"send": {"id": 99, "result": "to nothing"}},
        {"text": "O\0K \ud800"},
    ]
    _, outcome = await converse(odd(prompted(*strange, ENDS)))
    assert outcome == AgentDone("OK \ufffd")
    assert not caplog.records


async def test_a_form_that_belongs_to_no_tool_call_is_declined(odd: Callable[[Plan], Launch]) -> None:
    form = {"mode": "form", "requestId": 1, "message": "Sign in?", "requestedSchema": {"type": "object"}}
    ask = {"send": {"id": "q", "method": "elicitation/create", "params": form}}
    launch = odd(prompted(ask, {"await_client_answer": True}, {"text": "ok"}, ENDS))
    _, outcome = await converse(launch)
    assert outcome == AgentDone("ok")
    assert heard(launch)[-1]["result"] == {"action": "decline"}


@pytest.mark.parametrize("method", ["fs/read_text_file", "fs/write_text_file", "terminal/create", "_vendor/thing"])
async def test_methods_that_the_bot_does_not_offer_are_refused(odd: Callable[[Plan], Launch], method: str) -> None:
    ask = {"send": {"id": "q", "method": method, "params": {}}}
    launch = odd(prompted(ask, {"await_client_answer": True}, {"text": "ok"}, ENDS))
    _, outcome = await converse(launch)
    assert outcome == AgentDone("ok")
    assert heard(launch)[-1]["error"]["code"] == -32601
    capabilities = heard(launch)[0]["params"]["clientCapabilities"]
    assert capabilities == {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        "elicitation": {"form": {}},
        "session": {"notices": {}},
    }


async def test_a_permission_asked_for_after_the_stop_is_answered_cancelled(odd: Callable[[Plan], Launch]) -> None:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    params = {"sessionId": "fresh", "toolCall": {"toolCallId": "1"}, "options": options}
    ask = {"send": {"id": "q", "method": "session/request_permission", "params": params}}
    hear = {"await_client_answer": True}
    cancelled = {"result": {"stopReason": "cancelled"}}
    launch = odd(prompted({"text": "x"}, ask, hear, {"text": "y"}, hear, ask, hear, cancelled))
    stop = asyncio.Event()

    def on_event(event: AgentEvent) -> None:
        assert event in (Said("x"), ToolStarted("1"))
        if isinstance(event, ToolStarted):
            stop.set()

    async with aclosing(AcpDriver(launch, QUICK)) as agent:
        await agent.open(None)
        assert await agent.prompt(["hello"], GENEROUS, stop, on_event) == Cancelled()
    before, cancel, after = heard(launch)[-3:]
    assert before["result"]["outcome"] == {"outcome": "selected", "optionId": "yes"}
    assert cancel["method"] == "session/cancel"
    assert after["result"]["outcome"] == {"outcome": "cancelled"}


# Processes


async def test_child_processes_end_with_the_agent(odd: Callable[[Plan], Launch], tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    spawn = {"grandchild": [sys.executable, "-c", deaf]}
    await converse(odd(prompted(spawn, {"text": "done"}, ENDS)))
    pid = int((tmp_path / "grandchild").read_text())
    await until_true(lambda: not is_alive(pid))


async def test_a_grandchild_outside_the_group_does_not_delay_the_end(
    odd: Callable[[Plan], Launch], tmp_path: Path
) -> None:
    spawn = {"grandchild": ["setsid", "sleep", "1000"]}
    try:
        await converse(odd(prompted(spawn, {"text": "done"}, ENDS)))
    finally:
        os.kill(int((tmp_path / "grandchild").read_text()), signal.SIGKILL)


BOT = """
import asyncio, json, sys
from contextlib import aclosing
from pathlib import Path
from bot.agents.acp import AcpDriver
from bot.agents.driver import Launch

async def main(argv, cwd):
    async with aclosing(AcpDriver(Launch(tuple(argv), {}, Path(cwd)))) as agent:
        print(await agent.open(None), flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*json.loads(sys.argv[1])))
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
async def test_an_agent_dies_with_the_bot_even_if_it_notices_nothing(
    odd: Callable[[Plan], Launch], tmp_path: Path
) -> None:
    launch = odd({"session/new": [[{"result": {"sessionId": "s"}}, {"pause": 1000}]]})
    arguments = json.dumps([launch.argv, str(launch.cwd)])
    bot = await asyncio.create_subprocess_exec(sys.executable, "-c", BOT, arguments, stdout=subprocess.PIPE)
    assert bot.stdout is not None
    assert b"Opened" in await asyncio.wait_for(bot.stdout.readline(), PATIENCE_SECONDS)
    pid = int((tmp_path / "pid").read_text())
    assert is_alive(pid)
    bot.kill()
    await bot.communicate()
    await until_true(lambda: not is_alive(pid))
