"""A program in place of Claude Code that sends the messages of a plan, line by line, and then waits.

`python odd_claude.py PLAN …`: PLAN is a JSON file with `start` and `prompt`, lists of steps. A step is a message, or
`{"raw": TEXT}`, `{"stderr": TEXT}`, `{"exit": STATUS}`. `SESSION` in a message stands for the session asked for.
"""

import json
import sys
import time
from pathlib import Path


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    session = next(word.partition("=")[2] for word in sys.argv if word.startswith(("--session-id=", "--resume=")))
    do(plan.get("start", []), session)
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "control_request":
            answer = {"subtype": "success", "request_id": message["request_id"], "response": {}}
            say({"type": "control_response", "response": answer})
        elif message["type"] == "user":
            do(plan["prompt"], session)


def do(steps: list[dict[str, object]], session: str) -> None:
    for step in steps:
        match step:
            case {"raw": str(text)}:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()
            case {"stderr": str(text)}:
                sys.stderr.write(text + "\n")
                sys.stderr.flush()
            case {"exit": int(status)}:
                sys.exit(status)
            case {"sleep": int(seconds)}:
                time.sleep(seconds)
            case _:
                say(json.loads(json.dumps(step).replace("SESSION", session)))


def say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
