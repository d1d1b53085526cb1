"""What came of a turn, as data: comment, pages, API, command line, events and metrics read this one value. Pure."""

from dataclasses import asdict, dataclass
from typing import Literal

import orjson

from bot.thread.formatting import plain, truncate
from bot.thread.questions import TO_ANSWER, ends_with_question

CheckState = Literal["passed", "failed", "failed-on-base-too", "not-run"]
Came = Literal["changed", "patch", "withheld", "nothing-changed", "plan", "review", "question", "answered", "done"]
ComesTo = Literal["changes", "plan", "review", "done"]
"""What a turn of a kind is to come to. `done`: it worked on a worktree itself."""


@dataclass(frozen=True, slots=True)
class Check:
    """How the repository's check ended. `tests` are those that ran, of which some `failed` and some are `new`."""

    state: CheckState
    tests: int = 0
    failed: int = 0
    new: int = 0
    skipped: int = 0
    seconds: float = 0


@dataclass(frozen=True, slots=True)
class Nothing:
    """Why nothing was pushed, in Markdown. `held`: there are changes, and something kept them back."""

    why: str
    held: bool = True


NO_CHANGE = Nothing("No file was changed.", held=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a turn. `came` is None where its state says it. `asked`: the agent asks a person. `nothing` is why
    nothing was pushed, as plain text, where something was to be. `pictures` is the commit of the check's pictures.
    """

    came: Came | None
    asked: bool = False
    nothing: str | None = None
    check: Check | None = None
    pictures: str | None = None

    def to_json(self) -> str:
        """Return it as rows have it (`turns.outcome`)."""
        return orjson.dumps({name: value for name, value in asdict(self).items() if value is not None}).decode()


OF_ITS_STATE = Outcome(None)
_RESULTS: dict[str, str] = {
    "changed": "done",
    "patch": "done",
    "answered": "done",
    "nothing-changed": "nothing changed",
    "withheld": "not pushed",
}
_CHECKS: dict[CheckState, str] = {
    "failed": "check failed",
    "failed-on-base-too": "check failed, as on its base",
    "not-run": "check did not run",
}


def result(state: str, came: str | None, check: Check | None) -> str:
    """Return in two or three words how a turn stands, or what came of it."""
    if state == "done" and check is not None and check.state in _CHECKS:
        return _CHECKS[check.state]
    return _RESULTS.get(came or state, came or state)


def came_of(
    comes_to: ComesTo,
    answer: str,
    changes: object,
    nothing: Nothing | None,
    check: Check | None,
    *,
    is_done: bool,
    claims: bool,
) -> Outcome:
    """Return what came of a turn with this `answer`, which claims a change or not. `changes` are a patch as text."""
    # A plan ends with a question of its own: whether it is to be carried out.
    asked = is_done and (TO_ANSWER in answer or (comes_to == "changes" and ends_with_question(answer)))
    why = truncate(plain(nothing.why)) if nothing is not None else None
    came: Came | None
    if not is_done:
        came = None
    elif nothing is not None and nothing.held:
        came = "withheld"
    elif changes is not None:
        came = "patch" if isinstance(changes, str) else "changed"
    elif asked:
        came = "question"
    elif comes_to == "changes":
        came = "nothing-changed" if claims else "answered"
    else:
        came = comes_to
    return Outcome(came, asked, why, check)
