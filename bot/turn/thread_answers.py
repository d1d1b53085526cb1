"""Answers in the threads of inline comments: the agent leaves them in a file, and the host posts them."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from bot.json_values import storable
from bot.sandbox.untrusted_files import read_untrusted, remove_untrusted
from bot.thread import notices

OUT = PurePath(".threadtree-out")
"""The folder `$THREADTREE_OUT`, in the agent's HOME: what the agent leaves there counts to its disk space."""
THREADS = OUT / "threads.json"
LARGEST_FILE_BYTES = 256 * 1024
LONGEST_CHARACTERS = 4_000
MOST_ANSWERS = 30


@dataclass(frozen=True, slots=True)
class ThreadAnswer:
    """What the agent answers in the thread of an inline comment."""

    comment_id: Annotated[int, Field(strict=True)]
    body: Annotated[str, Field(strict=True, max_length=LONGEST_CHARACTERS)]


_LIST = TypeAdapter(list[Any])
_ANSWER = TypeAdapter(ThreadAnswer)


def make_folder(home: Path, *, again: bool) -> None:
    """Make the folder in a HOME in which no agent runs, empty unless a turn runs `again`. Raises OSError."""
    if not again:
        remove_untrusted(home, OUT)
    with suppress(FileExistsError):
        (home / OUT).mkdir(mode=0o700)


def read_left(home: Path, told: Collection[int]) -> tuple[dict[int, str], str | None]:
    """Return the answers that an agent left in its HOME, by the comment's id, and a notice of what is left out.

    Only the first answer to each of the comments that it was `told` of counts.
    """
    try:
        left = _LIST.validate_json(read_untrusted(home, THREADS, LARGEST_FILE_BYTES))
    except FileNotFoundError:
        return {}, None
    except (OSError, ValidationError):
        return {}, notices.THREADS_UNREADABLE
    found: dict[int, str] = {}
    for one in left:
        try:
            answer = _ANSWER.validate_python(one)
        except ValidationError:
            continue
        words: str = storable(answer.body)
        if words.strip() and answer.comment_id in told and len(found) < MOST_ANSWERS:
            found.setdefault(answer.comment_id, words)
    dropped = len(left) - len(found)
    return found, notices.threads_left_out(dropped, MOST_ANSWERS, LONGEST_CHARACTERS) if dropped else None
