"""The checks of webhooks: whether GitHub sends all events here, how that went last, and whether its log can be read."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from bot.cli.doctor.services import Check, State
from bot.github.answers import LoggedDelivery, Webhook
from bot.github.client import APP_EVENTS, CHECK_EVENTS, NOWHERE, WEBHOOK_PATH, Hook
from bot.github.errors import GitHubError
from bot.github.registration import Registration
from bot.model import Repository
from bot.settings import Settings

STAYS = "missed deliveries stay missed"


def how_bad(missing: Iterable[str]) -> State:
    """Return how bad it is that GitHub does not send or allow this: without word of checks all but one thing works."""
    return "warning" if all(any(f"`{event}`" in one for event in CHECK_EVENTS) for one in missing) else "problem"


async def repository_webhook(
    settings: Settings, github: Registration, repository: Repository, hooks: Sequence[Webhook], *, is_heard: bool | None
) -> list[Check]:
    """Return whether the first webhook of these sends what the bot needs, and how that went last.

    `is_heard`: something of the repository was received before; None where that is unknown.
    """
    name = f"webhook of {repository.full_name}"
    if not hooks:
        if is_heard and settings.poll_interval_seconds is None:
            found = f"the repository has none, though something was received: {STAYS}"
            step = "Add one, unless its organization has one, which the bot cannot see: docs/connect.md."
            return [Check(name, "warning", found, step)]
        found = "nothing was received, and " if is_heard is False else ""
        found += f"no webhook of the repository leads to {WEBHOOK_PATH}"
        return [Check(name, "problem", found, "Add it on GitHub: docs/connect.md.")]
    hook, checks = hooks[0], list[Check]()
    missing = [f"`{event}`" for event in APP_EVENTS if not {event, "*"} & set(hook.events)]
    if missing or not hook.active:
        found = f"it does not send {', '.join(missing)}" if hook.active else "it is switched off"
        state = how_bad(missing) if hook.active else "problem"
        checks.append(Check(name, state, found, "Edit it in the repository's settings on GitHub: docs/connect.md."))
    last = await logged_check(settings, github, name, (repository, hook.id), hook.url, is_heard=bool(is_heard))
    return [*checks, last]


def unread_webhooks(settings: Settings, full_name: str, problem: GitHubError) -> Check:
    """Return what it means that GitHub does not show the token the repository's webhooks, or their log."""
    is_polled = settings.poll_interval_seconds is not None
    lost = "nothing that people ask arrives, for POLL_INTERVAL_SECONDS is set" if is_polled else STAYS
    found = f"the token may not read the repository's webhooks ({problem}): {lost}"
    step = (
        "Give the token `Webhooks: read` (or `read:repo_hook`), and its account admin access to the repository: "
        "deliveries are fetched from their log then."
    )
    return Check(f"webhook of {full_name}", "problem" if is_polled else "warning", found, step)


async def logged_check(
    settings: Settings, github: Registration, name: str, hook: Hook | None, url: str, *, is_heard: bool
) -> Check:
    """Return how GitHub's last delivery went; what was missed is fetched from its log of three days."""
    try:
        log = (await github.logged_deliveries(hook, None)).deliveries
    except GitHubError as problem:
        if hook is not None:
            return unread_webhooks(settings, hook[0].full_name, problem)
        state: State = "warning" if settings.poll_interval_seconds is None else "problem"
        return Check(name, state, f"GitHub does not show its log of deliveries ({problem}): {STAYS}", "Run it again.")
    return delivery_check(settings, name, url, log, is_heard=is_heard)


def delivery_check(settings: Settings, name: str, url: str, log: Sequence[LoggedDelivery], *, is_heard: bool) -> Check:
    """Return how the last of these deliveries of any event went, the newest first."""
    is_polled, last = settings.poll_interval_seconds is not None, log[0] if log else None
    if url.startswith(NOWHERE) and not is_polled:
        found = f"it leads to {NOWHERE}, where nothing arrives, and POLL_INTERVAL_SECONDS is not set"
        step = "Set POLL_INTERVAL_SECONDS=5, or give the webhook an address: `threadtree setup --url https://…`."
        return Check(name, "problem", found, step)
    found = f"leads to {urlsplit(url).hostname}; GitHub's log of deliveries "
    found += f"is read every {settings.poll_interval_seconds:g} s" if is_polled else "can be read"
    if last is None:
        if is_heard:
            return Check(name, "ok", f"{found}; it has none of the last three days")
        step = "Comment on an issue: with the next delivery GitHub's log tells whether address and secret are right."
        return Check(name, "warning", f"{found}; nothing was delivered yet", step)
    if is_polled or 200 <= last.status_code < 300:
        return Check(name, "ok", found)
    if last.status_code == 401:
        found = f"the last delivery ({last.event}) was refused: it was signed with another secret"
        return Check(name, "problem", found, "Set GITHUB_WEBHOOK_SECRET to the secret of the webhook on GitHub.")
    # Nobody listened yet when the webhook was made by hand.
    is_first_ping = last.status_code >= 500 or not last.status_code
    is_first_ping = is_first_ping and not is_heard and all(one.event == "ping" for one in log)
    found = f"the last delivery ({last.event}) failed: {last.status} ({last.status_code or 'no answer'})"
    step = "Start the bot, and check that GitHub reaches the webhook's address: docs/connect.md."
    return Check(name, "warning" if is_first_ping else "problem", found, step)
