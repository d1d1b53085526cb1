"""A fixture that ends a run at a failpoint, as if its process were killed."""

from collections.abc import Callable, Iterator

import pytest

from bot import failpoints


class KilledError(BaseException):
    """The process ends at this failpoint; nothing after it happens."""


@pytest.fixture
def kill_at() -> Iterator[Callable[[str], None]]:
    """Return a function that ends the next run at the failpoint of this name; later runs are not affected."""

    def arm(name: str) -> None:
        def listen(reached: str) -> None:
            if reached == name:
                failpoints.listener = None
                raise KilledError(name)

        failpoints.listener = listen

    yield arm
    assert failpoints.listener is None, "the failpoint was not reached"
    failpoints.listener = None
