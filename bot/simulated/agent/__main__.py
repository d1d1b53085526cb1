"""`python -m bot.simulated.agent`."""

import signal
import sys
from pathlib import Path

from bot.simulated import agent
from bot.simulated.agent.protocol import ScriptedAgent
from bot.simulated.agent.work import PLAY_DEAD, play_dead


def main() -> None:
    options = {*sys.argv[1:]}
    if options - {"--resume", "--no-load", "--steering", "--models"}:
        raise SystemExit(agent.__doc__)
    signal.signal(PLAY_DEAD, play_dead)
    folder = Path.home() / ".scripted-agent"
    ScriptedAgent(
        folder,
        can_load="--no-load" not in options,
        can_resume="--resume" in options,
        can_be_told="--steering" in options,
        has_models="--models" in options,
    ).serve()


if __name__ == "__main__":
    main()
