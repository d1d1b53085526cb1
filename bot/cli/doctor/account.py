"""The checks of the bot's account on GitHub: token or App, signatures, sign-in, teams; then of its repositories."""

import asyncio
from datetime import UTC, datetime, timedelta

from bot.cli.doctor.repositories import repository_checks
from bot.cli.doctor.services import Check, Known, State, way
from bot.cli.doctor.webhooks import how_bad, logged_check
from bot.github.answers import BotIdentity
from bot.github.client import GITHUB_COM
from bot.github.errors import GitHubError, Unauthenticated
from bot.github.people import why_unseen
from bot.github.registration import SOON, Registration, TokenFacts
from bot.operator.dashboard.login import CALLBACK
from bot.sandbox.outbound import why_unreachable
from bot.serve.turns import author_of
from bot.settings import Settings
from bot.settings_values import public_key

# A GitHub App's web token is refused when the clocks differ by more than this
# (https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app).
MAX_CLOCK_SKEW = timedelta(seconds=60)
FEW_REQUESTS = 500
"""With fewer requests left in this hour, the check warns."""
_SIGNING = "signatures"
_UNCHECKED = Check("repositories", "warning", "not checked, nor their webhooks and rules: GitHub could not be asked")


async def github_checks(settings: Settings, github: Registration, known: Known | None) -> list[Check]:
    """Ask GitHub who the bot is, what is left of its rate limit, and what it may do in the repositories that it serves.

    `known` is what the database tells of these, None where it tells nothing.
    """
    setting = "GITHUB_TOKEN" if settings.github_token else "GITHUB_APP_ID and the App's private key"
    try:
        facts = None if github.is_app else await github.token_facts()
        me = await github.identity()
        rate = await github.rate_limit()
        app = await _app_checks(settings, github, known)
    except Unauthenticated as problem:
        step = "Make a new one on GitHub, and set it." if settings.github_token else "Correct them."
        refused = f"{setting}: not accepted by {settings.platform} ({problem})"
        return [Check("github", "problem", refused, step), *_clock_checks(github), _UNCHECKED]
    except GitHubError as problem:
        why, known_step = why_unreachable(problem, settings.github_api_url)
        found = f"{settings.github_api_url} does not answer{way(settings, settings.github_api_url)}: {why}"
        return [Check("github", "problem", found, known_step or "Check GITHUB_API_URL and the network."), _UNCHECKED]
    found = f"works as {me.login}{way(settings, settings.github_api_url)}"
    found += f"; people mention @{settings.bot_name or me.mention}"
    checks = [Check("github", "ok", found), *_clock_checks(github)]
    if rate is not None:
        left = f"{rate.remaining} of {rate.limit} requests left in this hour"
        checks.append(Check("rate limit", "warning" if rate.remaining < FEW_REQUESTS else "ok", left))
    checks += _token_checks(facts) if facts else []
    checks += app
    checks += await _signing_checks(settings, github, me)
    checks += _sign_in_checks(settings)
    checks += await _team_checks(settings, github)
    checks += await repository_checks(settings, github, known)
    if settings.poll_interval_seconds and not github.is_app and not (settings.named_repos or (known and known.active)):
        found = "deliveries are taken from GitHub's log, and no repository is named: none of a new one is read"
        step = "Run `threadtree setup --token OWNER/REPO --poll`, or name the repositories in WEBHOOK_REPOS."
        checks.append(Check("polling", "warning", found, step))
    return checks


def _token_checks(facts: TokenFacts) -> list[Check]:
    """Return what is wrong with a token that GitHub accepts."""
    checks = []
    if facts.lacks_repo:
        checks.append(Check("token", "problem", "it lacks the scope `repo`", "Add it on GitHub, or make a new one."))
    if facts.expires_at is not None and facts.expires_at - datetime.now(UTC) < SOON:
        found = f"it expires on {facts.expires_at.astimezone(UTC):%Y-%m-%d}"
        checks.append(Check("token", "warning", found, "Make a new one on GitHub, and set it before that."))
    return checks


async def _app_checks(settings: Settings, github: Registration, known: Known | None) -> list[Check]:
    """Return what the App lacks, and how its webhook does. Raises GitHubError."""
    if not github.is_app:
        return []
    lacking, url = await github.app_lacks(), await github.app_webhook_url()
    checks = [Check("app", "ok", "the App has all permissions and events")]
    if lacking:
        step = "Add it in the App's settings on GitHub. A new permission must be accepted where the App is installed."
        checks = [Check("app", how_bad(lacking), f"the App lacks {', '.join(lacking)}", step)]
    if not await github.installed_for():
        step = f"Install it: {(await github.app_page()).install_url}"
        checks.append(Check("installation", "problem", "the App is installed nowhere, so nothing arrives", step))
    if url:
        is_heard = known is not None and known.anything
        checks.append(await logged_check(settings, github, "webhook of the App", None, url, is_heard=is_heard))
    return checks


async def _signing_checks(settings: Settings, github: Registration, me: BotIdentity) -> list[Check]:
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


async def _team_checks(settings: Settings, github: Registration) -> list[Check]:
    """Return the teams that the bot does not see: nobody is in them."""
    checks = []
    named = (*settings.allowed_users, *settings.dashboard_operators, *settings.dashboard_viewers)
    for team in sorted({one for one in named if "/" in one}):
        if (why := await why_unseen(github, team)) is not None:
            step = "Correct it, or give the bot the organisation's permission `Members: read` (a token: `read:org`)."
            checks.append(Check(f"team {team}", "problem", f"GitHub does not show it to the bot ({why})", step))
    return checks


def _clock_checks(github: Registration) -> list[Check]:
    """Return whether this machine's clock and GitHub's differ too much; an App's tokens bear the time."""
    skew = github.clock_skew
    if skew is None or abs(skew) <= MAX_CLOCK_SKEW:
        return []
    direction = "behind" if skew > timedelta() else "ahead of"
    found = f"this machine's clock is {abs(skew).total_seconds():.0f} s {direction} GitHub's"
    state: State = "problem" if github.is_app else "warning"
    return [Check("clock", state, found, "Synchronise the clock (NTP): GitHub refuses an App's tokens otherwise.")]
