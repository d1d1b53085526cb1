"""Pull requests that the bot opens: their title and description, and the answers to `/pr`. Pure."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bot.redaction import Redactor
from bot.thread import commit_message
from bot.thread.agent_answer import answer_parts
from bot.thread.formatting import clause, format_count, inline_code, truncate, url_target

LONGEST_TITLE = 256
LONGEST_DESCRIPTION = 60_000
_LONGEST_ANSWER = 20_000
_MOST_LISTED = 30

IS_PULL_REQUEST = "This thread is a pull request already, so there is none to open."
NO_BRANCH = "There is no branch here yet, so there is nothing to open a pull request for. Ask for a change first."
NO_DRAFTS = "This repository does not allow draft pull requests, so the pull request is ready for review."

BEGIN, END = "<!-- threadtree:description -->", "<!-- /threadtree:description -->"
"""What the bot writes stands between these marks; what people write outside of them stays."""

_MARKED = re.compile(rf"{BEGIN}(?P<text>.*?){END}", re.DOTALL)
_TITLE = re.compile(r"\A\s*[*_`# ]*Title:[*_` ]*(?P<title>\S[^\n]*)(?:\n|\Z)")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HEADING = re.compile(r"^[ ]{0,3}#{1,6}[ \t]+(?P<words>[^\n]*)$", re.MULTILINE)
_WHAT = re.compile(r"descri|summar|what|change|overview|purpose|motivation", re.IGNORECASE)
_TASK = re.compile(r"^[ \t]*[-*][ \t]+\[[ xX]\][ \t]+(?P<words>[^\n]*)$", re.MULTILINE)
_ISSUE = re.compile(r"issue|ticket|clos|fixes|related|linked", re.IGNORECASE)
# A line that waits for a number: `Fixes #`, `- Closes: #(issue number)`, `Resolves #___`.
_CLOSES_LINE = re.compile(
    r"^(?P<begin>[ \t]*(?:[-*][ \t]+)?(?:\[[ xX]\][ \t]+)?(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?))\u2060?"
    r"(?P<between>[ \t]*:?[ \t]*)"
    r"\#(?:\([^)\n]*\)|\{[^}\n]*\}|\[[^\]\n]*\]|<[^>\n]*>|[_.xXnN]*|(?P<number>\d+))\.?[ \t]*$",
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
    own: str | None,
    answers: Sequence[Answer],
    subjects: Sequence[str],
    thread_title: str,
    number: int,
    redactor: Redactor,
) -> str:
    """Return the title: as asked for, else what the agent calls its work, else the title of the issue `number`.

    The agent's name for it is its `own` title, the subject of the only commit, or the one that its first answer asks
    for. `subjects` are those of the branch's commits. Where they are Conventional Commits, the title has a type too.
    """
    if asked_for is not None and (plain := commit_message.plain(asked_for, number, redactor)):
        return plain[:LONGEST_TITLE]
    if own is None and len(subjects) == 1:
        own = subjects[0]
    if own is None and answers:
        own = commit_message.split_subject(answers[0].text)[1]
    conventional = commit_message.is_typed(subjects[0]) if subjects else False
    return commit_message.subject(own, thread_title, number, redactor, conventional=conventional)


@dataclass(frozen=True, slots=True)
class Described:
    """A title and a description as the agent left them: not safe yet. Without a title it named none."""

    title: str | None
    text: str


def read_described(left: str) -> Described | None:
    """Return what the agent left in `pull_request.md`, None where that has no description."""
    found = _TITLE.match(left)
    text = left[found.end() if found else 0 :].strip()
    return Described(found["title"] if found else None, text) if text else None


def description(
    written: str | None,
    answers: Sequence[Answer],
    subjects: Sequence[str],
    template: str | None,
    *,
    closes: int,
    server_url: str,
    redactor: Redactor,
) -> str:
    """Return the description, never empty: what the branch changes, who asked for it, and the issue that it closes.

    The change is told as the agent has `written` it; without that, by its only answer or by the commits. `answers` are
    those that changed the branch, oldest first; `subjects` are those of its commits. The repository's `template` is
    filled in, by the agent or with the whole text under the heading that asks for it.
    """
    asked, template = _requested_by(answers), (template or "").replace("\r\n", "\n").strip()
    if written is not None:
        text = _safe(redactor.public(_COMMENT.sub("", written)), server_url)
    else:
        text = _from_commits(answers, subjects, server_url, redactor)
    if template and not (written and _is_filled(template, written)):
        filled, closing = _with_closing(template, closes, template)
        text = _joined(text, asked, closing)
        heading = _heading(filled, _WHAT) or _heading(filled, re.compile(""))
        text = _joined(text, filled) if heading is None else _under(filled, heading, text)
    else:
        text, closing = _with_closing(text, closes, template)
        text = _joined(text, asked, closing)
    # The only marks are those around it.
    text = redactor.public(text).replace("threadtree:description", "threadtree\u200b:description")
    return text if len(text) <= LONGEST_DESCRIPTION else f"{text[:LONGEST_DESCRIPTION].rstrip()}…"


def framed(text: str) -> str:
    """Return the description between the marks."""
    return f"{BEGIN}\n{text}\n{END}"


def digest(body: str) -> str | None:
    """Return a digest of what stands between the marks, empty where nothing does, None without marks.

    The browser saves lines that end in "\\r\\n".
    """
    found = _MARKED.search(body)
    text = found["text"].replace("\r\n", "\n").strip() if found else ""
    return (hashlib.sha256(text.encode()).hexdigest() if text else "") if found else None


def rewritten(body: str, text: str) -> str:
    """Return the body with this text between its marks, and everything else as it is."""
    return _MARKED.sub(lambda _: framed(text), body, count=1)


def _from_commits(answers: Sequence[Answer], subjects: Sequence[str], server_url: str, redactor: Redactor) -> str:
    """Return the only answer, or the list of commits: what several answers say need not hold any more."""
    only = commit_message.split_subject(redactor.public(answers[0].text))[0] if len(answers) == 1 else ""
    text = _safe(only, server_url)
    if text and len(subjects) < 2:
        return text
    lines = [f"- {inline_code(truncate(subject))}" for subject in subjects[:_MOST_LISTED]]
    more = len(subjects) - len(lines)
    lines += [f"- {format_count(more, 'more commit')}"] if more > 0 else []
    return _joined(text, "Commits:\n\n" + "\n".join(lines))


def _requested_by(answers: Sequence[Answer]) -> str:
    first = dict[str, str]()
    for answer in answers:
        first.setdefault(answer.login, answer.url)
    asked = [f"{clause(login)} ([request]({url_target(url)}))" for login, url in first.items()]
    return f"Requested by {', '.join(asked)}." if asked else ""


def _safe(text: str, server_url: str) -> str:
    parts, is_cut = answer_parts(text, server_url=server_url, limit=_LONGEST_ANSWER)
    if not parts:
        return ""
    return f"{parts[0]}\n\n…" if is_cut or len(parts) > 1 else parts[0]


def _is_filled(template: str, text: str) -> bool:
    """Return whether the text has all headings and tasks of the template, of which there are some."""
    shown = _COMMENT.sub("", template)
    asked_for = [one["words"].strip() for kind in (_HEADING, _TASK) for one in kind.finditer(shown)]
    return bool(asked_for) and all(words.casefold() in text.casefold() for words in asked_for)


def _with_closing(text: str, number: int, template: str) -> tuple[str, str]:
    """Return the text with the issue that is closed where a line waits for it, or a heading of the template; else the
    line to add. Other numbers are examples in a template.
    """
    lines = (line for line in _CLOSES_LINE.finditer(text) if not _in_comment(text, line))
    waiting = next((one for one in lines if text == template or one["number"] in (None, str(number))), None)
    if waiting is not None:
        line = f"{waiting['begin']}{waiting['between']}#{number}"
        return text[: waiting.start()] + line + text[waiting.end() :], ""
    if template and (heading := _heading(text, _ISSUE)) is not None:
        return _under(text, heading, f"Closes #{number}."), ""
    return text, f"Closes #{number}."


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


def edited_by_hand(number: int) -> str:
    return (
        f"The description of #{number} was edited by hand, so it is left as it is. "
        "To have it written again, delete the text between its two `threadtree:description` marks."
    )


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
