"""Which agent and model a request gets, and the labels that name an agent."""

from pathlib import Path

import pytest

from bot.rules import Chosen, Rules
from bot.serve.base import CannotStartError
from bot.serve.parts import launcher_of, rules_of
from bot.settings import Need, load
from bot.thread.authority import Policy

RULES = Rules(agents=("claude", "codex", "custom"), agent="claude", model="opus")


@pytest.mark.parametrize(
    ("agent", "model", "asked", "gets"),
    [
        (None, None, None, ("claude", "opus")),
        ("claude", "sonnet", None, ("claude", "sonnet")),
        ("claude", None, None, ("claude", "opus")),
        ("codex", None, None, ("codex", None)),
        ("codex", "gpt-5", None, ("codex", "gpt-5")),
        # A label wins for its request, and no model of another agent comes along.
        ("codex", "gpt-5", "claude", ("claude", "opus")),
        (None, None, "codex", ("codex", None)),
        ("codex", "gpt-5", "codex", ("codex", "gpt-5")),
        # What cannot be asked any more is passed over.
        ("gemini", "pro", None, ("claude", "opus")),
        ("codex", "gpt-5", "gemini", ("codex", "gpt-5")),
    ],
)
def test_the_request_comes_before_the_conversation_and_that_before_the_rules(
    agent: str | None, model: str | None, asked: str | None, gets: tuple[str, str | None]
) -> None:
    found = Chosen(agent, model).within(RULES, asked)
    assert (found.agent, found.model) == gets


@pytest.mark.parametrize(
    ("label", "agent"),
    [
        *(("threadtree", ""), ("ThreadTree:Codex", "codex"), ("threadtree:", None), ("threadtree-codex", None)),
        *(("threadtrees:codex", None), ("bug", None), ("", None)),
    ],
)
def test_a_label_may_name_an_agent_after_a_colon(label: str, agent: str | None) -> None:
    assert Policy(99, "tree-bot[bot]", "tree-bot", "Threadtree").agent_of_label(label) == agent


def test_each_agent_of_the_list_must_be_installed_and_the_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "claude-agent-acp").touch(mode=0o755)
    keys = {"ANTHROPIC_API_KEY": "x", "OPENAI_API_KEY": "y", "AGENT_MODEL": "opus", "PATH": str(tmp_path)}
    given = {"DATA_DIR": str(tmp_path), "AGENT": "claude-acp,codex", **keys}
    settings = load(given, dotenv=None, needs=frozenset({Need.AGENT}))
    with pytest.raises(CannotStartError, match="AGENT=codex: `codex-acp` is not installed"):
        launcher_of(settings)
    (tmp_path / "codex-acp").touch(mode=0o755)
    assert {agent: Path(command[0]).name for agent, command in launcher_of(settings).agents.items()} == {
        "claude-acp": "claude-agent-acp",
        "codex": "codex-acp",
    }
    assert rules_of(settings) == Rules(
        agents=("claude-acp", "codex"), agent="claude-acp", model="opus", decided=rules_of(settings).decided
    )
