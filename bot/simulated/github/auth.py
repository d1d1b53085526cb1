"""Authentication of a request by its Authorization header."""

import base64
import binascii
from dataclasses import dataclass

from bot.simulated.github.errors import RefusedError
from bot.simulated.github.model import User
from bot.simulated.github.world import World


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller: anonymous, a user (or an app's installation), or the app itself with a JSON web token."""

    user: User | None = None
    is_installation: bool = False
    app_jwt: str | None = None

    @property
    def login(self) -> str | None:
        return None if self.user is None else self.user.login


def authenticate(world: World, header: str | None) -> Caller:
    """Accept `Bearer`, `token`, and Basic with a token as the password. Raises RefusedError (401) for anything else."""
    if header is None:
        return Caller()
    scheme, _, value = header.partition(" ")
    match scheme.lower():
        case "bearer" if value.count(".") == 2:
            return Caller(app_jwt=value)
        case "bearer" | "token":
            secret = value.strip()
        case "basic":
            secret = _password(value)
        case _:
            secret = ""
    token = world.token(secret)
    if token is None:
        raise RefusedError(401, "Bad credentials")
    return Caller(user=token.user, is_installation=token.is_installation)


def _password(value: str) -> str:
    try:
        decoded = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return decoded.partition(":")[2]
