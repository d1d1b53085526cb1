"""The bot's identity and the people who may ask it. Pure. Checked when a request is decided and when a turn starts."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bot.github.answers import Permission
from bot.model import Actor, Repository

MARKER = "<!-- threadtree:"
"""The beginning of the marker in every comment of the bot; in another's comment it means nothing."""

_MAY_ASK: tuple[Permission, ...] = ("admin", "maintain", "write")


@dataclass(frozen=True, slots=True)
class Policy:
    """The bot's identity and its allow lists (an empty list allows every person with write permission).

    `allowed_users` are logins and teams, `org/team`, in lower case.
    """

    bot_id: int
    bot_login: str
    bot_name: str
    label: str
    allowed_repositories: tuple[str, ...] = ()
    allowed_users: tuple[str, ...] = ()
    allowed_bots: frozenset[int] = frozenset()
    turns_per_person_per_day: int = 50
    comments_per_hour: int = 30
    bare_commands: bool = True

    def agent_of_label(self, name: str) -> str | None:
        """Return the agent that a label asks, "" for the usual one; None for a label that does not ask the bot."""
        label, own = name.casefold(), self.label.casefold()
        if label == own:
            return ""
        return (label.removeprefix(f"{own}:") or None) if label.startswith(f"{own}:") else None

    @property
    def review_label(self) -> str:
        """The label that asks for a review."""
        return f"{self.label}-review"

    def is_own(self, author: Actor, text: str) -> bool:
        """Return whether the bot wrote this itself.

        Where a person's token is used under another name, only the marker tells the bot's comments from that person's.
        """
        if author.id != self.bot_id:
            return False
        return self.bot_name.casefold() == self.bot_login.casefold().removesuffix("[bot]") or MARKER in text


@dataclass(frozen=True, slots=True)
class Allowed:
    """The author may ask for turns and commands; `permission` is the live one, None of a bot."""

    permission: Permission | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """The author may not ask. A person hears `why`, a clause, or gets a reaction (`visible`); a bot gets nothing."""

    why: str
    visible: bool


NOT_LISTED = Denied("the bot is set up to work only for certain people", visible=True)
NOT_CHOSEN = Denied("`.threadtree/config.toml` of this repository names the people who may ask it", visible=True)

ONLY_MAINTAINERS = Denied(
    "`.threadtree/config.toml` of this repository is not right, and until somebody corrects it only people with admin "
    "or maintain access can ask",
    visible=True,
)


def serves(policy: Policy, repository: Repository) -> bool:
    """Return whether the bot is set up to work in the repository."""
    name, globs = repository.full_name.casefold(), policy.allowed_repositories
    return not globs or any(fnmatchcase(name, glob.casefold()) for glob in globs)


def before_asking_github(policy: Policy, author: Actor, repository: Repository) -> Allowed | Denied | None:
    """Return what the allow lists decide, or None: the live permission decides (DESIGN.md §4, authority)."""
    if not serves(policy, repository):
        return Denied("the bot is not set up to work in this repository", visible=not author.is_bot)
    if author.is_bot:
        if author.id in policy.allowed_bots:
            return Allowed()
        return Denied("the bot is not one of ALLOWED_BOTS", visible=False)
    if policy.allowed_users and not may_be_one_of(policy.allowed_users, author.login):
        return NOT_LISTED
    return None


def may_be_one_of(people: Iterable[str], login: str) -> bool:
    """Return whether the person is named among these logins and teams, or may be in one of the teams."""
    return any("/" in one or one == login.casefold() for one in people)


def by_permission(permission: Permission) -> Allowed | Denied:
    """Return what the author's live collaborator permission decides; an author association is no proof."""
    if permission in _MAY_ASK:
        return Allowed(permission)
    return Denied(
        f"only people with write access can ask the bot here, and the permission is {permission}", visible=True
    )
