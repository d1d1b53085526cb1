"""What a text asks of the bot: its commands in order, then one request for the rest. Pure."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from bot.decide.markdown import spoken_lines

CommandName = Literal["help", "status", "stop", "retry", "reset-context"]
COMMANDS: tuple[CommandName, ...] = get_args(CommandName)
_ARGUMENTS: dict[CommandName, tuple[str, ...]] = {"stop": ("all",)}
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z-]{0,39})(?![\w/.-])")


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command of ours, with the one argument it may take."""

    name: CommandName
    argument: str | None = None


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A slash command after a mention that is none of ours."""

    name: str


@dataclass(frozen=True, slots=True)
class Asks:
    """What one text asks for. `request` is the text for the agent, verbatim but for the command lines, or None."""

    commands: tuple[Command | UnknownCommand, ...] = ()
    request: str | None = None

    def __bool__(self) -> bool:
        return bool(self.commands) or self.request is not None


class Mention:
    """Recognises `@name` as a word. The name is data: it is never read as a pattern."""

    def __init__(self, name: str) -> None:
        # Not part of a longer login, an address, a path or a team; any punctuation may follow.
        self._word = re.compile(
            rf"(?<![\w@/.+-])@{re.escape(name)}(?:\[bot\])?(?![\w]|-[A-Za-z0-9]|/[A-Za-z0-9])", re.IGNORECASE
        )

    def count(self, line: str) -> int:
        """How often `line` mentions the bot."""
        return len(self._word.findall(line))

    def strip(self, text: str) -> str:
        """`text` without mentions of the bot."""
        return self._word.sub(" ", text)

    def after(self, line: str) -> str | None:
        """What follows a mention that begins the line, without the punctuation between; None if it does not."""
        begins = self._word.match(line)
        return line[begins.end() :].lstrip(" \t,:;.!?-–—") if begins else None


def read_asks(text: str, mention: Mention, before: str = "") -> Asks:
    """What `text` asks for; of an edit (`before` is the old text) only what was not asked there already."""
    new, old = _read(text, mention), _read(before, mention)
    known = Counter(old.commands)
    commands = []
    for command in new.commands:
        if known[command]:
            known[command] -= 1
        else:
            commands.append(command)
    asked_anew = new.mentions > old.mentions
    return Asks(tuple(commands), new.request if asked_anew else None)


def ask_by_gesture(text: str, mention: Mention) -> Asks:
    """What a label or an assignment asks for: the thread's own text, mention or not."""
    return Asks(request=_read(text, mention).rest or text.strip())


@dataclass(frozen=True, slots=True)
class _Reading:
    commands: tuple[Command | UnknownCommand, ...]
    mentions: int
    rest: str

    @property
    def request(self) -> str | None:
        if not self.mentions or (self.commands and not self.rest):
            return None
        return self.rest


def _read(text: str, mention: Mention) -> _Reading:
    commands: list[Command | UnknownCommand] = []
    mentions = 0
    rest = text.replace("\r\n", "\n")
    for line in spoken_lines(text):
        mentions += mention.count(line)
        found = _command_of(line, mention)
        if found is None or (without := _without(rest, line, found[1])) is None:
            continue
        commands.append(found[0])
        rest = without
    if commands and not re.search(r"\w", mention.strip(rest)):
        rest = ""
    return _Reading(tuple(commands), mentions, rest.strip("\n"))


def _command_of(line: str, mention: Mention) -> tuple[Command | UnknownCommand, str] | None:
    """The command that a spoken line begins with, and what of the line is not the command."""
    addressed = mention.after(line)
    spoken = line if addressed is None else addressed
    begins = _COMMAND.match(spoken)
    if begins is None:
        return None
    name, remainder = begins.group(1).lower(), spoken[begins.end() :].strip()
    known = next((command for command in COMMANDS if command == name), None)
    if known is None:
        if addressed is None:
            return None  # a bare `/lgtm` is someone else's
        return UnknownCommand(name), ""
    first, _, further = remainder.partition(" ")
    argument = first.lower() if first.lower() in _ARGUMENTS.get(known, ()) else None
    remainder = further.strip() if argument else remainder
    if addressed is None and remainder:
        return None  # prose that begins with a slash, not a command that stands alone
    return Command(known, argument), remainder


def _without(text: str, spoken: str, remainder: str) -> str | None:
    """`text` with the source line of a command replaced by `remainder`; None if it has no such line of its own."""
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if line.strip() == spoken:
            lines[index : index + 1] = [remainder] if remainder else []
            return "\n".join(lines)
    return None
