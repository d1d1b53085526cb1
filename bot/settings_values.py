"""The types of settings: each reads a text, or says in a sentence what it may be.

A title says what the value must be; the text of a ValueError follows the setting's name. Validators with an `info`
find all variables in its data.
"""

import ipaddress
import os
import pwd
import re
import shlex
import shutil
import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, BeforeValidator, DirectoryPath, Field, SecretStr, ValidationInfo

from bot.agents.mcp import McpServer, read_servers
from bot.logs import LogFormat, LogLevel
from bot.refs import is_branch
from bot.rules import PERSON_OR_TEAM, AutoPullRequest
from bot.sandbox.net.rules import WEB_PORTS, Destination, NotReachableError, parse_target

SECRET_NAME: Final = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names of the agent's variables whose values are secrets."""

_NODE_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_BOT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
_KEYGEN_SECONDS = 10
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AGENTS_OWN = frozenset({"HOME", "PATH", "LANG"})
_OWN_SECRETS = frozenset(
    (
        *("ADMIN_TOKEN", "DATABASE_URL", "GITHUB_CLIENT_SECRET", "GITHUB_PRIVATE_KEY", "GITHUB_PRIVATE_KEY_PATH"),
        *("GITHUB_TOKEN", "GITHUB_WEBHOOK_SECRET", "GITHUB_WEBHOOK_SECRET_OLD", "HTTPS_PROXY", "NOTIFY_URL"),
        "SIGNING_KEY_PATH",
    )
)


def _one_of(literal: Any) -> Any:
    return Field(title=f"one of {', '.join(get_args(literal))}")


def _matching(pattern: str, otherwise: str) -> AfterValidator:
    """Return a validator of whole texts, of which the message shows nothing."""

    def validate(secret: SecretStr) -> SecretStr:
        if not re.fullmatch(pattern, secret.get_secret_value()):
            raise ValueError(otherwise)
        return secret

    return AfterValidator(validate)


def _list_of(pattern: str, otherwise: str, without: str = "") -> BeforeValidator:
    """Return a validator of items between commas, which it returns in lower case, each without a prefix."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(item.lower().removeprefix(without) for item in _items(text))
        for item in found:
            if not re.fullmatch(pattern, item, re.ASCII):
                raise ValueError(f"holds {item!r}{otherwise}")
        return found

    return BeforeValidator(read)


_Agents = Literal["claude", "claude-acp", "codex", "gemini", "opencode", "custom"]
_Sandboxes = Literal["auto", "bwrap", "off"]
_Networks = Literal["internet", "none", "host"]
_Signings = Literal["off", "ssh", "github"]
Sandbox = Annotated[_Sandboxes, _one_of(_Sandboxes)]
Network = Annotated[_Networks, _one_of(_Networks)]
HowToSign = Annotated[_Signings, _one_of(_Signings)]
WhenToPropose = Annotated[AutoPullRequest, _one_of(AutoPullRequest)]
Level = Annotated[LogLevel, BeforeValidator(str.lower), _one_of(LogLevel)]
Format = Annotated[LogFormat, BeforeValidator(str.lower), _one_of(LogFormat)]
Switch = Annotated[bool, Field(title="true or false")]
Port = Annotated[int, Field(ge=0, le=65535, title="a whole number of at least 0 and at most 65535")]
Count = Annotated[int, Field(ge=1, title="a whole number of at least 1")]
AppId = Annotated[Annotated[int, Field(ge=1)] | None, Field(title="a whole number of at least 1")]
DaysOfAWeekOrMore = Annotated[int, Field(ge=7, title="a whole number of at least 7")]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[_Finite, Field(gt=0, title="a number above 0")]
TenSecondsOrMore = Annotated[_Finite, Field(ge=10, title="a number of at least 10")]
NotNegative = Annotated[_Finite, Field(ge=0, title="a number of at least 0")]
# Only the scheme is checked: an address of a Unix socket has no host.
DatabaseUrl = Annotated[
    SecretStr,
    _matching("postgres(ql)?://.*", "must look like postgresql://USER:PASSWORD@HOST:5432/DATABASE; correct it."),
]
# This token is all that keeps strangers out of the dashboard and the API.
AdminToken = Annotated[
    SecretStr,
    _matching("[!-~]{16,1000}", "must have 16 characters or more and no space; make one with `openssl rand -hex 32`."),
]


def home_of(variables: Mapping[str, str]) -> Path | None:
    """Return this user's home directory."""
    try:
        return Path(variables.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def default_data_dir(variables: Mapping[str, str]) -> Path:
    """Return `threadtree` in the XDG data home."""
    data_home = Path(variables.get("XDG_DATA_HOME", ""))
    # https://specifications.freedesktop.org/basedir-spec/latest/: a relative path is to be ignored
    found = data_home if data_home.is_absolute() else (home_of(variables) or Path("/")) / ".local" / "share"
    return found / "threadtree"


def _data_dir(text: str, info: ValidationInfo) -> Path:
    """Return DATA_DIR, absolute, `~` and relative paths resolved."""
    first, *rest = Path(text).parts
    if first != "~":
        return Path(text).absolute()
    if (home := home_of(info.data["variables"])) is None:
        raise ValueError("begins with ~ and this user has no home directory; name it in full.")
    return home.joinpath(*rest)


def host_name() -> str:
    """Return this machine's host name as a node name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-") or "node"


def _private_key(text: str) -> str:
    """Return a PEM key. `\\n` as two characters is accepted: environments often cannot hold line breaks."""
    text = text.replace("\\n", "\n").strip() + "\n"
    if not text.startswith("-----BEGIN"):
        raise ValueError("is not a PEM text; give the App's whole private key, or its file in GITHUB_PRIVATE_KEY_PATH.")
    return text


def read_private_key(path: Path) -> str:
    """Return the key in the file of GITHUB_PRIVATE_KEY_PATH."""
    try:
        return _private_key(path.read_text())
    except (OSError, ValueError):  # ValueError: no PEM, or not even text
        raise ValueError("names no PEM file that this user can read; correct it.") from None


def public_key(path: Path, search_path: str) -> str:
    """Return the public half of an SSH key, as `ssh-keygen` tells it, whose program is that of git's signatures.

    Raises ValueError, which says why it cannot sign: the text follows the setting's name.
    """
    program = shutil.which("ssh-keygen", path=search_path)
    if program is None:
        raise ValueError("needs the program `ssh-keygen`, which is not there; install the package `openssh-client`.")
    argv = (program, "-y", "-P", "", "-f", str(path))
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_KEYGEN_SECONDS)
    if done.returncode:
        raise ValueError(
            "names no private SSH key without a passphrase that this user, and nobody else, can read; correct it."
        )
    return done.stdout.decode(errors="replace").strip()


def _signing_key(text: str, info: ValidationInfo) -> Path:
    """Return the absolute path of a key that can sign."""
    path = Path(text).absolute()
    public_key(path, info.data["variables"].get("PATH", os.defpath))
    return path


def base_url(text: str) -> str:
    """Return an https address (http only to loopback) of host and path, without a slash at its end."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        host, url = None, urlsplit("")
    if not host or url.scheme not in {"https", "http"} or url.query or url.fragment or "@" in url.netloc:
        raise ValueError("must be an address like https://HOST/PATH, without user, query or fragment; correct it.")
    if url.scheme == "http" and not is_loopback(host):
        raise ValueError("uses plain http to another machine, where credentials could be read; use https.")
    return urlunsplit((url.scheme, url.netloc.lower(), url.path.rstrip("/"), "", ""))


def _notify_url(secret: SecretStr) -> SecretStr:
    """Check an address that may hold a secret in its path or query; nothing of it is shown."""
    try:
        base_url(urlsplit(secret.get_secret_value())._replace(query="").geturl())
    except ValueError:
        raise ValueError("must be like https://HOST/PATH, or plain http to this machine; correct it.") from None
    return secret


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _proxy(text: str) -> SecretStr:
    """Return `http://[user:password@]host:port` of a proxy; git, httpx and the sandboxes' proxy know no other kinds."""
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        host, port = url.hostname, url.port or 80
    except ValueError:
        host, port, url = None, 0, urlsplit("")
    if not host or url.scheme != "http" or url.path not in {"", "/"} or url.query or url.fragment:
        raise ValueError("must be the address of a proxy like http://HOST:PORT or http://USER:PASSWORD@HOST:PORT.")
    credentials, at, _ = url.netloc.rpartition("@")
    return SecretStr(f"http://{credentials}{at}{f'[{host}]' if ':' in host else host}:{port}")


def _certificate_file(text: str) -> Path:
    """Return the absolute path of a file with certificates."""
    path = Path(text).absolute()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:  # of which SSLError is one
        raise ValueError("names no PEM file of certificates that this user can read; correct or unset it.") from None
    return path


def _hosts(text: str) -> frozenset[Destination]:
    """Return hosts with their ports; one without a port is reached on the web's ports."""
    found = set()
    for item in _items(text):
        try:
            found |= {parse_target(item, port) for port in WEB_PORTS}
        except NotReachableError:
            raise ValueError(f"holds {item!r}; write HOST, HOST:PORT or [IPV6]:PORT, each host by itself.") from None
    return frozenset(found)


def graphql_url(api_url: str) -> str:
    """https://docs.github.com/en/enterprise-server@latest/graphql/guides/managing-enterprise-accounts"""
    return f"{api_url.removesuffix('/v3') if api_url.endswith('/api/v3') else api_url}/graphql"


def server_url(api_url: str) -> str:
    """Return the server of an API: HOST for `api.HOST` (github.com, ghe.com), else the API's own host."""
    url = urlsplit(api_url)
    host = url.netloc if url.path else url.netloc.removeprefix("api.")
    return urlunsplit((url.scheme, host, "", "", ""))


def _mention(text: str) -> str:
    """Return a login without what stands around it in a mention, or in the name of an App's account."""
    return text.removeprefix("@").removesuffix("[bot]")


def _items(text: str) -> list[str]:
    return [item for part in text.split(",") if (item := part.strip())]


def _branch_prefix(text: str) -> str:
    """Return the beginning of the names of branches; what stands before its last slash is a folder to git."""
    if not is_branch(f"{text}issue-1"):
        raise ValueError("cannot begin the name of a branch; write it like threadtree/ or bot-.")
    return text


def _agents(text: str) -> tuple[str, ...]:
    """Return the names of agents, each once."""
    found, known = tuple(dict.fromkeys(_items(text))), get_args(_Agents)
    if not found or set(found) - set(known):
        raise ValueError(f"must be one of {', '.join(known)}, or several with commas between; correct or unset it.")
    return found


def _agent_command(text: str, info: ValidationInfo) -> tuple[str, ...]:
    variables: Mapping[str, str] = info.data["variables"]
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into words ({error}); quote it as in a shell.") from error
    program = shutil.which(argv[0], path=variables.get("PATH", os.defpath)) if argv else None
    if program is None:
        raise ValueError("starts with a word that is no executable file, nor the name of one on PATH; correct it.")
    if any(variables[name] in word for name in _OWN_SECRETS & variables.keys() for word in argv):
        raise ValueError("holds one of the bot's own secrets; take it out: every process can read a command line.")
    return (str(Path(program).absolute()), *argv[1:])


def _agent_env(text: str, info: ValidationInfo) -> dict[str, str]:
    """Return the variables that AGENT_ENV names. One that is not set is refused: the agent would fail."""
    variables: Mapping[str, str] = info.data["variables"]
    secrets = {variables[name] for name in _OWN_SECRETS & variables.keys()}
    for name in _items(text):
        if not _VARIABLE_NAME.fullmatch(name):
            raise ValueError(f"holds {name!r}, which is no variable's name; give names only, separated by commas.")
        if name in _AGENTS_OWN:
            raise ValueError(f"names {name}, which the agent is given a value of its own for; take it out.")
        if name in _OWN_SECRETS:
            raise ValueError(f"names {name}, one of the bot's own secrets; take it out.")
        if name not in variables:
            raise ValueError(f"names {name}, which is not set; set {name}, or take it out.")
        if variables[name] in secrets:
            raise ValueError(f"names {name}, whose value is one of the bot's own secrets; take it out.")
    return {name: variables[name] for name in _items(text)}


def _mcp_config(text: str, info: ValidationInfo) -> tuple[McpServer, ...]:
    """Return the servers in the file. Without the internet a sandbox reaches only the hosts of ALLOWED_HOSTS."""
    variables: Mapping[str, str] = info.data["variables"]
    try:
        content = Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise ValueError("names no text file that this user can read; correct or unset it.") from None
    own = {variables[name] for name in _OWN_SECRETS & variables.keys()}
    try:
        servers = read_servers(content, variables.get("PATH", os.defpath), own)
    except ValueError as error:
        raise ValueError(f"{error}; correct {text}.") from None
    for one in servers:
        if one.type != "stdio" and info.data.get("agent_network") == "none":
            try:
                is_open = parse_target(*one.authority) in info.data.get("allowed_hosts", ())
            except NotReachableError:
                is_open = False
            if not is_open:
                raise ValueError(
                    f"has the server {one.name} on another host, which AGENT_NETWORK=none forbids; name its host in "
                    "ALLOWED_HOSTS, or take it out."
                )
    return servers


DataDir = Annotated[Path, BeforeValidator(_data_dir)]
Directory = Annotated[DirectoryPath | None, Field(title="a directory that is there")]
BranchPrefix = Annotated[str, AfterValidator(_branch_prefix)]
NodeName = Annotated[str, Field(pattern=_NODE_NAME, title="at most 64 letters, digits, dots, hyphens and underscores")]
SigningKey = Annotated[Path, BeforeValidator(_signing_key)]
PrivateKey = Annotated[SecretStr, BeforeValidator(_private_key)]
Url = Annotated[str, AfterValidator(base_url)]
NotifyUrl = Annotated[SecretStr, AfterValidator(_notify_url)]
BotName = Annotated[
    Annotated[str, BeforeValidator(_mention), Field(pattern=_BOT_NAME)] | None,
    Field(title="one GitHub login, without @ and blanks"),
]
RepositoryGlobs = Annotated[
    tuple[str, ...],
    _list_of(r"[^\s/]+/[^\s/]+|\*", ", which is not OWNER/NAME; write it like octo/hello or octo/*."),
]
Proxy = Annotated[SecretStr, BeforeValidator(_proxy)]
CertificateFile = Annotated[Path, BeforeValidator(_certificate_file)]
Hosts = Annotated[frozenset[Destination], BeforeValidator(_hosts)]
People = Annotated[
    tuple[str, ...],
    _list_of(PERSON_OR_TEAM, ", which is neither a login nor a team; write it like octocat or acme/web.", without="@"),
]
NumericIds = Annotated[
    frozenset[int],
    _list_of("[0-9]+", "; give numeric ids, like the `id` in https://api.github.com/users/NAME."),
]
Agents = Annotated[tuple[str, ...], BeforeValidator(_agents)]
AgentCommand = Annotated[tuple[str, ...], BeforeValidator(_agent_command)]
McpConfig = Annotated[tuple[McpServer, ...], BeforeValidator(_mcp_config)]
AgentEnv = Annotated[Mapping[str, SecretStr], BeforeValidator(_agent_env)]
