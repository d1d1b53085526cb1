"""What the answers of models tell: when a limit ends, the tokens, the model's name."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.sandbox.net import model_answers
from bot.sandbox.net.model_answers import ModelAnswers, reset_of
from tests.support.models.anthropic import Messages
from tests.support.models.bedrock import Invoke
from tests.support.models.gemini import GenerateContent
from tests.support.models.openai import ChatCompletions, Responses
from tests.support.models.script import Text
from tests.support.models.wire import Api, Asked, Told

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = NOW + timedelta(hours=1)
EPOCH = int(HOUR.timestamp())
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
FRAMES = {"content-type": Invoke.media_type}
JSON = {"content-type": "application/json"}
ASKED = Asked((Text("user", "four tokens here"),), frozenset(), "a-model/x-1", streams=True)
TOLD = Told(1, 'Two "usage": {"input_tokens": 9} more.', None)
TOKENS = ASKED.input_tokens + TOLD.output_tokens


def passed(answers: ModelAnswers, headers: dict[str, str], *chunks: bytes, status: int = 200) -> None:
    """Let an answer pass."""
    answer = answers.begin("/v1/messages", status, headers)
    for chunk in chunks:
        answer.feed(chunk)
    answer.end()


@pytest.mark.parametrize("api", [Messages(), Responses(), ChatCompletions(), GenerateContent(), Invoke()])
@given(cuts=st.lists(st.integers(0, 3000)))
def test_tokens_and_model_are_counted_wherever_a_stream_is_cut(api: Api, cuts: list[int]) -> None:
    stream = b"".join(api.events(ASKED, TOLD))
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    answers = ModelAnswers()
    headers = FRAMES if isinstance(api, Invoke) else EVENTS
    passed(answers, headers, *(stream[start:end] for start, end in pairwise(places)))
    assert (answers.tokens, answers.model) == (TOKENS, "a-model/x-1")


@pytest.mark.parametrize("api", [Messages(), Responses(), ChatCompletions(), GenerateContent()])
def test_the_tokens_of_an_answer_in_one_piece_are_counted(api: Api) -> None:
    answers = ModelAnswers()
    whole = json.dumps(api.whole(ASKED, TOLD)).encode()
    passed(answers, JSON, whole[:50], whole[50:])
    passed(answers, JSON, b"[" + whole + b"," + whole + b"]")  # Gemini's stream without events: sums so far
    assert (answers.tokens, answers.model) == (2 * TOKENS, "a-model/x-1")


def test_claudes_input_counts_before_the_answer_ends_and_the_cache_counts_too() -> None:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 500, "output_tokens": 1}
    start = {"type": "message_start", "message": {"model": "claude-x", "usage": usage}}
    answers = ModelAnswers()
    answer = answers.begin("/v1/messages", 200, EVENTS)
    answer.feed(b"event: message_start\ndata: " + json.dumps(start).encode() + b"\n\n")
    assert (answers.tokens, answers.model) == (544, "claude-x")
    answer.feed(b'data: {"type": "message_delta", "usage": {"output_tokens": 7}}\n')
    assert answers.tokens == 550


def test_the_cost_of_an_answer_is_counted_once_where_it_is_told() -> None:
    """https://openrouter.ai/docs/use-cases/usage-accounting"""
    answers = ModelAnswers()
    passed(answers, JSON, b'{"usage": {"total_tokens": 5}}')
    assert answers.cost_usd is None
    told = [b'data: {"usage": {"total_tokens": 5, "cost": %s}}\n' % cost for cost in (b"0.25", b"0.25", b"0.5")]
    passed(answers, EVENTS, *told)
    assert answers.cost_usd == 0.5
    for odd in (b"-1", b'"1"', b"1e9", b"true", b"null"):
        passed(answers, JSON, b'{"usage": {"total_tokens": 5, "cost": %s}}' % odd)
    assert answers.cost_usd == 0.5


def test_the_model_that_worked_most_is_named() -> None:
    answers = ModelAnswers()
    for name, tokens in (("large", 90), ("small", 50), ("small", 30), ("\u0000odd", 9999)):
        passed(answers, JSON, json.dumps({"model": name, "usage": {"total_tokens": tokens}}).encode())
    assert (answers.model, answers.tokens) == ("large", 10169)


@pytest.mark.parametrize(
    "body",
    [
        b'{"usage": 1}',
        b'{"usage": {"input_tokens": -5, "output_tokens": "many", "total_tokens": 1e3}}',
        b'{"usage": {"total_tokens": 10000000000}}',
        b'"usage',
        b'["usage", 1, {"usage": null}]',
        b'{"error": {"type": {"usage": 1}}}',
        b'{"usage": {"total_tokens": 5}, "long": "' + b"x" * model_answers.MOST_LINE_BYTES + b'"}',
    ],
)
def test_what_is_no_count_or_too_long_counts_nothing(body: bytes) -> None:
    answers = ModelAnswers()
    passed(answers, JSON, body)
    passed(answers, EVENTS, b"data: " + body + b'\ndata: {"usage": {"total_tokens": 2}}\n')
    assert answers.tokens == 2, "what follows is read again"


def test_a_refused_request_counts_nothing() -> None:
    answers = ModelAnswers()
    passed(answers, JSON, b'{"usage": {"total_tokens": 5}}', status=500)
    assert answers.tokens == 0


@pytest.fixture
def heard() -> tuple[ModelAnswers, list[bool]]:
    news: list[bool] = []
    return ModelAnswers(lambda: NOW, lambda answers: news.append(answers.refuses)), news


@pytest.mark.parametrize("status", [429, 529])
def test_a_busy_model_is_heard_of_at_once_and_so_is_its_next_answer(
    heard: tuple[ModelAnswers, list[bool]], status: int
) -> None:
    answers, news = heard
    answers.begin("/v1/messages", status, JSON)
    assert news == [True]
    answers.begin("/v1/messages/count_tokens", 200, JSON)
    answers.begin("/v1/messages", 500, JSON)
    assert news == [True]
    answers.begin("/v1/messages", 200, EVENTS)
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
    passed(answers, EVENTS, b"data: " + json.dumps(event).encode() + b"\n\n")
    assert answers.refuses


def test_gemini_goes_on_with_another_model() -> None:
    answers = ModelAnswers()
    answers.begin("/v1beta/models/pro:streamGenerateContent", 429, JSON)
    answers.begin("/v1beta/models/flash:generateContent", 200, JSON)
    assert answers.refuses
    answers.begin("/v1beta/models/flash:streamGenerateContent", 200, EVENTS)
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
