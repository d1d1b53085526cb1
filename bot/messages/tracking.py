"""The one comment of a turn, from its place in line to the answer: values in, Markdown out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, assert_never

from bot.messages.escape import inline_code, inline_text, url_target
from bot.messages.formatting import code_block, details, format_count, format_duration, truncate
from bot.messages.split import COMMENT_CHARACTERS

EndState = Literal["done", "failed", "stopped", "timed-out", "interrupted", "refused"]
EntryState = Literal["pending", "in_progress", "completed"]

_MOST_STEPS = 60
_MOST_READ = 15
_LONGEST_PATCH = 20_000


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One line of the agent's plan."""

    text: str
    state: EntryState


@dataclass(frozen=True, slots=True)
class Changes:
    """What a turn put on its branch; `url` compares it or is its pull request."""

    branch: str
    url: str | None
    commits: int
    files: int
    insertions: int
    deletions: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished turn. `answer` holds the agent's words, already safe and cut to comments; notices are sentences."""

    state: EndState
    answer: Sequence[str] = ()
    reason: str | None = None
    next_step: str | None = None
    changes: Changes | None = None
    patch: str | None = None
    notices: Sequence[str] = ()
    duration: timedelta | None = None
    cost_usd: float | None = None
    tokens: int | None = None
    last_words: str = ""
    steps: Sequence[str] = ()
    read: Sequence[str] = ()
    left_out: Sequence[str] = ()


def queued(ahead: int) -> str:
    """`ahead`: how many requests run or wait before this one."""
    match ahead:
        case 0:
            return "Queued. This starts in a moment."
        case 1:
            return "Queued. One request is ahead of this one."
        case _:
            return f"Queued. {ahead} requests are ahead of this one."


def running(plan: Sequence[PlanEntry], steps: Sequence[str], elapsed: timedelta, phase: str | None = None) -> str:
    """The agent at work: its plan as a checklist, and what it did last. Before that the `phase` that takes so long."""
    lines = [f"Working on it, for {format_duration(elapsed)} so far."]
    if phase:
        lines += ["", phase]
    if plan:
        lines += ["", *(_plan_line(entry) for entry in plan[:_MOST_STEPS])]
    if steps:
        lines += ["", f"Last step: {inline_code(truncate(steps[-1]))}"]
    return "\n".join(lines)


def fetching(detail: str | None, *, first: bool) -> str:
    """The phase in which the repository comes, whole or what is new of it; `detail`: how far git says it is."""
    what = "Cloning the repository" if first else "Fetching what is new"
    return f"{what}: {inline_text(truncate(detail[:1].lower() + detail[1:]))}" if detail else f"{what}."


def setting_up() -> str:
    """The phase in which the repository's own script runs."""
    return "Setting up the worktree with `.threadtree/setup`."


def final(outcome: Outcome, limit: int = COMMENT_CHARACTERS) -> tuple[str, ...]:
    """The finished comment, in as many parts as the answer needs; none is longer than `limit`."""
    parts = list(outcome.answer)
    head, tail = _headline(outcome, answered=bool(parts)), _footer(outcome)
    parts = _joined_if_short(head, parts[0], limit) + parts[1:] if parts else [head]
    parts = parts[:-1] + _joined_if_short(parts[-1], tail, limit)
    return tuple(part for part in parts if part)


def moved(state: EndState) -> str:
    """What is left of the tracking comment when the answer is a comment of its own; the sender fills in its address."""
    return f"{_STATE_WORDS[state]} [Go to the answer](%ANSWER_URL%)."


_STATE_WORDS: dict[EndState, str] = {
    "done": "Done.",
    "failed": "This failed.",
    "stopped": "Stopped.",
    "timed-out": "This ran out of time.",
    "interrupted": "This was interrupted.",
    "refused": "This was not started.",
}
_NEXT_STEPS: dict[EndState, str | None] = {
    "done": None,
    "failed": "What was done so far is kept. Write `/retry` to run the request again.",
    "stopped": "What was done so far is kept. Write `/retry` to run the request again.",
    "timed-out": "What was done so far is kept. Write `/retry` to go on, or ask for a smaller piece.",
    "interrupted": "What was done so far is kept. Write `/retry` to run the request again.",
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


def _headline(outcome: Outcome, *, answered: bool) -> str:
    """Empty for an answer that speaks for itself."""
    if outcome.state == "done":
        return "" if answered else "Done. The agent left no message."
    words = [f"**{_STATE_WORDS[outcome.state]}** {outcome.reason or ''}".strip()]
    if (step := outcome.next_step or _NEXT_STEPS[outcome.state]) is not None:
        words.append(step)
    if answered:
        words.append("What the agent wrote until then:")
    return "\n\n".join(words)


def _footer(outcome: Outcome) -> str:
    sections = [_notice(notice) for notice in outcome.notices]
    if outcome.changes is not None:
        sections.append(_changes(outcome.changes))
    if outcome.patch is not None:
        sections.append(_patch(outcome.patch))
    if outcome.last_words.strip():
        sections.append(details("The agent's last words on its error output", code_block(outcome.last_words)))
    if outcome.steps:
        skipped = len(outcome.steps) - _MOST_STEPS
        lines = [f"- {inline_code(truncate(step))}" for step in outcome.steps[-_MOST_STEPS:]]
        earlier = [f"- {format_count(skipped, 'earlier step')}"] if skipped > 0 else []
        sections.append(details(f"{format_count(len(outcome.steps), 'step')} of the agent", "\n".join(earlier + lines)))
    if outcome.read or outcome.left_out:
        read = [f"- {inline_text(truncate(item))}" for item in outcome.read[:_MOST_READ]]
        left = [f"- left out: {inline_text(truncate(item))}" for item in outcome.left_out[:_MOST_READ]]
        sections.append(details("What the agent was given to read", "\n".join(read + left)))
    facts = [] if outcome.duration is None else [format_duration(outcome.duration)]
    if outcome.cost_usd is not None:
        facts.append(f"${outcome.cost_usd:.2f}")
    if outcome.tokens is not None:
        facts.append(f"{outcome.tokens:,} tokens")
    if facts:
        sections.append(f"<sub>{' · '.join(facts)}</sub>")
    return "\n\n".join(sections)


def _notice(notice: str) -> str:
    """As GitHub shows alerts; a longer one stays one block, with its folds and its code."""
    return "\n".join(["> [!NOTE]", *(f"> {line}".rstrip() for line in notice.split("\n"))])


def _changes(changes: Changes) -> str:
    branch = inline_code(changes.branch)
    where = branch if changes.url is None else f"[{branch}]({url_target(changes.url)})"
    return (
        f"**Changed** on {where}: {format_count(changes.commits, 'commit')}, {format_count(changes.files, 'file')}, "
        f"+{changes.insertions} −{changes.deletions}"
    )


def _patch(patch: str) -> str:
    if len(patch) > _LONGEST_PATCH:
        return "The edits are too long to show here; they are kept in the worktree."
    return details("The edits as a patch (`git apply`)", code_block(patch, "diff"))


def _joined_if_short(first: str, second: str, limit: int) -> list[str]:
    joined = "\n\n".join(filter(None, [first, second]))
    return [joined] if len(joined) <= limit else [first, second]
