"""Convert the text of one setting to its value. The text of a ValueError follows the setting's name in a sentence."""

import hashlib
import ipaddress
import math
import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

MAX_NODE_NAME_BYTES: Final = 34
"""Its name stands in lists, comments and figures."""

SECRET_NAME: Final = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names of the agent's variables whose values are secrets."""

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_REPOSITORY_GLOB = re.compile(r"[^\s/]+/[^\s/]+|\*")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AGENTS_OWN = frozenset({"HOME", "PATH", "LANG"})
_ON, _OFF = frozenset({"true", "t", "yes", "y", "on", "1"}), frozenset({"false", "f", "no", "n", "off", "0"})


class Secret:
    """A text that no repr and no log shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        """Return the text."""
        return self._text

    def __repr__(self) -> str:
        return "Secret('**********')"


def secret(read: Callable[[str], str]) -> Callable[[str], Secret]:
    """Return a reader that keeps secret what `read` returns."""
    return lambda text: Secret(read(text))


def choice(literal: Any, *, any_case: bool = False) -> Callable[[str], str]:
    """Return a reader of one of the words of a `Literal`."""
    words = get_args(literal)

    def read(text: str) -> str:
        word = text.lower() if any_case else text
        if word not in words:
            raise ValueError(f"must be one of {', '.join(words)}; correct or unset it.")
        return word

    return read


def switch(text: str) -> bool:
    """Return whether the text means on."""
    if (word := text.lower()) in _ON | _OFF:
        return word in _ON
    raise ValueError("must be true or false; correct or unset it.")


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a reader of a whole number within these bounds."""
    bounds = f" of at least {least}" + ("" if most is None else f" and at most {most}")

    def read(text: str) -> int:
        number = int(text) if re.fullmatch("[+-]?[0-9]{1,18}", text) else None
        if number is None or number < least or (most is not None and number > most):
            raise ValueError(f"must be a whole number{bounds}; correct or unset it.")
        return number

    return read


def number(*, above: float = -math.inf, least: float = -math.inf) -> Callable[[str], float]:
    """Return a reader of a finite number above or not below a bound."""
    bound = f"of at least {least:g}" if above == -math.inf else f"above {above:g}"

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if math.isfinite(found) and found > above and found >= least:
            return found
        raise ValueError(f"must be a number {bound}; correct or unset it.")

    return read


def postgres_url(text: str) -> str:
    """Check a libpq address. Only the scheme is checked: an address of a Unix socket has no host."""
    if urlsplit(text).scheme not in {"postgresql", "postgres"}:
        raise ValueError("must look like postgresql://USER:PASSWORD@HOST:5432/DATABASE; correct it.")
    return text


def data_dir(variables: Mapping[str, str]) -> Path:
    """DATA_DIR, absolute, `~` and relative paths resolved; by default `threadtree` in the XDG data home."""
    try:
        home = Path(variables.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise ValueError("is not set and this user has no home directory; set it.") from None
    if text := variables.get("DATA_DIR", "").strip():
        first, *rest = Path(text).parts
        return home.joinpath(*rest) if first == "~" else Path(text).absolute()
    data_home = Path(variables.get("XDG_DATA_HOME", ""))
    # https://specifications.freedesktop.org/basedir-spec/latest/: a relative path is to be ignored
    return (data_home if data_home.is_absolute() else home / ".local" / "share") / "threadtree"


def directory(text: str) -> Path:
    """Return the directory. Raises ValueError if it does not exist."""
    path = Path(text)
    if not path.is_dir():
        raise ValueError("names no directory; correct it.")
    return path


def node_name(text: str) -> str:
    """Check a node name. A long one is cut and gets a digest, so that it stays distinct."""
    if not _NODE_NAME.fullmatch(text):
        raise ValueError("may only hold letters, digits, dots, hyphens and underscores; choose another.")
    if len(text) <= MAX_NODE_NAME_BYTES:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[: MAX_NODE_NAME_BYTES - len(digest) - 1]}-{digest}"


def host_name() -> str:
    """Return this machine's host name as a node name."""
    return node_name(re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-") or "node")


def admin_token(text: str) -> str:
    """Check the token of the dashboard and the API, which is all that keeps strangers out."""
    if not re.fullmatch(r"[!-~]{16,1000}", text):
        raise ValueError("must have 16 characters or more and no space; make one with `openssl rand -hex 32`.")
    return text


def private_key(text: str) -> str:
    """Return a PEM key. `\\n` as two characters is accepted: environments often cannot hold line breaks."""
    text = text.replace("\\n", "\n").strip() + "\n"
    if not text.startswith("-----BEGIN"):
        raise ValueError("is not a PEM text; give the App's whole private key, or its file in GITHUB_PRIVATE_KEY_PATH.")
    return text


def read_private_key(path: Path) -> str:
    """Return the key in the file of GITHUB_PRIVATE_KEY_PATH."""
    try:
        return private_key(path.read_text())
    except (OSError, ValueError):  # ValueError: no PEM, or not even text
        raise ValueError("names no PEM file that this user can read; correct it.") from None


def base_url(text: str) -> str:
    """Return an https address (http only to loopback) of host and path, without a slash at its end."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        host, url = None, urlsplit("")
    if not host or url.scheme not in {"https", "http"} or url.query or url.fragment or "@" in url.netloc:
        raise ValueError("must be an address like https://HOST/PATH, without user, query or fragment; correct it.")
    if url.scheme == "http" and not _is_loopback(host):
        raise ValueError("uses plain http to another machine, where credentials could be read; use https.")
    return urlunsplit((url.scheme, url.netloc.lower(), url.path.rstrip("/"), "", ""))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def graphql_url(api_url: str) -> str:
    """https://docs.github.com/en/enterprise-server@latest/graphql/guides/managing-enterprise-accounts"""
    return f"{api_url.removesuffix('/v3') if api_url.endswith('/api/v3') else api_url}/graphql"


def server_url(api_url: str) -> str:
    """Return the server of an API: HOST for `api.HOST` (github.com, ghe.com), else the API's own host."""
    url = urlsplit(api_url)
    host = url.netloc if url.path else url.netloc.removeprefix("api.")
    return urlunsplit((url.scheme, host, "", "", ""))


def bot_name(text: str) -> str:
    """Return the mention without `@`."""
    name = text.removeprefix("@").removesuffix("[bot]")
    if not _BOT_NAME.fullmatch(name):
        raise ValueError("must be one GitHub login, without @ and blanks; correct it.")
    return name


_MOST_DIGITS_OF_SPARES = 2


def _items(text: str) -> list[str]:
    return [item for part in text.split(",") if (item := part.strip())]


def repository_globs(text: str) -> tuple[str, ...]:
    """Return patterns of `owner/name` in lower case: GitHub's names ignore case."""
    for item in _items(text):
        if not _REPOSITORY_GLOB.fullmatch(item):
            raise ValueError(f"holds {item!r}, which is not OWNER/NAME; write it like octo/hello or octo/*.")
    return tuple(item.lower() for item in _items(text))


def logins(text: str) -> tuple[str, ...]:
    """Return GitHub logins in lower case, without `@`."""
    return tuple(item.lower().removeprefix("@") for item in _items(text))


def numeric_ids(text: str) -> frozenset[int]:
    """Return GitHub's numeric ids."""
    for item in _items(text):
        if not (item.isascii() and item.isdigit()):
            raise ValueError(f"holds {item!r}; give numeric ids, like the `id` in https://api.github.com/users/NAME.")
    return frozenset(map(int, _items(text)))


def spares(text: str) -> int | Literal["auto"]:
    """Return the number of spare checkouts of a repository."""
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS_OF_SPARES):
        raise ValueError("must be auto, or a number from 0 to 99; correct it.")
    return int(text)


def variable_names(text: str) -> tuple[str, ...]:
    """Return names of environment variables, except those that the bot sets for the agent."""
    for item in _items(text):
        if not _VARIABLE_NAME.fullmatch(item):
            raise ValueError(f"holds {item!r}, which is no variable's name; give names only, separated by commas.")
        if item in _AGENTS_OWN:
            raise ValueError(f"names {item}, which the agent is given a value of its own for; take it out.")
    return tuple(dict.fromkeys(_items(text)))
