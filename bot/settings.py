"""Settings: the environment and `.env` as one frozen value. No other module reads the environment."""

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import Enum, auto
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

import structlog
from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from bot import settings_values as values
from bot.agents.presets import PRESETS, model_variables
from bot.care.retention_rules import Kind, RetentionPolicy
from bot.model import BRANCH_PREFIX
from bot.rules import Dollars, ModelName


class Need(Enum):
    """What a command cannot start without; everything else has a default."""

    WEBHOOK_SECRET = auto()
    GITHUB = auto()
    GITHUB_IF_SET = auto()
    AGENT = auto()


_log = structlog.get_logger()

WEB = frozenset({Need.WEBHOOK_SECRET})
WORKER = frozenset({Need.GITHUB, Need.AGENT})
SERVE = WEB | WORKER
ON_NODE = frozenset({Need.GITHUB_IF_SET})
DATABASE_ONLY: frozenset[Need] = frozenset()

# These are checked against the file system, so they are read only with the need.
_READ_ONLY_WITH = {
    "AGENT": Need.AGENT,
    "AGENT_COMMAND": Need.AGENT,
    "AGENT_ENV": Need.AGENT,
    "GITHUB_PRIVATE_KEY_PATH": Need.GITHUB,
    "MCP_CONFIG": Need.AGENT,
    "SIGNING_KEY_PATH": Need.GITHUB,
}
POLL_SECONDS = 5.0
"""POLL_INTERVAL_SECONDS of `--poll`."""
_ALSO_IN_LOWER_CASE = ("HTTPS_PROXY", "NO_PROXY")
_URLS_OF_GITHUB_COM = {
    "GITHUB_GRAPHQL_URL": "https://api.github.com/graphql",
    "GITHUB_SERVER_URL": "https://github.com",
}
_MIN_PASSWORD_LENGTH = 8  # shorter ones are ordinary words of an answer


class SettingsError(Exception):
    """The settings do not allow a start. `lines` has one sentence per problem, with the setting and the next step."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class Settings(BaseSettings):
    """Every setting that works, by its lower-cased name. Make one with `load`; secrets never show in its repr."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", enable_decoding=False, validate_default=False)

    variables: Mapping[str, str] = Field(repr=False, exclude=True)
    """All variables that are set, also those that are no settings: AGENT_ENV names some of them."""

    database_url: values.DatabaseUrl | None = None
    data_dir: values.DataDir = Field(default_factory=lambda known: values.default_data_dir(known["variables"]))
    host: str = "127.0.0.1"
    port: values.Port = 8000
    node_name: values.NodeName = Field(default_factory=values.host_name)
    postgres_bin_dir: values.Directory = None

    github_webhook_secret: SecretStr | None = None
    github_webhook_secret_old: SecretStr | None = None
    github_token: SecretStr | None = None
    github_app_id: values.AppId = None
    github_private_key: values.PrivateKey | None = None
    github_private_key_path: Path | None = None
    github_api_url: values.Url = "https://api.github.com"
    github_graphql_url: values.Url = Field(default_factory=lambda known: values.graphql_url(known["github_api_url"]))
    github_server_url: values.Url = Field(default_factory=lambda known: values.server_url(known["github_api_url"]))

    bot_name: values.BotName = None
    bot_label: str = "threadtree"
    branch_prefix: values.BranchPrefix = BRANCH_PREFIX
    bare_commands: values.Switch = True
    allowed_repos: values.RepositoryGlobs = ()
    webhook_repos: values.RepositoryGlobs = ()
    allowed_users: values.People = ()
    allowed_bots: values.NumericIds = frozenset()

    https_proxy: values.Proxy | None = None
    no_proxy: str = ""
    ssl_cert_file: values.CertificateFile | None = None
    allowed_hosts: values.Hosts = frozenset()

    agent: values.Agents = ("claude",)
    agent_model: ModelName = None
    agent_command: values.AgentCommand = ()
    agent_env: values.AgentEnv = Field(default_factory=dict)
    agent_sandbox: values.Sandbox = "auto"
    agent_network: values.Network = "internet"
    allow_workflow_changes: values.Switch = False
    sign_commits: values.HowToSign = "off"
    signing_key_path: values.SigningKey | None = None
    sign_off: values.Switch = False
    auto_pull_request: values.WhenToPropose = "never"
    setup_script: values.Switch = False
    check_script: values.Switch = True
    check_timeout_seconds: values.Seconds = 600
    autofix: values.Switch = False
    max_fix_attempts: values.Count = 3
    standing: values.Switch = True
    mcp_config: values.McpConfig = ()
    include_outsiders: values.Switch = False
    turn_timeout_seconds: values.Seconds = 1800
    turn_idle_timeout_seconds: values.Seconds = 300
    max_concurrent_turns: values.Count = 2
    max_turns_per_repository: values.Count = 2
    max_turns_per_person_per_day: values.Count = 50
    max_comments_per_hour: values.Count = 30
    max_cost_usd_per_turn: Dollars = None
    max_cost_usd_per_repository_per_day: Dollars = None
    max_cost_usd_per_day: Dollars = None

    session_ttl_seconds: values.Seconds = 3600
    delivery_retention_days: values.DaysOfAWeekOrMore = 30
    history_retention_days: values.DaysOfAWeekOrMore = 365
    step_retention_days: values.Count = 30
    rescue_expiry_days: values.Count = 180
    worktree_headless_expiry_days: values.Count = 30
    worktree_branch_expiry_days: values.Count = 90
    worktree_orphan_expiry_days: values.Count = 90
    disk_reserve_gb: values.NotNegative = 5
    worktree_prune_enabled: values.Switch = True
    worktree_purge_on_success: values.Switch = False
    sweep_interval_seconds: values.Seconds = 3600
    recover_interval_seconds: values.Seconds = 300
    poll_interval_seconds: values.Seconds | None = None
    node_timeout_seconds: values.TenSecondsOrMore = 60
    shutdown_grace_seconds: values.NotNegative = 30
    admin_token: values.AdminToken | None = None
    public_url: values.Url | None = None
    github_client_id: str | None = None
    github_client_secret: SecretStr | None = None
    dashboard_operators: values.People = ()
    dashboard_viewers: values.People = ()
    notify_url: values.NotifyUrl | None = None
    log_level: values.Level = "info"
    log_format: values.Format = "auto"

    # Every child process gets these. They are no settings of the bot, but only this module reads the environment.
    path: str = os.defpath
    lang: str = "C.UTF-8"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the `variables` instead of the environment and `.env`, in which pydantic expands `${NAME}`."""
        source = EnvSettingsSource(settings_cls)
        source.env_vars = {name.lower(): text for name, text in init_settings()["variables"].items()}
        return init_settings, source

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
    def outbound(self) -> tuple[str | None, str, Path | None]:
        """The arguments of `bot.sandbox.outbound.Outbound`, whose import takes memory."""
        proxy = self.https_proxy.get_secret_value() if self.https_proxy else None
        return proxy, self.no_proxy, self.ssl_cert_file

    @property
    def named_repos(self) -> tuple[str, ...]:
        """The repositories whose logs of deliveries a token reads from the start: patterns name none."""
        given = (*self.webhook_repos, *self.allowed_repos)
        return tuple({name.lower(): name for name in given if not set("*?[") & set(name)}.values())

    def variables_for(self, agent: str) -> dict[str, str]:
        """Return the variables of one of the agents: those in AGENT_ENV, and the keys of its own models."""
        given = {name: value.get_secret_value() for name, value in self.agent_env.items()}
        if agent not in PRESETS:
            return given
        own = [api for api in PRESETS[agent].apis if api.key in self.variables]
        names = [name for api in own for name in (api.key, api.base_url) if name in self.variables]
        others = model_variables(self.agent) - model_variables([agent])
        return {name: value for name, value in given.items() if name not in others} | {
            name: self.variables[name] for name in names
        }

    @property
    def disk_reserve_bytes(self) -> int:
        """The disk space that is to stay free."""
        return int(self.disk_reserve_gb * 10**9)

    def retention(self, now: datetime, older_than: timedelta | None = None) -> RetentionPolicy:
        """Return how long worktrees and rescues are kept; `older_than` replaces the settings for worktrees."""
        days = {
            Kind.DETACHED: self.worktree_headless_expiry_days,
            Kind.BRANCH: self.worktree_branch_expiry_days,
            Kind.ORPHAN: self.worktree_orphan_expiry_days,
        }
        kept_for = {kind: timedelta(days=number) if older_than is None else older_than for kind, number in days.items()}
        return RetentionPolicy(now, kept_for, timedelta(days=self.rescue_expiry_days))

    def with_data_dir(self) -> Self:
        """Make DATA_DIR, for its owner alone, unless it is there.

        One that other users may enter is closed to them, where nothing of others is in it. Raises SettingsError when
        that is impossible.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            line = f"DATA_DIR {self.data_dir} cannot be made ({error.strerror}); name one this user can write to."
            raise SettingsError([line]) from error
        if is_open_to_others(self.data_dir):
            self._close_data_dir()
        return self

    def _close_data_dir(self) -> None:
        there = self.data_dir
        try:
            names = {one.name for one in there.iterdir()}
            if "node.json" not in names and names - {"lost+found", "variables"}:
                # Whose else it is must not lose it: closed by root, /srv would be closed to everybody.
                _log.warning("data-dir-open-to-others", data_dir=str(there), next_step=f"chmod 700 {there}")
                return
            there.chmod(0o700)
        except OSError as error:
            found = f"DATA_DIR {there} can be entered by all users and is not closed ({error.strerror})"
            line = f"{found}: chmod 700 {there}"
            raise SettingsError([line]) from error
        _log.warning("data-dir-closed-to-others", data_dir=str(there))


def is_open_to_others(folder: Path) -> bool:
    """Return whether users outside of its group may list, enter or change the folder."""
    return bool(folder.stat().st_mode & 0o007)


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
    found, problems = read(environ, dotenv=dotenv, needs=needs)
    if problems:
        raise SettingsError(problems)
    return found


def read(
    environ: Mapping[str, str] | None = None,
    *,
    dotenv: Path | None = Path(".env"),
    needs: frozenset[Need] = DATABASE_ONLY,
) -> tuple[Settings, list[str]]:
    """Return the settings as `load` does, and its problems. A setting that is wrong has its default."""
    given = {**_file(dotenv), **(os.environ if environ is None else environ)}
    for name in _ALSO_IN_LOWER_CASE:
        given[name] = given.pop(name, "") or given.get(name.lower(), "")
    if Need.WEBHOOK_SECRET in needs and given.get("GITHUB_CLIENT_ID", "").strip():
        needs |= {Need.GITHUB}  # the web process asks GitHub what those who sign in may see
    if Need.GITHUB_IF_SET in needs and given.get("GITHUB_APP_ID", "").strip():
        needs |= {Need.GITHUB}  # an App's key can be in a file
    variables = {
        name: text.strip()
        for name, text in given.items()
        if text.strip() and _READ_ONLY_WITH.get(name) in {None, *needs}
    }
    problems = [*_missing_or_contradictory(variables, needs)]
    if "GITHUB_PRIVATE_KEY_PATH" in variables and "GITHUB_PRIVATE_KEY" not in variables:
        try:
            variables["GITHUB_PRIVATE_KEY"] = values.read_private_key(Path(variables["GITHUB_PRIVATE_KEY_PATH"]))
        except ValueError as error:
            problems.append(f"GITHUB_PRIVATE_KEY_PATH {error}")
    try:
        return Settings(variables=variables), problems
    except ValidationError as error:
        sentences = dict(_sentences(error))
    right = {name: text for name, text in variables.items() if name not in sentences}
    return Settings(variables=right), [*problems, *(f"{name} {why}" for name, why in sentences.items())]


def _file(dotenv: Path | None) -> dict[str, str]:
    """Return the variables of a `.env` file."""
    found = dotenv_values(dotenv, interpolate=False) if dotenv and dotenv.is_file() else {}
    return {name: text or "" for name, text in found.items()}


def _sentences(error: ValidationError) -> Iterator[tuple[str, str]]:
    for one in error.errors(include_url=False, include_input=False):
        if one["type"] != "default_factory_not_called":  # this default follows from a setting that is wrong
            name = str(one["loc"][0])
            wanted = f"must be {Settings.model_fields[name].title}; correct or unset it."
            yield name.upper(), one.get("ctx", {}).get("error", wanted)


def doubtful_names(environ: Mapping[str, str] | None = None, *, dotenv: Path | None = Path(".env")) -> tuple[str, ...]:
    """Return a line for each variable that looks like a setting but has no effect: it is misspelt.

    In the `.env` file every unknown name counts; in the environment only one that is close to a setting's.
    """
    file = _file(dotenv)
    given = {**file, **(os.environ if environ is None else environ)}
    handed = {name.strip() for name in given.get("AGENT_ENV", "").split(",")}
    names = [name.upper() for name in Settings.model_fields if name != "variables"]
    lines = []
    for name in sorted(given.keys() - {*names, *handed, *model_variables()}):
        near = get_close_matches(name, names, n=1, cutoff=0.75 if name in file else 0.92)
        if near:
            lines.append(f"{name} is no setting and has no effect; did you mean {near[0]}?")
        elif name in file:
            lines.append(f"{name} in .env is no setting and has no effect; take it out.")
    return tuple(lines)


def known_secrets(settings: Settings) -> tuple[str, ...]:
    """Return every secret value in use, for redaction: the bot's own and the agent's."""
    own = [value for name, value in settings if isinstance(value, SecretStr) and name != "https_proxy"]
    agents = [item for agent in settings.agent for item in settings.variables_for(agent).items()]
    found = [secret.get_secret_value() for secret in own]
    found += [value for name, value in agents if values.SECRET_NAME.search(name)]
    found += [secret for server in settings.mcp_config for secret in server.secrets(values.SECRET_NAME)]
    if settings.signing_key_path is not None:
        found.append(settings.signing_key_path.read_text())
    for url in (settings.database_url, settings.https_proxy):
        found += _passwords(url.get_secret_value()) if url else ()
    return tuple(dict.fromkeys(found))


def _passwords(address: str) -> Iterator[str]:
    url = urlsplit(address)
    password = url.password or ""
    # "threadtree" as user and password is no secret, and redacting it would blank every branch's name.
    if len(password) >= _MIN_PASSWORD_LENGTH and password not in {url.username, url.path.removeprefix("/")}:
        yield password
        yield unquote(password)


def _missing_or_contradictory(given: Mapping[str, str], needs: frozenset[Need]) -> Iterator[str]:
    if "DATA_DIR" not in given and values.home_of(given) is None:
        yield "DATA_DIR is not set and this user has no home directory; set it."
    if Need.WEBHOOK_SECRET in needs and "GITHUB_WEBHOOK_SECRET" not in given:
        yield "GITHUB_WEBHOOK_SECRET is not set; set it to the secret entered at the webhook on GitHub."
    if Need.GITHUB in needs:
        yield from _credential_problems(given)
        yield from _signing_problems(given)
    if Need.AGENT in needs:
        yield from _agent_problems(given)
    yield from _sign_in_problems(given)
    for url, default in _URLS_OF_GITHUB_COM.items():
        if "GITHUB_API_URL" not in given and given.get(url, default) != default:
            yield (
                f"{url} is set without GITHUB_API_URL; set that too (Enterprise Server: "
                f"https://HOST/api/v3), or unset {url}: it follows from GITHUB_API_URL."
            )


def _credential_problems(given: Mapping[str, str]) -> Iterator[str]:
    token, app = "GITHUB_TOKEN" in given, "GITHUB_APP_ID" in given
    keys = [name for name in ("GITHUB_PRIVATE_KEY", "GITHUB_PRIVATE_KEY_PATH") if name in given]
    if token and (app or keys):
        yield "GITHUB_TOKEN and a GitHub App (GITHUB_APP_ID, GITHUB_PRIVATE_KEY) are both set; keep one of them."
    elif not (token or app or keys):
        yield "GITHUB_TOKEN is not set; set it, or GITHUB_APP_ID and GITHUB_PRIVATE_KEY_PATH of a GitHub App."
    elif app and not keys:
        yield "GITHUB_APP_ID is set without GITHUB_PRIVATE_KEY or GITHUB_PRIVATE_KEY_PATH; set one of the two."
    elif keys and not app:
        yield f"{keys[0]} is set without GITHUB_APP_ID; set the App's numeric id too."
    if len(keys) > 1:
        yield "GITHUB_PRIVATE_KEY and GITHUB_PRIVATE_KEY_PATH are both set; keep one of them."


def _signing_problems(given: Mapping[str, str]) -> Iterator[str]:
    how, has_key = given.get("SIGN_COMMITS", "off"), "SIGNING_KEY_PATH" in given
    if how == "ssh" and not has_key:
        yield (
            "SIGN_COMMITS=ssh signs with a key, and SIGNING_KEY_PATH is not set; set it to the file of a private SSH "
            "key that the bot's account on GitHub has as a signing key: docs/connect.md."
        )
    elif how == "off" and has_key:
        yield "SIGNING_KEY_PATH is set, and SIGN_COMMITS is off; set SIGN_COMMITS=ssh, or unset SIGNING_KEY_PATH."
    elif how == "github" and has_key:
        yield "SIGNING_KEY_PATH is set, and SIGN_COMMITS=github signs without a key; keep one of the two."
    if how == "github" and "GITHUB_APP_ID" not in given:
        yield (
            "SIGN_COMMITS=github lets GitHub sign the commits of a GitHub App, and GITHUB_APP_ID is not set; use an "
            "App, or set SIGN_COMMITS=ssh with SIGNING_KEY_PATH: docs/connect.md."
        )


def _sign_in_problems(given: Mapping[str, str]) -> Iterator[str]:
    """The sign-in to the dashboard is set as a whole: half of it would let nobody in, or seem to."""
    people = [name for name in ("DASHBOARD_OPERATORS", "DASHBOARD_VIEWERS") if name in given]
    client = [name for name in ("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET") if name in given]
    if len(client) == 1:
        other = "GITHUB_CLIENT_SECRET" if client == ["GITHUB_CLIENT_ID"] else "GITHUB_CLIENT_ID"
        yield f"{client[0]} is set without {other}; set both, or neither: GitHub shows them in the App's settings."
    elif client and not people:
        yield (
            "GITHUB_CLIENT_ID is set, and nobody may sign in; set DASHBOARD_OPERATORS or DASHBOARD_VIEWERS to logins "
            "and org/team."
        )
    elif people and not client:
        yield f"{people[0]} is set without GITHUB_CLIENT_ID and GITHUB_CLIENT_SECRET; set them too: docs/dashboard.md."


def _agent_problems(given: Mapping[str, str]) -> Iterator[str]:
    agents = [name.strip() for name in given.get("AGENT", "claude").split(",")]
    if "custom" in agents and "AGENT_COMMAND" not in given:
        yield "AGENT_COMMAND is not set; set it to a command that speaks ACP on stdio."
    if agents[0] == "custom" and "AGENT_MODEL" in given:
        yield "AGENT_MODEL is for the presets; name the model of AGENT=custom in AGENT_COMMAND or AGENT_ENV."
    for agent in agents:
        apis = PRESETS[agent].apis if agent in PRESETS else ()
        found = next((api for api in apis if api.key in given), None)
        if apis and found is None and "AGENT_ENV" not in given:
            usual = [api.key for api in apis if api.key.endswith("_API_KEY")]  # docs/agents.md tells of the others
            yield f"{' or '.join(usual)} is not set; AGENT={agent} needs it."
        elif found and not found.address(given):
            yield f"{found.base_url} is not set; set it to your region's address: docs/agents.md."
