"""A question of the agent to the person who asked for the work: it ends the turn as its answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bot.thread.formatting import one_line, truncate

TO_ANSWER = "To answer, mention the bot in a comment. It continues from here."
_MOST_QUESTIONS = 10
_MOST_OPTIONS = 20
_CHOICE = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s+\S|\s+\S")
"""A line of a list, or one that goes on with it."""
_ASKS = re.compile(r"[?？؟]\W*\Z")


@dataclass(frozen=True, slots=True)
class Question:
    """One question, in the agent's words. `options` are answers to choose from: each a name and its meaning."""

    text: str
    options: tuple[tuple[str, str], ...] = ()
    many: bool = False
    """Whether several options may be chosen."""


def question_back(questions: Sequence[Question], said_before: str) -> str:
    """Return the answer of a turn that ends with questions; `said_before` is what the agent wrote until then."""
    asked = questions[:_MOST_QUESTIONS]
    lines: list[str] = []
    for number, question in enumerate(asked, 1):
        start = f"{number}. " if len(asked) > 1 else ""
        lines += [f"**{start}{_line(question.text)}**", ""]
        if question.options:
            lines += [*(f"- {_option(*option)}" for option in question.options[:_MOST_OPTIONS]), ""]
            if question.many:
                lines += ["Several of these are possible.", ""]
    lines.append(TO_ANSWER)
    if said_before.strip():
        lines += ["", "The agent wrote before it asked:", "", said_before.strip()]
    return "\n".join(lines)


def ends_with_question(answer: str) -> bool:
    """Return whether an answer ends with a question, perhaps with choices below it, and not in code or a quotation."""
    lines = answer.rstrip().split("\n")
    while len(lines) > 1 and (not lines[-1].strip() or _CHOICE.match(lines[-1])) and not _ASKS.search(lines[-1]):
        lines.pop()
    last = lines[-1].strip()
    return _ASKS.search(last) is not None and not last.startswith((">", "```", "~~~"))


def _option(name: str, meaning: str) -> str:
    return f"{_line(name)}: {_line(meaning)}" if meaning.strip() else _line(name)


def _line(text: str) -> str:
    return truncate(one_line(text))
