"""Chat commands as values: how one is written, and what a comment that holds one asks for. Pure."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A chat command as a comment holds it, with its argument."""

    name: str
    argument: str | None = None


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

    `needs_no_slash`: after a mention the name without the slash is the command too, if nothing is left over.
    """

    name: str
    parse_argument: ParseArgument = no_argument
    needs_no_slash: bool = False
