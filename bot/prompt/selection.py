"""Which texts of a thread the agent may read: those that stood there at the time of the request. Pure.

Rule: DESIGN.md §4, "What the agent is told".
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from bot.github.thread import Text
from bot.prompt.hidden import strip_hidden


@dataclass(frozen=True, slots=True)
class Scope:
    """The view of one request. On a resumed session `since` is the time of the session's last request.

    `writers` are the ids of the people who may write to the repository.
    """

    asked_at: datetime
    is_public: bool
    writers: frozenset[int] = frozenset()
    include_outsiders: bool = False
    since: datetime | None = None

    def trusts(self, text: Text) -> bool:
        """Whether the author of the text may write to the repository."""
        return text.author.id in self.writers


@dataclass(slots=True)
class LeftOut:
    """How many texts the agent does not get, by reason."""

    outsiders: int = 0
    edited_since: int = 0

    def sentences(self) -> list[str]:
        """Return one clause for each reason that applies."""
        clauses = []
        if self.outsiders:
            clauses.append(f"{self.outsiders} by people without write access left out")
        if self.edited_since:
            clauses.append(f"{self.edited_since} edited after the request left out")
        return clauses


@dataclass(frozen=True, slots=True)
class Selected:
    """Texts without hidden content, in their order, and what was left out of them."""

    texts: tuple[Text, ...]
    left_out: LeftOut = field(default_factory=LeftOut)


def select(texts: Iterable[Text], scope: Scope) -> Selected:
    """Return the comments that the agent may read: of the time of the request, by people it may hear."""
    kept, left_out = [], LeftOut()
    for text in texts:
        if text.created_at > scope.asked_at:
            continue
        if scope.since is not None and _changed_at(text) <= scope.since:
            continue
        if _edited_after(text, scope):
            left_out.edited_since += 1
        elif scope.is_public and not scope.include_outsiders and not scope.trusts(text):
            left_out.outsiders += 1
        else:
            kept.append(_visible(text))
    return Selected(tuple(kept), left_out)


def select_description(text: Text, scope: Scope) -> Selected:
    """Return the description, whoever wrote it; on a resumed session only when it changed."""
    if text.created_at > scope.asked_at or (scope.since is not None and _changed_at(text) <= scope.since):
        return Selected(())
    if _edited_after(text, scope):
        return Selected((), LeftOut(edited_since=1))
    return Selected((_visible(text),))


def _edited_after(text: Text, scope: Scope) -> bool:
    """Return whether the text that was there at the request may be lost. GitHub's times are whole seconds."""
    return text.edited_at is not None and text.edited_at >= scope.asked_at


def _changed_at(text: Text) -> datetime:
    return text.edited_at or text.created_at


def _visible(text: Text) -> Text:
    return replace(text, body=strip_hidden(text.body))
