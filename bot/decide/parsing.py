"""What a text asks of the bot: its commands in order, then one request for the rest. Pure."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Literal, get_args

from bot.decide.markdown import SpokenLine, spoken_lines

CommandName = Literal["help", "status", "stop", "retry", "reset-context", "reset", "worktree"]
COMMANDS: tuple[CommandName, ...] = get_args(CommandName)
WorktreeVerb = Literal["list", "reset", "remove", "restore", "prune"]
WORKTREE_VERBS: tuple[WorktreeVerb, ...] = get_args(WorktreeVerb)
_ARGUMENTS: dict[CommandName, tuple[str, ...]] = {"stop": ("all",), "worktree": WORKTREE_VERBS}
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z-]{0,39})(?![\w/.-])")


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command of ours, with the one argument it may take. `worktree` without one was written wrongly."""

    name: CommandName
    argument: str | None = None


def worktree_verb(command: Command) -> WorktreeVerb | None:
    """What `/worktree` was followed by; None: by nothing it knows."""
    return next((verb for verb in WORKTREE_VERBS if verb == command.argument), None)


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A slash command after a mention that is none of ours."""

    name: str


@dataclass(frozen=True, slots=True)
class ParsedComment:
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
            rf"(?<![\w@/])(?<!\w[.+-])@{re.escape(name)}(?:\[bot\])?(?![\w]|-[A-Za-z0-9]|/[A-Za-z0-9])", re.IGNORECASE
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


def parse_comment(text: str, mention: Mention, before: str = "") -> ParsedComment:
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
    return ParsedComment(tuple(commands), new.request if asked_anew else None)


def request_from_label(text: str, mention: Mention) -> ParsedComment:
    """What a label or an assignment asks for: the thread's own text, mention or not."""
    return ParsedComment(request=_read(text, mention).rest or text.strip())


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
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    source = _Source(text)
    commands: list[Command | UnknownCommand] = []
    mentions = 0
    for line in spoken_lines(text):
        mentions += mention.count(line.text)
        found = _command_of(line.text, mention)
        if found is not None and source.take(line, found):
            commands.append(found.command)
    rest = source.rest
    if commands and not re.search(r"\w", mention.strip(rest)):
        rest = ""
    return _Reading(tuple(commands), mentions, rest.strip("\n"))


@dataclass(frozen=True, slots=True)
class _Found:
    """A command at the beginning of a spoken line: its words as written there, and what of the line is left."""

    command: Command | UnknownCommand
    words: str
    remainder: str
    addressed: bool


def _command_of(line: str, mention: Mention) -> _Found | None:
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
        return _Found(UnknownCommand(name), begins.group(), "", addressed=True)
    first, _, further = remainder.partition(" ")
    argument = first.lower() if first.lower() in _ARGUMENTS.get(known, ()) else None
    remainder = further.strip() if argument else remainder
    if known == "worktree" and argument is None and (addressed is not None or not further):
        remainder = ""  # whatever was meant, it is no request
    if addressed is None and remainder:
        return None  # prose that begins with a slash, not a command that stands alone
    return _Found(Command(known, argument), begins.group(), remainder, addressed is not None)


class _Source:
    """The source lines of a text, from which the lines of commands are taken."""

    def __init__(self, text: str) -> None:
        self._lines: list[str | None] = list(text.split("\n"))
        self._places: dict[str, list[int]] = defaultdict(list)
        for index, line in enumerate(text.split("\n")):
            self._places[line.strip()].append(index)
        self._next = 0

    @property
    def rest(self) -> str:
        """What was not taken."""
        return "\n".join(line for line in self._lines if line is not None)

    def take(self, line: SpokenLine, found: _Found) -> bool:
        """Takes the command out, and leaves what else its line says; False where it has no line of its own."""
        first = max(line.first, self._next)
        places = self._places[line.text]
        place = bisect_left(places, first)
        if place < len(places) and places[place] < line.end:
            index, remainder = places[place], found.remainder
        elif found.addressed and line.first == first < line.end:
            # Of a list item, an emphasised mention and the like the source is not what is read.
            _, written, remainder = (self._lines[first] or "").partition(found.words)
            if not written:
                return False
            index, remainder = first, remainder.strip() if found.remainder else ""
        else:
            return False
        self._lines[index] = remainder or None
        self._next = index + 1
        return True
