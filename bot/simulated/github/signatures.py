"""Signatures of commits: the keys of accounts, GitHub's own key, and what GitHub shows as verified.

https://docs.github.com/authentication/managing-commit-signature-verification/about-commit-signature-verification
"""

from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bot.simulated.github.model import User
from bot.simulated.github.rules import SIGNERS

GITHUB = ("GitHub", "noreply@github.com")
_KEY = "signing_key"


@dataclass(slots=True)
class Signatures:
    """The public keys that accounts sign with, and GitHub's own key, in a folder beside the repositories."""

    directory: Path
    keys: dict[int, list[str]] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)

    def register(self, user: User, public_key: str) -> None:
        """Add a key with which an account signs commits."""
        self.keys.setdefault(user.id, []).append(public_key)
        self._believe(address_of(user), public_key)

    def key_of_github(self) -> Path:
        """Return the file of the private key with which GitHub signs, made at its first use."""
        path = self.directory / _KEY
        if not path.exists():
            key, form = Ed25519PrivateKey.generate(), serialization.PrivateFormat.OpenSSH
            path.touch(0o600)
            path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
            public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
            self._believe(GITHUB[1], public.decode())
        return path

    def _believe(self, address: str, public_key: str) -> None:
        self._lines.append(f'{address} namespaces="git" {public_key}\n')
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / SIGNERS).write_text("".join(self._lines))


def address_of(user: User) -> str:
    """Return the account's own address, which hides the person's."""
    return f"{user.id}+{user.login}@users.noreply.127.0.0.1"
