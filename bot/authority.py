"""Who the bot is and whom it serves. Pure: asked when a request is decided, and again before the agent starts."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from bot.github.answers import Permission
from bot.model import Actor, Repository

MARKER = "<!-- threadtree:"
"""Begins the marker of every comment the bot writes; in anybody else's comment it means nothing."""

_MAY_ASK: tuple[Permission, ...] = ("admin", "maintain", "write")


@dataclass(frozen=True, slots=True)
class Policy:
    """The bot's identity and its allow lists (an empty list allows everybody with write permission)."""

    bot_id: int
    bot_login: str
    bot_name: str
    label: str
    allowed_repositories: tuple[str, ...] = ()
    allowed_users: tuple[str, ...] = ()
    allowed_bots: frozenset[int] = frozenset()
    turns_per_person_per_day: int = 50

    def is_own(self, speaker: Actor, text: str) -> bool:
        """Whether the bot said this itself.

        Where a person's token is used under another name, that person's own comments are told apart by the marker.
        """
        if speaker.id != self.bot_id:
            return False
        return self.bot_name.casefold() == self.bot_login.casefold().removesuffix("[bot]") or MARKER in text


@dataclass(frozen=True, slots=True)
class Allowed:
    """The sender may have turns and commands."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The sender may not. A person hears so by one reaction (`visible`), a bot hears nothing."""

    why: str
    visible: bool


def before_asking_github(policy: Policy, sender: Actor, repository: Repository) -> Allowed | Denied | None:
    """What the lists alone decide; None: the live permission decides (DESIGN.md §4, authority)."""
    if policy.allowed_repositories and not any(
        fnmatchcase(repository.full_name.casefold(), glob.casefold()) for glob in policy.allowed_repositories
    ):
        return Denied("the repository is not in ALLOWED_REPOS", visible=not sender.is_bot)
    if sender.is_bot:
        if sender.id in policy.allowed_bots:
            return Allowed()
        return Denied("the bot is not in ALLOWED_BOTS", visible=False)
    if policy.allowed_users and sender.login.casefold() not in {user.casefold() for user in policy.allowed_users}:
        return Denied("the sender is not in ALLOWED_USERS", visible=True)
    return None


def by_permission(permission: Permission) -> Allowed | Denied:
    """What the sender's live collaborator permission decides; an author association is no proof."""
    if permission in _MAY_ASK:
        return Allowed()
    return Denied(f"the sender's permission is {permission}", visible=True)
