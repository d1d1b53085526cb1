"""The log: no line of it holds a secret, not even a traceback; its level and form; one line for an failures."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bot import logs
from bot.redaction import REDACTED, Redactor
from bot.store import failures

SECRET = 's3cr3t"with\\odd\ncharacters'


@pytest.fixture
def own_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test configure the log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(logs, "_redactor", Redactor())
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("own_log")
@pytest.mark.expects_errors
@pytest.mark.parametrize("as_json", [True, False], ids=["JSON", "text"])
def test_no_line_holds_a_secret(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    logs.configure_logs("json" if as_json else "text")
    logs.redact_with(Redactor([SECRET]))
    token = "ghp_" + "a1B2" * 9
    try:
        raise ValueError(f"cannot use {SECRET} and {token}")
    except ValueError:
        structlog.get_logger().exception("went-wrong", url=f"https://x:{token}@github.example", given=[SECRET])
        logging.getLogger("of-a-library").exception("It said %r", SECRET)
    log = capsys.readouterr().err
    assert log.count(REDACTED) >= 6
    assert "s3cr3t" not in log
    assert token not in log
    if as_json:
        assert [json.loads(line)["event"] for line in log.splitlines()] == ["went-wrong", f"It said '{REDACTED}'"]


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize(
    ("level", "heard"), [("debug", "debug info warning"), ("info", "info warning"), ("warning", "warning")]
)
def test_the_level_is_the_least_that_is_logged(
    capsys: pytest.CaptureFixture[str], level: logs.LogLevel, heard: str
) -> None:
    logs.configure_logs("json", level)
    for each in ("debug", "info", "warning"):
        getattr(structlog.get_logger(), each)("said")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert " ".join(line["level"] for line in lines) == heard


@pytest.mark.usefixtures("own_log")
def test_lines_of_libraries_too_name_the_turn_in_which_they_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logs("auto")  # no terminal
    with structlog.contextvars.bound_contextvars(turn=7):
        structlog.get_logger().info("ours")
        logging.getLogger("of-a-library").warning("theirs")
    structlog.get_logger().info("after it")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("turn") for line in lines] == [7, 7, None]


@pytest.mark.usefixtures("own_log")
def test_an_outage_of_the_database_is_one_line_and_its_end_another(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logs("json")
    failures.database_answered()  # after an outage of an earlier test in this process
    capsys.readouterr()
    for _ in range(60):
        failures.database_failed(ConnectionError("refused"), task="tick")
        logging.getLogger("psycopg.pool").warning("error connecting in 'pool-1'")
    for _ in range(3):
        failures.database_answered()
    failures.database_failed(ConnectionError("refused"), task="tick")
    failures.database_answered()
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events == ["database-away", "database-back"] * 2
