"""The words and states of `threadtree doctor`, which decide its exit status."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from bot.agents.presets import PRESETS
from bot.cli.doctor.checks import (
    Trial,
    agent_check,
    limits_check,
    network_check,
    sandbox_check,
    setting_warnings,
    user_checks,
)
from bot.cli.doctor.pushes import pushes_check
from bot.cli.doctor.services import State, connections_check, model_checks
from bot.github.answers import BranchRule
from bot.sandbox.bwrap import Bwrap, Unusable
from bot.sandbox.limits import Enforcement, Group, Limits
from bot.settings import Need, Settings, load

USABLE = "0.11.0"
UNUSABLE = Unusable("It is forbidden.", "Allow it. Or set AGENT_SANDBOX=off, and the agent can do anything.")
WORKS = Trial("0.61.0")
BROKEN = Trial("0.61.0", "`gemini` wants to be logged in.", "Give it its key.")


def given(**variables: str) -> Settings:
    return load({"DATA_DIR": "/data", **variables}, dotenv=None)


@pytest.mark.parametrize(
    ("setting", "probed", "state"),
    [
        *(("auto", USABLE, "ok"), ("bwrap", USABLE, "ok"), ("off", USABLE, "warning")),
        *(("off", UNUSABLE, "warning"), ("auto", UNUSABLE, "problem"), ("bwrap", UNUSABLE, "problem")),
    ],
)
def test_a_sandbox_is_a_problem_where_it_is_asked_for_and_cannot_be_had(
    setting: str, probed: str | Unusable, state: State
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


def sandbox(group: Group | None, *, is_root: bool) -> Bwrap:
    return Bwrap(Path("/data"), Path("/data"), "/usr/bin", "bwrap", Enforcement(Limits(), group, is_root))


def test_limits_say_what_holds_them() -> None:
    group = Group(Path("/group"), memory=True)
    held = limits_check(given(), sandbox(group, is_root=True))
    assert "1024 processes (enforced by a cgroup), 8 GiB of memory (enforced by a cgroup)" in held.found
    assert held.state == "ok"
    by_user = limits_check(given(), sandbox(None, is_root=False))
    memory = "8 GiB of memory (enforced by rlimit, each process by itself)"
    assert f"1024 processes (enforced by rlimit), {memory}" in by_user.found
    assert by_user.state == "ok"


def test_root_is_warned() -> None:
    assert [check.state for check in user_checks(0)] == ["warning"]
    assert user_checks(1000) == []


def test_root_is_warned_where_nothing_holds_the_number_of_processes() -> None:
    check = limits_check(given(), sandbox(None, is_root=True))
    assert check.state == "warning"
    assert "1024 processes (not enforced)" in check.found


def test_limits_of_a_turn_are_named_without_a_sandbox_too() -> None:
    check = limits_check(given(TURN_TIMEOUT_SECONDS="60", TURN_IDLE_TIMEOUT_SECONDS="7.5"), None)
    assert check.found.startswith("a turn: 60 s, or 7.5 s")


def test_an_agent_is_told_with_its_version_the_tested_one_and_its_protocol() -> None:
    check = agent_check("gemini", WORKS, "in the sandbox")
    tested = PRESETS["gemini"].tested
    assert check.found == f"0.61.0 (tested with {tested}); speaks ACP; starts a session in the sandbox"
    assert "driven by its SDK" in agent_check("claude", WORKS, "in the sandbox").found


@pytest.mark.parametrize(
    ("agent", "variables", "asked"),
    [
        ("claude", {"ANTHROPIC_API_KEY": "sk-1"}, ("https://api.anthropic.com/v1/models", "x-api-key", "sk-1")),
        (
            "codex",
            {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "https://gateway.test/openai/"},
            ("https://gateway.test/openai/v1/models", "authorization", "Bearer sk-1"),
        ),
    ],
)
async def test_the_vendor_is_asked_for_its_models_with_the_agents_key(
    agent: str, variables: dict[str, str], asked: tuple[str, str, str]
) -> None:
    requests: list[tuple[str, str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append((str(request.url), asked[1], request.headers[asked[1]]))
        return httpx.Response(200, json={"data": []})

    [check] = await model_checks(with_agent(agent, **variables), client(answer))
    assert (check.state, requests) == ("ok", [asked])


@pytest.mark.parametrize(("status", "state"), [(200, "ok"), (401, "problem"), (403, "problem"), (404, "warning")])
async def test_a_key_that_the_vendor_refuses_is_a_problem(status: int, state: State) -> None:
    given = with_agent("claude", ANTHROPIC_API_KEY="sk-1")
    [check] = await model_checks(given, client(lambda _: httpx.Response(status)))
    assert (check.check, check.state) == ("model of ANTHROPIC_API_KEY", state)


async def test_every_agents_model_is_asked_once_at_its_gateway_and_one_without_a_list_is_not() -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((str(request.url), request.headers.get("authorization", "")))
        return httpx.Response(200)

    keys = {"ANTHROPIC_AUTH_TOKEN": "one", "ANTHROPIC_BASE_URL": "https://gw.example/a", "OPENAI_API_KEY": "two"}
    keys |= {"CLAUDE_CODE_OAUTH_TOKEN": "three", "OPENAI_BASE_URL": "https://gw.example/o/v1"}
    await model_checks(with_agent("claude,claude-acp,codex", **keys), client(answer))
    assert asked == [
        ("https://gw.example/a/v1/models", "Bearer one"),
        ("https://gw.example/o/v1/models", "Bearer two"),
    ]


def test_secrets_that_the_agents_can_read_are_named() -> None:
    given = with_agent(
        "claude,codex",
        AGENT_ENV="AWS_SECRET_ACCESS_KEY,AWS_REGION,OPENAI_API_KEY",
        AWS_SECRET_ACCESS_KEY="a-secret",
        AWS_REGION="eu-west-1",
        OPENAI_API_KEY="a-key",
    )
    [found] = [check.found for check in setting_warnings(given) if "AGENT_ENV" in check.found]
    assert found == "AGENT_ENV hands AWS_SECRET_ACCESS_KEY to the agents: what runs inside the sandbox can read it"


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        ("claude", []),
        ("codex", ["AGENT=codex tells no cost"]),
        ("claude-acp", ["AGENT=claude-acp tells its cost at the end of its answer only"]),
    ],
)
def test_a_limit_on_cost_that_does_not_hold_the_agent_is_told(agent: str, told: list[str]) -> None:
    keys = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY"), "a key")
    limited = with_agent(agent, MAX_COST_USD_PER_DAY="20", **keys)
    so = ", so MAX_COST_USD_PER_DAY does not stop it at its work"
    assert [check.found for check in setting_warnings(limited)] == [f"{words}{so}" for words in told]
    assert setting_warnings(with_agent(agent, **keys)) == []


def with_agent(agent: str, **variables: str) -> Settings:
    return load({"DATA_DIR": "/data", "AGENT": agent, **variables}, dotenv=None, needs=frozenset({Need.AGENT}))


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def named(operator: str, pattern: str, *, negate: bool = False) -> BranchRule:
    return BranchRule("branch_name_pattern", {"operator": operator, "pattern": pattern, "negate": negate})


@pytest.mark.parametrize(
    ("rules", "state"),
    [
        ([], "ok"),
        ([BranchRule("deletion"), BranchRule("non_fast_forward"), BranchRule("max_file_size")], "ok"),
        *(([BranchRule(one)], "problem") for one in ("creation", "update", "pull_request", "merge_queue")),
        ([named("starts_with", "threadtree/")], "ok"),
        ([named("starts_with", "threadtree/", negate=True)], "problem"),
        ([named("ends_with", "issue-1")], "ok"),
        ([named("contains", "feature")], "problem"),
        ([named("regex", "^threadtree/")], "warning"),
        ([BranchRule("commit_message_pattern", {"operator": "contains", "pattern": "SHOP"})], "warning"),
        ([BranchRule("required_status_checks")], "warning"),
        ([BranchRule("of_next_year")], "warning"),
        ([BranchRule("required_signatures")], "problem"),
        (None, "warning"),
    ],
)
def test_rules_of_github_that_refuse_pushes_are_a_problem(rules: list[BranchRule] | None, state: State) -> None:
    check = pushes_check("acme/shop", "threadtree/issue-1", rules, signs=False)
    assert check.state == state
    assert all(f"`{rule.type}`" in check.found for rule in rules or () if state != "ok")


def test_rules_that_demand_signatures_take_pushes_that_are_signed() -> None:
    rules = [BranchRule("required_signatures")]
    assert pushes_check("acme/shop", "threadtree/issue-1", rules, signs=True).state == "ok"


@pytest.mark.parametrize(("most", "machines", "state"), [(97, 4, "ok"), (97, 5, "warning"), (17, 1, "warning")])
def test_all_machines_must_be_able_to_connect_at_once(most: int, machines: int, state: str) -> None:
    check = connections_check("Postgres 18 answers", most, machines)
    assert check.state == state
    if state == "warning":
        assert f"need up to {20 * machines}" in check.found
        assert check.next_step == f"Set Postgres' max_connections to {20 * machines + 10} or more."
