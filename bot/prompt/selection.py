"""Which texts of a thread the agent may read: those that stood there at the time of the request. Pure.

Rule: DESIGN.md §4, "What the agent is told".
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from bot.github.thread import Text
from bot.prompt.hidden import strip_hidden

BY_OUTSIDERS, EDITED = "by people without write access left out", "edited after the request left out"
HIDDEN = "hidden by people left out"


@dataclass(frozen=True, slots=True)
class Scope:
    """The view of one request. On a resumed session `since` is the time of the session's last request.

    `writers` are the ids of the people who may write to the repository. `without_commands` takes the bot's commands
    out of a text.
    """

    asked_at: datetime
    is_public: bool
    writers: frozenset[int] = frozenset()
    include_outsiders: bool = False
    since: datetime | None = None
    without_commands: Callable[[str], str] = str

    def trusts(self, text: Text) -> bool:
        """Whether the author of the text may write to the repository."""
        return text.author.id in self.writers


LeftOut = Counter[str]
"""How many texts the agent does not get, by reason."""


class Selected(NamedTuple):
    """Texts without hidden content, in their order, and what was left out of them."""

    texts: tuple[Text, ...]
    left_out: LeftOut


def select(texts: Iterable[Text], scope: Scope) -> Selected:
    """Return the comments that the agent may read: of the time of the request, by people it may hear."""
    kept, left_out = [], LeftOut()
    for text in texts:
        if text.created_at > scope.asked_at:
            continue
        if scope.since is not None and _changed_at(text) <= scope.since:
            continue
        if text.is_hidden:
            left_out[HIDDEN] += 1
        elif _edited_after(text, scope):
            left_out[EDITED] += 1
        elif scope.is_public and not scope.include_outsiders and not scope.trusts(text):
            left_out[BY_OUTSIDERS] += 1
        elif (visible := _visible(text, scope)).body or not text.body:
            kept.append(visible)  # without what was a command only
    return Selected(tuple(kept), left_out)


def select_description(text: Text, scope: Scope) -> Selected:
    """Return the description, whoever wrote it; on a resumed session only when it changed."""
    if text.created_at > scope.asked_at or (scope.since is not None and _changed_at(text) <= scope.since):
        return Selected((), LeftOut())
    if _edited_after(text, scope):
        return Selected((), LeftOut([EDITED]))
    return Selected((_visible(text, scope),), LeftOut())


def _edited_after(text: Text, scope: Scope) -> bool:
    """Return whether the text that was there at the request may be lost. GitHub's times are whole seconds."""
    return text.edited_at is not None and text.edited_at >= scope.asked_at


def _changed_at(text: Text) -> datetime:
    return text.edited_at or text.created_at


def _visible(text: Text, scope: Scope) -> Text:
    return replace(text, body=strip_hidden(scope.without_commands(text.body)))
