"""The checks of what the bot talks to: its database, GitHub, the model."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal
from urllib.parse import urlsplit

import asyncpg
import httpx

from bot.agents.presets import ANTHROPIC, ANTHROPIC_TOKEN, BEDROCK, GEMINI, SUBSCRIPTION, ModelApi, preset
from bot.github.answers import BotIdentity, LoggedDelivery
from bot.github.client import APP_EVENTS, CHECK_EVENTS, GITHUB_COM, NOWHERE, WEBHOOK_PATH, GitHub
from bot.github.errors import GitHubError, NotFound, Unauthenticated
from bot.github.people import why_unseen
from bot.node.node_rows import OF_A_MACHINE, connections
from bot.node.repository_rules import config_problems
from bot.operator.api import listings
from bot.operator.dashboard.login import CALLBACK
from bot.postgres.embedded import OLDEST_MAJOR_VERSION, find_binaries
from bot.postgres.files import EmbeddedPostgresError, Files
from bot.postgres.supervisor import name_for_initdb
from bot.rules import CONFIG_PATH
from bot.sandbox.outbound import Outbound, why_unreachable
from bot.serve.turns import author_of
from bot.settings import Settings
from bot.settings_values import public_key
from bot.store.database import DATABASE_AWAY
from bot.store.migrate import MigrationError, missing_migrations
from bot.store.scope import EVERYTHING
from bot.thread.formatting import plain

# A GitHub App's web token is refused when the clocks differ by more than this
# (https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app).
MAX_CLOCK_SKEW = timedelta(seconds=60)
FEW_REQUESTS = 500
"""With fewer requests left in this hour, the check warns."""
DATABASE_SECONDS: Final = 10.0
_WITHOUT_LIST = (BEDROCK, SUBSCRIPTION)
"""What has no list of models, or shows it to no such key."""
_SIGNING = "signatures"
State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """A `problem` is what the bot cannot work with as it is set up; `next_step` says what to do."""

    check: str
    state: State
    found: str
    next_step: str | None = None


async def database_checks(
    settings: Settings, opened: AbstractAsyncContextManager[str]
) -> tuple[list[Check], frozenset[str]]:
    """Return whether the database can be used, what is wrong in the rules of repositories, and the repositories named
    in the settings of which something was received.

    An embedded one that was not made yet is not made now.
    """
    try:
        return await _database(settings, opened)
    except (EmbeddedPostgresError, MigrationError) as problem:
        found, step = str(problem), None
    except (TimeoutError, ValueError, asyncpg.PostgresError, *DATABASE_AWAY) as problem:
        embedded = settings.database_url is None
        which = "the embedded Postgres" if embedded else "DATABASE_URL"
        found = f"{which} cannot be used: {str(problem) or type(problem).__name__}"
        step = "Check DATA_DIR." if embedded else "Correct it, or start that Postgres."
    return [Check("database", "problem", found, step)], frozenset()


async def _database(settings: Settings, opened: AbstractAsyncContextManager[str]) -> tuple[list[Check], frozenset[str]]:
    files = Files(settings.data_dir / "postgres")
    if settings.database_url is None and not files.data.exists():
        programs = await asyncio.to_thread(find_binaries, settings.postgres_bin_dir, files)
        await asyncio.to_thread(name_for_initdb)
        return [Check("database", "ok", f"made at the start, by the Postgres in {programs}")], frozenset()
    async with opened as dsn, asyncio.timeout(DATABASE_SECONDS):
        connection = await asyncpg.connect(dsn)
        try:
            version = connection.get_server_version().major
            found = f"Postgres {version} answers"
            if version < OLDEST_MAJOR_VERSION:
                step = f"Use Postgres {OLDEST_MAJOR_VERSION} or later."
                return [Check("database", "problem", f"{found}, which is too old", step)], frozenset()
            if await missing_migrations(connection):
                return [Check("database", "ok", f"{found}; its schema is made by `threadtree serve`")], frozenset()
            heard = [
                name
                for name in settings.named_repos
                if await listings.newest(connection, "deliveries", 1, repository=name, scope=EVERYTHING)
            ]
            rules = [_rules_check(*wrong) for wrong in await config_problems(connection)]
            return [connections_check(found, *await connections(connection)), *rules], frozenset(heard)
        finally:
            await connection.close()


def connections_check(found: str, most: int, machines: int) -> Check:
    """Return whether all machines can connect at once: where none is free, what they do waits."""
    needed = machines * OF_A_MACHINE
    if most >= needed:
        return Check("database", "ok", found)
    found = f"{found}; it gives {most} connections, and {machines} machines need up to {needed}"
    return Check("database", "warning", found, f"Set Postgres' max_connections to {needed + 10} or more.")


def _rules_check(full_name: str, problems: str) -> Check:
    """Return a warning: what is wrong in a repository's file is for its own people to correct."""
    found = f"{CONFIG_PATH}: {' '.join(map(plain, problems.splitlines()))}"
    step = f"`threadtree config show {full_name}` tells what holds. A request reads the file when it starts."
    return Check(f"rules of {full_name}", "warning", found, step)


async def model_checks(settings: Settings, http: httpx.AsyncClient) -> list[Check]:
    """Ask each API whose key the agents use for its list of models, which costs nothing."""
    found: dict[str, tuple[ModelApi, Mapping[str, str]]] = {}
    for agent in settings.agent:
        handed = settings.variables_for(agent)
        if (chosen := preset(agent)) is not None:
            found |= {api.key: (api, handed) for api in chosen.apis if api.key in handed and api not in _WITHOUT_LIST}
    return [await _model_check(settings, api, handed, http) for api, handed in found.values()]


async def _model_check(settings: Settings, api: ModelApi, handed: Mapping[str, str], http: httpx.AsyncClient) -> Check:
    key, base_url = handed[api.key], api.address(handed)
    headers = {
        # https://docs.anthropic.com/en/api/models-list, https://ai.google.dev/api/models, https://platform.openai.com/docs/api-reference/models
        ANTHROPIC: {"x-api-key": key, "anthropic-version": "2023-06-01"},
        ANTHROPIC_TOKEN: {"authorization": f"Bearer {key}", "anthropic-version": "2023-06-01"},
        GEMINI: {"x-goog-api-key": key},
    }.get(api, {"authorization": f"Bearer {key}"})
    name = f"model of {api.key}"
    try:
        answer = await http.get(f"{base_url}/v1/models", headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as problem:
        why, step = why_unreachable(problem, base_url)
        found = f"{base_url} does not answer{_way(settings, base_url)}: {why}"
        return Check(name, "problem", found, step or f"Correct {api.base_url}, or the network.")
    if answer.status_code in {401, 403}:
        return Check(
            name, "problem", f"{base_url} does not accept the key ({answer.status_code})", f"Correct {api.key}."
        )
    if not answer.is_success:
        return Check(name, "warning", f"{base_url} answers {answer.status_code} to the question for its models")
    return Check(name, "ok", f"{base_url} accepts the key{_way(settings, base_url)}")


def _way(settings: Settings, address: str) -> str:
    """Return words for the way to an address, where that is not the direct one."""
    url = urlsplit(address)
    proxy = Outbound(*settings.outbound).proxy_for(url.hostname or "", url.port or 443)
    return f" through the proxy {proxy.hostname}:{proxy.port}" if proxy and url.scheme == "https" else ""


async def github_checks(settings: Settings, github: GitHub, heard: frozenset[str]) -> list[Check]:
    """Ask GitHub who the bot is, what is left of its rate limit, and what it may do in repositories that are named.

    `heard`: the repositories of which something was received.
    """
    setting = "GITHUB_TOKEN" if settings.github_token else "GITHUB_APP_ID and the App's private key"
    try:
        me = await github.identity()
        rate = await github.rate_limit()
        lacking = await github.app_lacks()
        is_read = github.is_app and not lacking
        log = (await github.logged_deliveries(None, None)).deliveries if is_read else []
        hook = await github.app_webhook_url() if is_read else ""
    except Unauthenticated as problem:
        step = "Make a new one on GitHub, and set it." if settings.github_token else "Correct them."
        refused = f"{setting}: not accepted by {settings.platform} ({problem})"
        return [Check("github", "problem", refused, step), *_clock_checks(github)]
    except GitHubError as problem:
        why, known_step = why_unreachable(problem, settings.github_api_url)
        found = f"{settings.github_api_url} does not answer{_way(settings, settings.github_api_url)}: {why}"
        return [Check("github", "problem", found, known_step or "Check GITHUB_API_URL and the network.")]
    found = f"works as {me.login}{_way(settings, settings.github_api_url)}"
    found += f"; people mention @{settings.bot_name or me.mention}"
    checks = [Check("github", "ok", found), *_clock_checks(github)]
    if rate is not None:
        left = f"{rate.remaining} of {rate.limit} requests left in this hour"
        checks.append(Check("rate limit", "warning" if rate.remaining < FEW_REQUESTS else "ok", left))
    if lacking:
        step = "Add it in the App's settings on GitHub. A new permission must be accepted where the App is installed."
        checks.append(Check("app", _how_bad(lacking), f"the App lacks {', '.join(lacking)}", step))
    elif github.is_app:
        checks.append(_delivery_check(settings, "app", "the App has all permissions and events", hook, log))
    checks += await _signing_checks(settings, github, me)
    checks += _sign_in_checks(settings)
    checks += await _team_checks(settings, github)
    for full_name in settings.named_repos:
        checks.append(await _repository_check(github, full_name))
        if not github.is_app and checks[-1].state != "problem":
            checks.append(await _webhook_check(settings, github, full_name, heard))
    if settings.poll_interval_seconds and not github.is_app and not settings.named_repos:
        found = "deliveries are taken from GitHub's log, and no repository is named: none of a new one is read"
        step = "Run `threadtree setup --token OWNER/REPO --poll`, or name the repositories in WEBHOOK_REPOS."
        checks.append(Check("polling", "warning", found, step))
    return checks


def _how_bad(missing: Iterable[str]) -> State:
    """Return how bad it is that GitHub does not send or allow this: without word of checks all but one thing works."""
    return "warning" if all(any(f"`{event}`" in one for event in CHECK_EVENTS) for one in missing) else "problem"


async def _signing_checks(settings: Settings, github: GitHub, me: BotIdentity) -> list[Check]:
    """Return whether GitHub will show the bot's commits as verified."""
    if settings.sign_commits == "github":
        if settings.platform == GITHUB_COM:
            return [Check(_SIGNING, "ok", "SIGN_COMMITS=github: GitHub shows the App's commits as verified")]
        found = "SIGN_COMMITS=github: whether this server signs what it commits itself could not be asked"
        step = "Ask its administrator for web commit signing, and look at a commit of the bot: it is to be Verified."
        return [Check(_SIGNING, "warning", found, step)]
    if settings.sign_commits == "off" or settings.signing_key_path is None:
        return []
    if github.is_app:
        found = "SIGN_COMMITS=ssh: an App's account has no keys, so GitHub does not show its commits as verified"
        return [Check(_SIGNING, "problem", found, "Set SIGN_COMMITS=github, which needs no key.")]
    address = author_of(settings, me).email
    try:
        public = await asyncio.to_thread(public_key, settings.signing_key_path, settings.path)
        known = await github.signing_keys(me.login)
    except ValueError as problem:
        return [Check(_SIGNING, "problem", f"SIGNING_KEY_PATH {problem}")]
    except GitHubError as problem:
        found = f"SIGN_COMMITS=ssh: the signing keys of {me.login} could not be asked for ({problem})"
        return [Check(_SIGNING, "warning", found, "Look at a commit of the bot on GitHub: it is to be Verified.")]
    if public.split()[:2] not in [key.split()[:2] for key in known]:
        found = f"SIGN_COMMITS=ssh: {me.login} has no such signing key, so GitHub shows its commits as unverified"
        step = (
            f"Add what `ssh-keygen -y -f {settings.signing_key_path}` prints to that account, as a *signing* key: "
            f"{settings.github_server_url}/settings/ssh/new"
        )
        return [Check(_SIGNING, "problem", found, step)]
    found = f"SIGN_COMMITS=ssh: {me.login} has the key"
    try:
        if await github.has_address(address):
            return [Check(_SIGNING, "ok", f"{found} and the address {address}: GitHub shows its commits as verified")]
    except GitHubError as problem:
        if settings.platform == GITHUB_COM:
            found += f", and {address} is GitHub's own address of the account: its commits are shown as verified"
            return [Check(_SIGNING, "ok", found)]
        found += f"; whether {address} is an address of the account could not be asked ({problem})"
        step = "Give the token `user:email` (fine-grained: `Email addresses: read`), or look at a commit on GitHub."
        return [Check(_SIGNING, "warning", found, step)]
    found += f", and not the address {address}: GitHub shows its commits as unverified"
    step = "Add the address to the account, or let the server keep addresses private for it."
    return [Check(_SIGNING, "problem", found, step)]


def _sign_in_checks(settings: Settings) -> list[Check]:
    """Return what must be set on GitHub for the sign-in to the dashboard."""
    if settings.github_client_id is None:
        return []
    named = {"operators": settings.dashboard_operators, "viewers": settings.dashboard_viewers}
    found = "; ".join(f"{kind}: {', '.join(people) or 'none'}" for kind, people in named.items())
    step = f"On GitHub the App's callback URL must be https://YOUR-ADDRESS{CALLBACK}, the dashboard's own address."
    return [Check("sign-in", "ok", found, step)]


async def _team_checks(settings: Settings, github: GitHub) -> list[Check]:
    """Return the teams that the bot does not see: nobody is in them."""
    checks = []
    named = (*settings.allowed_users, *settings.dashboard_operators, *settings.dashboard_viewers)
    for team in sorted({one for one in named if "/" in one}):
        if (why := await why_unseen(github, team)) is not None:
            step = "Correct it, or give the bot the organisation's permission `Members: read` (a token: `read:org`)."
            checks.append(Check(f"team {team}", "problem", f"GitHub does not show it to the bot ({why})", step))
    return checks


async def _webhook_check(settings: Settings, github: GitHub, full_name: str, heard: frozenset[str]) -> Check:
    """Return whether GitHub sends anything, and whether its log of deliveries can be read."""
    name, stays = f"webhook of {full_name}", "missed deliveries stay missed"
    is_polled = settings.poll_interval_seconds is not None
    try:
        repository = await github.repository(settings.platform, *full_name.split("/"))
        hooks = await github.webhooks(repository)
        log = (await github.logged_deliveries((repository, hooks[0].id), None)).deliveries if hooks else []
    except GitHubError as problem:
        lost = "nothing that people ask arrives, for POLL_INTERVAL_SECONDS is set" if is_polled else stays
        found = f"the token may not read the repository's webhooks ({problem}): {lost}"
        step = (
            "Give the token `Webhooks: read` (or `read:repo_hook`), and its account admin access to the repository: "
            "deliveries are fetched from their log then."
        )
        return Check(name, "problem" if is_polled else "warning", found, step)
    if hooks:
        hook = hooks[0]
        missing = [f"`{event}`" for event in APP_EVENTS if not {event, "*"} & set(hook.events)]
        if missing or not hook.active:
            found = f"it does not send {', '.join(missing)}" if hook.active else "it is switched off"
            state = _how_bad(missing) if hook.active else "problem"
            return Check(name, state, found, "Edit it in the repository's settings on GitHub: docs/connect.md.")
        return _delivery_check(settings, name, f"leads to {WEBHOOK_PATH}", hook.url, log)
    if full_name in heard and not is_polled:
        return Check(name, "warning", f"the repository has none, though something was received: {stays}")
    found = f"nothing was received, and no webhook of the repository leads to {WEBHOOK_PATH}"
    return Check(name, "problem", found, "Add it on GitHub: docs/connect.md.")


def _delivery_check(settings: Settings, name: str, what: str, url: str, log: Sequence[LoggedDelivery]) -> Check:
    """Return how GitHub's last delivery went; what was missed is fetched from its log of three days."""
    if settings.poll_interval_seconds is not None:
        every = f"{settings.poll_interval_seconds:g} s"
        return Check(name, "ok", f"{what}; GitHub's log of deliveries is read every {every}")
    if url.startswith(NOWHERE):
        found = f"it leads to {NOWHERE}, where nothing arrives, and POLL_INTERVAL_SECONDS is not set"
        step = "Set POLL_INTERVAL_SECONDS=5, or give the webhook an address: `threadtree setup --url https://…`."
        return Check(name, "problem", found, step)
    what += "; GitHub's log of deliveries can be read"
    last = next((one for one in log if one.event != "ping"), None)
    if last is None or 200 <= last.status_code < 300:
        return Check(name, "ok", what)
    if last.status_code == 401:
        found = "the last delivery was refused: it was signed with another secret"
        return Check(name, "problem", found, "Set GITHUB_WEBHOOK_SECRET to the secret of the webhook on GitHub.")
    found = f"the last delivery failed: {last.status} ({last.status_code or 'no answer'})"
    step = "Start the bot, and check that GitHub reaches the webhook's address: docs/connect.md."
    return Check(name, "problem", found, step)


def _clock_checks(github: GitHub) -> list[Check]:
    """Return a warning where this machine's clock and GitHub's differ too much."""
    skew = github.clock_skew
    if skew is None or abs(skew) <= MAX_CLOCK_SKEW:
        return []
    direction = "behind" if skew > timedelta() else "ahead of"
    found = f"this machine's clock is {abs(skew).total_seconds():.0f} s {direction} GitHub's"
    return [Check("clock", "warning", found, "Synchronise the clock (NTP): GitHub refuses an App's tokens otherwise.")]


async def _repository_check(github: GitHub, full_name: str) -> Check:
    name = f"repository {full_name}"
    try:
        missing = await github.missing_rights(*full_name.split("/"))
    except NotFound:
        step = "Correct ALLOWED_REPOS, or give the bot access (invite its account, or install the App)."
        return Check(name, "problem", "GitHub shows the bot no such repository", step)
    except GitHubError as problem:
        return Check(name, "warning", f"the bot's rights are unknown: {problem}")
    if missing:
        return Check(name, "problem", f"the bot lacks: {', '.join(missing)}", "Give the bot these rights on GitHub.")
    return Check(name, "ok", "the bot may push and comment")
