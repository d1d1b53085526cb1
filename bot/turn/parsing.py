"""Parse a text for the bot: its commands in order, then one request from the rest. Pure.

What is not read raises MarkdownError.
"""

import hashlib
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from bot.ask import Ask
from bot.markdown import MENTION, MarkdownError, Node, PageLine, attribute, mention_of, page_lines
from bot.model import Actor, Repository, Target, Thread
from bot.prompt.hidden import strip_hidden
from bot.thread.boxes import Box

# What is said in these addresses nobody, and the page shows no words of a picture (DESIGN.md §4, Triggers).
_SILENT = frozenset(("a", "code", "pre", "blockquote", "q", "img"))
REVIEW = "/review"
"""The request of a review without further words; a label or a request for a review stands for it."""
MOST_MENTIONS = 10
"""So many edits of one text can ask again."""
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z-]{0,39})(?![\w/.-])")
# Between a mention and what follows it; full width forms are written in Chinese and Japanese.
_BETWEEN = re.compile(r"[\s,:;.!?\-–—、。，：；．！？]*")
_ENDS = " \t.!?。．！？"
_BLANK = re.compile(r"\s")
_SUGGESTION = re.compile(r"^ {0,3}(?:`{3,}|~{3,})suggestion\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Command:
    """A chat command as a comment holds it, with its argument."""

    name: str
    argument: str | None = None

    @property
    def words(self) -> str:
        """Return the command as people write it."""
        return f"/{self.name} {self.argument or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """Words after a mention that look like a command but are not one; as written, without the slash."""

    words: str


ParseArgument = Callable[[str], tuple[str | None, str]]
"""A parser of the words after the command's name; it returns the argument and the words that are left over."""


def no_argument(words: str) -> tuple[str | None, str]:
    """Return no argument: every word is left over."""
    return None, words


def one_of(*choices: str) -> ParseArgument:
    """Return a parser that takes the first word, in lower case, if it is one of `choices`."""

    def parse(words: str) -> tuple[str | None, str]:
        first, _, further = words.partition(" ")
        return (first.lower(), further.strip()) if first.lower() in choices else (None, words)

    return parse


@dataclass(frozen=True, slots=True)
class CommandSyntax:
    """The syntax of a command: `/name` and its argument.

    `needs_no_slash`: after a mention the name without the slash is the command too, if nothing is left over. `asks`:
    the words after it and the rest of the text are a request for this verb; it is a command only where there are none.
    `stands_alone`: it is a request also without further words, and the request keeps the command.
    """

    name: str
    parse_argument: ParseArgument = no_argument
    needs_no_slash: bool = False
    asks: str | None = None
    stands_alone: bool = False


@dataclass(frozen=True, slots=True)
class ParsedComment:
    """The content of one text. `request` is the text for the agent without the lines of commands, or None.

    `names`: each of the commands by its words and its place among equal ones of the whole text, `mentions`: how often
    the text asks, both also of what was there before an edit. `is_remark`: it is a request only because it stands on a
    pull request of the bot. `keeps_command`: the request begins with the command that asks.
    """

    commands: tuple[Command | UnknownCommand, ...] = ()
    request: str | None = None
    verb: str = "work"
    is_remark: bool = False
    keeps_command: bool = False
    names: tuple[str, ...] = field(default=(), compare=False)
    mentions: int = field(default=0, compare=False)

    def __bool__(self) -> bool:
        return bool(self.commands) or self.request is not None


@dataclass(frozen=True, slots=True)
class Request:
    """A person asks for something: the `commands`, then a turn where `asks`. All are made of the one `ask`.

    `identity` is GitHub's id of the text, or of the gesture; `names` and `mentions` as in `ParsedComment`. `review_id`:
    it is a part of that review. `on_own_pull`: a review or an inline comment on the bot's pull request, where
    `is_remark` asks without a mention. `is_operators`: an operator asks it again. `ticks`: boxes of a comment of the
    bot's were ticked, and whether that stood there as the bot posted it; those `chosen` are ticked by now.
    """

    repository: Repository
    thread: Thread
    ask: Ask
    identity: str
    commands: tuple[Command | UnknownCommand, ...] = ()
    names: tuple[str, ...] = ()
    asks: bool = False
    mentions: int = 0
    review_id: int | None = None
    on_own_pull: bool = False
    is_remark: bool = False
    is_operators: bool = False
    ticks: Literal["", "as posted", "changed"] = ""
    chosen: tuple[Box, ...] = ()

    @property
    def author(self) -> Actor:
        """The person who asks."""
        return self.ask.by

    @property
    def target(self) -> Target:
        """The text that asks."""
        return self.ask.target

    @property
    def addresses_bot(self) -> bool:
        """Whether the person turned to the bot: who only remarks hears nothing where they may not ask."""
        return bool(self.commands) or not self.is_remark

    @property
    def effects(self) -> list[bytes]:
        """The key under which each of the commands is acted on only once, whatever the text says around it by then."""
        return [self._effect(name) for name in self.names]

    @property
    def asking(self) -> list[bytes]:
        """The keys of the request, the last one its own: a text asks again where an edit adds a mention, and not where
        one goes.
        """
        return [self._effect(f"request {number}") for number in range(min(self.mentions, MOST_MENTIONS) + 1)]

    def _effect(self, what: str) -> bytes:
        return hashlib.sha256(f"{self.identity}\0{what}".encode("utf-8", "surrogatepass")).digest()


class CommentParser:
    """A parser of texts for the bot `@bot_name` with these commands.

    Without `bare_commands` a command counts only after the mention on its line; others are ordinary text.
    """

    def __init__(self, bot_name: str, commands: Iterable[CommandSyntax], *, bare_commands: bool = True) -> None:
        self._bare_commands = bare_commands
        self._mention = mention_of(bot_name)
        self._commands = {command.name: command for command in commands}

    def parse(self, text: str, before: str = "", *, on_own_pull: bool = False) -> ParsedComment:
        """Return what `text` asks for; of an edit (`before` is the old text) only what was not asked there already.

        `on_own_pull`: it is a review, or an inline comment, on a pull request of the bot, and asks without a mention.
        """
        new, old = self._read(text), self._read(before)
        known = Counter(old.commands)
        found: Counter[Command | UnknownCommand] = Counter()
        commands, names = [], []
        for command in new.commands:
            found[command] += 1
            if found[command] > known[command]:
                commands.append(command)
                names.append(f"{found[command]} {command.words}")
        what = ParsedComment(tuple(commands), names=tuple(names), mentions=new.asks)
        if on_own_pull and new.is_remark:
            return replace(what, request=new.rest, is_remark=True)
        request, keeps_command = new.request if new.asks > old.asks else None, new.kept is not None
        return replace(what, request=request, verb=new.verb, keeps_command=keeps_command)

    def addresses(self, text: str) -> bool:
        """Return whether the text asks for something; of one that no parser reads, whether it names the bot."""
        try:
            return bool(self.parse(text))
        except MarkdownError:
            return self._mention.search(text) is not None

    def parse_labeled(self, text: str) -> ParsedComment:
        """Return what a label or an assignment asks for: the thread's own text as a person sees it."""
        read = self._read(text)
        verb = "work" if read.kept is not None else read.verb
        return ParsedComment(request=strip_hidden(read.rest) or strip_hidden(text), verb=verb)

    def rest_of(self, text: str) -> str:
        """Return the text without the lines of commands, with or without a mention."""
        return self._read(text).rest

    def _read(self, text: str) -> "_Reading":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        source = _Source(text)
        commands: list[Command | UnknownCommand] = []
        asking: list[Command | UnknownCommand] = []
        verb, kept = "work", None
        mentions = 0
        prose: list[str] = []
        for line in page_lines(text, _is_silent):
            mentions += len(self._mention.findall(line.text))
            if _COMMAND.match(line.text) is None:
                prose.append(line.text)
            found = self._find_command(line.text)
            if found is None:
                continue
            command = found.command
            syntax = self._commands[command.name] if isinstance(command, Command) else None
            asks = syntax.asks if syntax is not None else None
            if source.take(line, found, keeps_words=asks is not None):
                (asking if asks else commands).append(command)
                if syntax is not None and asks is not None:
                    verb, kept = asks, f"/{syntax.name}" if syntax.stands_alone else None
        rest = source.rest
        if (commands or asking) and not re.search(r"\w", self._mention.sub(" ", rest)):
            rest = ""
            if kept is None:
                commands += asking[:1]
                asking, verb = [], "work"
        speaks = any(re.search(r"\w", words) for words in prose) or _SUGGESTION.search(rest) is not None
        speaks = speaks and not (prose and MENTION.match(prose[0]))
        return _Reading(tuple(commands), mentions + len(asking), rest.strip("\n"), verb, kept, speaks)

    def _find_command(self, line: str) -> "_Found | None":
        """Return the command at the beginning of a spoken line; words that are no argument of it start nothing."""
        line = _BLANK.sub(" ", line)
        mention = self._mention.match(line)
        is_addressed = mention is not None
        if not (is_addressed or self._bare_commands):
            return None
        spoken = _BETWEEN.sub("", line[mention.end() :], count=1) if mention else line
        begins = _COMMAND.match(spoken)
        if begins is None:
            return self._find_without_slash(spoken) if is_addressed else None
        name, words = begins.group(1).lower(), spoken[begins.end() :].strip()
        syntax = self._commands.get(name)
        if syntax is None:
            # Without a mention it is the command of another bot, such as `/lgtm`.
            return _Found(UnknownCommand(name), begins.group(), is_addressed) if is_addressed else None
        argument, left_over = syntax.parse_argument(words)
        if left_over and not is_addressed:
            return None  # prose that begins with a slash: a command without a mention stands alone on its line
        next_word = left_over.partition(" ")[0].lower()
        if f"{name}-{next_word}" in self._commands:  # `/reset context` must not reset the files
            return _Found(UnknownCommand(f"{name} {next_word}"), begins.group(), is_addressed)
        return _Found(Command(name, argument), begins.group(), is_addressed)

    def _find_without_slash(self, words: str) -> "_Found | None":
        """Return the command in `@bot help`, which is nothing but its name and argument after the mention."""
        written, _, further = words.rstrip(_ENDS).partition(" ")
        syntax = self._commands.get(written.lower())
        if syntax is None or not syntax.needs_no_slash:
            return None
        argument, left_over = syntax.parse_argument(further.strip())
        return None if left_over else _Found(Command(syntax.name, argument), written, is_addressed=True)


@dataclass(frozen=True, slots=True)
class _Reading:
    """`asks` counts the mentions and the commands that ask for the rest. `kept` is the command that the request keeps.

    `speaks`: it says something beside quotations, code and commands, or suggests a change, and not to somebody by name.
    """

    commands: tuple[Command | UnknownCommand, ...]
    asks: int
    rest: str
    verb: str
    kept: str | None
    speaks: bool

    @property
    def is_remark(self) -> bool:
        return not self.asks and self.speaks

    @property
    def request(self) -> str | None:
        if self.asks and self.kept is not None:
            return f"{self.kept} {self.rest}".rstrip()
        if not self.asks or (self.commands and not self.rest):
            return None
        return self.rest


@dataclass(frozen=True, slots=True)
class _Found:
    """A command at the beginning of a spoken line: its name as written there, and whether a mention precedes it."""

    command: Command | UnknownCommand
    written: str
    is_addressed: bool


class _Source:
    """The source lines of a text, from which the lines of commands are taken."""

    def __init__(self, text: str) -> None:
        self._lines: list[str | None] = list(text.split("\n"))
        self._positions: dict[str, list[int]] = defaultdict(list)
        for index, line in enumerate(text.split("\n")):
            self._positions[line.strip()].append(index)
        self._next = 0

    @property
    def rest(self) -> str:
        """The lines that are not commands."""
        return "\n".join(line for line in self._lines if line is not None)

    def take(self, line: PageLine, found: _Found, *, keeps_words: bool) -> bool:
        """Take the command's line out, or all of it but the words after the command; return False where it has no line
        of its own.
        """
        first = max(line.first, self._next)
        positions = self._positions[line.text]
        at = bisect_left(positions, first)
        if at < len(positions) and positions[at] < line.end:
            index = positions[at]
        elif line.first == first < line.end and self._holds(first, found, keeps_words=keeps_words):
            index = first
        else:
            return False
        words = (self._lines[index] or "").partition(found.written)[2].strip()
        self._lines[index] = words if keeps_words and words else None
        self._next = index + 1
        return True

    def _holds(self, index: int, found: _Found, *, keeps_words: bool) -> bool:
        """Return whether the source line has the command although it differs from what a reader sees: it is a list
        item, its mention is emphasised, or the words after a command that keeps them have markup.
        """
        source = self._lines[index] or ""
        if found.is_addressed:
            return found.written in source
        return keeps_words and source.lstrip().startswith(found.written)


def _is_silent(node: Node) -> bool:
    is_footnotes = node.tag == "section" and "footnotes" in attribute(node, "class").split()
    return node.tag in _SILENT or is_footnotes
