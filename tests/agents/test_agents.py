"""The real agents against simulated models: each works with its own tools, and the bot treats all alike."""

import asyncio
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bot.agents.driver import (
    AgentDone,
    AgentEvent,
    Cancelled,
    CannotOpenError,
    Failed,
    PromptLimits,
    Said,
    SessionOpened,
    TimedOut,
    ToolEnded,
    ToolStarted,
    Usage,
)
from bot.agents.presets import Access
from bot.agents.prompt_loop import AgentDriver
from tests.agents.conftest import KEY, Heard, Stage, ask
from tests.agents.planted import plant

IMPATIENT = PromptLimits(total_seconds=120, idle_seconds=8, cancel_grace_seconds=15)

ASK_BY_A_TOOL = ("claude", "claude-acp")
# Each agent reads some of these by itself, if it may. The prompt holds those of the default branch.
INSTRUCTIONS = (
    *("AGENTS.md", "AGENTS.override.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", "CONTEXT.md"),
    *(".claude/CLAUDE.md", ".claude/rules/all.md", ".codex/AGENTS.md", ".opencode/AGENTS.md", ".gemini/GEMINI.md"),
)
TAKE_MESSAGES = ("claude", "claude-acp", "codex")
REPORT_COST = ("claude", "claude-acp", "opencode")


async def test_it_edits_a_file_by_its_own_tool_and_answers(stage: Stage) -> None:
    heard = Heard()
    async with stage.session() as (driver, opened):
        outcome = await ask(driver, "write notes.txt: hello", "say I wrote it.", heard=heard)
    assert not opened.resumed
    assert isinstance(outcome, AgentDone), outcome
    assert outcome.text.strip() == "I wrote it."
    assert (stage.worktree / "notes.txt").read_text() == "hello\n"
    assert len([event for event in heard if isinstance(event, ToolStarted)]) == 1
    assert [event.ok for event in heard if isinstance(event, ToolEnded)] == [True]


async def test_it_runs_commands_without_a_permission(stage: Stage) -> None:
    _, completed = await stage.says("run echo 40 plus 2 > sum.txt && echo done-that", "tell")
    assert (stage.worktree / "sum.txt").read_text() == "40 plus 2\n"
    assert "done-that" in completed.text


async def test_a_second_process_resumes_the_session(stage: Stage) -> None:
    first, _ = await stage.says("remember plum")
    second, recalled = await stage.says("recall", "append notes.txt: again", resume=first.assistant_session_id)
    assert second == SessionOpened(first.assistant_session_id, resumed=True, lost=None)
    assert "I remember: plum." in recalled.text
    assert (stage.worktree / "notes.txt").read_text() == "again\n"
    third, recalled = await stage.says("recall", resume=first.assistant_session_id)
    assert third.resumed
    assert "I remember: plum." in recalled.text


async def test_a_question_ends_the_turn_and_the_next_prompt_continues(stage: Stage) -> None:
    if stage.preset.agent not in ASK_BY_A_TOOL:
        pytest.skip("this agent has no tool to ask a person; its prompt tells it to end with the question")
    first, asked = await stage.says("remember plum", "run true", "say I looked.", "ask Which one?")
    assert asked.text.startswith("**Which one?**\n\n- One: The first\n- Two: The second\n\nTo answer, mention the bot")
    assert asked.text.endswith("I looked.")
    assert await stage.has_ended(), stage.processes()
    second, recalled = await stage.says("recall", resume=first.assistant_session_id)
    assert second.resumed
    assert "I remember: plum." in recalled.text


async def test_a_fresh_session_remembers_nothing(stage: Stage) -> None:
    first, _ = await stage.says("remember plum")
    fresh, recalled = await stage.says("recall")
    assert fresh.assistant_session_id != first.assistant_session_id
    assert "I remember: nothing." in recalled.text


async def test_a_lost_session_is_replaced_by_a_fresh_one_and_the_reason_is_reported(stage: Stage) -> None:
    first, _ = await stage.says("remember plum")
    shutil.rmtree(stage.home)
    stage.home.mkdir()
    fresh, recalled = await stage.says("recall", resume=first.assistant_session_id)
    assert not fresh.resumed
    assert fresh.lost
    assert fresh.assistant_session_id != first.assistant_session_id
    assert "I remember: nothing." in recalled.text


async def test_a_stop_leaves_no_process_behind(stage: Stage) -> None:
    heard = Heard(stop_at=lambda event: isinstance(event, ToolStarted))
    async with stage.session() as (driver, _):
        outcome = await ask(driver, "run sleep 1000", heard=heard)
    assert outcome == Cancelled()
    assert await stage.has_ended(), stage.processes()


async def test_silence_ends_at_the_idle_limit(stage: Stage) -> None:
    async with stage.session() as (driver, _):
        outcome = await ask(driver, "hang", limits=IMPATIENT)
    assert outcome == TimedOut("idle", IMPATIENT.idle_seconds)
    assert await stage.has_ended(), stage.processes()


async def test_the_idle_time_does_not_count_while_a_tool_runs(stage: Stage) -> None:
    async with stage.session() as (driver, _):
        outcome = await ask(driver, "run sleep 10; echo slept", "say Good morning.", limits=IMPATIENT)
    assert isinstance(outcome, AgentDone), outcome


async def test_a_refused_key_fails_the_turn(stage: Stage) -> None:
    # By default Claude retries ten times, which takes minutes.
    async with stage.with_variables(CLAUDE_CODE_MAX_RETRIES="1").session() as (driver, _):
        outcome = await ask(driver, "fail 401", limits=replace(IMPATIENT, idle_seconds=60))
    assert isinstance(outcome, Failed), outcome
    assert any(word in outcome.reason.lower() for word in ("401", "key", "authentication")), outcome.reason


async def test_an_empty_answer_is_a_failure(stage: Stage) -> None:
    async with stage.session() as (driver, _):
        outcome = await ask(driver, "empty", limits=replace(IMPATIENT, idle_seconds=60))
    assert isinstance(outcome, Failed), outcome


async def test_the_cost_of_the_session_is_reported(stage: Stage) -> None:
    one, two = Heard(), Heard()
    async with stage.session() as (driver, opened):
        await ask(driver, "say one", heard=one)
    async with stage.session(opened.assistant_session_id) as (driver, _):
        await ask(driver, "say two", heard=two)
    first, second = ([event.session_cost_usd for event in heard if isinstance(event, Usage)] for heard in (one, two))
    if stage.preset.agent in REPORT_COST:
        assert first[-1] is not None
        assert second[-1] is not None
        assert second[-1] > first[-1]
    else:
        assert not any((*first, *second))


async def test_the_cost_is_told_while_it_works_and_after_an_interruption_it_finishes(stage: Stage) -> None:
    """What a soft stop needs (bot.turn.caps)."""
    told = Heard(lambda event: isinstance(event, Usage) and bool(event.session_cost_usd))
    called = Heard(lambda event: isinstance(event, ToolEnded))
    heard = told if stage.preset.tells_cost == "while it works" else called
    async with stage.session() as (driver, _):
        outcome = await ask(driver, "remember plum", "run true", "run sleep 1000", heard=heard)
        assert isinstance(outcome, Cancelled), outcome
        assert driver.is_open, "it ended its prompt by itself"
        finished = await ask(driver, "recall")
    assert isinstance(finished, AgentDone), finished
    assert "I remember: plum." in finished.text


async def test_a_long_answer_arrives_complete(stage: Stage) -> None:
    _, completed = await stage.says("long 200000")
    assert completed.text.strip() == " ".join(map(str, range(100_000)))[:200_000].strip()


async def test_the_agent_does_not_get_the_bots_environment(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_BOT_ALONE", "secret")
    _, completed = await stage.says("run env | sort | cut -d= -f1 | tr '\\n' ' '; cat /proc/$PPID/environ", "tell")
    assert "HOME" in completed.text
    assert "OF_THE_BOT_ALONE" not in completed.text


async def test_its_model_requests_go_to_the_base_url_with_the_key_it_was_given(stage: Stage) -> None:
    await stage.says("say hi")
    answered = [request for request in stage.models.requests if b"say hi" in request.body]
    assert answered
    for request in answered:
        values = [request.headers.get(name, "") for name in ("authorization", "x-api-key", "x-goog-api-key")]
        assert any(KEY in value for value in values)


async def test_the_model_that_the_operator_names_is_asked(stage: Stage) -> None:
    api = stage.preset.apis[0]
    access = Access(api, stage.models.url, KEY, "some-model-7")
    named = stage.with_variables(**stage.preset.environment(access))
    await named.says("say hi")
    answered = [request for request in stage.models.requests if b"say hi" in request.body]
    assert any(b"some-model-7" in request.body or "some-model-7" in request.path for request in answered)


async def test_a_session_goes_on_with_another_model(stage: Stage) -> None:
    api = stage.preset.apis[0]
    first, second = (
        stage.with_variables(**stage.preset.environment(Access(api, stage.models.url, KEY, model)))
        for model in ("some-model-7", "some-model-8")
    )
    opened, _ = await first.says("remember plum")
    stage.models.requests.clear()
    resumed, recalled = await second.says("recall", resume=opened.assistant_session_id)
    assert resumed.resumed
    assert "I remember: plum." in recalled.text
    answered = [request for request in stage.models.requests if b"recall" in request.body]
    named = [str(json.loads(request.body).get("model")) + request.path for request in answered]
    assert [name for name in named if "some-model-8" not in name] == []


async def test_settings_of_a_repository_run_nothing(stage: Stage, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    plant(stage.worktree, marks, "http://127.0.0.1:9/evil")
    if not stage.shows_system_files:
        pytest.skip("this agent is held back by a file of the system, which only the sandbox shows")
    async with stage.agent() as driver:
        if stage.preset.plugin_folders:
            with pytest.raises(CannotOpenError, match=re.escape(".opencode/plugin")):
                await driver.open(None)
        else:
            await driver.open(None)
            assert isinstance(await ask(driver, "write notes.txt: hello", "run true"), AgentDone)
            assert (stage.worktree / "notes.txt").exists()
    assert list(marks.iterdir()) == []


async def test_instructions_in_the_worktree_are_not_read_by_the_agent_itself(stage: Stage) -> None:
    for name in INSTRUCTIONS:
        path = stage.worktree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"canary-{name}\n")
    await stage.says("run true", "say hi")
    sent = b"".join(request.body for request in stage.models.requests)
    assert b"say hi" in sent
    assert [name for name in INSTRUCTIONS if f"canary-{name}".encode() in sent] == []


async def test_it_brings_no_instructions_of_its_own_on_commits(stage: Stage) -> None:
    await stage.says("say hi")
    sent = b"".join(request.body for request in stage.models.requests)
    assert b"say hi" in sent
    contradicting = (b"Co-Authored-By", b"End git commit messages", b"Generated with", b"commit your changes, unless")
    assert [words for words in contradicting if words.lower() in sent.lower()] == []


async def test_a_missing_program_is_named(stage: Stage) -> None:
    gone = Stage(stage.preset, stage.models, replace(stage.launch, argv=("/nowhere/agent",)))
    async with gone.agent() as driver:
        with pytest.raises(CannotOpenError):
            await driver.open(None)


async def test_a_message_in_the_middle_of_a_run_reaches_the_models_next_request(stage: Stage) -> None:
    if stage.preset.agent not in TAKE_MESSAGES:
        pytest.skip("this agent takes no message while it works: it waits for the next turn")
    told: list[asyncio.Task[bool]] = []
    async with stage.session() as (driver, _):

        def tell(event: AgentEvent) -> bool:
            if isinstance(event, ToolStarted) and not told:
                told.append(asyncio.create_task(_let_go(driver, stage.worktree / "go")))
            return False

        waits = "run until [ -e go ]; do sleep 0.1; done; echo waited"
        outcome = await ask(driver, waits, "write notes.txt: old", "say Old.", heard=Heard(stop_at=tell))
        assert await told[0] is True
        assert await driver.tell("say Too late.") is False
    assert isinstance(outcome, AgentDone), outcome
    assert outcome.text.strip() == "New."
    # The request after the tool's end would have written it.
    assert not (stage.worktree / "notes.txt").exists()


async def _let_go(driver: AgentDriver, go: Path) -> bool:
    """Tell the agent something while its tool runs, then let the tool end."""
    is_told = await driver.tell("say New.")
    await asyncio.to_thread(go.touch)
    return is_told


async def test_a_message_that_comes_with_the_answer_is_answered_too(stage: Stage) -> None:
    if stage.preset.agent not in TAKE_MESSAGES:
        pytest.skip("this agent takes no message while it works: it waits for the next turn")
    told: list[asyncio.Task[bool]] = []
    async with stage.session() as (driver, _):

        def tell(event: AgentEvent) -> bool:
            if isinstance(event, Said) and not told:
                told.append(asyncio.create_task(driver.tell("say New.")))
            return False

        outcome = await ask(driver, "say Old.", heard=Heard(stop_at=tell))
        is_told = await told[0]
    assert isinstance(outcome, AgentDone), outcome
    # Either it was too late, and nobody has read it, or its answer belongs to the prompt's.
    assert ("New." in outcome.text) is is_told
    assert any(b"say New." in request.body for request in stage.models.requests) is is_told


async def test_it_finds_the_skills_of_the_default_branch_and_none_of_the_worktree(stage: Stage) -> None:
    def write(folder: Path, name: str) -> None:
        (folder / "skills" / name).mkdir(parents=True)
        text = f"---\nname: {name}\ndescription: canary-{name} tells how to greet\n---\nbody-{name}\n"
        (folder / "skills" / name / "SKILL.md").write_text(text)

    skills = stage.home / ".agents"
    write(skills, "deploy")
    (skills / ".claude-plugin").mkdir()
    (skills / ".claude-plugin" / "plugin.json").write_text(json.dumps({"name": "repository", "description": "Its."}))
    planted = [".agents", ".claude", ".codex", ".gemini", ".opencode"]
    for folder in planted:
        write(stage.worktree / folder, f"evil-{folder[1:]}")
    write(stage.worktree / "tools", "evil-linked")
    (stage.worktree / ".agents" / "skills" / "linked").symlink_to("../../tools/skills/evil-linked")
    mentions = " ".join(f"$evil-{folder[1:]}" for folder in planted)
    given = replace(stage, launch=replace(stage.launch, skills=skills))
    await given.says(f"say hi {mentions} $evil-linked")
    sent = b"".join(request.body for request in stage.models.requests)
    assert b"canary-deploy" in sent
    assert re.findall(rb"(?:canary|body)-evil-[a-z]+", sent) == []
