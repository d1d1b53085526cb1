"""The accounts, tokens and repositories of one simulated GitHub."""

import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from bot.simulated.github.app import App
from bot.simulated.github.changes import Changes
from bot.simulated.github.errors import RefusedError, invalid, not_found
from bot.simulated.github.git import BareRepository
from bot.simulated.github.model import Account, Issue, Permission, Pull, Repository, Upload, User, UserType
from bot.simulated.github.signatures import Signatures

# On the real GitHub, ids of comments need more than 32 bits; ids of accounts and repositories do not.
FIRST_ID = 3_000_000_001
FIRST_ACCOUNT_OR_REPOSITORY_ID = 900_000_001
INSTALLATION_TOKEN_LIFETIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Token:
    """A credential: an installation's token, or a person's, which has `scopes` unless it is a fine-grained one."""

    user: User
    expires_at: datetime | None = None
    is_installation: bool = False
    scopes: str | None = None


class World:
    """All accounts, tokens and repositories, found by id, name or token."""

    def __init__(self, directory: Path, clock: Callable[[], datetime], app: App | None) -> None:
        self.directory = directory
        self.clock = clock
        self.app = app
        self.changes = Changes()
        self.signatures = Signatures(directory)
        self.users: dict[str, User] = {}
        self.repositories: dict[int, Repository] = {}
        self.tokens: dict[str, Token] = {}
        self.teams: dict[str, set[int]] = {}
        self.uploads: list[Upload] = []
        self.late_closing_references = False
        self._repository_ids: dict[str, int] = {}
        self._ids = itertools.count(FIRST_ID)
        self._small_ids = itertools.count(FIRST_ACCOUNT_OR_REPOSITORY_ID)

    def next_id(self) -> int:
        return next(self._ids)

    def user(self, login: str, kind: UserType = "User") -> User:
        """Return the account of this login; create it on first use."""
        key = login.lower()
        if key not in self.users:
            self.users[key] = User(next(self._small_ids), login, kind)
        return self.users[key]

    def rename_user(self, user: User, login: str) -> None:
        """Give an account another login; anybody can take the old one."""
        del self.users[user.login.lower()]
        user.login = login
        self.users[login.lower()] = user

    def user_of(self, account: Account) -> User:
        return self.user(account.login)

    def find_user(self, login: str) -> User:
        """Return the account of this login, else 404."""
        if (user := self.users.get(login.lower())) is None:
            raise not_found()
        return user

    def issue_token(self, user: User, scopes: str | None = None, expires_at: datetime | None = None) -> str:
        """Return a new personal access token."""
        token = f"ghp_{secrets.token_hex(18)}"
        self.tokens[token] = Token(user, expires_at, scopes=scopes)
        return token

    def issue_installation_token(self, user: User) -> tuple[str, datetime]:
        """Return a new installation access token and when it expires."""
        token, expires_at = f"ghs_{secrets.token_hex(18)}", self.clock() + INSTALLATION_TOKEN_LIFETIME
        self.tokens[token] = Token(user, expires_at, is_installation=True)
        return token, expires_at

    def token(self, text: str) -> Token | None:
        """Return the token's record, or None if it is unknown, revoked or expired."""
        token = self.tokens.get(text)
        if token is None or (token.expires_at is not None and token.expires_at <= self.clock()):
            return None
        return token

    async def create_repository(
        self, full_name: str, *, default_branch: str, private: bool, parent: Repository | None = None
    ) -> Repository:
        """Create an empty repository, or a fork if it has a parent."""
        owner, name = full_name.split("/")
        if (known := self.repository(full_name)) is not None and known.full_name.lower() == full_name.lower():
            raise invalid("Repository", "name", "name already exists on this account")
        identifier = next(self._small_ids)
        bare = await BareRepository.create(self.directory / f"{identifier}.git", default_branch)
        repository = Repository(
            id=identifier,
            owner=self.user(owner),
            name=name,
            default_branch=default_branch,
            created_at=self.clock(),
            git=bare,
            private=private,
            parent=parent,
        )
        self.repositories[identifier] = repository
        self._repository_ids[full_name.lower()] = identifier
        return repository

    def rename(self, repository: Repository, owner: User, name: str) -> None:
        """Give a repository another name or owner; the old name redirects until another repository takes it."""
        repository.owner, repository.name = owner, name
        self._repository_ids[repository.full_name.lower()] = repository.id

    def repository(self, full_name: str) -> Repository | None:
        """Return the repository of this name, or of a name it had before."""
        identifier = self._repository_ids.get(full_name.lower())
        return None if identifier is None else self.repositories.get(identifier)

    def readable(self, repository: Repository | None, reader: Account | None) -> Repository:
        """Return the repository if this account may see it, else 404."""
        if repository is None or not repository.may(reader, "read"):
            raise not_found()
        return repository

    def demand(self, repository: Repository, account: Account, needed: Permission, message: str) -> None:
        """Refuse with 403 and the message unless the account has the permission."""
        if not repository.may(account, needed):
            raise RefusedError(403, message)


def find_thread(repository: Repository, number: int) -> Issue:
    """Return the issue or pull request of this number, else 404."""
    if (thread := repository.threads.get(number)) is None:
        raise not_found()
    return thread


def find_pull(repository: Repository, number: int) -> Pull:
    """Return the pull request of this number, else 404."""
    thread = find_thread(repository, number)
    if not isinstance(thread, Pull):
        raise not_found()
    return thread
