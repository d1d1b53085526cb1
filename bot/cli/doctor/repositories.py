"""The checks of the repositories that the bot serves: its rights, their webhooks, whether they take its pushes."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from bot.cli.doctor.pushes import pushes_check
from bot.cli.doctor.services import Check, Known
from bot.cli.doctor.webhooks import repository_webhook, unread_webhooks
from bot.github.answers import Webhook
from bot.github.client import WEBHOOK_PATH
from bot.github.errors import GitHubError, NotFound
from bot.github.registration import Registration
from bot.model import IssueBranch, Repository
from bot.settings import Settings

MOST = 50
"""So many repositories are looked at, besides those that the settings name."""
AT_ONCE = 8
FEW = 5
"""More lines than these that say the same of a repository each are one."""
_ALL = "repositories"


@dataclass(slots=True)
class _Looked:
    """What was found of repositories that the bot only sees: with a webhook, without one, and not to be read."""

    settings: Settings
    github: Registration
    known: Known | None
    patterns: tuple[str, ...]
    served: dict[str, Repository | None] = field(default_factory=dict)
    """By their full names in lower case: those that are named, or that were asked something."""
    seen: dict[str, Repository] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


async def repository_checks(settings: Settings, github: Registration, known: Known | None) -> list[Check]:
    """Check the repositories that are named, were asked something lately, or that ALLOWED_REPOS lets the bot see.

    `known` is what the database tells, None where it tells nothing.
    """
    patterns = tuple(one for one in settings.allowed_repos if one not in settings.named_repos)
    looked = _Looked(settings, github, known, patterns)
    checks = []
    if known is None:
        found = (
            "the database does not tell which ones were served: only those are checked that GitHub or a setting names"
        )
        checks.append(Check(_ALL, "warning", found))
    active: dict[str, Repository | None] = {one.full_name.lower(): one for one in (known.active if known else ())}
    looked.served = dict.fromkeys(map(str.lower, settings.named_repos), None) | active
    names = {name.lower(): name for name in settings.named_repos}
    if patterns or not settings.allowed_repos:
        checks += await _look(looked)
    gate = asyncio.Semaphore(AT_ONCE)

    async def checked(full_name: str, repository: Repository | None, *, is_seen: bool) -> list[Check]:
        async with gate:
            return await _checked(looked, full_name, repository, is_seen=is_seen)

    asked = [
        *(
            checked(names.get(key, one.full_name if one else key), one, is_seen=False)
            for key, one in looked.served.items()
        ),
        *(checked(one.full_name, one, is_seen=True) for one in looked.seen.values()),
    ]
    found_of_each = await asyncio.gather(*asked)
    return _folded([*checks, *(check for found in found_of_each for check in found), *_summary(looked)])


async def _look(looked: _Looked) -> list[Check]:
    """Fill `seen` with the repositories that ALLOWED_REPOS lets the bot serve; return what could not be looked at."""
    patterns = [one.casefold() for one in looked.settings.allowed_repos]

    def wanted(full_name: str) -> bool:
        is_allowed = not patterns or any(fnmatchcase(full_name.casefold(), one) for one in patterns)
        return is_allowed and full_name.lower() not in looked.served

    try:
        found, is_all = await looked.github.seen(looked.settings.platform, wanted, MOST)
    except GitHubError as problem:
        said = f"GitHub does not tell which ones the bot sees ({problem}): only those are checked that are known here"
        return [Check(_ALL, "warning", said, "Name them in WEBHOOK_REPOS or ALLOWED_REPOS, without a pattern.")]
    looked.seen = {one.full_name.lower(): one for one in found}
    there = [*looked.seen, *(name for name, one in looked.served.items() if one)]
    checks = [
        Check(f"repositories {pattern}", "problem", "GitHub shows the bot none that it may push to", _ACCESS)
        for pattern in looked.patterns
        if is_all and not any(fnmatchcase(name, pattern.casefold()) for name in there)
    ]
    if not is_all:
        checks.append(Check(_ALL, "warning", f"there are more than the {len(found)} that were looked at", _NAME_IT))
    if not looked.patterns and not there and not looked.served:
        checks.append(Check(_ALL, "problem", "GitHub shows the bot none that it may push to", _ACCESS))
    return checks


_ACCESS = "Correct ALLOWED_REPOS, or give the bot access (invite its account, or install the App)."
_NAME_IT = "Name others in ALLOWED_REPOS or WEBHOOK_REPOS to have them checked."


async def _checked(looked: _Looked, full_name: str, repository: Repository | None, *, is_seen: bool) -> list[Check]:
    """Return the checks of one repository; of one that is only seen and has no webhook none, it is noted."""
    settings, github, name = looked.settings, looked.github, f"repository {full_name}"
    try:
        repository = repository or await github.repository(settings.platform, *full_name.split("/"))
        if repository.installation_id is None and github.is_app:
            repository = await github.by_id(repository)
        webhooks = [] if github.is_app else await _webhooks(looked, repository, is_seen=is_seen)
        if webhooks is None:
            return []
        missing = await github.missing_rights(repository.owner, repository.name)
    except NotFound:
        return [Check(name, "problem", "GitHub shows the bot no such repository", _ACCESS)]
    except GitHubError as problem:
        return [Check(name, "warning", f"the bot's rights are unknown: {problem}")]
    if missing:
        found = f"the bot lacks: {', '.join(missing)}"
        return [Check(name, "problem", found, "Give the bot these rights on GitHub."), *webhooks]
    branch = IssueBranch(1, settings.branch_prefix).first
    try:
        rules = await github.rulesets(repository, branch)
    except GitHubError:
        rules = None
    signs = settings.sign_commits != "off"
    pushes = pushes_check(full_name, branch, rules, signs=signs)
    return [Check(name, "ok", "the bot may push and comment"), *webhooks, pushes]


async def _webhooks(looked: _Looked, repository: Repository, *, is_seen: bool) -> list[Check] | None:
    """Return the checks of the repository's webhook; None where one that is only seen has none."""
    settings, full_name = looked.settings, repository.full_name
    try:
        hooks: list[Webhook] = await looked.github.webhooks(repository)
    except GitHubError as problem:
        if is_seen:
            looked.unread.append(full_name)
            return None
        return [unread_webhooks(settings, full_name, problem)]
    if is_seen and not hooks:
        looked.without.append(full_name)
        return None
    is_heard = full_name.lower() in looked.known.heard if looked.known else None
    # Another bot's can lead to the same path.
    hooks.sort(key=lambda hook: not (settings.public_url and hook.url.startswith(settings.public_url)))
    checks = await repository_webhook(settings, looked.github, repository, hooks, is_heard=is_heard)
    if is_seen and settings.poll_interval_seconds is not None and checks[-1].state == "ok":
        found = "nothing that people ask arrives: its log is read once the repository is named in WEBHOOK_REPOS"
        return [*checks[:-1], replace(checks[-1], state="warning", found=found, next_step="Name it there.")]
    return checks


def _summary(looked: _Looked) -> list[Check]:
    """Return what follows from the repositories that have no webhook, or none that can be read."""
    if looked.github.is_app:
        return []
    name, checks = "webhooks", []
    is_connected = bool(looked.served) or len(looked.seen) > len(looked.without) + len(looked.unread)
    step = f"Run `threadtree setup --token OWNER/REPO`, or add one that leads to {WEBHOOK_PATH}: docs/connect.md."
    if looked.unread:
        found = f"the token may not read those of {_listed(looked.unread)}: whether they have one is unknown"
        more = "Give the token `Webhooks: read` and its account admin access, or name those with one in WEBHOOK_REPOS."
        checks.append(Check(name, "warning", found, more))
    if looked.without and (looked.patterns or not is_connected):
        found = f"{_listed(looked.without)} has none that leads to {WEBHOOK_PATH}: nothing that is asked there arrives"
        is_problem = not is_connected and not looked.unread
        checks.append(Check(name, "problem" if is_problem else "warning", found, step))
    elif looked.without:
        found = f"{len(looked.without)} more that the token may push to have none; nothing that is asked there arrives"
        checks.append(Check(name, "ok", found))
    return checks


def _listed(names: Iterable[str]) -> str:
    one, *more = sorted(names)
    return ", ".join([one, *more[: FEW - 1]]) + (f" and {len(more) - FEW + 1} more" if len(more) >= FEW else "")


def _folded(checks: Iterable[Check]) -> list[Check]:
    """Return the checks with those in one line that say of many repositories the same: all is well."""
    checks, alike = list(checks), dict[tuple[str, str], list[Check]]()
    for check in checks:
        if check.state == "ok" and "/" in check.check:
            alike.setdefault((check.check.rpartition(" ")[0], check.found), []).append(check)
    folded = list[Check]()
    for check in checks:
        group = alike.get((check.check.rpartition(" ")[0], check.found), [check])
        if len(group) <= FEW:
            folded.append(check)
        elif check is group[0]:
            names = _listed(one.check.rpartition(" ")[2] for one in group)
            folded.append(replace(check, check=f"{check.check.rpartition(' ')[0]} {names}"))
    return folded
