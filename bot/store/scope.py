"""What somebody may see: the one filter of all that is read for people."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scope:
    """The repositories of one GitHub server, by their ids; `repositories` is None for all of all servers.

    In a statement it stands for two parameters, the first ones of `threadtree_sees`.
    """

    platform: str
    repositories: tuple[int, ...] | None

    def has(self, platform: str | None, repository_id: int | None) -> bool:
        """Return whether the repository is among them."""
        return self.repositories is None or (platform == self.platform and repository_id in self.repositories)


EVERYTHING: Final = Scope("", None)


class UnknownAccessError(Exception):
    """GitHub has not said yet, or not for long, what the person may see."""
