"""An agent that misbehaves as planned; stdlib only. `misbehaving_agent.py PLAN STATE_DIRECTORY`

PLAN is JSON: for a method, a reaction for its first call, its second …; the last one repeats. Calls are counted
across processes. One reaction is a list of: {"result": …}, {"error": …}, {"send": message}, {"text": chunk},
{"exit": status}, {"close_stdout": true}, {"pause": seconds}, {"grandchild": argv}, {"await_client_answer": true}.
Received messages go to STATE_DIRECTORY/heard.jsonl, the process id to STATE_DIRECTORY/pid.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

USUAL: dict[str, list[list[dict[str, Any]]]] = {
    "initialize": [[{"result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}}]],
    "session/new": [[{"result": {"sessionId": "fresh"}}]],
    "session/load": [[{"result": {}}]],
    "session/resume": [[{"result": {}}]],
    "session/prompt": [[{"text": "the answer"}, {"result": {"stopReason": "end_turn"}}]],
}


def emit(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def react(message: dict[str, Any], reaction: dict[str, Any]) -> None:
    match reaction:
        case {"result": result}:
            emit({"id": message["id"], "result": result})
        case {"error": error}:
            emit({"id": message["id"], "error": error})
        case {"send": sent}:
            emit(sent)
        case {"text": text, **rest}:
            chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
            session = rest.get("session", message["params"].get("sessionId"))
            emit({"method": "session/update", "params": {"sessionId": session, "update": chunk}})
        case {"exit": status}:
            os._exit(status)
        case {"close_stdout": True}:
            os.close(1)
            time.sleep(1000)
        case {"pause": seconds}:
            time.sleep(seconds)
        case {"grandchild": argv}:
            child = subprocess.Popen(argv)
            Path(sys.argv[2], "grandchild").write_text(str(child.pid))
        case {"await_client_answer": True}:
            hear()
        case _:
            raise ValueError(reaction)


def hear() -> dict[str, Any] | None:
    line = sys.stdin.readline()
    with Path(sys.argv[2], "heard.jsonl").open("a") as heard:
        heard.write(line)
    return json.loads(line) if line else None


def count(method: str) -> int:
    """Return how often the method was called before."""
    with Path(sys.argv[2], "calls").open("a+") as calls:
        calls.seek(0)
        before = calls.read().split().count(method)
        calls.write(method + "\n")
    return before


def main() -> None:
    plan = USUAL | json.loads(sys.argv[1])
    Path(sys.argv[2], "pid").write_text(str(os.getpid()))
    while (message := hear()) is not None:
        method = message.get("method", "")
        reactions = plan.get(method, [[]])
        for reaction in reactions[min(count(method), len(reactions) - 1)]:
            react(message, reaction)


if __name__ == "__main__":
    main()
