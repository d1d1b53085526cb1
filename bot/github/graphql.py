"""An answer of GraphQL, which can hold data and errors at once. Pure.

https://spec.graphql.org/October2021/#sec-Errors
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bot.github.errors import GitHubError, NotFound, Transient, classify_graphql

Path = tuple[str | int, ...]
"""The names of fields and the places in lists that lead to a part of an answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why what stands at `path` is missing."""

    path: Path
    error: GitHubError


@dataclass(frozen=True, slots=True)
class Answer:
    """The data of an answer, and the part of it that was needed. What a problem names is null in it.

    In a list the whole item is null: one that is known in part could pass for another, such as one never edited.
    """

    data: Any
    needed: Any
    problems: tuple[Problem, ...] = ()

    @property
    def may_pass(self) -> bool:
        """Whether another try could tell more."""
        return any(isinstance(one.error, Transient) for one in self.problems)


def read_answer(answer: Any, headers: Mapping[str, str], need: Path | None) -> Answer:
    """Return what an answer holds; `need` is the part without which the rest is of no use, None for all of it.

    Raises GitHubError where that is missing, for an error that names no part, and for a limit.
    """
    given = answer if isinstance(answer, dict) else {}
    data, errors = given.get("data"), given.get("errors")
    if not isinstance(errors, list) or not errors:
        # A secondary limit with status 200 can come in the form of REST.
        said = f": {given['message']}" if "message" in given else ""
        errors = [] if data else [{**given, "message": f"GitHub's answer has no data{said}"}]
    problems = tuple(Problem(_path(one), classify_graphql(one, headers)) for one in errors)
    limits = [one.error for one in problems if isinstance(one.error, Transient) and one.error.scope == "installation"]
    if limits:
        raise limits[0]
    whole = [one.error for one in problems if need is None or not one.path or not data]
    if whole:
        raise whole[0]
    for one in problems:
        _take_out(data, one.path)
    needed = data
    for step in need or ():
        needed = needed.get(step) if isinstance(needed, dict) else None
    if needed is None and need is not None:
        why = (one.error for one in problems if one.path[: len(need)] == need[: len(one.path)])
        raise next(why, NotFound("GitHub shows nothing there"))
    return Answer(data, needed, problems)


def _path(error: Any) -> Path:
    path = error.get("path") if isinstance(error, dict) else None
    return tuple(path) if isinstance(path, list) else ()


def _take_out(data: Any, path: Path) -> None:
    """Make null what the path names: the innermost item of a list on the way, else the field."""
    at: Any = data
    holder: Any = None
    place: Any = None
    for step in path:
        above = at
        try:
            at = above[step]
        except (KeyError, IndexError, TypeError):  # null, here or above
            break
        if isinstance(above, list) or (isinstance(above, dict) and not isinstance(holder, list)):
            holder, place = above, step
    if holder is not None:
        holder[place] = None
