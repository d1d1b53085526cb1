"""Changes of the `.env` file: what is there stays, a file is whole or not there, nobody else reads it."""

import os
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path

from dotenv import dotenv_values
from dotenv.parser import Binding, parse_stream

from bot.files import replace_file
from bot.serve.base import CannotStartError

_PLAIN = re.compile(r"[A-Za-z0-9_./:@-]*")


class EnvFile:
    """The `.env` file at `path`, as it was when this was made. Raises CannotStartError where it cannot be changed."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
            self._text = self.path.read_bytes().decode() if self.path.exists() else ""
        except ValueError:
            raise CannotStartError(f"{self.path} is no UTF-8 text; correct it.") from None
        if not os.access(self.path.parent, os.W_OK | os.X_OK):
            raise CannotStartError(f"This user cannot write to {self.path.parent}, where .env is to be; use another.")
        self.values = dotenv_values(stream=StringIO(self._text), interpolate=False)

    def set_among(self, names: Iterable[str]) -> list[str]:
        """Return those of the names that have a value."""
        return [name for name in names if self.values.get(name)]

    def write(self, values: Mapping[str, str]) -> None:
        """Give these names these values. Raises OSError."""
        replace_file(self.path.resolve(), with_values(self._text, values).encode())


def with_values(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a `.env` file in which these names have these values; all other lines are as they were."""
    parts, missing = list[str](), dict(values)
    for binding in parse_stream(StringIO(text)):
        if binding.key is not None and binding.key in values:
            missing.pop(binding.key, None)
            parts.append(_line(binding.key, values[binding.key], binding))
        else:
            parts.append(binding.original.string)
    if missing and parts and not parts[-1].endswith(("\n", "\r")):
        parts.append("\n")
    return "".join([*parts, *(_line(name, value) for name, value in missing.items())])


def _line(name: str, value: str, before: Binding | None = None) -> str:
    """Return an assignment, with the blank lines, `export` and comment of the one `before`."""
    if not _PLAIN.fullmatch(value):
        value = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if before is None:
        return f"{name}={value}\n"
    original = before.original.string
    head = re.match(r"\s*(?:export[^\S\r\n]+)?", original)
    comment = re.search(r"[^\S\r\n]+#[^\r\n]*(?=[\r\n]*\Z)", original) if "#" not in (before.value or "") else None
    return f"{head[0] if head else ''}{name}={value}{comment[0] if comment else ''}\n"
