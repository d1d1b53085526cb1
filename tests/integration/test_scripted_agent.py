"""The scripted agent without the bot, which asks only one thing at a time."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_SECONDS

COMMAND = [sys.executable, "-P", "-m", "bot.simulated.agent"]


class Client:
    """A client of an agent in its own directory."""

    def __init__(self, process: "subprocess.Popen[bytes]", home: Path) -> None:
        self.process = process
        self.home = home

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        return message

    def new_session(self) -> str:
        self.send(id="new", method="session/new", params={"cwd": str(self.home), "mcpServers": []})
        return str(self.hear()["result"]["sessionId"])

    def prompt(self, session: str, *lines: str) -> None:
        block = {"type": "text", "text": "\n".join(lines)}
        self.send(id="prompt", method="session/prompt", params={"sessionId": session, "prompt": [block]})


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    environment = {"HOME": str(tmp_path)}
    with subprocess.Popen(
        COMMAND, env=environment, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Client(process, tmp_path)
        process.kill()


def test_it_starts_without_what_makes_a_start_slow() -> None:
    slow = {"acp", "argparse", "asyncio", "dataclasses", "inspect", "pydantic", "subprocess", "uuid"}
    program = (
        "import sys; before = {*sys.modules}; import bot.simulated.agent.__main__; print(*{*sys.modules} - before)"
    )
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert slow.isdisjoint(loaded.split())


def test_everything_else_is_answered_while_a_prompt_hangs_and_a_cancel_ends_it(client: Client) -> None:
    session = client.new_session()
    client.prompt(session, "say Here.", "hang")
    assert client.hear()["params"]["update"]["content"]["text"] == "Here."
    assert client.new_session() != session
    client.send(id=7, method="session/nonsense")
    assert client.hear()["error"]["code"] == -32601
    client.send(method="session/cancel", params={"sessionId": session})
    assert client.hear() == {"jsonrpc": "2.0", "id": "prompt", "result": {"stopReason": "cancelled"}}


@pytest.mark.parametrize("lines", [("hang",), ("wait never",), ("permission",)])
def test_the_end_of_stdin_ends_it_and_the_session_is_kept(client: Client, lines: tuple[str, ...]) -> None:
    session = client.new_session()
    client.prompt(session, "say Here.", *lines)
    client.hear()
    client.process.communicate(timeout=PATIENCE_SECONDS)
    assert client.process.returncode == 0
    stored = json.loads((client.home / f".scripted-agent/{session}.json").read_text())
    assert stored["history"] == [["\n".join(("say Here.", *lines)), "Here."]]


def test_a_request_without_what_the_protocol_requires_is_refused(client: Client) -> None:
    client.send(id=1, method="session/new", params={"cwd": str(client.home)})
    assert client.hear()["error"]["code"] == -32602
