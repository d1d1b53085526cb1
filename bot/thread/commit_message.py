"""Commit messages of the host: the subject that the agent asks for, else the thread's title. Pure."""

import re
from collections.abc import Sequence

from bot.markdown import BEFORE_MENTION
from bot.redaction import Redactor
from bot.thread.formatting import capitalize, one_line

LONGEST_SUBJECT = 72
# What people read of a log in a terminal; GitHub folds a longer subject.
SUBJECTS_TO_LOOK_AT = 30
_FEWEST_SUBJECTS = 4
_LONGEST_LINE = 1000

_ASKED_FOR = re.compile(r"\A[*_`> ]*Commit:[*_` ]*(?P<subject>\S.*)\Z")
_MENTIONS = re.compile(rf"{BEFORE_MENTION}@+(?=[0-9A-Za-z])")
# Whom a title asks is no part of what is done: `@bot, please …`.
ADDRESSED = re.compile(
    r"\A\s*@[0-9A-Za-z][0-9A-Za-z_-]*(?:\[bot\])?[\s,:，：、]+(?:please[\s,:]+)?(?=\S)",
    re.IGNORECASE,
)
# https://docs.github.com/issues/tracking-your-work-with-issues/using-issues/linking-a-pull-request-to-an-issue
_CLOSING = re.compile(
    r"(?<![A-Za-z0-9])(?P<keyword>close[sd]?|fix(?:e[sd])?|resolve[sd]?)(?P<between>:?\s+|:)"
    r"(?P<issue>(?:[\w.-]+/[\w.-]+)?\#\d+|GH-\d+|https?://\S+)",
    re.IGNORECASE,
)
# https://www.conventionalcommits.org/en/v1.0.0/#specification
_CONVENTIONAL = re.compile(r"[A-Za-z]{2,20}(?:\([^()\n]+\))?!?: \S")
_TROUBLE = re.compile(
    r"\b(?:bug|broken|correct|crash|error|exception|fail|fix|missing|prevent|repair|regression|wrong)(?:s|es|ed|ing|ure|ures)?\b",
    re.I,
)


def split_subject(answer: str) -> tuple[str, str | None]:
    """Return the answer without its last line `Commit: <subject>`, and that subject; None without such a line."""
    text, _, last = answer.rstrip().rpartition("\n")
    asked_for = _ASKED_FOR.match(last.strip()) if len(last) <= _LONGEST_LINE else None
    if asked_for is None:
        return answer, None
    return text.rstrip(), asked_for["subject"]


def with_subject(text: str, subject: str | None) -> str:
    """Return the answer of which `split_subject` makes these."""
    return text if subject is None else f"{text}\n\nCommit: {subject}"


def subject(asked_for: str | None, title: str, number: int, redactor: Redactor, *, conventional: bool) -> str:
    """Return the subject of a commit: what the agent asked for, else the title of the thread `number`.

    It is one line without a mention, and closes no other issue than `number`. `conventional`: it begins with a type.
    """
    task = ADDRESSED.sub("", title)
    title = title if task == title else capitalize(task)
    chosen = plain(asked_for or "", number, redactor) or plain(title, number, redactor) or f"Work on #{number}"
    if conventional and not is_typed(chosen):
        kind = "fix" if _TROUBLE.search(f"{chosen} {title}") else "chore"
        chosen = _without_closing(f"{kind}: {chosen}", number)  # `fix: #8` is a closing reference, `#8` is not
    return _shortened(chosen)


def is_conventional(subjects: Sequence[str]) -> bool:
    """Return whether most of these recent subjects are Conventional Commits."""
    matching = sum(is_typed(line) for line in subjects)
    return len(subjects) >= _FEWEST_SUBJECTS and matching * 2 > len(subjects)


def is_typed(line: str) -> bool:
    """Return whether a subject begins with a type, as Conventional Commits do."""
    return _CONVENTIONAL.match(line) is not None


def plain(words: str, number: int, redactor: Redactor) -> str:
    """Return the words as one line without secrets and mentions, empty if there are none.

    It closes no other issue than `number`.
    """
    line = one_line("".join(c if c.isprintable() else " " for c in words))
    line = redactor.public(line).strip("`*\"'“” ").removesuffix(".")
    line = _without_closing(_MENTIONS.sub("", line), number)
    return line if re.search(r"\w", line) else ""


def is_live(whole_message: str, number: int) -> bool:
    """Return whether a commit message mentions somebody, or closes another issue than `number`."""
    references = (found for found in _CLOSING.finditer(whole_message) if _unlinked(found, number) != found[0])
    return _MENTIONS.search(whole_message) is not None or any(references)


def message(subject_line: str, requested_by: str, url: str) -> str:
    """Return the whole message but for its trailer; `url` is the request's."""
    return f"{subject_line}\n\nRequested by {requested_by}: {url}"


def _without_closing(line: str, number: int) -> str:
    # An address can hold the keyword of a further reference: what is left is read again.
    while (changed := _CLOSING.sub(lambda found: _unlinked(found, number), line)) != line:
        line = changed
    return line


def _unlinked(found: re.Match[str], number: int) -> str:
    """Return the words of a closing reference in a form that closes no other issue than `number`."""
    if found["issue"] == f"#{number}":
        return found[0]
    issue = re.sub(r"\A(?:https?://|GH-|#)", "", found["issue"], flags=re.IGNORECASE).replace("#", " ")
    return f"{found['keyword']}{found['between']}{issue}"


def _shortened(line: str) -> str:
    if len(line) <= LONGEST_SUBJECT:
        return line
    cut = line[: LONGEST_SUBJECT - 1]
    whole_words = cut.rpartition(" ")[0]
    return f"{whole_words if len(whole_words) > LONGEST_SUBJECT // 2 else cut}".rstrip(" ,;:-") + "…"
