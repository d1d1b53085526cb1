"""Questions with choices: the agent leaves them in a file, and people answer with ticks."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from bot.json_values import storable
from bot.sandbox.untrusted_files import read_untrusted
from bot.thread import boxes, notices
from bot.thread.commit_message import split_subject, with_subject
from bot.thread.formatting import inline_text, truncate
from bot.thread.questions import TO_ANSWER
from bot.turn.thread_answers import OUT

QUESTIONS = OUT / "questions.json"
LARGEST_FILE_BYTES = 64 * 1024
MOST_QUESTIONS, MOST_CHOICES = 5, 6

_Words = Annotated[str, Field(strict=True, max_length=4_000, pattern=r"\S")]


@dataclass(frozen=True, slots=True)
class _Question:
    question: _Words
    choices: tuple[Any, ...]


_LIST, _QUESTION, _CHOICE = TypeAdapter(list[Any]), TypeAdapter(_Question), TypeAdapter(_Words)


def read_left(home: Path) -> tuple[str, str | None]:
    """Return the questions that an agent left in its HOME, as boxes, and a notice of what is left out."""
    try:
        left = _LIST.validate_json(read_untrusted(home, QUESTIONS, LARGEST_FILE_BYTES))
    except FileNotFoundError:
        return "", None
    except (OSError, ValidationError):
        return "", notices.QUESTIONS_UNREADABLE
    asked: dict[str, list[str]] = {}
    is_whole = True
    for one in left:
        try:
            question = _QUESTION.validate_python(one)
            choices = [_line(_CHOICE.validate_python(choice)) for choice in question.choices]
        except ValidationError:
            is_whole = False
            continue
        words, different = _line(question.question), list(dict.fromkeys(choices))
        if len(different) < 2 or len(different) > MOST_CHOICES or words in asked or len(asked) == MOST_QUESTIONS:
            is_whole = False
            continue
        asked[words] = different
    return boxes.questions(asked) if asked else "", None if is_whole else notices.questions_left_out(
        MOST_QUESTIONS, MOST_CHOICES
    )


def asking(answer: str) -> str:
    """Return the answer of an agent that left questions: it says how to answer, as any that asks back."""
    text, subject = split_subject(answer)
    asks = text if TO_ANSWER in text else f"{text}\n\n{TO_ANSWER}".lstrip("\n")
    return with_subject(asks, subject)


def _line(words: str) -> str:
    shown: str = storable(words)
    return inline_text(truncate(shown))
