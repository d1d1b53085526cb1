"""The bot as a GitHub App, when it does not use a person's token."""

from dataclasses import dataclass, field

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bot.simulated.github.errors import RefusedError
from bot.simulated.github.model import UserType

APP_ID = 424242
JWT_LIFETIME_SECONDS = 600
JWT_CLOCK_SKEW_SECONDS = 60


@dataclass(slots=True)
class App:
    """An app with one installation, and the key pair its JSON web tokens are signed with."""

    id: int
    slug: str
    installation_id: int
    private_key_pem: str
    public_key_pem: str
    permissions: dict[str, str] = field(
        default_factory=lambda: {
            **dict.fromkeys(("contents", "issues", "pull_requests"), "write"),
            **dict.fromkeys(("metadata", "checks", "statuses", "actions"), "read"),
        }
    )
    events: list[str] = field(
        default_factory=lambda: [
            "check_run",
            "check_suite",
            "issue_comment",
            "issues",
            "pull_request",
            "pull_request_review",
            "pull_request_review_comment",
            "workflow_run",
            "repository",
        ]
    )

    owner: str = "acme"
    owner_type: UserType = "Organization"
    callback_urls: list[str] = field(default_factory=list)
    installed: bool = True

    @classmethod
    def create(cls, slug: str, installation_id: int) -> "App":
        """Create an app with a fresh key."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return cls(APP_ID, slug, installation_id, private.decode(), public.decode())

    @property
    def login(self) -> str:
        """Return the login of the app's account."""
        return f"{self.slug}[bot]"

    def verify(self, token: str, now: float) -> None:
        """Accept an RS256 token of this app that is valid at `now` (seconds since the epoch), else 401.

        Rules: https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app
        """
        options = {"verify_exp": False, "verify_iat": False, "require": ["exp", "iat", "iss"]}
        try:
            claims = jwt.decode(token, self.public_key_pem, algorithms=["RS256"], options=options)  # type: ignore[arg-type]
            expires_at, issued_at = float(claims["exp"]), float(claims["iat"])
        except (jwt.InvalidTokenError, ValueError, TypeError) as error:
            raise RefusedError(401, "A JSON web token could not be decoded") from error
        if str(claims["iss"]) != str(self.id):
            raise RefusedError(401, "Integration not found")
        if issued_at > now + JWT_CLOCK_SKEW_SECONDS:
            raise RefusedError(401, "'Issued at' claim ('iat') must be an Integer representing the time in the past")
        if expires_at > now + JWT_LIFETIME_SECONDS + JWT_CLOCK_SKEW_SECONDS:
            raise RefusedError(401, "'Expiration time' claim ('exp') is too far in the future")
        if expires_at <= now:
            raise RefusedError(
                401, "'Expiration time' claim ('exp') must be a numeric value representing the future time"
            )
