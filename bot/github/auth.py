"""The bot's credentials for GitHub: a personal token, or a GitHub App's short-lived installation tokens."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import jwt

from bot.github.errors import Unauthenticated
from bot.model import Repository

# Dated a minute back, since clocks differ; GitHub accepts at most ten minutes:
# https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
APP_TOKEN_BACKDATED = timedelta(minutes=1)
APP_TOKEN_LIFETIME = timedelta(minutes=9)
APP_TOKEN_REUSED = timedelta(minutes=6)
"""So long a JWT is used again: two minutes less than it is good for."""
# An installation's token lives an hour:
# https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-an-installation-access-token-for-a-github-app
REFRESH_BEFORE_EXPIRY = timedelta(minutes=5)
NEW = timedelta(seconds=10)
"""GitHub replicates a credential for so long after it was made: until then a refusal may pass."""
REFUSED_WAITS_SECONDS = (2.0, 4.0, 8.0)
"""The pauses between tries with a new credential. https://github.com/octokit/auth-app.js/issues/589"""


@dataclass(frozen=True, slots=True)
class TokenCredentials:
    """A personal access token."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AppCredentials:
    """A GitHub App: its id and the PEM text of its private key."""

    app_id: str
    private_key: str = field(repr=False)

    def app_token(self, now: datetime) -> str:
        """Return a new JWT for the endpoints that authenticate the App itself. Raises Unauthenticated for a bad key."""
        issued_at = now - APP_TOKEN_BACKDATED
        claims = {
            "iss": self.app_id,
            "iat": int(issued_at.timestamp()),
            "exp": int((issued_at + APP_TOKEN_LIFETIME).timestamp()),
        }
        try:
            return jwt.encode(claims, self.private_key, algorithm="RS256")
        except (jwt.PyJWTError, ValueError) as error:
            raise Unauthenticated("the App's private key cannot be read") from error


Credentials = TokenCredentials | AppCredentials


@dataclass(frozen=True, slots=True)
class InstallationToken:
    """A token that GitHub issued, when it did, and when it expires."""

    value: str = field(repr=False)
    expires_at: datetime
    made_at: datetime


TokenKey = tuple[int, int | None]
"""The scope of a token: an installation, and a single repository of it or None for all."""
IssueToken = Callable[[int, int | None], Awaitable[InstallationToken]]


class Tokens:
    """The token for a repository; concurrent callers share one request for a new one."""

    def __init__(
        self,
        credentials: Credentials,
        issue: IssueToken,
        clock: Callable[[], datetime],
        on_new_token: Callable[[str], None],
    ) -> None:
        self.personal = credentials.token if isinstance(credentials, TokenCredentials) else None
        self._issue = issue
        self._clock = clock
        self._on_new_token = on_new_token
        self._issued: dict[TokenKey, InstallationToken] = {}
        self._started_at = clock()
        self._locks: defaultdict[TokenKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def of(self, repository: Repository, *, only_this_repository: bool = False) -> str:
        """Return the token to use now. Raises Unauthenticated where no installation of the App is known."""
        if self.personal is not None:
            return self.personal
        if repository.installation_id is None:
            raise Unauthenticated(f"no installation of the GitHub App is known for {repository.full_name}")
        return await self.of_installation(repository.installation_id, repository.id if only_this_repository else None)

    async def of_installation(self, installation_id: int, repository_id: int | None = None) -> str:
        """Return the token of this scope, cached until shortly before it expires."""
        key = installation_id, repository_id
        async with self._locks[key]:
            cached = self._issued.get(key)
            if cached is None or cached.expires_at - REFRESH_BEFORE_EXPIRY <= self._clock():
                cached = self._issued[key] = await self._issue(*key)
                self._on_new_token(cached.value)
            return cached.value

    def is_new(self, token: str | None = None) -> bool:
        """Return whether GitHub may not have replicated the token yet, or without one, any that is in use.

        When a personal token was made is not known: its age counts from the start of this process.
        """
        made = [one.made_at for one in self._issued.values() if token in (None, one.value)]
        if self.personal is not None:
            made = [self._started_at]
        return any(timedelta(0) <= self._clock() - at < NEW for at in made)

    def reject(self, token: str) -> bool:
        """Forget a token that GitHub did not accept, unless it is new; return True if another one can be issued."""
        if self.is_new(token):
            return False
        rejected = [key for key, issued in self._issued.items() if issued.value == token]
        for key in rejected:
            del self._issued[key]
        return self.personal is None
