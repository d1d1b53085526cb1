"""What many tests of parts need: a run that ends at a failpoint, as a killed process does."""

from collections.abc import Callable, Iterator

import pytest

from bot import failpoints
from tests.integration.killing import KilledError


@pytest.fixture
def kill_at() -> Iterator[Callable[[str], None]]:
    """Ends the next run at the failpoint of this name; the runs after it go on."""

    def arm(name: str) -> None:
        def listen(reached: str) -> None:
            if reached == name:
                failpoints.listener = None
                raise KilledError(name)

        failpoints.listener = listen

    yield arm
    assert failpoints.listener is None, "the failpoint was not reached"
    failpoints.listener = None
