"""What GitHub says about the bot's credentials and its repositories."""

from datetime import timedelta
from typing import Final

from bot.doctor.check import Check
from bot.github.client import GitHub
from bot.github.errors import GitHubError, NotFound, Unauthenticated
from bot.settings import Settings

# A GitHub App's web token is refused when the clocks differ by more than this
# (https://docs.github.com/apps/creating-github-apps/authenticating-with-a-github-app/generating-a-json-web-token-jwt-for-a-github-app).
MAX_CLOCK_SKEW: Final = timedelta(seconds=60)
FEW_REQUESTS: Final = 500
"""Requests left in this hour below which a warning is due."""
_GLOB_CHARACTERS: Final = frozenset("*?[")


async def github_checks(settings: Settings, github: GitHub) -> list[Check]:
    """Ask GitHub who the bot is, what is left of its rate limit, and what it may do where ALLOWED_REPOS has names."""
    setting = "GITHUB_TOKEN" if settings.github_token else "GITHUB_APP_ID and the App's private key"
    try:
        me = await github.identity()
        rate = await github.rate_limit()
    except Unauthenticated as problem:
        step = "Make a new one on GitHub, and set it." if settings.github_token else "Correct them."
        refused = f"{setting}: not accepted by {settings.platform} ({problem})"
        return [Check("github", "problem", refused, step), *_clock_checks(github)]
    except GitHubError as problem:
        step = "Check GITHUB_API_URL and the network."
        return [Check("github", "problem", f"{settings.github_api_url} does not answer: {problem}", step)]
    found = f"works as {me.login}; people mention @{settings.bot_name or me.mention}"
    checks = [Check("github", "ok", found), *_clock_checks(github)]
    if rate is not None:
        left = f"{rate.remaining} of {rate.limit} requests left in this hour"
        checks.append(Check("rate limit", "warning" if rate.remaining < FEW_REQUESTS else "ok", left))
    named = [full_name for full_name in settings.allowed_repos if not _GLOB_CHARACTERS & set(full_name)]
    return [*checks, *[await _repository_check(github, full_name) for full_name in named]]


def _clock_checks(github: GitHub) -> list[Check]:
    """A warning where this machine's clock and GitHub's differ too much."""
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
