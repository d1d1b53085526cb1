"""The doctor's checks of each agent."""

from dataclasses import replace
from pathlib import Path

from bot.agents.driver import Launch
from bot.agents.presets import command_of, preset
from bot.doctor.checks import try_agent
from tests.agents.conftest import Stage


async def test_an_installed_agent_has_a_version_and_starts(stage: Stage) -> None:
    def launch_of(command: tuple[str, ...]) -> Launch:
        return replace(stage.launch, argv=command)

    command = command_of(stage.preset, stage.launch.environment["PATH"])
    finding = await try_agent(stage.preset.agent, command, launch_of)
    assert finding.problem is None
    assert finding.version
    assert finding.tested_version == stage.preset.tested
    assert finding.version.split()[-1] in finding.tested_version or stage.preset.agent == "claude"


async def test_a_missing_agent_names_what_to_install(tmp_path: Path) -> None:
    gemini = preset("gemini")
    assert gemini is not None
    finding = await try_agent(
        "gemini", command_of(gemini, str(tmp_path)), lambda command: Launch(command, {}, tmp_path)
    )
    assert not finding.installed
    assert finding.next_step
    assert "npm install -g @google/gemini-cli" in finding.next_step
