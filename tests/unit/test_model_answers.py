"""What the answers of models tell: when a limit ends, and the model's name."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.sandbox.net.model_answers import ModelAnswers, reset_of
from tests.support.models.anthropic import Messages
from tests.support.models.openai import ChatCompletions, Responses
from tests.support.models.script import Text
from tests.support.models.wire import Api, Asked, Told

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = NOW + timedelta(hours=1)
EPOCH = int(HOUR.timestamp())
ASKED = Asked((Text("user", "four tokens here"),), frozenset(), "a-model/x-1", streams=True)
TOLD = Told(1, 'Of "model": "another" or "error": {"type": "overloaded_error"}', None)


def passed(answers: ModelAnswers, *chunks: bytes, status: int = 200) -> None:
    """Let an answer pass."""
    answer = answers.begin("/v1/messages", status, {})
    for chunk in chunks:
        answer.feed(chunk)
    answer.end()


@pytest.mark.parametrize("api", [Messages(), Responses(), ChatCompletions()])
@given(cuts=st.lists(st.integers(0, 3000)))
def test_the_model_is_named_wherever_an_answer_is_cut(api: Api, cuts: list[int]) -> None:
    for whole in (b"".join(api.events(ASKED, TOLD)), json.dumps(api.whole(ASKED, TOLD)).encode()):
        places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
        answers = ModelAnswers()
        passed(answers, *(whole[start:end] for start, end in pairwise(places)))
        assert (answers.model, answers.refuses) == ("a-model/x-1", False)


def test_the_model_of_the_longest_answer_is_named() -> None:
    answers = ModelAnswers()
    for name, length in (("large", 900), ("small", 500), ("odd\0", 9000), ("larger", 901)):
        passed(answers, json.dumps({"model": name, "text": "x" * length}).encode())
    assert answers.model == "larger"
    for path, name in (
        ("/v1beta/models/gemini-x:streamGenerateContent", "gemini-x"),
        ("/model/us.a-model-v1:0/invoke-with-response-stream", "us.a-model-v1:0"),
        ("/v1/models/a-model", "us.a-model-v1:0"),
    ):
        answer = answers.begin(path, 200, {})
        answer.feed(b"\0frames" * 200 * len(path))
        answer.end()
        assert answers.model == name
    passed(answers, b'{"model": "refused"}' + b"x" * 999_999, status=500)
    assert answers.model == "us.a-model-v1:0"


@pytest.fixture
def heard() -> tuple[ModelAnswers, list[bool]]:
    news: list[bool] = []
    return ModelAnswers(lambda: NOW, lambda answers: news.append(answers.refuses)), news


@pytest.mark.parametrize("status", [429, 529])
def test_a_busy_model_is_heard_of_at_once_and_so_is_its_next_answer(
    heard: tuple[ModelAnswers, list[bool]], status: int
) -> None:
    answers, news = heard
    answers.begin("/v1/messages", status, {})
    assert news == [True]
    answers.begin("/v1/messages/count_tokens", 200, {})
    answers.begin("/v1/messages", 500, {})
    assert news == [True]
    answers.begin("/v1/messages", 200, {})
    assert news == [True, False]


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}},
    ],
)
def test_a_stream_that_ends_because_the_model_is_busy_is_a_refusal(event: dict[str, object]) -> None:
    answers = ModelAnswers()
    passed(answers, b'data: {"model": "m"}\n\ndata: ' + json.dumps(event).encode() + b"\n\n")
    assert answers.refuses


def test_gemini_goes_on_with_another_model() -> None:
    answers = ModelAnswers()
    answers.begin("/v1beta/models/pro:streamGenerateContent", 429, {})
    answers.begin("/v1beta/models/flash:generateContent", 200, {})
    assert answers.refuses
    answers.begin("/v1beta/models/flash:streamGenerateContent", 200, {})
    assert not answers.refuses


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"retry-after": "3600"}, b""),
        ({"retry-after": format_datetime(HOUR, usegmt=True)}, b""),
        ({"retry-after": "5", "anthropic-ratelimit-unified-reset": str(EPOCH)}, b""),
        ({}, b'{"error": {"type": "usage_limit_reached", "resets_at": %d}}' % EPOCH),
        ({}, b'{"error": {"type": "usage_limit_reached", "resets_in_seconds": 3600}}'),
        ({}, b'[{"error": {"details": [{"reason": "x"}, {"retryDelay": "3600s"}]}}]'),
    ],
)
def test_the_end_of_a_limit_is_what_the_vendor_names(headers: dict[str, str], body: bytes) -> None:
    assert reset_of(headers, body, NOW) == HOUR


@given(
    st.dictionaries(st.sampled_from(["retry-after", "anthropic-ratelimit-unified-reset"]), st.text(max_size=12)),
    st.one_of(st.binary(max_size=40), st.sampled_from([b'{"error": 1}', b"[]", b'{"error": {"resets_at": -1}}'])),
)
def test_any_other_answer_names_no_time_beyond_a_week_or_in_the_past(headers: dict[str, str], body: bytes) -> None:
    reset = reset_of(headers, body, NOW)
    assert reset is None or NOW <= reset <= NOW + timedelta(days=8)


def test_a_limit_ends_when_the_same_kind_of_request_succeeds() -> None:
    answers = ModelAnswers(lambda: NOW)
    answers.begin("/v1/messages", 429, {"retry-after": "3600"}).end()
    answers.begin("/v1/messages/count_tokens", 200, {}).end()
    answers.begin("/v1/messages", 529, {}).end()
    assert answers.until == HOUR
    answers.begin("/v1/messages", 200, {}).end()
    assert answers.until is None


def test_an_overloaded_model_can_name_a_time_too() -> None:
    answers = ModelAnswers(lambda: NOW)
    answers.begin("/v1/messages", 529, {"retry-after": "3600"}).end()
    assert answers.until == HOUR
