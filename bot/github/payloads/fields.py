"""Typed access to decoded JSON: a wrong or missing field is one exception that names it, whatever was sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

LARGEST_ID = 2**63 - 1
LARGEST_NUMBER = 2**31 - 1


class MalformedError(Exception):
    """A field is not of the documented form; the message names it. Stays inside this package."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object and where it stands in the payload."""

    values: Mapping[str, object]
    path: str = ""

    @classmethod
    def of(cls, value: object, path: str) -> Self:
        """Raises MalformedError unless `value` is an object."""
        if not isinstance(value, dict):
            raise MalformedError(f"{path or 'the payload'} is not an object")
        return cls(value, path)

    def child(self, key: str) -> Self:
        """The object under `key`, which must be there."""
        return self.of(self.values.get(key), self._name(key))

    def maybe_child(self, key: str) -> Self | None:
        """The object under `key`; None where it is absent or null."""
        return None if self.values.get(key) is None else self.child(key)

    def text(self, key: str) -> str:
        """A string. Without NUL characters, which JSON knows and Postgres text does not."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise MalformedError(f"{self._name(key)} is not a string")
        return value.replace("\0", "")

    def maybe_text(self, key: str) -> str:
        """A string, empty where it is absent or null (GitHub's way to say that a body is empty)."""
        return "" if self.values.get(key) is None else self.text(key)

    def integer(self, key: str, largest: int = LARGEST_ID) -> int:
        """An integer from 1 to `largest`."""
        value = self.values.get(key)
        if type(value) is not int or not 0 < value <= largest:
            raise MalformedError(f"{self._name(key)} is not an integer from 1 to {largest}")
        return value

    def maybe_integer(self, key: str, largest: int = LARGEST_ID) -> int | None:
        """An integer from 1 to `largest`; None where it is absent or null."""
        return None if self.values.get(key) is None else self.integer(key, largest)

    def moment(self, key: str) -> datetime:
        """An ISO-8601 time with its offset, as UTC."""
        value = self.text(key)
        try:
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is None:
                raise MalformedError(f"{self._name(key)} has no time zone")
            return moment.astimezone(UTC)
        except (ValueError, OverflowError):
            raise MalformedError(f"{self._name(key)} is not a time") from None

    def maybe_moment(self, key: str) -> datetime | None:
        """An ISO-8601 time as UTC; None where it is absent or null."""
        return None if self.values.get(key) is None else self.moment(key)

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key
