"""What an answer of GraphQL means: data, errors, and both."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.github.errors import GitHubError, NotFound, Refused, Transient, classify_graphql
from bot.github.graphql import Path, read_answer

NOW = {"date": "Sat, 28 Nov 2026 12:00:00 GMT", "x-ratelimit-reset": "1795868999"}
"""The hour ends in 1,799 seconds."""
LEFT = {**NOW, "x-ratelimit-remaining": "4711"}
USED_UP = {**NOW, "x-ratelimit-remaining": "0"}
SECONDARY = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
TIMEOUT = "Something went wrong while executing your query. This may be the result of a timeout."


@pytest.mark.parametrize(
    ("error", "headers", "meant"),
    [
        ({"type": "RATE_LIMITED", "message": "API rate limit exceeded"}, USED_UP, ("installation", 1800)),
        ({"type": "RATE_LIMIT", "message": "API rate limit already exceeded"}, LEFT, ("installation", 1800)),
        ({"code": "graphql_rate_limit"}, LEFT, ("installation", 1800)),
        ({"extensions": {"code": "RATE_LIMITED"}}, LEFT, ("installation", 1800)),
        ({"type": "RATE_LIMIT"}, {"retry-after": "7", **LEFT}, ("installation", 7)),
        ({"type": "RATE_LIMIT"}, {}, ("installation", 60)),
        ({"message": SECONDARY}, {"retry-after": "90"}, ("installation", 90)),
        ({"message": SECONDARY}, LEFT, ("installation", 60)),
        ({"message": TIMEOUT}, {"retry-after": "90"}, ("installation", 90)),
        ({"message": "You have triggered an abuse detection mechanism."}, {}, ("installation", 60)),
        ({"type": "UNPROCESSABLE", "message": "was submitted too quickly"}, {}, ("installation", 60)),
        ({"message": TIMEOUT}, USED_UP, ("installation", 1800)),
        ({"message": TIMEOUT}, LEFT, ("request", None)),
        ({"type": "SERVICE_UNAVAILABLE"}, LEFT, ("request", None)),
        ({"type": "INTERNAL"}, {}, ("request", None)),
        ("not an object", {}, ("request", None)),
        ({"type": "NOT_FOUND", "message": f"No user 'rate limit' {SECONDARY}"}, USED_UP, NotFound),
        ({"type": "FORBIDDEN"}, LEFT, 403),
        ({"type": "INSUFFICIENT_SCOPES"}, {}, 403),
        ({"type": "UNPROCESSABLE"}, {}, 422),
        ({"type": "RESOURCE_LIMITS_EXCEEDED"}, LEFT, 422),
    ],
)
def test_an_error_means_what_its_sibling_of_rest_means(error: object, headers: dict[str, str], meant: object) -> None:
    found = classify_graphql(error, headers)
    match found:
        case Transient():
            assert (found.scope, found.retry_after_seconds) == meant
            assert found.may_have_happened is (found.scope == "request")
        case Refused():
            assert found.status == meant
        case _:
            assert type(found) is meant


def data() -> dict[str, Any]:
    thread = {"title": "T", "labels": {"nodes": [{"name": "a"}, {"name": "b"}]}, "milestone": {"title": "1.2"}}
    return {"repository": {"thread": thread}}


THREAD: Path = ("repository", "thread")
TITLE_GONE = {"title": None, "labels": data()["repository"]["thread"]["labels"], "milestone": {"title": "1.2"}}


def error(*path: str | int, kind: str | None = "FORBIDDEN") -> dict[str, object]:
    return {"message": "no", **({"type": kind} if kind else {}), **({"path": list(path)} if path else {})}


@pytest.mark.parametrize(
    ("answer", "need", "meant"),
    [
        ({"data": data()}, THREAD, data()["repository"]["thread"]),
        ({"data": data(), "errors": []}, None, data()),
        ({"data": data(), "errors": [error(*THREAD, "title")]}, THREAD, TITLE_GONE),
        (
            {"data": data(), "errors": [error(*THREAD, "labels", "nodes", 1, "name")]},
            THREAD,
            data()["repository"]["thread"] | {"labels": {"nodes": [{"name": "a"}, None]}},
        ),
        ({"data": data(), "errors": [error(*THREAD, "title")]}, None, Refused),
        ({"data": data(), "errors": [error()]}, THREAD, Refused),
        ({"data": data(), "errors": [error(*THREAD, kind="NOT_FOUND")]}, THREAD, NotFound),
        ({"data": {"repository": None}, "errors": [error("repository", kind="NOT_FOUND")]}, THREAD, NotFound),
        # What may not be null makes null what holds it, while the path names the inner one.
        ({"data": {"repository": {"thread": None}}, "errors": [error(*THREAD, "title")]}, THREAD, Refused),
        ({"data": {"repository": {"thread": None}}}, THREAD, NotFound),
        ({"data": {"repository": {"thread": None}}, "errors": [error("viewer")]}, THREAD, NotFound),
        ({"data": data(), "errors": [error(*THREAD, "title", kind="RATE_LIMIT")]}, THREAD, "installation"),
        ({"data": None, "errors": [error("x"), error(kind="RATE_LIMITED")]}, THREAD, "installation"),
        ({"message": SECONDARY}, THREAD, "installation"),
        ({"data": None, "errors": [error("viewer", kind=None)]}, THREAD, "request"),
        ({"data": None}, THREAD, "request"),
        ({}, None, "request"),
        ([1], None, "request"),
    ],
)
def test_what_an_error_names_is_missing_and_the_rest_is_there(answer: Any, need: Path | None, meant: object) -> None:
    try:
        found: object = read_answer(answer, LEFT, need).needed
    except Transient as problem:
        found = problem.scope
    except GitHubError as problem:
        found = type(problem)
    assert found == meant


KEYS = st.sampled_from(["a", "b", "nodes"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)
STEPS = st.lists(KEYS | st.integers(-2, 3), max_size=5)


@given(found=st.dictionaries(KEYS, VALUES, min_size=1), paths=st.lists(STEPS, max_size=3), need=STEPS | st.none())
def test_nothing_that_an_error_names_is_used(found: Any, paths: list[Path], need: Path | None) -> None:
    answer = {"data": copy.deepcopy(found), "errors": [{"type": "FORBIDDEN", "path": list(path)} for path in paths]}
    try:
        read = read_answer(answer, {}, None if need is None else tuple(need))
    except GitHubError:
        return
    assert len(read.problems) == len(paths)
    for path in paths:
        at: Any = read.data
        for step in path:
            if isinstance(at, list) and isinstance(step, int):
                at = at[step]
            elif isinstance(at, dict):
                at = at.get(step)
        assert at is None
    if need:
        assert read.needed is not None
