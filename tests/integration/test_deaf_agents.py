"""Agents that start and then read nothing: a prompt that does not fit into the pipe still has its clocks and /stop."""

import asyncio
import sys
from pathlib import Path
from typing import Literal

import pytest

from bot.agents.driver import Cancelled, Launch, PromptLimits, SessionOpened, TimedOut
from bot.agents.opening import driver_for
from tests.support.patience import PATIENCE_SECONDS, until_exists

PROGRAMS = {
    "claude": """
message = json.loads(sys.stdin.buffer.raw.readline(1 << 16))
answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
print(json.dumps({"type": "control_response", "response": answer}), flush=True)
""",
    "custom": """
for result in ({"protocolVersion": 1}, {"sessionId": "one"}):
    message = json.loads(sys.stdin.buffer.raw.readline(1 << 16))
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
""",
}


@pytest.mark.parametrize("how", ["limit", "stop"])
@pytest.mark.parametrize("agent", PROGRAMS)
async def test_a_prompt_that_nobody_reads_ends_by_its_limit_or_a_stop(
    tmp_path: Path, agent: str, how: Literal["limit", "stop"]
) -> None:
    if agent == "claude":
        pytest.importorskip("claude_agent_sdk")
    program = tmp_path / "deaf.py"
    program.write_text(f"import json, sys, time\n{PROGRAMS[agent]}\ntime.sleep(600)\n")
    launch = Launch((sys.executable, str(program)), {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, tmp_path)
    limits = PromptLimits(
        total_seconds=PATIENCE_SECONDS, idle_seconds=1 if how == "limit" else 60, cancel_grace_seconds=0.2
    )
    stop = asyncio.Event()
    async with asyncio.timeout(PATIENCE_SECONDS), driver_for(agent, launch) as driver:
        assert isinstance(await driver.open(None), SessionOpened)
        if how == "stop":
            asyncio.get_running_loop().call_later(0.2, stop.set)
        ended = await driver.prompt(["x" * (1 << 20)], limits, stop, lambda _: None)
    assert ended == (TimedOut("idle", 1) if how == "limit" else Cancelled())


@pytest.mark.parametrize("agent", PROGRAMS)
async def test_an_agent_that_answers_nothing_ends_when_its_opening_is_given_up(tmp_path: Path, agent: str) -> None:
    if agent == "claude":
        pytest.importorskip("claude_agent_sdk")
    started = tmp_path / "started"
    program = tmp_path / "silent.py"
    program.write_text(f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep(600)\n")
    launch = Launch((sys.executable, str(program)), {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, tmp_path)
    async with asyncio.timeout(PATIENCE_SECONDS), driver_for(agent, launch) as driver:
        opening = asyncio.create_task(driver.open("kept"))
        await until_exists(started)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening


async def test_a_stop_is_heard_while_an_agent_replays_the_past_without_end(tmp_path: Path) -> None:
    program = tmp_path / "replays.py"
    program.write_text(
        """
import json, sys, time
for result in ({"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}, {}):
    message = json.loads(sys.stdin.readline())
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
while True:
    past = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "Look"}
    update = {"method": "session/update", "params": {"sessionId": "kept", "update": past}}
    print(json.dumps({"jsonrpc": "2.0", **update}), flush=True)
    time.sleep(0.1)
"""
    )
    launch = Launch((sys.executable, str(program)), {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, tmp_path)
    limits = PromptLimits(total_seconds=PATIENCE_SECONDS, idle_seconds=PATIENCE_SECONDS, cancel_grace_seconds=0.2)
    stop = asyncio.Event()
    async with asyncio.timeout(PATIENCE_SECONDS), driver_for("custom", launch) as driver:
        assert await driver.open("kept") == SessionOpened("kept", resumed=True, lost=None)
        asyncio.get_running_loop().call_later(0.2, stop.set)
        began = asyncio.get_running_loop().time()
        assert await driver.prompt(["hello"], limits, stop, lambda _: None) == Cancelled()
        assert asyncio.get_running_loop().time() - began < 30  # the past is waited for twice as long
