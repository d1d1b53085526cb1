"""A turn's own comment, from its place in the queue to the answer: values in, Markdown out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, assert_never

from bot.messages.agent_answer import MOST_COMMENTS, answer_parts
from bot.messages.formatting import (
    clause,
    code_block,
    details,
    format_count,
    format_dollars,
    format_duration,
    inline_code,
    inline_text,
    plain_name,
    truncate,
    url_target,
)
from bot.messages.notices import ANSWER_CUT
from bot.messages.split import COMMENT_CHARACTERS
from bot.model import Repository, Target

EndState = Literal["done", "failed", "stopped", "timed-out", "interrupted", "refused"]
EntryState = Literal["pending", "in_progress", "completed"]

ANSWER_URL = "%ANSWER_URL%"
"""Placeholder for the address of a comment that is not posted yet."""
HANDED_BACK = (
    "Waiting. The bot is being restarted. This request continues when its machine is back, or after a minute on "
    "another one."
)
READING = "Reading the thread."
RULE = "---"
SETTING_UP = "Running `.threadtree/setup`."

_MOST_STEPS = 60
_LONGEST_PATCH = 20_000


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One line of the agent's plan."""

    text: str
    state: EntryState


@dataclass(frozen=True, slots=True)
class PullRequestLink:
    """The open pull request of a branch; without a `number`, GitHub's page that opens one."""

    url: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The push of a turn to `branch`, with the pages of the branch and of the diff."""

    branch: str
    branch_url: str
    diff_url: str
    files: int
    insertions: int
    deletions: int
    pull_request: PullRequestLink | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The request that a comment answers: who made it, its address, and its turn."""

    login: str
    url: str
    turn: int


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The end of a turn. The run fills it in, `final` renders it.

    `answer` and `last_words` (the end of the agent's error output) are the agent's own text, unchanged. `reason` is one
    sentence of Markdown, None only for `done`; `notices` are sentences of Markdown. `changes` are a unified diff where
    the checkout is never pushed. `read` are plain clauses: what the agent was given to read, and what was left out.
    `model` is the agent's name where it does not report a model.
    """

    state: EndState
    reason: str | None = None
    answer: str = ""
    changes: Changes | str | None = None
    notices: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    asked: Asked | None = None
    duration: timedelta | None = None
    cost_usd: float | None = None
    tokens: int | None = None
    model: str | None = None
    last_words: str = ""


def asked(login: str, server_url: str, repository: Repository, number: int, target: Target, turn: int) -> Asked:
    """Return the request of a turn, with the page of the text that addressed the bot."""
    thread = f"{server_url}/{repository.full_name}"
    match target.kind:
        # GitHub leads from a pull request's `issues` page to its own and keeps the fragment.
        case "issue":
            page = f"issues/{number}"
        case "comment":
            page = f"issues/{number}#issuecomment-{target.id}"
        case "pull":
            page = f"pull/{number}"
        case "review":
            page = f"pull/{number}#pullrequestreview-{target.id}"
        case "review-comment":
            page = f"pull/{number}#discussion_r{target.id}"
        case _:
            assert_never(target.kind)
    return Asked(login, f"{thread}/{page}", turn)


def queued(ahead: int, wait: str | None = None) -> str:
    """`ahead` is how many requests run or wait before this one; `wait` are `reasons.waits` of the first."""
    match ahead:
        case 0:
            return "Queued. This starts in a moment."
        case 1:
            line = "Queued. One request is ahead of this one."
        case _:
            line = f"Queued. {ahead} requests are ahead of this one."
    return f"{line} The first one waits. {wait}" if wait else line


def waiting(why: str) -> str:
    """`why` says what the request waits for, and until when."""
    return f"Waiting. {why}"


def behind(thread: str) -> str:
    """Name the thread, `owner/repo#1`, whose request goes before one of another thread: they share a worktree."""
    return f"The next is of {thread}, in the same worktree."


def needs_room(node: str, running: int, of_repository: int) -> str:
    """`running` are the requests on which the `node` works, `of_repository` those of the same repository."""
    works_on = f"works on {format_count(running, 'request')}, {of_repository} of this repository"
    return f"Queued. This starts when the node {node} has room. It {works_on}."


def running(plan: Sequence[PlanEntry], steps: Sequence[str], elapsed: timedelta, phase: str | None = None) -> str:
    """Show the agent's plan as a checklist and its last step; before it starts, the `phase` that takes so long."""
    lines = [f"Working on it, for {format_duration(elapsed)} so far."]
    if phase:
        lines += ["", phase]
    if plan:
        lines += ["", *(_plan_line(entry) for entry in plan[:_MOST_STEPS])]
    if steps:
        lines += ["", f"Last step: {inline_code(truncate(steps[-1]))}"]
    return "\n".join(lines)


def fetching(detail: str | None, *, first: bool) -> str:
    """Return the phase of the fetch; `first` is true for a new clone, `detail` is git's progress."""
    what = "Cloning the repository" if first else "Fetching new commits"
    return f"{what}: {clause(detail[:1].lower() + detail[1:])}" if detail else f"{what}."


def final(result: TurnResult, *, server_url: str = "", limit: int = COMMENT_CHARACTERS) -> tuple[str, ...]:
    """Return the finished comment in as many parts as the answer needs, each of at most `limit` characters.

    The answer leads to no other server than `server_url`. This takes up to seconds for a long answer: call it in a
    thread.
    """
    answer, was_cut = answer_parts(result.answer, server_url=server_url, limit=limit)
    parts = list(answer) or [_headline(result)]
    tail = _below_the_answer(result, limit, answered=bool(answer), was_cut=was_cut)
    joined = parts[:-1] + _joined_if_short(parts[-1], tail, limit)
    if len(joined) > MOST_COMMENTS:
        joined = [*parts[: MOST_COMMENTS - 1], _below_the_answer(result, limit, answered=True, was_cut=True)]
    return tuple(joined)


def moved(state: EndState) -> str:
    """Return what the tracking comment says when the answer is a comment of its own."""
    return f"{_STATE_WORDS[state]}. [Go to the answer]({ANSWER_URL})."


_STATE_WORDS: dict[EndState, str] = {
    "done": "Done",
    "failed": "Failed",
    "stopped": "Stopped",
    "timed-out": "Timed out",
    "interrupted": "Interrupted",
    "refused": "Not started",
}
_RETRY = "The work so far is kept. Write `/retry` to run the request again."
_NEXT_STEPS: dict[EndState, str | None] = {
    "done": None,
    "failed": _RETRY,
    "stopped": _RETRY,
    "timed-out": "The work so far is kept. Write `/retry` to continue, or ask for a smaller change.",
    "interrupted": _RETRY,
    "refused": None,
}


def _plan_line(entry: PlanEntry) -> str:
    text = inline_text(truncate(entry.text))
    match entry.state:
        case "completed":
            return f"- [x] {text}"
        case "in_progress":
            return f"- [ ] **{text}**"
        case "pending":
            return f"- [ ] {text}"
        case _:
            assert_never(entry.state)


def _headline(result: TurnResult) -> str:
    """Return how the turn ended, why, and what to do next."""
    if result.state == "done":
        return "Done. The agent left no message."
    state = _STATE_WORDS[result.state]
    if result.reason is None:
        words = [f"**{state}.**"]
    elif result.reason.startswith(state):
        words = [f"**{state}**{result.reason.removeprefix(state)}"]
    else:
        words = [f"**{state}:** {result.reason}"]
    if (step := _NEXT_STEPS[result.state]) is not None:
        words.append(step)
    return "\n\n".join(words)


def _below_the_answer(result: TurnResult, limit: int, *, answered: bool, was_cut: bool) -> str:
    """Return what changed, what was unusual, how a turn that is not done ended, the folds and the facts.

    The longest folds are left out where they do not fit.
    """
    sections = []
    if isinstance(result.changes, Changes):
        sections.append(_changes(result.changes))
    if boxed := (*([ANSWER_CUT] if was_cut else []), *result.notices):
        sections.append(_box(boxed))
    if answered and result.state != "done":
        sections.append(_headline(result))
    facts, folds = _facts(result), _folds(result)
    last = [f"<sub>{' · '.join(facts)}</sub>"] if facts else []
    while True:
        rule = [RULE] if answered and (sections or folds) else []
        text = "\n\n".join([*rule, *sections, *folds, *last])
        if len(text) <= limit or not folds:
            return text
        folds.remove(max(folds, key=len))


def _folds(result: TurnResult) -> list[str]:
    """Return the patch, the agent's last words, its steps and what it read, each in a fold of its own."""
    folds = []
    if isinstance(result.changes, str):
        folds.append(_patch(result.changes))
    if result.last_words.strip():
        folds.append(details("The end of the agent's error output", code_block(result.last_words)))
    if result.steps:
        skipped = len(result.steps) - _MOST_STEPS
        lines = [f"- {inline_code(truncate(step))}" for step in result.steps[-_MOST_STEPS:]]
        earlier = [f"- {format_count(skipped, 'earlier step')}"] if skipped > 0 else []
        folds.append(details(f"{format_count(len(result.steps), 'step')} of the agent", "\n".join(earlier + lines)))
    if result.read:
        folds.append(details("What the agent read", f"Read: {inline_text(', '.join(result.read))}."))
    return folds


def _facts(result: TurnResult) -> list[str]:
    """Return whose request this answers, the duration, the cost or else the tokens, the model and the turn."""
    asked, facts = result.asked, []
    if asked is not None:
        facts.append(f"[{plain_name(asked.login)}'s request]({url_target(asked.url)})")
    if result.duration is not None:
        facts.append(format_duration(result.duration))
    if result.cost_usd is not None:
        facts.append(format_dollars(result.cost_usd))
    elif result.tokens is not None:
        facts.append(f"{result.tokens:,} tokens")
    if result.model:
        facts.append(plain_name(result.model))
    if asked is not None:
        facts.append(f"turn {asked.turn}")
    return facts


def _box(notices: Sequence[str]) -> str:
    """Return GitHub's alert with all notices; a longer one stays one item, with its fold and its code."""
    items = [notices[0]] if len(notices) == 1 else ["- " + "\n  ".join(_lines(notice)) for notice in notices]
    return "\n".join(["> [!NOTE]", *(f"> {line}".rstrip() for item in items for line in _lines(item))])


def _lines(text: str) -> list[str]:
    """Cut where CommonMark does: a lone carriage return ends a line too (https://spec.commonmark.org/0.31.2/#line)."""
    return re.split(r"\r\n?|\n", text)


def _changes(changes: Changes) -> str:
    facts = [
        f"**Changed** [{inline_code(changes.branch)}]({url_target(changes.branch_url)})",
        f"[diff]({url_target(changes.diff_url)})",
        f"{format_count(changes.files, 'file')} +{changes.insertions} −{changes.deletions}",
    ]
    if (pull := changes.pull_request) is not None:
        words = "Open a pull request" if pull.number is None else f"Pull request #{pull.number}"
        facts.append(f"[{words}]({url_target(pull.url)})")
    return " · ".join(facts)


def _patch(patch: str) -> str:
    if len(patch) > _LONGEST_PATCH:
        return "The edits are too long to show here. They are kept on the bot's machine."
    return details("The edits as a patch for git apply", code_block(patch, "diff"))


def _joined_if_short(first: str, second: str, limit: int) -> list[str]:
    joined = "\n\n".join(filter(None, [first, second]))
    return [joined] if len(joined) <= limit else [first, second]
