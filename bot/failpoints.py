"""Named places between two effects, where tests end the process or the task to see what is found afterwards.

In operation nothing ever listens. A test sets `listener`, in its own process or in one that it starts.
"""

from collections.abc import Callable

listener: Callable[[str], None] | None = None


def reached(name: str) -> None:
    """Tell the listener that the process is between two effects."""
    if listener is not None:
        listener(name)
