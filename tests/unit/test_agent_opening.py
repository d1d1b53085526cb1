"""The driver for a value of AGENT."""

import sys

import pytest

from bot.agents.opening import load_library


def test_the_library_of_an_agent_is_loaded_before_its_first_session() -> None:
    load_library("codex")

    assert "bot.agents.acp" in sys.modules


def test_an_agent_that_is_not_installed_is_told_of_when_a_session_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bot.agents.claude", raising=False)
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)  # as if it were not there

    load_library("claude")
