"""An agent's own tools for each act, found by the names that it offers to the model."""

import json
import shlex
from collections.abc import Callable, Set
from dataclasses import dataclass

from tests.support.models.script import Act, Ask, Propose, Run, Use, Write


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool: its arguments, or the plain text of a tool without arguments."""

    name: str
    arguments: dict[str, object] | str


_CHOICE = {
    "options": [{"label": "One", "description": "The first"}, {"label": "Two", "description": "The second"}],
    "multiSelect": False,
}
TAKES_TEXT = "text:"
"""Prefix of the name of an offered tool that takes text instead of arguments."""

_DESCRIPTION = "Do what the prompt asks for"
_WRITERS: dict[str, Callable[[Write], dict[str, object] | str]] = {
    "text:exec": lambda write: f"text(await tools.apply_patch({json.dumps(_patch(write))}))",
    "text:apply_patch": lambda write: _patch(write),
    "Write": lambda write: {"file_path": write.path, "content": write.text},
    "write_file": lambda write: {"file_path": write.path, "content": write.text},
    "write": lambda write: {"filePath": write.path, "content": write.text},
    "apply_patch": lambda write: {"patchText": _patch(write)},
}
_SHELLS: dict[str, Callable[[str], dict[str, object] | str]] = {
    "Bash": lambda command: {"command": command, "description": _DESCRIPTION},
    "run_shell_command": lambda command: {"command": command, "description": _DESCRIPTION},
    "bash": lambda command: {"command": command, "description": _DESCRIPTION},
    "text:exec": lambda command: f"text(await tools.exec_command({json.dumps({'cmd': command})}))",
    "exec_command": lambda command: {"cmd": command, "yield_time_ms": 30_000},
    "shell_command": lambda command: {"command": command},
    "shell": lambda command: {"command": ["bash", "-lc", command]},
}


def call_for(act: Act, offered: Set[str]) -> Call:
    """Return the call that does the act. Raises LookupError if the agent offers no known tool for it."""
    if isinstance(act, Ask):
        return Call("AskUserQuestion", {"questions": [{"question": act.question, "header": "Choice", **_CHOICE}]})
    if isinstance(act, Use):
        name = next((name for name in sorted(offered) if "probe" in name and name.endswith(act.tool)), None)
        if name is None and "text:exec" in offered:
            return Call("exec", f"text(JSON.stringify(await tools.mcp__probe__{act.tool}({{}})))")
        if name is None:
            raise LookupError(f"there is no tool {act.tool} of a server: {sorted(offered)}")
        return Call(name, {})
    if isinstance(act, Propose):
        return Call("ExitPlanMode", {})
    if isinstance(act, Write):
        for name, arguments in _WRITERS.items():
            if name in offered:
                return Call(name.removeprefix(TAKES_TEXT), arguments(act))
        act = Run(f"printf %s {shlex.quote(act.text)} > {shlex.quote(act.path)}")
    for name, line in _SHELLS.items():
        if name in offered:
            return Call(name.removeprefix(TAKES_TEXT), line(act.command))
    raise LookupError(f"none of the offered tools is known: {sorted(offered)}")


def _patch(write: Write) -> str:
    added = "".join(f"+{line}\n" for line in write.text.splitlines())
    return f"*** Begin Patch\n*** Add File: {write.path}\n{added}*** End Patch\n"
