"""The doctor's checks of each agent."""

from dataclasses import replace

from bot.agents.driver import Launch
from bot.agents.presets import NotInstalled, command_of
from bot.cli.doctor.checks import try_agent
from tests.agents.conftest import Stage


async def test_an_installed_agent_has_a_version_and_starts(stage: Stage) -> None:
    def launch_of(command: tuple[str, ...]) -> Launch:
        return replace(stage.launch, argv=command)

    command = command_of(stage.preset, stage.launch.environment["PATH"])
    assert not isinstance(command, NotInstalled)
    trial = await try_agent(stage.preset.agent, command, launch_of)
    assert trial.problem is None
    assert trial.version
    assert trial.version.split()[-1] in stage.preset.tested or stage.preset.agent == "claude"
