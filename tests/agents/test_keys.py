"""The ways to a model that an operator can set: what the real programs send, and what they are given."""

import json
from pathlib import Path

import pytest

from tests.agents.test_whole_way import patience, settings_of  # noqa: F401 - the fixture waits longer
from tests.support.models.server import SimulatedModels
from tests.support.world import Talk, World, open_world

GATEWAY = "/gateway"
# The key that is set, the variable of the address, and what begins the path of a request to the model.
PROXIED = {
    "ANTHROPIC_API_KEY": ("claude", "ANTHROPIC_BASE_URL", "/v1/messages", "x-api-key"),
    "ANTHROPIC_AUTH_TOKEN": ("claude", "ANTHROPIC_BASE_URL", "/v1/messages", "authorization"),
    "CLAUDE_CODE_OAUTH_TOKEN": ("claude", "ANTHROPIC_BASE_URL", "/v1/messages", "authorization"),
    "AWS_BEARER_TOKEN_BEDROCK": ("claude", "ANTHROPIC_BEDROCK_BASE_URL", "/model/", "authorization"),
    "OPENAI_API_KEY": ("codex", "OPENAI_BASE_URL", "/v1/responses", "authorization"),
}
SECRET = "sk-ant-oat01-the-real-one-0123456789"


@pytest.mark.parametrize("key", PROXIED)
async def test_the_proxy_puts_the_real_key_into_requests_to_the_gateways_path(
    key: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    agent, address, path, header = PROXIED[key]
    # OpenAI's programs expect an address that ends with /v1, Anthropic's one without.
    gateway = models.url + GATEWAY + ("/v1" if agent == "codex" else "")
    set_up = {**settings_of(agent, models), "ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "", "ANTHROPIC_BASE_URL": ""}
    more = {**set_up, key: SECRET, address: gateway, "AGENT_SANDBOX": "bwrap", "AGENT_MODEL": "some-model-7"}
    async with open_world(database_url, tmp_path, more) as world:
        issue = await world.maria.opens_issue("Greet people")
        seen = await environment(world, issue)
        [model] = await world.turns("model")
    assert SECRET not in seen
    assert address in seen or agent == "codex", "the agent is led to the proxy"
    asked = [one for one in models.requests if one.path.startswith(GATEWAY + path) and b"env | sort" in one.body]
    assert asked
    assert all(one.headers[header].removeprefix("Bearer ") == SECRET for one in asked)
    assert any("some-model-7" in one.path or json.loads(one.body).get("model") == "some-model-7" for one in asked)
    assert model == "some-model-7"


async def test_keys_that_sign_each_request_work_inside_the_sandbox(
    models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    inside = {"CLAUDE_CODE_USE_BEDROCK": "1", "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "AKIAOFTHISTEST"}
    inside |= {"AWS_SECRET_ACCESS_KEY": "signs-each-request", "ANTHROPIC_BEDROCK_BASE_URL": models.url}
    seen, authorization, path = await works_with(inside, models, database_url, tmp_path)
    assert "AWS_SECRET_ACCESS_KEY" in seen
    assert authorization.startswith("AWS4-HMAC-SHA256 Credential=AKIAOFTHISTEST")
    assert path.startswith("/model/some-model-7/")


async def test_a_gateway_to_vertex_that_signs_works(models: SimulatedModels, database_url: str, tmp_path: Path) -> None:
    inside = {"CLAUDE_CODE_USE_VERTEX": "1", "CLAUDE_CODE_SKIP_VERTEX_AUTH": "1", "CLOUD_ML_REGION": "europe-west1"}
    inside |= {"ANTHROPIC_VERTEX_PROJECT_ID": "shop", "ANTHROPIC_VERTEX_BASE_URL": f"{models.url}/v1"}
    _, authorization, path = await works_with(inside, models, database_url, tmp_path)
    assert authorization == ""
    assert path.startswith("/v1/projects/shop/locations/europe-west1/publishers/anthropic/models/some-model-7:")


async def works_with(
    inside: dict[str, str], models: SimulatedModels, database_url: str, tmp_path: Path
) -> tuple[str, str, str]:
    """Let claude work with variables of AGENT_ENV; return those of its shell, and what its request had and named."""
    # The sandbox's own networks do not reach this machine, where the scripted model is.
    more = {**settings_of("claude", models), "ANTHROPIC_API_KEY": "", "AGENT_NETWORK": "host", "AGENT_SANDBOX": "bwrap"}
    more |= {**inside, "AGENT_ENV": ",".join(inside), "AGENT_MODEL": "some-model-7"}
    async with open_world(database_url, tmp_path, more) as world:
        seen = await environment(world, await world.maria.opens_issue("Greet people"))
    asked = next(one for one in models.requests if b"env | sort" in one.body)
    return seen, asked.headers.get("authorization", ""), asked.path


async def environment(world: World, issue: Talk) -> str:
    """Return the variables that the agent's shell has, from a file that it writes: its answer would be redacted."""
    await issue.says("@threadtree-bot\nrun env | sort > seen.txt\nsay I looked.")
    await issue.hears("I looked.")
    [worktree] = await world.worktrees("path")
    seen = world.text_of(worktree, "seen.txt")
    assert seen
    return seen
