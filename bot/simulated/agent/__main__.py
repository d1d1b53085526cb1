"""`python -m bot.simulated.agent`."""

import argparse
import signal
from pathlib import Path

from bot.simulated import agent
from bot.simulated.agent.protocol import ScriptedAgent
from bot.simulated.agent.work import PLAY_DEAD, play_dead


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bot.simulated.agent",
        description=agent.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--resume", action="store_true", help="announce session/resume")
    parser.add_argument("--no-load", action="store_true", help="do not announce session/load")
    options = parser.parse_args()
    signal.signal(PLAY_DEAD, play_dead)
    ScriptedAgent(Path.home() / ".scripted-agent", can_load=not options.no_load, can_resume=options.resume).serve()


if __name__ == "__main__":
    main()
