"""Who somebody is, and what they may see, asked of GitHub for the dashboard."""

from base64 import urlsafe_b64encode
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import urlencode

import structlog

from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Refused

# https://docs.github.com/apps/oauth-apps/building-oauth-apps/authorizing-oauth-apps: a GitHub App's is the same.
AUTHORIZE = "/login/oauth/authorize"
EXCHANGE = "/login/oauth/access_token"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SignIn:
    """The sign-in with GitHub, of an OAuth App or a GitHub App.

    No scope is asked for: the person's token tells who they are, and is then forgotten. No address to come back to is
    named: GitHub takes the one that the App is registered with.
    """

    github: GitHub
    server_url: str
    client_id: str
    client_secret: str = field(repr=False)

    def address(self, state: str, verifier: str) -> str:
        """Return the page on GitHub; `verifier` is the secret that proves later who went there (RFC 7636)."""
        challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
        pkce = {"code_challenge": challenge, "code_challenge_method": "S256"}
        asked = {"client_id": self.client_id, "state": state, **pkce, "allow_signup": "false"}
        return f"{self.server_url}{AUTHORIZE}?{urlencode(asked)}"

    async def person(self, code: str, verifier: str) -> tuple[str, int]:
        """Return login and id of whom GitHub gave the code. Raises GitHubError, Refused for a wrong code."""
        secret = {"client_id": self.client_id, "client_secret": self.client_secret}
        return await self.github.person_of_code(
            f"{self.server_url}{EXCHANGE}", {**secret, "code": code, "code_verifier": verifier}
        )


async def is_one_of(github: GitHub, people: Collection[str], login: str) -> bool:
    """Return whether the person is one of these logins and teams, `org/slug`, in lower case.

    Raises GitHubError where it is away.
    """
    if login.casefold() in people:
        return True
    for team in people:
        if "/" in team and await _is_member(github, team, login):
            return True
    return False


async def _is_member(github: GitHub, team: str, login: str) -> bool:
    """Return whether the person is in the team; nobody is in one that the bot may not see.

    https://docs.github.com/rest/teams/members#get-team-membership-for-a-user
    """
    org, _, slug = team.partition("/")
    try:
        found = await github.of_organisation(org, "/teams/{slug}/memberships/{login}", slug=slug, login=login)
    except (NotFound, Refused) as problem:
        _log.debug("not-in-team", team=team, login=login, problem=str(problem))
        return False
    return bool(found["state"] == "active")


async def why_unseen(github: GitHub, team: str) -> str | None:
    """Return why the bot cannot tell who is in the team; None where it can.

    https://docs.github.com/rest/teams/teams#get-a-team-by-name
    """
    org, _, slug = team.partition("/")
    try:
        await github.of_organisation(org, "/teams/{slug}", slug=slug)
    except GitHubError as problem:
        return str(problem)
    return None
