"""The log: no line of it holds a secret, not even a traceback."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from bot import logs
from bot.redaction import REDACTED, Redactor

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
    logs.configure_logs(json=as_json)
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
