"""One line of the doctor's report."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """A `problem` is what the bot cannot work with as it is set up; `next_step` says what to do."""

    check: str
    state: State
    found: str
    next_step: str | None = None
