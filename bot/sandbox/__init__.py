"""The environment of an agent, which only this module makes, and its argv without a cage.

With a cage, `bot.sandbox.cage.Cage.agent_argv` makes the argv.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

_END_OF_OPTIONS = "--"


def agent_argv(command: Sequence[str]) -> tuple[str, ...]:
    """Return the argv that runs the command so that it dies with the bot, also when the bot is killed.

    The kernel sends the signal when the *thread* that started the process ends (prctl(2), PR_SET_PDEATHSIG):
    start agents from the thread of the event loop. A machine without setpriv runs the command as it is.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return tuple(command)
    return (setpriv, "--pdeathsig", "KILL", _END_OF_OPTIONS, *command)


def command_of(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command inside an argv of `agent_argv`."""
    if _END_OF_OPTIONS in argv:
        return tuple(argv[argv.index(_END_OF_OPTIONS) + 1 :])
    return tuple(argv)


def agent_environment(home: Path, path: str, lang: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's environment, built from nothing: these three and the variables named in AGENT_ENV.

    HOME, PATH and LANG win over `extra`.
    """
    return {**extra, "HOME": str(home), "PATH": path, "LANG": lang}
