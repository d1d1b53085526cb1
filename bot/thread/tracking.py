"""A turn's own comment, from its place in the queue to the answer: values in, Markdown out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from bot.ask import Ask
from bot.model import Repository, TargetKind
from bot.thread import reasons
from bot.thread.agent_answer import COMMENT_CHARACTERS, MOST_COMMENTS, answer_parts
from bot.thread.commit_message import ADDRESSED
from bot.thread.formatting import (
    clause,
    code_block,
    details,
    format_count,
    format_dollars,
    format_duration,
    inline_code,
    inline_text,
    truncate,
    url_target,
)
from bot.thread.notices import ANSWER_CUT
from bot.thread.outcome import Nothing

Obstacle = Literal["time", "turn", "github-limit", "worktree", "directory"]
"""What keeps a turn from being claimed; see `turn_obstacles` in the migrations."""


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """A queued turn, and why it waits. Without an obstacle, its node claims it as soon as it has room.

    `reason` belongs to the obstacle `time`, `held_until` to `github-limit`. `removal_error`: why a directory that is in
    its way cannot be removed. `ahead` and `wait` as in `requests.Enqueued`; `behind`: the thread of the first, if it is
    another one. `running` turns are on its `node`, `running_here` of its repository.
    """

    id: int
    obstacle: Obstacle | None
    reason: str | None
    ahead: int
    wait: str | None
    behind: str | None
    held_until: datetime | None
    removal_error: str | None
    node: str
    node_is_silent: bool
    running: int
    running_here: int


EndState = Literal["done", "failed", "stopped", "timed-out", "interrupted", "refused"]
EntryState = Literal["pending", "in_progress", "completed"]

ANSWER_URL = "%ANSWER_URL%"
"""Placeholder for the address of a comment that is not posted yet."""
HANDED_BACK = (
    "Waiting. The bot is being restarted. This request continues when its machine is back, or after a minute on "
    "another one."
)
MODEL_REFUSES = "The agent's model asks to slow down. The agent tries it again."
NOTHING_NEW = ("nothing new",)
"""What an agent read that knows the thread already."""
READING = "Reading the thread."
RULE = "---"
STEP_FAILED = " (failed)"
"""The end of a step that failed."""
SETTING_UP = "Running `.threadtree/setup`."

_MOST_ADDED = 5
_MOST_LINKS = 10
_MOST_STEPS = 60
_LONGEST_PATCH = 20_000
_BELOW_A_REVIEW = 12_000
"""What is left of a review's text for what stands below the answer."""
_NOT_ALL = re.compile(r"left out|did not fit|could not be read")


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
    """The push of a turn to `branch`, with the pages of the branch and of the diff; `head` is the commit pushed, and
    `merged` whether it merges what people pushed meanwhile.
    """

    branch: str
    branch_url: str
    diff_url: str
    files: int
    insertions: int
    deletions: int
    pull_request: PullRequestLink | None = None
    head: str = ""
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The review of the commit `head`, with its page: `remarks` on lines, and how many earlier ones were resolved.

    `since_url` is the page with what changed since the commit that was reviewed before.
    """

    head: str
    url: str
    remarks: int
    resolved: int = 0
    since_url: str | None = None


@dataclass(frozen=True, slots=True)
class AskedBy:
    """The request that a comment answers: who made it, its address, and its turn. `is_fix`: the bot itself asked, after
    that request, because of failing checks. `page` is the turn's own on the dashboard, where people reach that.
    """

    login: str
    url: str
    turn: int
    is_fix: bool = False
    page: str | None = None


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The end of a turn. The run fills it in, `final` renders it.

    `answer` and `last_words` (the end of the agent's error output) are the agent's own text, unchanged. `reason` is one
    sentence of Markdown, None only for `done`; `notices` are sentences of Markdown. `changes` are a unified diff where
    the checkout is not pushed; `nothing` is why nothing was pushed. `read` are plain clauses: what the agent was given
    to read, and what was left out, did not fit or could not be read. `model` is the agent's name where it does not
    report a model. `added` are the messages that the agent was told while it worked. `check` is what the host says of
    the repository's check (`checks.told`), `check_output` the end of what a failed one wrote. With `review` it is one
    text, posted as a review. `boxes` are to be ticked (`bot.thread.boxes`). `whole` is all that the comment says, of a
    turn that worked on a worktree itself.
    """

    state: EndState
    reason: str | None = None
    answer: str = ""
    changes: Changes | str | None = None
    nothing: Nothing | None = None
    notices: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    asked: AskedBy | None = None
    duration: timedelta | None = None
    cost_usd: float | None = None
    tokens: int | None = None
    model: str | None = None
    last_words: str = ""
    added: tuple[AskedBy, ...] = ()
    check: str = ""
    check_output: str = ""
    review: Reviewed | None = None
    whole: str = ""
    boxes: str = ""


_PAGES: dict[TargetKind, str] = {
    # GitHub leads from a pull request's `issues` page to its own and keeps the fragment.
    "issue": "issues/{number}",
    "comment": "issues/{number}#issuecomment-{id}",
    "pull": "pull/{number}",
    "review": "pull/{number}#pullrequestreview-{id}",
    "review-comment": "pull/{number}#discussion_r{id}",
}


def asked(ask: Ask, server_url: str, repository: Repository, number: int, turn: int) -> AskedBy:
    """Return the request of a turn, with the page of the text that addressed the bot."""
    page = _PAGES[ask.target.kind].format(number=number, id=ask.target.id)
    return AskedBy(ask.by.login, f"{server_url}/{repository.full_name}/{page}", turn)


def request_link(asked: AskedBy) -> str:
    """Name a request by who made it, and link it."""
    return f"[{clause(asked.login)}'s request]({url_target(asked.url)})"


def queued(ahead: int, wait: str | None = None) -> str:
    """`ahead` is how many requests run or wait before this one; `wait` are `reasons.waits` of the first."""
    if not ahead:
        return "Queued. This starts in a moment."
    before = "One request is" if ahead == 1 else f"{ahead} requests are"
    line = f"Queued. {before} ahead of this one."
    return f"{line} The first one waits. {wait}" if wait else line


def waiting(why: str) -> str:
    """`why` says what the request waits for, and until when."""
    return why if why.startswith("Waiting for ") else f"Waiting. {why}"


def why_it_waits(turn: WaitingTurn, now: datetime) -> str:
    """Say why a queued request does not run now, and until when."""
    if turn.obstacle == "time" and turn.reason:
        return waiting(turn.reason)
    if turn.ahead:
        line = queued(turn.ahead, turn.wait)
        return f"{line} The next is of {turn.behind}, in the same worktree." if turn.behind else line
    if turn.obstacle == "github-limit" and turn.held_until:
        return waiting(reasons.waits("github-limit", turn.held_until, now))
    if turn.node_is_silent:
        return waiting(reasons.node_is_silent(turn.node))
    if turn.removal_error:
        return waiting(reasons.removal_fails(turn.removal_error))
    if turn.obstacle in ("worktree", "directory"):
        return waiting(reasons.WORKTREE_IS_BUSY)
    if turn.running:
        works_on = f"works on {format_count(turn.running, 'request')}, {turn.running_here} of this repository"
        return f"Queued. This starts when the node {turn.node} has room. It {works_on}."
    return queued(0)


def added(message: AskedBy, text: str) -> str:
    """Return the line that shows that the agent was told a message while it works."""
    words = inline_text(truncate(ADDRESSED.sub("", text).strip().partition("\n")[0]))
    return f"[{clause(message.login)} added]({url_target(message.url)}): {words}"


def given_to(asked: AskedBy) -> str:
    """Say what became of a request that the agent of another one was told."""
    return f"Given to the agent that works on {request_link(asked)}. One answer follows for both."


def running(
    plan: Sequence[PlanEntry],
    steps: Sequence[str],
    elapsed: timedelta,
    phase: str | None = None,
    added: Sequence[str] = (),
) -> str:
    """Show the agent's plan as a checklist and its last step; before it starts, the `phase` that takes so long.

    `added` are the lines about what it was told meanwhile.
    """
    lines = [f"Working on it, for {format_duration(elapsed)} so far."]
    for line in added[-_MOST_ADDED:]:
        lines += ["", line]
    if phase:
        lines += ["", phase]
    if plan:
        lines += [
            "",
            *(_ENTRIES[entry.state].format(inline_text(truncate(entry.text))) for entry in plan[:_MOST_STEPS]),
        ]
    if steps:
        words, command = _parted(steps[-1])
        lines += ["", f"Last step: {words or command}"]
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
    if result.whole:
        return (result.whole,)
    below = limit if result.review is None else _BELOW_A_REVIEW
    answer, was_cut = answer_parts(result.answer, server_url=server_url, limit=limit - below or limit)
    if result.review is not None:
        answer, was_cut = answer[:1], was_cut or len(answer) > 1
    parts = list(answer) or [_headline(result)]
    tail = _below_the_answer(result, below, answered=bool(answer), was_cut=was_cut)
    if tail and len(parts[-1]) + 2 + len(tail) <= limit:
        parts[-1] += f"\n\n{tail}"
    elif tail and len(parts) == MOST_COMMENTS:
        parts[-1] = _below_the_answer(result, limit, answered=True, was_cut=True)
    elif tail:
        parts.append(tail)
    return tuple(parts)


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


_ENTRIES: dict[EntryState, str] = {"completed": "- [x] {}", "in_progress": "- [ ] **{}**", "pending": "- [ ] {}"}


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
    if result.check:
        sections.append(result.check)
    if result.review is not None:
        sections.append(_reviewed(result.review))
    if boxed := (*([ANSWER_CUT] if was_cut else []), *result.notices):
        sections.append(_box(boxed))
    if answered and result.state != "done":
        sections.append(_headline(result))
    facts, folds = _facts(result), _folds(result)
    last = [f"<sub>{' · '.join(facts)}</sub>"] if facts else []
    while True:
        rule = [RULE] if answered and (sections or folds) else []
        text = "\n\n".join([*rule, *sections, *folds, *filter(None, [result.boxes]), *last])
        if len(text) <= limit or not folds:
            return text
        folds.remove(max(folds, key=len))


def _tells_steps(result: TurnResult) -> bool:
    """Return whether the steps are worth a fold: the agent changed something, or not all went well, or is shown."""
    steps = result.steps
    failed = any(step.endswith(STEP_FAILED) for step in steps)
    return bool(steps) and (result.changes is not None or result.state != "done" or failed or len(steps) > _MOST_STEPS)


def _parted(step: str) -> tuple[str, str]:
    """Return the agent's words for a step, empty where it said none, and the tool with the command."""
    words, _, command = step.rpartition("\n")
    return inline_text(truncate(words)), inline_code(truncate(command))


def not_all(read: Sequence[str]) -> tuple[str, ...]:
    """Return the clauses on what an agent read that tell of something it did not get."""
    return tuple(clause for clause in read if _NOT_ALL.search(clause))


def _tells_read(result: TurnResult) -> bool:
    """Return whether what the agent read is worth a fold: it was not all."""
    return bool(not_all(result.read))


def _folds(result: TurnResult) -> list[str]:
    """Return the patch, the check's output, the agent's last words, and where they tell more than their number its
    steps and what it read, each in a fold of its own.
    """
    folds = []
    if isinstance(result.changes, str):
        folds.append(_patch(result.changes))
    if result.check_output:
        folds.append(details("The end of the check's output", code_block(result.check_output)))
    if result.last_words.strip():
        folds.append(details("The end of the agent's error output", code_block(result.last_words)))
    if _tells_steps(result):
        skipped = len(result.steps) - _MOST_STEPS
        parted = map(_parted, result.steps[-_MOST_STEPS:])
        lines = [f"- {': '.join(filter(None, (words, command)))}" for words, command in parted]
        earlier = [f"- {format_count(skipped, 'earlier step')}"] if skipped > 0 else []
        folds.append(details(f"{format_count(len(result.steps), 'step')} of the agent", "\n".join(earlier + lines)))
    if _tells_read(result):
        folds.append(details("What the agent read", f"Read: {inline_text(', '.join(result.read))}."))
    return folds


def _facts(result: TurnResult) -> list[str]:
    """Return whose request this answers, the duration, what the agent did and read where no fold tells it, the cost or
    else the tokens, the model and the turn.
    """
    asked, facts = result.asked, []
    if asked is not None:
        links = [f"[{clause(one.login)}'s message]({url_target(one.url)})" for one in result.added[:_MOST_LINKS]]
        links += [f"{len(result.added) - _MOST_LINKS} more"] if len(result.added) > _MOST_LINKS else []
        whose = f"by itself, after {request_link(asked)}" if asked.is_fix else request_link(asked)
        facts.append(" with ".join(filter(None, (whose, ", ".join(links)))))
    if result.duration is not None:
        facts.append(format_duration(result.duration))
    if result.steps and not _tells_steps(result):
        facts.append(format_count(len(result.steps), "step"))
    if result.read and result.read != NOTHING_NEW and not _tells_read(result):
        facts.append(f"read {inline_text(', '.join(result.read))}")
    if result.cost_usd is not None:
        facts.append(format_dollars(result.cost_usd))
    elif result.tokens is not None:
        facts.append(f"{result.tokens:,} tokens")
    if result.model:
        facts.append(clause(result.model))
    if asked is not None:
        facts.append(f"turn {asked.turn}" if asked.page is None else f"[turn {asked.turn}]({url_target(asked.page)})")
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


def _reviewed(review: Reviewed) -> str:
    facts = [f"**Reviewed** [{inline_code(review.head[:7])}]({url_target(review.url)})"]
    if review.remarks:
        facts.append(format_count(review.remarks, "remark"))
    if review.resolved:
        facts.append(f"{format_count(review.resolved, 'earlier remark')} resolved")
    if review.since_url is not None:
        facts.append(f"[what changed since the last review]({url_target(review.since_url)})")
    return " · ".join(facts)


def _patch(patch: str) -> str:
    if len(patch) > _LONGEST_PATCH:
        return "The edits are too long to show here. They are kept on the bot's machine."
    return details("The edits as a patch for git apply", code_block(patch, "diff"))
