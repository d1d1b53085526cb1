"""Settings: the environment and `.env` as one frozen value. No other module reads the environment."""

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from dotenv import dotenv_values

from bot import settings_values as values
from bot.logs import LogFormat, LogLevel
from bot.model import AutoPullRequest
from bot.settings_values import Secret

if TYPE_CHECKING:
    from bot.maintenance.retention_rules import Policy


class Need(Enum):
    """What a command cannot start without; everything else has a default."""

    WEBHOOK_SECRET = auto()
    GITHUB = auto()
    AGENT = auto()


WEB = frozenset({Need.WEBHOOK_SECRET})
WORKER = frozenset({Need.GITHUB, Need.AGENT})
SERVE = WEB | WORKER
DATABASE_ONLY: frozenset[Need] = frozenset()

# These are checked against the file system, so they are read only with the need.
_READ_ONLY_WITH = {
    "agent": Need.AGENT,
    "agent_command": Need.AGENT,
    "agent_env": Need.AGENT,
    "github_private_key_path": Need.GITHUB,
}
_OWN_SECRETS = frozenset(
    {
        "ADMIN_TOKEN",
        "DATABASE_URL",
        "GITHUB_PRIVATE_KEY",
        "GITHUB_PRIVATE_KEY_PATH",
        "GITHUB_TOKEN",
        "GITHUB_WEBHOOK_SECRET",
        "GITHUB_WEBHOOK_SECRET_OLD",
    }
)
_URLS_OF_GITHUB_COM = {
    "github_graphql_url": "https://api.github.com/graphql",
    "github_server_url": "https://github.com",
}
NOT_BUILT = frozenset(
    {
        *("AGENT_MODEL", "BARE_COMMANDS", "BRANCH_PREFIX"),
        "MAX_COMMENTS_PER_HOUR",
        *("MAX_COST_USD_PER_DAY", "MAX_COST_USD_PER_REPOSITORY_PER_DAY", "MAX_COST_USD_PER_TURN"),
    }
)
"""Planned settings. They have no effect yet, and the operator is warned."""
_MIN_PASSWORD_LENGTH = 8  # shorter ones are ordinary words of an answer


class SettingsError(Exception):
    """The settings do not allow a start. `lines` has one sentence per problem, with the setting and the next step."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def _setting(read: Callable[[str], object], default: object = MISSING, **more: Any) -> Any:
    """Return a field that `read` reads from its text; the text of its ValueError follows the setting's name."""
    return field(default=default, metadata={"read": read}, **more)


_Agent = Literal["claude", "claude-acp", "codex", "gemini", "opencode", "custom"]
_Network = Literal["internet", "none", "host"]
_secret, _url = values.secret, values.base_url
_seconds, _count = values.number(above=0), values.whole_number(1)


# A model of pydantic would take a fifth of the web process' memory, and of the time of a short command.
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting that works, by its lower-cased name. Make one with `load`; secrets never show in its repr."""

    database_url: Secret | None = _setting(_secret(values.postgres_url), None)
    data_dir: Path
    host: str = _setting(str, "127.0.0.1")
    port: int = _setting(values.whole_number(0, 65535), 8000)
    node_name: str = _setting(values.node_name, default_factory=values.host_name)
    postgres_bin_dir: Path | None = _setting(values.directory, None)

    github_webhook_secret: Secret | None = _setting(Secret, None)
    github_webhook_secret_old: Secret | None = _setting(Secret, None)
    github_token: Secret | None = _setting(Secret, None)
    github_app_id: int | None = _setting(_count, None)
    github_private_key: Secret | None = _setting(_secret(values.private_key), None)
    github_private_key_path: Path | None = _setting(Path, None)
    github_api_url: str = _setting(_url, "https://api.github.com")
    github_graphql_url: str = _setting(_url)
    github_server_url: str = _setting(_url)

    bot_name: str | None = _setting(values.bot_name, None)
    bot_label: str = _setting(str, "threadtree")
    allowed_repos: tuple[str, ...] = _setting(values.repository_globs, ())
    allowed_users: tuple[str, ...] = _setting(values.logins, ())
    allowed_bots: frozenset[int] = _setting(values.numeric_ids, frozenset())

    agent: _Agent = _setting(values.choice(_Agent), "claude")
    agent_command: tuple[str, ...] = ()
    agent_env: Mapping[str, Secret] = field(default_factory=dict)
    agent_sandbox: Literal["auto", "bwrap", "off"] = _setting(values.choice(Literal["auto", "bwrap", "off"]), "auto")
    agent_network: _Network = _setting(values.choice(_Network), "internet")
    allow_workflow_changes: bool = _setting(values.switch, False)
    auto_pull_request: AutoPullRequest = _setting(values.choice(AutoPullRequest), "never")
    setup_script: bool = _setting(values.switch, False)
    include_outsiders: bool = _setting(values.switch, False)
    turn_timeout_seconds: float = _setting(_seconds, 1800)
    turn_idle_timeout_seconds: float = _setting(_seconds, 300)
    max_concurrent_turns: int = _setting(_count, 2)
    max_turns_per_repository: int = _setting(_count, 2)
    max_turns_per_person_per_day: int = _setting(_count, 50)

    session_ttl_seconds: float = _setting(_seconds, 3600)
    delivery_retention_days: int = _setting(values.whole_number(7), 30)
    history_retention_days: int = _setting(values.whole_number(7), 365)
    rescue_expiry_days: int = _setting(_count, 180)
    worktree_headless_expiry_days: int = _setting(_count, 30)
    worktree_branch_expiry_days: int = _setting(_count, 90)
    worktree_orphan_expiry_days: int = _setting(_count, 90)
    disk_reserve_gb: float = _setting(values.number(least=0), 5)
    worktree_prune_enabled: bool = _setting(values.switch, True)
    worktree_purge_on_success: bool = _setting(values.switch, False)
    worktree_spares: int | Literal["auto"] = _setting(values.spares, "auto")
    sweep_interval_seconds: float = _setting(_seconds, 3600)
    recover_interval_seconds: float = _setting(_seconds, 300)
    node_timeout_seconds: float = _setting(values.number(least=10), 60)
    shutdown_grace_seconds: float = _setting(values.number(least=0), 30)
    admin_token: Secret | None = _setting(_secret(values.admin_token), None)
    log_level: LogLevel = _setting(values.choice(LogLevel, any_case=True), "info")
    log_format: LogFormat = _setting(values.choice(LogFormat, any_case=True), "auto")

    # Every child process gets these. They are no settings of the bot, but only this module reads the environment.
    path: str
    lang: str

    @property
    def platform(self) -> str:
        """The GitHub server as `host[:port]`: the first half of every identity in the database."""
        return urlsplit(self.github_server_url).netloc

    @property
    def webhook_secrets(self) -> tuple[bytes, ...]:
        """The accepted secrets of signatures; two during a rotation."""
        both = (self.github_webhook_secret, self.github_webhook_secret_old)
        return tuple(secret.get_secret_value().encode() for secret in both if secret)

    @property
    def disk_reserve_bytes(self) -> int:
        """The disk space that is to stay free."""
        return int(self.disk_reserve_gb * 10**9)

    def retention(self, now: datetime, older_than: timedelta | None = None) -> "Policy":
        """Return how long worktrees and rescues are kept; `older_than` replaces the settings for worktrees."""
        from bot.maintenance.retention_rules import policy_for  # only the worker and `prune` need it

        return policy_for(
            now,
            detached_days=self.worktree_headless_expiry_days,
            branch_days=self.worktree_branch_expiry_days,
            orphan_days=self.worktree_orphan_expiry_days,
            rescue_days=self.rescue_expiry_days,
            older_than=older_than,
        )

    def with_data_dir(self) -> Self:
        """Make DATA_DIR, for its owner alone, unless it is there. Raises SettingsError when that is impossible."""
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            line = f"DATA_DIR {self.data_dir} cannot be made ({error.strerror}); name one this user can write to."
            raise SettingsError([line]) from error
        return self


def load(
    environ: Mapping[str, str] | None = None,
    *,
    dotenv: Path | None = Path(".env"),
    needs: frozenset[Need] = DATABASE_ONLY,
) -> Settings:
    """Return the settings of `environ` (by default the process's own) and of the `.env` file `dotenv`.

    A name in the environment wins over the file, also when it is empty; an empty value means unset.
    Raises SettingsError with all problems at once.
    """
    variables = _variables(environ, dotenv)
    texts = {
        one.name: variables[one.name.upper()].strip()
        for one in fields(Settings)
        if one.name.upper() in variables and _READ_ONLY_WITH.get(one.name) in {None, *needs}
    }
    problems = [*_missing_or_contradictory(texts, needs)]
    known: dict[str, Any] = {"path": variables.get("PATH", os.defpath), "lang": variables.get("LANG", "C.UTF-8")}

    def resolve(name: str, read: Callable[[], object], source: str | None = None) -> None:
        try:
            known[name] = read()
        except ValueError as error:
            problems.append(f"{source or name.upper()} {error}")

    resolve("data_dir", lambda: values.data_dir(variables))
    if "agent_command" in texts:
        resolve("agent_command", lambda: _agent_command(variables, known["path"]))
    if Need.AGENT in needs:
        problems += _agent_problems(texts, variables)
        resolve("agent_env", lambda: _agent_env(variables, texts.get("agent", "claude")))
    if "github_private_key_path" in texts and "github_private_key" not in texts:
        key_file = Path(texts["github_private_key_path"])
        resolve("github_private_key", lambda: Secret(values.read_private_key(key_file)), "GITHUB_PRIVATE_KEY_PATH")
    for one in fields(Settings):
        if one.name in texts and "read" in one.metadata:
            resolve(one.name, partial(one.metadata["read"], texts[one.name]))
    if problems:
        raise SettingsError(problems)
    api_url = known.get("github_api_url", Settings.github_api_url)
    follow = {"github_graphql_url": values.graphql_url(api_url), "github_server_url": values.server_url(api_url)}
    return Settings(**{**follow, **known})


def _variables(environ: Mapping[str, str] | None, dotenv: Path | None) -> dict[str, str]:
    file = dotenv_values(dotenv, interpolate=False) if dotenv and dotenv.is_file() else {}
    real = os.environ if environ is None else environ
    return {name: value for name, value in {**file, **real}.items() if value and value.strip()}


def chosen_agent(environ: Mapping[str, str] | None = None, *, dotenv: Path | None = Path(".env")) -> str | None:
    """Return the agent that AGENT names, also where another setting that it needs is missing; None where it is none."""
    from bot.agents.presets import PRESETS  # read only where an agent is needed: it takes a moment

    agent = _variables(environ, dotenv).get("AGENT", "claude").strip()
    return agent if agent in (*PRESETS, "custom") else None


def doubtful_names(environ: Mapping[str, str] | None = None, *, dotenv: Path | None = Path(".env")) -> tuple[str, ...]:
    """Return a line for each variable that looks like a setting but has no effect: misspelt, or not built yet.

    In the `.env` file every unknown name counts; in the environment only one that is close to a setting's.
    """
    from bot.agents.presets import PRESETS  # read only where an agent is needed: it takes a moment

    file = dotenv_values(dotenv, interpolate=False) if dotenv and dotenv.is_file() else {}
    real = os.environ if environ is None else environ
    handed = {name.strip() for name in ({**file, **real}.get("AGENT_ENV") or "").split(",")}
    models = {name for preset in PRESETS.values() for api in preset.apis for name in (api.key, api.base_url)}
    names = [one.name.upper() for one in fields(Settings)]
    lines = []
    for name in sorted(({*file, *real}) - {*names, *handed, *models}):
        near = get_close_matches(name, names, n=1, cutoff=0.75 if name in file else 0.92)
        if name in NOT_BUILT:
            lines.append(f"{name} is not built yet and has no effect; take it out.")
        elif near:
            lines.append(f"{name} is no setting and has no effect; did you mean {near[0]}?")
        elif name in file:
            lines.append(f"{name} in .env is no setting and has no effect; take it out.")
    return tuple(lines)


def search_path() -> str:
    """Return PATH. The demo needs nothing else of the environment."""
    return os.environ.get("PATH", os.defpath)


def known_secrets(settings: Settings) -> tuple[str, ...]:
    """Return every secret value in use, for redaction: the bot's own and the agent's."""
    own = (
        settings.github_webhook_secret,
        settings.github_webhook_secret_old,
        settings.github_token,
        settings.github_private_key,
        settings.database_url,
        settings.admin_token,
    )
    agents = [secret for name, secret in settings.agent_env.items() if values.SECRET_NAME.search(name)]
    found = [secret.get_secret_value() for secret in (*own, *agents) if secret]
    if settings.database_url:
        found += _database_passwords(settings.database_url.get_secret_value())
    return tuple(dict.fromkeys(found))


def _database_passwords(database_url: str) -> Iterator[str]:
    url = urlsplit(database_url)
    password = url.password or ""
    # "threadtree" as user and password is no secret, and redacting it would blank every branch's name.
    if len(password) >= _MIN_PASSWORD_LENGTH and password not in {url.username, url.path.removeprefix("/")}:
        yield password
        yield unquote(password)


def _missing_or_contradictory(given: Mapping[str, str], needs: frozenset[Need]) -> Iterator[str]:
    if Need.WEBHOOK_SECRET in needs and "github_webhook_secret" not in given:
        yield "GITHUB_WEBHOOK_SECRET is not set; set it to the secret entered at the webhook on GitHub."
    if Need.GITHUB in needs:
        yield from _credential_problems(given)
    for url, default in _URLS_OF_GITHUB_COM.items():
        if "github_api_url" not in given and given.get(url, default) != default:
            yield (
                f"{url.upper()} is set without GITHUB_API_URL; set that too (Enterprise Server: "
                f"https://HOST/api/v3), or unset {url.upper()}: it follows from GITHUB_API_URL."
            )


def _credential_problems(given: Mapping[str, str]) -> Iterator[str]:
    token, app = "github_token" in given, "github_app_id" in given
    keys = [name for name in ("github_private_key", "github_private_key_path") if name in given]
    if token and (app or keys):
        yield "GITHUB_TOKEN and a GitHub App (GITHUB_APP_ID, GITHUB_PRIVATE_KEY) are both set; keep one of them."
    elif not (token or app or keys):
        yield "GITHUB_TOKEN is not set; set it, or GITHUB_APP_ID and GITHUB_PRIVATE_KEY_PATH of a GitHub App."
    elif app and not keys:
        yield "GITHUB_APP_ID is set without GITHUB_PRIVATE_KEY or GITHUB_PRIVATE_KEY_PATH; set one of the two."
    elif keys and not app:
        yield f"{keys[0].upper()} is set without GITHUB_APP_ID; set the App's numeric id too."
    if len(keys) > 1:
        yield "GITHUB_PRIVATE_KEY and GITHUB_PRIVATE_KEY_PATH are both set; keep one of them."


def _agent_problems(given: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    from bot.agents.presets import PRESETS  # read only where an agent is needed: it takes a moment

    agent = given.get("agent", "claude")
    if agent == "custom" and "AGENT_COMMAND" not in variables:
        yield "AGENT_COMMAND is not set; set it to a command that speaks ACP on stdio."
    keys = [api.key for api in PRESETS[agent].apis] if agent in PRESETS else []
    if keys and "AGENT_ENV" not in variables and not variables.keys() & keys:
        yield f"{' or '.join(keys)} is not set; AGENT={agent} needs it."


def _agent_command(variables: Mapping[str, str], path: str) -> tuple[str, ...]:
    try:
        argv = shlex.split(variables["AGENT_COMMAND"])
    except ValueError as error:
        raise ValueError(f"cannot be split into words ({error}); quote it as in a shell.") from error
    program = shutil.which(argv[0], path=path) if argv else None
    if program is None:
        raise ValueError("starts with a word that is no executable file, nor the name of one on PATH; correct it.")
    if any(variables[name] in word for name in _OWN_SECRETS & variables.keys() for word in argv):
        raise ValueError("holds one of the bot's own secrets; take it out: every process can read a command line.")
    return (str(Path(program).absolute()), *argv[1:])


def _agent_env(variables: Mapping[str, str], agent: str) -> dict[str, Secret]:
    """Return the variables AGENT_ENV names, or the preset's. One that is not set is refused: the agent would fail."""
    if "AGENT_ENV" not in variables:
        return _preset_env(variables, agent)
    names = values.variable_names(variables["AGENT_ENV"])
    secrets = {variables[name] for name in _OWN_SECRETS & variables.keys()}
    for name in names:
        if name in _OWN_SECRETS:
            raise ValueError(f"names {name}, one of the bot's own secrets; take it out.")
        if name not in variables:
            raise ValueError(f"names {name}, which is not set; set {name}, or take it out.")
        if variables[name] in secrets:
            raise ValueError(f"names {name}, whose value is one of the bot's own secrets; take it out.")
    return {name: Secret(variables[name]) for name in names}


def _preset_env(variables: Mapping[str, str], agent: str) -> dict[str, Secret]:
    """Return the keys of the preset's model APIs that are set, with the addresses of these APIs that are set."""
    from bot.agents.presets import PRESETS  # read only where an agent is needed: it takes a moment

    found = [api for api in PRESETS[agent].apis if api.key in variables] if agent in PRESETS else []
    names = [name for api in found for name in (api.key, api.base_url) if name in variables]
    return {name: Secret(variables[name]) for name in names}
