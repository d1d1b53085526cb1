"""Claude Code's unsuccessful ends of a prompt, and its unexpected messages."""

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bot.agents import presets
from bot.agents.driver import AgentDone, CannotOpenError, Failed, Launch, Outcome, SessionOpened, ToolEnded, Usage
from bot.agents.opening import driver_for
from bot.agents.presets import NotInstalled, command_of, preset
from tests.agents.conftest import Heard, ask

Plan = dict[str, list[dict[str, Any]]]
INIT = {"type": "system", "subtype": "init", "session_id": "SESSION"}


def text(words: str) -> dict[str, Any]:
    message = {"role": "assistant", "model": "m", "content": [{"type": "text", "text": words}]}
    return {"type": "assistant", "message": message, "parent_tool_use_id": None}


def result(**more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5}
    common = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "session_id": "SESSION", "usage": usage}
    return {"type": "result", "subtype": "success", "is_error": False, "stop_reason": "end_turn", **common, **more}


@pytest.fixture
def odd(tmp_path: Path) -> Callable[[Plan], Launch]:
    pytest.importorskip("claude_agent_sdk", reason="the extra `claude` is not installed")

    def launch(plan: Plan) -> Launch:
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        argv = (sys.executable, str(Path(__file__).with_name("odd_claude.py")), str(tmp_path / "plan.json"))
        return Launch(argv, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, tmp_path)

    return launch


async def outcome_of(launch: Launch, heard: Heard | None = None) -> Outcome:
    async with driver_for("claude", launch) as driver:
        assert isinstance(await driver.open(None), SessionOpened)
        return await ask(driver, "hello", heard=heard)


async def test_the_cost_of_the_session_is_told(odd: Callable[[Plan], Launch]) -> None:
    heard = Heard()
    await outcome_of(odd({"prompt": [INIT, text("hi"), result(total_cost_usd=0.5)]}), heard)
    assert heard[-1] == Usage(12, 0.5)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (result(is_error=True, result="API Error: overloaded", api_error_status=529), "overloaded (HTTP status 529)"),
        (result(subtype="error_during_execution", is_error=True, errors=["it broke"]), "it broke"),
        (result(subtype="error_max_turns"), "error_max_turns"),
        (result(stop_reason="max_tokens"), "limit of tokens"),
        (result(stop_reason="refusal"), "refused"),
        (result(stop_reason="bored"), "unknown reason (`bored`)"),
    ],
)
async def test_a_false_success_fails(odd: Callable[[Plan], Launch], end: dict[str, Any], words: str) -> None:
    outcome = await outcome_of(odd({"prompt": [INIT, text("hi"), end]}))
    assert isinstance(outcome, Failed)
    assert words in outcome.reason


async def test_a_success_without_words_fails(odd: Callable[[Plan], Launch]) -> None:
    outcome = await outcome_of(odd({"prompt": [INIT, text("  \n"), result()]}))
    assert outcome == Failed("The agent ended without an answer.", "")


async def test_a_session_other_than_the_requested_one_fails(odd: Callable[[Plan], Launch]) -> None:
    outcome = await outcome_of(odd({"prompt": [{**INIT, "session_id": "other"}, text("hi"), result()]}))
    assert isinstance(outcome, Failed)
    assert "another session" in outcome.reason


async def test_a_rejected_key_is_not_retried_for_minutes(odd: Callable[[Plan], Launch]) -> None:
    retry = {"type": "system", "subtype": "api_retry", "error": "authentication_failed", "error_status": 401}
    outcome = await outcome_of(odd({"prompt": [INIT, retry, {"sleep": 1000}]}))
    assert isinstance(outcome, Failed)
    assert "does not accept the key (HTTP status 401)" in outcome.reason


async def test_an_exit_in_the_middle_reports_the_end_of_stderr(odd: Callable[[Plan], Launch]) -> None:
    outcome = await outcome_of(odd({"prompt": [INIT, text("hi"), {"stderr": "out of memory"}, {"exit": 3}]}))
    assert outcome == Failed("The agent ended with exit status 3 in the middle of its work.", "out of memory")


async def test_junk_and_very_long_lines_do_no_harm(odd: Callable[[Plan], Launch]) -> None:
    junk = [{"raw": line} for line in ("not json", "[]", "42", '{"no": "type"}', '{"type": "news"}')]
    outcome = await outcome_of(odd({"prompt": [INIT, *junk, text("x" * 200_000), result()]}))
    assert isinstance(outcome, AgentDone)
    assert len(outcome.text) == 200_000


async def test_a_message_of_three_megabytes_ends_the_agent(odd: Callable[[Plan], Launch]) -> None:
    outcome = await outcome_of(odd({"prompt": [INIT, text("x" * 3_000_000), result()]}))
    assert outcome == Failed("The agent sent a message of more than 2 MB in the middle of its work.", "")


async def test_texts_that_cannot_be_stored_are_cleaned(odd: Callable[[Plan], Launch]) -> None:
    outcome = await outcome_of(odd({"prompt": [INIT, text("O\0K \ud800"), result()]}))
    assert isinstance(outcome, AgentDone)
    assert outcome.text == "OK \ufffd"


async def test_text_of_a_sub_agent_is_not_part_of_the_answer(odd: Callable[[Plan], Launch]) -> None:
    heard = Heard()
    inner = {**text("inner"), "parent_tool_use_id": "task"}
    outcome = await outcome_of(odd({"prompt": [INIT, text("one"), inner, text("two"), result()]}), heard)
    assert isinstance(outcome, AgentDone)
    assert outcome.text == "one\n\ntwo"
    assert not any(isinstance(event, ToolEnded) for event in heard)


async def test_a_failed_start_reports_the_end_of_stderr(odd: Callable[[Plan], Launch]) -> None:
    async with driver_for("claude", odd({"start": [{"stderr": "no licence"}, {"exit": 2}], "prompt": []})) as driver:
        with pytest.raises(CannotOpenError, match="ended with exit status 2") as failed:
            await driver.open(None)
    assert failed.value.stderr_tail == "no licence"


def test_without_the_sdk_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "find_spec", lambda _: None)
    chosen = preset("claude")
    assert chosen is not None
    command = command_of(chosen, os.defpath)
    assert isinstance(command, NotInstalled)
    assert "-m pip install 'claude-agent-sdk>=" in command.next_step


@pytest.mark.parametrize(("minute", "waits"), [("12-30", [15]), ("12-29", [])])
async def test_gemini_sessions_are_loaded_in_a_later_minute_only(
    tmp_path: Path, minute: str, waits: list[float]
) -> None:
    chats = tmp_path / "home" / ".gemini" / "tmp" / "worktree" / "chats"
    chats.mkdir(parents=True)
    (chats / f"session-2026-01-02T{minute}-0a1b2c3d.jsonl").touch()
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    launch = Launch(("/nowhere/gemini",), {"HOME": str(tmp_path / "home")}, tmp_path)
    now = datetime(2026, 1, 2, 12, 30, 45, tzinfo=UTC)
    async with driver_for("gemini", launch, clock=lambda: now, sleep=sleep) as driver:
        await driver.open("0a1b2c3d-0000-4000-8000-000000000000")
    assert waited == waits
