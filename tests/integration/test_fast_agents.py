"""Agents that print a finished answer at once: all of it arrives, and they wait while it is taken in."""

import asyncio
import sys
from pathlib import Path

import pytest

from bot.agents.driver import AgentDone, AgentEvent, Launch, PromptLimits, Said
from bot.agents.opening import driver_for
from tests.support.patience import PATIENCE_SECONDS

PIECES = 5_000
LIMITS = PromptLimits(total_seconds=PATIENCE_SECONDS, idle_seconds=PATIENCE_SECONDS, cancel_grace_seconds=0.2)
PROGRAMS = {
    "claude": """
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "control_request":
        answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
        send({"type": "control_response", "response": answer})
    elif message["type"] == "user":
        for number in range(PIECES):
            said = {"model": "m", "content": [{"type": "text", "text": f"w{number} "}]}
            send({"type": "assistant", "session_id": message["session_id"], "message": said})
        send({"type": "result", "subtype": "success", "duration_ms": 1, "duration_api_ms": 1, "is_error": False,
              "num_turns": 1, "session_id": message["session_id"], "result": ""})
""",
    "custom": """
for line in sys.stdin:
    message = json.loads(line)
    answers = {"initialize": {"protocolVersion": 1}, "session/new": {"sessionId": "one"}}
    if message["method"] == "session/prompt":
        for number in range(PIECES):
            text = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"w{number} "}}
            send({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "one", "update": text}})
        answers["session/prompt"] = {"stopReason": "end_turn"}
    send({"jsonrpc": "2.0", "id": message["id"], "result": answers[message["method"]]})
""",
}


@pytest.mark.parametrize("agent", PROGRAMS)
async def test_every_piece_of_an_answer_arrives_in_its_order(tmp_path: Path, agent: str) -> None:
    if agent == "claude":
        pytest.importorskip("claude_agent_sdk")
    program = tmp_path / "fast.py"
    program.write_text(f"""import json, sys
PIECES = {PIECES}
def send(message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()
{PROGRAMS[agent]}""")
    launch = Launch((sys.executable, str(program)), {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, tmp_path)
    heard: list[str] = []

    def hear(event: AgentEvent) -> None:
        if isinstance(event, Said):
            heard.append(event.text.strip())

    async with asyncio.timeout(PATIENCE_SECONDS), driver_for(agent, launch) as driver:
        await driver.open(None)
        ended = await driver.prompt(["go"], LIMITS, asyncio.Event(), hear)
    assert heard == [f"w{number}" for number in range(PIECES)]
    assert isinstance(ended, AgentDone)
    assert ended.text.split() == heard
