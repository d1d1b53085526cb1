"""Pull requests that the bot opens: their title and description, and the answers to `/pr`. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bot.messages import commit_message
from bot.messages.agent_answer import answer_parts
from bot.messages.formatting import format_count, inline_code, one_line, plain_name, truncate, url_target
from bot.redaction import Redactor

LONGEST_TITLE = 256
LONGEST_DESCRIPTION = 60_000
_LONGEST_ANSWER = 20_000
_LONGEST_LATER_ANSWER = 600
_MOST_LISTED = 30

IS_PULL_REQUEST = "This thread is a pull request already, so there is none to open."
NO_BRANCH = "There is no branch here yet, so there is nothing to open a pull request for. Ask for a change first."
NO_DRAFTS = "This repository does not allow draft pull requests, so the pull request is ready for review."

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HEADING = re.compile(r"^[ ]{0,3}#{1,6}[ \t]+(?P<words>[^\n]*)$", re.MULTILINE)
_WHAT = re.compile(r"descri|summar|what|change|overview|purpose|motivation", re.IGNORECASE)
_ISSUE = re.compile(r"issue|ticket|clos|fixes|related|linked", re.IGNORECASE)
# A line that waits for a number: `Fixes #`, `- Closes: #(issue number)`, `Resolves #___`.
_CLOSES_LINE = re.compile(
    r"^(?P<begin>[ \t]*(?:[-*][ \t]+)?(?:\[[ xX]\][ \t]+)?(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)[ \t]*:?[ \t]*)"
    r"\#(?:\([^)\n]*\)|\{[^}\n]*\}|\[[^\]\n]*\]|<[^>\n]*>|[_.xXnN0\d]*)[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The agent's answer to one request; `login` asked for it at `url`."""

    text: str
    login: str
    url: str


# The pull request


def title(
    asked_for: str | None,
    answers: Sequence[Answer],
    subjects: Sequence[str],
    thread_title: str,
    number: int,
    redactor: Redactor,
) -> str:
    """Return the title: as asked for, else what the agent calls its work, else the title of the issue `number`.

    The agent's name for it is the subject of the only commit, or the one that its first answer asks for. `subjects` are
    those of the branch's commits. Where they are Conventional Commits, the title has a type too.
    """
    if asked_for is not None and (plain := commit_message.plain(asked_for, number, redactor)):
        return plain[:LONGEST_TITLE]
    own = subjects[0] if len(subjects) == 1 else None
    if own is None and answers:
        own = commit_message.split_subject(answers[0].text)[1]
    conventional = commit_message.is_typed(subjects[0]) if subjects else False
    return commit_message.subject(own, thread_title, number, redactor, conventional=conventional)


def description(
    answers: Sequence[Answer],
    subjects: Sequence[str],
    template: str | None,
    *,
    closes: int | None,
    server_url: str,
    redactor: Redactor,
) -> str:
    """Return the description, never empty: what the agent answered, the commits, the issue that it closes.

    `answers` are those that changed the branch, oldest first; `subjects` those of its commits. They fill in the
    repository's `template`.
    """
    summary = _summary(answers, subjects, server_url, redactor)
    closing = "" if closes is None else f"Closes #{closes}"
    if template is None or not template.strip():
        text = _joined(summary, closing and f"{closing}.")
    else:
        text = _filled(template, summary, closing)
    text = redactor.redact(text)
    return text if len(text) <= LONGEST_DESCRIPTION else f"{text[:LONGEST_DESCRIPTION].rstrip()}…"


def _summary(answers: Sequence[Answer], subjects: Sequence[str], server_url: str, redactor: Redactor) -> str:
    texts = [commit_message.split_subject(redactor.redact(answer.text))[0] for answer in answers]
    safe = [_safe(text, server_url, _LONGEST_ANSWER) for text in texts[:1]]
    later = [_safe_line(_first_paragraph(text), server_url) for text in texts[1:]]
    sections = [text for text in safe if text]
    if any(later):
        sections.append("Later changes:\n\n" + "\n".join(f"- {line}" for line in later if line))
    if len(subjects) > 1 or not sections:
        lines = [f"- {inline_code(truncate(subject))}" for subject in subjects[:_MOST_LISTED]]
        more = len(subjects) - len(lines)
        lines += [f"- {format_count(more, 'more commit')}"] if more > 0 else []
        sections.append("Commits:\n\n" + "\n".join(lines))
    if answers:
        first = dict[str, str]()
        for answer in answers:
            first.setdefault(answer.login, answer.url)
        asked = [f"{plain_name(login)} ([request]({url_target(url)}))" for login, url in first.items()]
        sections.append(f"Requested by {', '.join(asked)}.")
    return "\n\n".join(sections)


def _safe(text: str, server_url: str, limit: int) -> str:
    parts, is_cut = answer_parts(text, server_url=server_url, limit=limit)
    if not parts:
        return ""
    return f"{parts[0]}\n\n…" if is_cut or len(parts) > 1 else parts[0]


def _safe_line(text: str, server_url: str) -> str:
    """Return the text harmless on one line. The line is made first: code over several lines is other code on one."""
    line = one_line(text)[:_LONGEST_LATER_ANSWER]
    safe = _safe(line, server_url, 2 * _LONGEST_LATER_ANSWER)
    return safe if "\n" not in safe else inline_code(line)


def _first_paragraph(text: str) -> str:
    return text.strip().split("\n\n", 1)[0]


def _filled(template: str, summary: str, closing: str) -> str:
    """Return the template with the summary under the heading that asks for one, and the closing where it waits."""
    text = template.replace("\r\n", "\n").strip()
    if closing:
        waiting = next((line for line in _CLOSES_LINE.finditer(text) if not _in_comment(text, line)), None)
        if waiting is not None:
            number = closing.removeprefix("Closes ")
            text = text[: waiting.start()] + waiting["begin"] + number + text[waiting.end() :]
        elif (heading := _heading(text, _ISSUE)) is not None:
            text = _under(text, heading, f"{closing}.")
        else:
            summary = _joined(summary, f"{closing}.")
    heading = _heading(text, _WHAT) or _heading(text, re.compile(""))
    return _joined(summary, text) if heading is None else _under(text, heading, summary)


def _heading(text: str, words: re.Pattern[str]) -> re.Match[str] | None:
    found = (one for one in _HEADING.finditer(text) if words.search(one["words"]))
    return next((one for one in found if not _in_comment(text, one)), None)


def _in_comment(text: str, found: re.Match[str]) -> bool:
    return any(comment.start() < found.start() < comment.end() for comment in _COMMENT.finditer(text))


def _under(text: str, heading: re.Match[str], words: str) -> str:
    return _joined(text[: heading.end()], words, text[heading.end() :].lstrip("\n"))


def _joined(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)


# Answers to `/pr`


def opened(number: int, url: str, *, draft: bool, drafts_refused: bool) -> str:
    """`drafts_refused`: a draft was asked for, but the repository has none."""
    words = f"Opened the {'draft ' if draft else ''}pull request [#{number}]({url_target(url)})."
    return f"{words} {NO_DRAFTS}" if drafts_refused else words


def is_open(number: int, url: str, *, draft: bool) -> str:
    kind = "draft pull request" if draft else "pull request"
    return f"The {kind} [#{number}]({url_target(url)}) is open for this branch already."


def was_merged(number: int, url: str, branch: str) -> str:
    return (
        f"{inline_code(branch)} was merged with [#{number}]({url_target(url)}), so there is nothing to open. "
        "Ask for another change first."
    )


def not_on_github(branch: str) -> str:
    return (
        f"{inline_code(branch)} is not on GitHub, so there is nothing to open a pull request for. "
        "Ask for a change first: it is pushed then."
    )


def nothing_new(branch: str, base: str) -> str:
    return (
        f"{inline_code(branch)} has no commits that {inline_code(base)} lacks, so there is nothing to open. "
        "Ask for a change first."
    )


def refused(why: str, page: str) -> str:
    """`why` are GitHub's words; `page` opens the pull request by hand."""
    return (
        f"The pull request was not opened. GitHub says: {inline_code(truncate(why))}. "
        f"[Open it yourself]({url_target(page)})."
    )


def github_away(page: str) -> str:
    """GitHub did not answer in time, or asks to wait."""
    return (
        "The pull request was not opened, because GitHub cannot take it at the moment. "
        f"Write `/pr` again later, or [open it yourself]({url_target(page)})."
    )
