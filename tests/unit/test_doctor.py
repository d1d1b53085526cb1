"""The words and states of `threadtree doctor`, which decide its exit status."""

from dataclasses import replace
from pathlib import Path

import pytest

from bot.doctor.checks import (
    Check,
    Finding,
    State,
    agent_check,
    known_settings,
    limits_check,
    network_check,
    sandbox_check,
    setting_warnings,
    settings_checks,
)
from bot.sandbox.cage import Cage, Unusable, Usable
from bot.sandbox.limits import Enforcement, Group, Limits
from bot.settings import Settings, load

USABLE = Usable("0.11.0")
UNUSABLE = Unusable("It is forbidden.", "Allow it. Or set AGENT_SANDBOX=off, and the agent can do anything.")
WORKS = Finding("gemini", True, "0.61.0", "0.60.0", None, None)
BROKEN = replace(WORKS, problem="`gemini` wants to be logged in.", next_step="Give it its key.")
MISSING = Finding("gemini", False, None, "0.60.0", "`gemini` is not installed.", "Install it: npm install gemini")


def given(**variables: str) -> Settings:
    return load({"DATA_DIR": "/data", **variables}, dotenv=None)


def test_each_problem_of_the_settings_is_a_line_with_its_next_step() -> None:
    assert settings_checks(["GITHUB_TOKEN is not set; set it, or an App.", "PORT is odd"]) == [
        Check("settings", "problem", "GITHUB_TOKEN is not set", "Set it, or an App."),
        Check("settings", "problem", "PORT is odd"),
    ]


def test_settings_without_a_problem_are_said_to_be_complete() -> None:
    [check] = settings_checks([])
    assert check.state == "ok"


def test_a_short_webhook_secret_and_names_without_effect_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("WORKTREE_BRANCH_EXPIRY_DAY=3\n")
    monkeypatch.setattr("bot.settings.NOT_BUILT", frozenset({"PLANNED"}))
    monkeypatch.setenv("PLANNED", "debug")
    short, long = (setting_warnings(given(GITHUB_WEBHOOK_SECRET=secret)) for secret in ("abc", "a secret of the test"))
    assert {check.state for check in short} == {"warning"}
    assert [check.found.split()[0] for check in short] == [
        "PLANNED",
        "WORKTREE_BRANCH_EXPIRY_DAY",
        "GITHUB_WEBHOOK_SECRET",
    ]
    assert short[1].next_step == "Did you mean WORKTREE_BRANCH_EXPIRY_DAYS?"
    assert len(long) == 2


@pytest.mark.parametrize(
    ("setting", "probed", "state"),
    [
        ("auto", USABLE, "ok"),
        ("bwrap", USABLE, "ok"),
        ("off", USABLE, "warning"),
        ("off", UNUSABLE, "warning"),
        ("auto", UNUSABLE, "problem"),
        ("bwrap", UNUSABLE, "problem"),
    ],
)
def test_a_sandbox_is_a_problem_where_it_is_asked_for_and_cannot_be_had(
    setting: str, probed: Usable | Unusable, state: State
) -> None:
    assert sandbox_check(setting, probed).state == state


def test_a_sandbox_that_is_off_comes_with_what_would_make_it_work() -> None:
    assert sandbox_check("off", UNUSABLE).next_step == "Allow it. Then set AGENT_SANDBOX=auto."
    assert sandbox_check("auto", UNUSABLE).next_step == UNUSABLE.what_to_do


@pytest.mark.parametrize(
    ("sandbox", "network", "state"),
    [
        ("auto", "internet", "ok"),
        ("auto", "none", "ok"),
        ("auto", "host", "warning"),
        ("off", "internet", "warning"),
    ],
)
def test_a_network_that_reaches_the_machine_itself_is_warned_of(sandbox: str, network: str, state: State) -> None:
    check = network_check(given(AGENT_SANDBOX=sandbox, AGENT_NETWORK=network))
    assert check.state == state
    assert f"AGENT_NETWORK={network}" in check.found


def cage(group: Group | None, *, is_root: bool) -> Cage:
    return Cage(Path("/data"), Path("/data"), "/usr/bin", "bwrap", Enforcement(Limits(), group, is_root))


def test_limits_say_what_holds_them() -> None:
    group = Group(Path("/group"), "pids.max", "memory.max")
    held = limits_check(given(), cage(group, is_root=True))
    assert "1024 processes (enforced by a cgroup), 8 GiB of memory (enforced by a cgroup)" in held.found
    assert held.state == "ok"
    by_user = limits_check(given(), cage(None, is_root=False))
    memory = "8 GiB of memory (enforced by rlimit, each process by itself)"
    assert f"1024 processes (enforced by rlimit), {memory}" in by_user.found
    assert by_user.state == "ok"


def test_root_is_warned_where_nothing_holds_the_number_of_processes() -> None:
    check = limits_check(given(), cage(None, is_root=True))
    assert check.state == "warning"
    assert "1024 processes (not enforced)" in check.found


def test_limits_of_a_turn_are_named_without_a_sandbox_too() -> None:
    check = limits_check(given(TURN_TIMEOUT_SECONDS="60", TURN_IDLE_TIMEOUT_SECONDS="7.5"), None)
    assert check.found.startswith("a turn: 60 s, or 7.5 s")


@pytest.mark.parametrize(
    ("finding", "chosen", "state"),
    [
        (WORKS, True, "ok"),
        (WORKS, False, "ok"),
        (BROKEN, True, "problem"),
        (BROKEN, False, "warning"),
        (MISSING, True, "problem"),
        (MISSING, False, "ok"),
    ],
)
def test_only_the_agent_that_is_chosen_can_be_a_problem(finding: Finding, chosen: bool, state: State) -> None:
    check = agent_check(finding, chosen, "in the sandbox")
    assert (check.check, check.state) == ("agent gemini", state)


def test_an_agent_is_told_with_its_version_the_tested_one_and_its_protocol() -> None:
    check = agent_check(WORKS, True, "in the sandbox")
    assert check.found == "chosen by AGENT; 0.61.0 (tested with 0.60.0); speaks ACP; starts a session in the sandbox"
    claude = agent_check(replace(WORKS, agent="claude"), False, "in the sandbox")
    assert "driven by its SDK" in claude.found


def test_an_agent_that_is_missing_names_what_to_install() -> None:
    assert agent_check(MISSING, True, "").next_step == "Install it: npm install gemini"


def test_the_valid_ones_of_broken_settings_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_TOKEN", "GITHUB_APP_ID", "GITHUB_WEBHOOK_SECRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENT", "gemini")
    monkeypatch.setenv("GEMINI_API_KEY", "a key")
    known = known_settings()
    assert known.agent == "gemini"
    assert any("GITHUB_TOKEN" in problem for problem in known.problems)

    monkeypatch.delenv("GEMINI_API_KEY")
    monkeypatch.setenv("AGENT_NETWORK", "none")
    known = known_settings()
    assert (known.agent, known.settings.agent_network) == ("gemini", "none")

    monkeypatch.setenv("AGENT_NETWORK", "everywhere")
    known = known_settings()
    assert known.settings.agent_network == "internet"
    assert any("AGENT_NETWORK" in problem for problem in known.problems)
