"""`threadtree setup --service`: a systemd unit for this user, folder and program, which an administrator enables.

It is the one of docs/install/systemd, whose options are explained in docs/install/systemd.md.
"""

import os
import pwd
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from bot.serve.base import CannotStartError
from bot.settings import Settings

NAME = "threadtree.service"
_HOMES = tuple(map(Path, ("/home", "/root", "/run/user")))
_OF_THE_SYSTEM = ("ConfigurationDirectory", "ConfigurationDirectoryMode", "StateDirectory", "StateDirectoryMode")
"""What makes folders below /etc and /var, which this unit does not use."""


def template() -> str:
    """Return the unit: beside this module in a wheel, in the documentation in a checkout."""
    packaged = Path(__file__).with_name(NAME)
    return (packaged if packaged.is_file() else Path(__file__).parents[3] / "docs/install/systemd" / NAME).read_text()


def program() -> Path:
    """Return the program that the unit starts. Raises CannotStartError where a unit cannot be for this user."""
    if os.geteuid() == 0:
        raise CannotStartError(
            "--service is for the user that the bot is to run as, and root is not: docs/install/systemd.md makes one."
        )
    found = Path(sys.prefix) / "bin" / "threadtree"
    if not found.is_file():
        raise CannotStartError(f"--service: {found} is not there; install the bot first (docs/install/pip.md).")
    return found


def write_unit(settings: Settings, folder: Path, started: Path) -> str:
    """Write the unit into the `folder` of `.env`, for the program `started`; return the commands that enable it.

    Raises CannotStartError, OSError, SettingsError.
    """
    data_dir = settings.with_data_dir().data_dir.resolve()
    user = pwd.getpwuid(os.geteuid()).pw_name
    path = folder / NAME
    path.write_text(unit(template(), user, folder, data_dir, started, settings.path))
    return (
        f"Written: {path}. To let the machine start the bot, enter:\n"
        f"  sudo install -m 0644 {shlex.quote(str(path))} /etc/systemd/system/{NAME}\n"
        "  sudo systemctl daemon-reload\n"
        "  sudo systemctl enable --now threadtree\n"
        "Its log: journalctl -u threadtree -o cat -f"
    )


def unit(text: str, user: str, folder: Path, data_dir: Path, started: Path, search_path: str) -> str:
    """Return the unit `text` for this user and these places; `folder` has `.env`. Raises CannotStartError."""
    places = (folder, data_dir, started, Path(sys.base_prefix))
    if any(not character.isprintable() for place in (*places, search_path) for character in str(place)):
        raise CannotStartError("--service: the name of a folder has a character that no unit can have; rename it.")
    is_at_home = any(place.is_relative_to(home) for place in places for home in _HOMES)
    variables = {"DATA_DIR": data_dir, "HOME": data_dir, "PATH": search_path}
    ours: Mapping[str, str] = {
        "User": user,
        "WorkingDirectory": _escaped(folder),
        "Environment": " ".join(_quoted(f"{name}={value}") for name, value in variables.items()),
        "ExecStart": f"{_quoted(started).replace('$', '$$')} serve",
        # Nothing else below the homes is written; only what is there can be read.
        "ProtectHome": f"{'read-only' if is_at_home else 'yes'}\nReadWritePaths={_quoted(data_dir)}",
    }
    lines = []
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name not in _OF_THE_SYSTEM:
            lines.append(f"{name}={ours.get(name, value)}" if value else line)
    return "\n".join(lines) + "\n"


def _escaped(value: object) -> str:
    """Escape what systemd expands: https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html#Specifiers"""
    return str(value).replace("%", "%%")


def _quoted(value: object) -> str:
    text = _escaped(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
