"""A mention reaches a real agent: it edits with its own tool, and the work is committed, pushed and answered."""

import asyncio
import base64
import contextlib
import json
import os
import re
import sys
from functools import partial
from pathlib import Path

import pytest

from bot.agents.presets import NotInstalled, command_of, preset
from bot.demo.pair import running_bot, settings_for
from bot.serve.parts import Surroundings
from bot.simulated.github.server import SimulatedGitHub
from bot.thread import tracking
from tests.agents.conftest import AGENTS, END_SECONDS, KEY
from tests.agents.install import PROGRAMS, node_folder
from tests.agents.planted import plant
from tests.agents.test_agents import REPORT_COST
from tests.agents.test_models import strings
from tests.end_to_end.test_thread_context import PNG
from tests.support import mcp_probe
from tests.support import world as test_world
from tests.support.clock import HandMovedClock
from tests.support.models.script import FINISHED
from tests.support.models.server import SimulatedModels
from tests.support.patience import eventually
from tests.support.world import open_world

PATIENCE_SECONDS = 180.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer: real agents take half a minute to start on a busy machine."""
    monkeypatch.setattr(test_world, "PATIENCE_SECONDS", PATIENCE_SECONDS)


def settings_of(agent: str, models: SimulatedModels) -> dict[str, str]:
    """Return an operator's settings for this agent, with the models' API here; skip if the agent is not installed."""
    chosen = preset(agent)
    assert chosen is not None
    path = os.pathsep.join([str(PROGRAMS), str(node_folder()), os.environ["PATH"]])
    if isinstance(command_of(chosen, path), NotInstalled):
        pytest.skip(f"{agent} is not installed; `make test-agents` does it")
    api = chosen.apis[0]
    return {"AGENT": agent, "AGENT_COMMAND": "", "PATH": path, api.key: KEY, api.base_url: models.url}


@pytest.mark.parametrize("sandbox", ["off", "bwrap"])
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_mention_becomes_pushed_work_and_the_next_one_continues(
    agent: str, sandbox: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": sandbox}
    async with open_world(database_url, tmp_path, more) as world:
        issue = await world.maria.opens_issue("Greet people")
        words = "write notes.txt: hello\nremember plum\nsay I wrote it.\nsay Commit: Write the notes"
        await issue.says(f"@threadtree-bot\n{words}")
        assert "Commit:" not in await issue.hears("I wrote it.", "1 file +")
        assert (await world.files((await world.branches())["threadtree/issue-1"]))["notes.txt"] == "hello"
        await issue.says("/pr")
        await issue.hears("Opened the pull request [#2](")
        [pull] = world.repository.pulls
        assert pull.title == "Write the notes", "the agent names the commit, and so the pull request"

        if agent != "gemini":  # In the same minute, Gemini's session could not be loaded (see bot.agents.opening).
            await issue.says("@threadtree-bot\nrecall")
            await issue.hears("I remember: plum.")

        await issue.says("@threadtree-bot /reset-context")
        await issue.hears("AI context reset.")
        await issue.says("@threadtree-bot\nrecall")
        await issue.hears("I remember: nothing.")


@pytest.mark.parametrize("agent", ["claude", "codex"])
async def test_a_message_in_the_middle_of_a_run_is_answered_with_it(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap"}
    async with open_world(database_url, tmp_path, more) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot\nrun until [ -e go ]; do sleep 0.1; done\nwrite notes.txt: old\nsay Old.")
        await issue.sees("Last step: ")
        await issue.says("@threadtree-bot\nwrite notes.txt: new\nsay New.")
        await issue.sees("[maria added](")
        [worktree] = await world.worktrees("path")
        await asyncio.to_thread((Path(worktree) / "go").touch)
        assert "Old." not in await issue.hears("New.", "[maria's request](", " with [maria's message](")
        assert (await world.files("threadtree/issue-1"))["notes.txt"] == "new"
        assert [at is not None for at in await world.turns("started_at")] == [True, False]


@pytest.mark.parametrize("agent", AGENTS)
async def test_the_operators_mcp_server_runs_in_the_sandbox_and_the_model_hears_it(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    if agent == "gemini":
        pytest.skip("in a folder that it does not trust, Gemini starts no MCP server at all")
    server = {"command": sys.executable, "args": [mcp_probe.__file__], "env": {"WORD": "quince"}}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"probe": server}}))
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap", "MCP_CONFIG": str(config)}
    # Otherwise Claude's model has to search for the tool first, which the simulated one cannot.
    names = [name for name in more if name.endswith(("_API_KEY", "_BASE_URL"))]
    more |= {"ENABLE_TOOL_SEARCH": "false", "AGENT_ENV": ",".join([*names, "ENABLE_TOOL_SEARCH"])}
    async with open_world(database_url, tmp_path, more) as world:
        evil = json.dumps({"mcpServers": {"evil": {"command": "touch", "args": ["evil-ran"]}}})
        await world.maria.pushes("main", {".mcp.json": evil})
        issue = await world.maria.opens_issue("Which word?")
        await issue.says("@threadtree-bot\nuse word\ntell")
        await issue.hears("The word is quince.")
        [worktree] = await world.worktrees("path")
        assert ".mcp.json" in await asyncio.to_thread(os.listdir, worktree)
        assert "evil-ran" not in await asyncio.to_thread(os.listdir, worktree), "the repository's own stay off"
    assert any(b"The word is quince." in request.body for request in models.requests)


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_review_of_a_real_agent_has_remarks_on_lines_and_changes_no_file(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap"}
    async with open_world(database_url, tmp_path, more) as world:
        await world.maria.pushes("greet", {"greet.py": "print('hello')\n"})
        pull = await world.maria.opens_pull("Greet people", head="greet")
        remark = {"path": "greet.py", "line": 1, "body": "Whom does it greet?"}
        review = json.dumps({"summary": "It greets nobody.", "comments": [remark]})
        leave = f"run printf '%s' '{review}' > \"$THREADTREE_OUT/review.json\""
        await pull.says(f"/review\nall of it\nrun touch greet.py pwned.txt\n{leave}\nsay I am done.")
        _, remarks = await pull.reviewed("It greets nobody.", "· 1 remark")
        assert [(one.path, one.line, one.body[:19]) for one in remarks] == [("greet.py", 1, "Whom does it greet?")]
        [worktree] = await world.worktrees("path")
        assert world.text_of(worktree, "pwned.txt") is None


@pytest.mark.parametrize("agent", AGENTS)
async def test_settings_of_a_repository_run_nothing_in_the_sandbox(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap"}
    # In the worktree, so that a program in the sandbox can leave a mark: it would be pushed.
    marks = tmp_path / "data" / "worktrees" / "acme" / "shop" / "issue-1" / "marks"
    plant(tmp_path / "planted", marks, "http://127.0.0.1:9/evil")
    planted = {
        str(path.relative_to(tmp_path / "planted")): path.read_text()
        for path in (tmp_path / "planted").rglob("*")
        if path.is_file()
    }
    async with open_world(database_url, tmp_path, more) as world:
        await world.maria.pushes("main", {**planted, "marks/.keep": ""})
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot\nwrite notes.txt: hello\nrun true\nsay I wrote it.")
        if agent == "opencode":
            await issue.hears("**Failed:**", "brings a plugin")
            assert list(await world.branches()) == ["main"]
        else:
            await issue.hears("I wrote it.", "1 file +")
        [worktree] = await world.worktrees("path")
        left = await asyncio.to_thread(os.listdir, Path(worktree) / "marks")
        assert left == [".keep"]


@pytest.mark.parametrize("agent", AGENTS)
async def test_the_model_is_sent_the_thread_the_instructions_and_the_image(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap"}
    async with open_world(database_url, tmp_path, more) as world:
        await world.maria.pushes("main", {"AGENTS.md": "canary-agents\n", ".gitignore": "*.log\n"})
        changed = dict.fromkeys(("AGENTS.md", "CLAUDE.md", "GEMINI.md"), "canary-branch\n")
        await world.maria.pushes("topic", changed, base="main")
        image = world.github.upload(PNG)
        pull = await world.maria.opens_pull("Greet people", f"canary-description ![]({image})", head="topic")
        await pull.says("canary-comment")
        await pull.says("@threadtree-bot\nsay I saw it.")
        await pull.hears("I saw it.")
    # A shorter one asks for a title of the session.
    sent = max((request.body for request in models.requests if b"say I saw it." in request.body), key=len)
    texts = list(strings(json.loads(sent)))
    trusted = "\n".join(re.sub(r"<data-(\w+) .*?</data-\1>", "", text, flags=re.DOTALL) for text in texts)
    told = {
        "description": any("canary-description" in text for text in texts),
        "comment": any("canary-comment" in text for text in texts),
        "AGENTS.md": "canary-agents" in trusted,
        "image": any(base64.b64encode(PNG).decode() in text for text in texts),
        "branch's instructions as such": "canary-branch" in trusted,
    }
    assert [what for what, is_told in told.items() if is_told] == ["description", "comment", "AGENTS.md", "image"]


@pytest.mark.parametrize("refusal", ["429", "529", "429 7200"])
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_model_that_asks_to_slow_down_is_told_of_and_waited_for(
    agent: str, refusal: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    """Some agents give up after a while, others try until the turn's time is over."""
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "off", "TURN_TIMEOUT_SECONDS": "20"}
    async with open_world(database_url, tmp_path, more) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says(f"@threadtree-bot\nrun true\nfail {refusal}")
        if refusal == "529":  # which all try again
            await issue.sees(tracking.MODEL_REFUSES)
        busy = "Waiting. The agent's model takes no requests at the moment. The agent continues at "
        limit = "Waiting. The usage limit of the agent's model is reached. The agent continues at "
        await issue.sees(limit if " " in refusal else busy)
        assert await world.turns("model") != [None]
        await issue.says("/stop")
        assert "**Stopped**" in "".join(await issue.hears_all())


@pytest.mark.parametrize("agent", ["claude", "opencode"])
async def test_at_the_cost_limit_it_is_told_to_finish_and_its_work_is_pushed(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap", "MAX_COST_USD_PER_TURN": "0.0001"}
    async with open_world(database_url, tmp_path, more) as world:
        issue = await world.maria.opens_issue("Greet people")
        await issue.says("@threadtree-bot\nwrite notes.txt: hello\nrun true\nrun sleep 1000")
        await issue.hears("for one request was reached", "1 file +", FINISHED)
        assert (await world.files((await world.branches())["threadtree/issue-1"]))["notes.txt"] == "hello"
        [(state, cost)] = await world.turns("state", "cost_usd")
        assert (state, cost >= 0.0001) == ("done", True)


@pytest.mark.parametrize("agent", AGENTS)
async def test_the_agent_leaves_the_description_of_the_pull_request(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap", "AUTO_PULL_REQUEST": "ready"}
    async with open_world(database_url, tmp_path, more) as world:
        issue = await world.maria.opens_issue("Greet people")
        text = "describe Title: Greet everybody\\n\\nAdds a greeting; `pytest`: 1 passed."
        await issue.says(f"@threadtree-bot\nwrite notes.txt: hello\n{text}\nsay I wrote it.")
        await issue.hears("I wrote it.", "[Pull request #2](")
        [pull] = world.repository.pulls
        assert pull.title == "Greet everybody"
        assert "\nAdds a greeting; `pytest`: 1 passed.\n\nRequested by maria" in (pull.body or "")
    assert any(b"# The description of the pull request" in one.body for one in models.requests)


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent != "gemini"])
async def test_an_agent_is_told_in_its_session_that_the_check_fails_and_may_write(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap"}
    async with open_world(database_url, tmp_path, more) as world:
        script = "test -e mended.txt && exit 0\ntest -e notes.txt || exit 0\necho canary-output\nexit 1\n"
        await world.maria.pushes("main", {".threadtree/check": script})
        issue = await world.maria.opens_issue("Greet people")
        await issue.says(
            "@threadtree-bot\nwrite notes.txt: hello\nmend write mended.txt: mended\\nsay Mended.\nsay I wrote it."
        )
        answer = await issue.hears("I wrote it.\n\n**After the check**\n\nMended.", "check passed · ")
        assert "The agent was told once, and mended it." in answer
        assert (await world.files("threadtree/issue-1"))["mended.txt"] == "mended"
    # A shorter one asks for a title of the session.
    told = max((one.body for one in models.requests if b"The repository's check fails on what" in one.body), key=len)
    assert b"canary-output" in told
    assert b"say I wrote it." in told, "it is the same session"


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent != "gemini"])
async def test_a_session_continues_after_a_restart_and_stop_leaves_no_process(
    agent: str, models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    clock = HandMovedClock()
    more = {**settings_of(agent, models), "AGENT_SANDBOX": "bwrap", "SHUTDOWN_GRACE_SECONDS": "0"}
    async with SimulatedGitHub.running(tmp_path / "github", clock) as github:
        repository = await github.create_repository("acme/shop", {"README.md": "# shop\n"})
        maria = github.person("maria")
        repository.allow(maria, "write")
        issue = await maria.open_issue(repository, "Colours")
        settings = settings_for(github, tmp_path / "data", os.environ["PATH"], **more)

        async def hears(words: str) -> None:
            await github.wait_for(
                lambda: any(words in said.body for said in issue.comments_by(github.bot)), PATIENCE_SECONDS
            )

        async with running_bot(github, settings, database_url, Surroundings(clock, clock.sleep)):
            await maria.comment(issue, "@threadtree-bot\nremember plum\nsay Noted.")
            await hears("Noted.")
        async with running_bot(github, settings, database_url, Surroundings(clock, clock.sleep)):
            await maria.comment(issue, "@threadtree-bot\nrecall")
            await hears("I remember: plum.")
            await maria.comment(issue, "@threadtree-bot\nrun sleep 1000")

            async def running() -> str:
                return str(await asyncio.to_thread(in_homes, settings.data_dir))

            sleeping = partial(asyncio.to_thread, in_homes, settings.data_dir, b"sleep\x001000")
            await eventually(sleeping, PATIENCE_SECONDS, running)
            await maria.comment(issue, "/stop")
            await hears("**Stopped**")
            [stopped] = [said.body for said in issue.comments_by(github.bot) if "**Stopped**" in said.body]
            if agent in REPORT_COST:
                assert re.search(r"· \$\d\.\d\d · ", stopped), stopped
            assert f"· {agent} ·" not in stopped, "the model is named"

        async def none_is_left() -> bool:
            return not await asyncio.to_thread(in_homes, settings.data_dir)

        await eventually(none_is_left, END_SECONDS, running)


def in_homes(data_dir: Path, command: bytes = b"") -> list[str]:
    """Return the processes that run with a HOME of this bot's conversations and have this in their command line."""
    home = f"HOME={data_dir / 'homes'}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if home in (process / "environ").read_bytes() and command in (process / "cmdline").read_bytes():
                    found.append((process / "cmdline").read_bytes().decode(errors="replace"))
    return found


async def test_a_thread_goes_from_claude_to_codex_and_back_with_what_was_answered(
    models: SimulatedModels, database_url: str, tmp_path: Path
) -> None:
    more = {**settings_of("claude", models), **settings_of("codex", models), "AGENT": "claude,codex"}
    async with open_world(database_url, tmp_path, {**more, "AGENT_SANDBOX": "bwrap"}) as world:
        issue = await world.maria.opens_issue("Colours")
        await issue.says("@threadtree-bot\nremember plum\nsay The canary-of-claude is ready.")
        await issue.hears("The canary-of-claude is ready.")

        await issue.says(
            "/agent codex\n/model some-model-7\n@threadtree-bot\nrecall\nsay The canary-of-codex is ready."
        )
        await issue.hears("`codex` with its own default model is asked")
        await issue.hears("`codex` with the model `some-model-7` is asked")
        await issue.hears("The agent is `codex` now.", "I remember: nothing.", "some-model-7")
        [told] = {one.path: one for one in models.requests if b"say The canary-of-codex" in one.body}.values()
        assert told.path == "/v1/responses"
        assert b"The canary-of-claude is ready." in told.body
        assert json.loads(told.body)["model"] == "some-model-7"

        await issue.says("/agent claude\n@threadtree-bot\nrecall\nsay Back.")
        await issue.hears("The choice of the model `some-model-7` ended")
        assert "some-model-7" not in await issue.hears("The agent is `claude` now.", "I remember: nothing.", "Back.")
        told = next(one for one in reversed(models.requests) if b"say Back." in one.body)
        assert told.path == "/v1/messages"
        assert b"The canary-of-codex is ready." in told.body
        assert b"The canary-of-claude is ready." in told.body
        ended = [("claude", "agent-changed"), ("codex", "agent-changed"), ("claude", None)]
        assert await world.sessions("agent", "end_reason") == ended
