"""An agent that floods one channel until it is ended; the request names the channel. Standard library only.

It speaks the little of ACP that a turn needs: https://agentclientprotocol.com/protocol/overview
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

LINE_BYTES = 1_900_000
"""Just below the longest line that the bot reads: each one is as much work to parse as a line can be."""
FILES = 50_000


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                answer(message, {"protocolVersion": 1, "agentCapabilities": {}})
            case "session/new":
                answer(message, {"sessionId": "one"})
            case "session/prompt":
                flood(message["params"]["prompt"][-1]["text"].split()[-1], message)
            case _:
                pass


def flood(channel: str, prompt: dict[str, Any]) -> None:
    """Flood until the process is killed; the channel `answer` ends with the most text that an answer may have."""
    match channel:
        case "stdout":
            write_for_ever(1, b"this is no message\n" * 4096)
        case "line":
            write_for_ever(1, b'{"jsonrpc":"2.0","method":"x","params":[' + b"[]," * (LINE_BYTES // 3) + b"0]}\n")
        case "stderr":
            write_for_ever(2, b"an error that means nothing\n" * 2048)
        case "updates":
            call = {"sessionUpdate": "tool_call", "toolCallId": "n", "title": "t" * 200, "kind": "other"}
            write_for_ever(1, b"".join(update({**call, "toolCallId": str(number)}) for number in range(500)))
        case "files":
            fill(Path.cwd())
        case "answer":
            for text in ("![" * 30_000, "*_" * 30_000, "`" * 40_000, "> " * 20_000):
                content = {"type": "text", "text": text + "\n\n"}
                os.write(1, update({"sessionUpdate": "agent_message_chunk", "content": content}))
            answer(prompt, {"stopReason": "end_turn"})
        case other:
            raise SystemExit(f"there is no channel {other}")


def write_for_ever(descriptor: int, data: bytes) -> NoReturn:
    while True:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def fill(folder: Path) -> NoReturn:
    """Write small files, and write them again once there are FILES of them."""
    while True:
        for number in range(FILES):
            place = folder / f"flood-{number // 500}"
            place.mkdir(exist_ok=True)
            (place / str(number)).write_bytes(os.urandom(200))


def update(what: dict[str, Any]) -> bytes:
    params = {"sessionId": "one", "update": what}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode() + b"\n"


def answer(message: dict[str, Any], result: dict[str, Any]) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n")


if __name__ == "__main__":
    main()
