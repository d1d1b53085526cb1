"""Fixtures of every test: Postgres, and a check that fails the test on a logged exception."""

import functools
import gc
import logging
import ssl
from collections.abc import Iterator

import httpx
import hypothesis
import pytest
import starlette.routing
import structlog

from tests.support.fuzz import FUZZ
from tests.support.patience import PATIENCE_SECONDS

pytest_plugins = ["tests.support.postgres", "tests.support.failpoints", "tests.support.snapshots"]

# The same examples in every run; `make fuzz` generates new ones, and more of them.
hypothesis.settings.register_profile("tests", derandomize=FUZZ == 1, deadline=None, max_examples=100 * FUZZ)
hypothesis.settings.load_profile("tests")
# Nothing of the imports and the collection is garbage: to look through it takes more time than some tests.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not in what exists by now."""
    gc.freeze()
    # Seldom: each test makes a whole bot, whose objects live until its end.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Share one TLS context between all HTTP clients: reading the certificates takes longer than many tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def routes_are_compiled_once() -> Iterator[None]:
    """Remember the patterns of routes, which each web application and each simulated GitHub compiles again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starlette.routing, "compile_path", functools.cache(starlette.routing.compile_path))
        yield


@pytest.fixture(scope="session", autouse=True)
def http_clients_are_patient() -> Iterator[None]:
    """Let clients without a limit of their own wait as long as all tests do, and not httpx's five seconds."""
    patient = functools.partialmethod(httpx.AsyncClient.__init__, timeout=PATIENCE_SECONDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.AsyncClient, "__init__", patient)
        yield


@pytest.fixture(autouse=True)
def no_logged_exceptions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which an error was logged, unless it is marked `expects_errors`."""
    seen: list[str] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                seen.append(self.format(record))

    def watch(_: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if method in ("error", "exception", "critical"):
            seen.append(str(event))
        raise structlog.DropEvent

    handler = Watch()
    logging.getLogger().addHandler(handler)
    structlog.configure(processors=[structlog.processors.format_exc_info, watch])
    yield
    logging.getLogger().removeHandler(handler)
    structlog.reset_defaults()
    if seen and request.node.get_closest_marker("expects_errors") is None:
        pytest.fail("errors were logged:\n" + "\n".join(seen))
