"""The wait for the first delivery, which proves the address and the secret: GitHub's own log tells how it went."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import NoReturn

from starlette.applications import Starlette

from bot.cli.setup.manifest import GRACE_SECONDS
from bot.github.answers import LoggedDelivery
from bot.github.client import Hook
from bot.github.errors import GitHubError
from bot.github.registration import Registration
from bot.inbox.endpoint import Receiver
from bot.inbox.inbox import Outcome, Unavailable
from bot.serve.base import CannotStartError
from bot.serve.web import listener_of, serving
from bot.settings import Settings
from bot.store.deliveries import NewDelivery
from bot.tasks import concurrently

LOOK_SECONDS = 2.0
REMIND_SECONDS = 10.0
# A delivery is asked for at once, a moment later, then once a minute.
SEND_AT_LOOKS, SEND_EVERY_LOOKS = (0, 5), 30
Say = Callable[[str], None]


class _NothingStored:
    """An inbox while there is no bot: what no bot uses, such as a ping, is acknowledged; GitHub keeps the rest."""

    names = ""

    async def store(self, delivery: NewDelivery) -> Outcome:
        return "stored" if delivery.state == "ignored" else Unavailable("the bot is being set up")


@asynccontextmanager
async def answering(settings: Settings, secret: str) -> AsyncIterator[int | None]:
    """Answer signed deliveries where the bot will listen; yield the port, None where a program has it: the bot."""
    try:
        listener = listener_of(settings)
    except CannotStartError:
        yield None
        return
    app = Receiver(_NothingStored(), [secret.encode()], settings.platform, Starlette())
    with listener:
        async with serving(app, listener, GRACE_SECONDS):
            yield listener.getsockname()[1]


async def logged(github: Registration, hook: Hook | None) -> Sequence[LoggedDelivery]:
    """Return the newest deliveries of the webhook (None: the App's), the newest first."""
    return (await github.logged_deliveries(hook, None)).deliveries


async def reminding(waiting: Callable[[], str], say: Say, sleep: Callable[[float], Awaitable[None]]) -> NoReturn:
    """Say every ten seconds what is waited for; `waiting` returns the words."""
    for tens in count(1):
        await sleep(REMIND_SECONDS)
        say(f"{tens * REMIND_SECONDS:g} s: {waiting()}")
    raise AssertionError("time ends")


async def first_delivery(
    github: Registration,
    hook: Hook | None,
    before: frozenset[int],
    install_url: str | None,
    say: Say,
    sleep: Callable[[float], Awaitable[None]],
    *,
    is_polled: bool,
) -> LoggedDelivery:
    """Return the first delivery that was taken, beside those `before`; `say` tells each change of what it waits for.

    It tells that again every ten seconds. With `is_polled` any in GitHub's log is taken. `install_url`: where the App
    is installed, None for a token.
    Errors of GitHub are told and waited out.
    """
    told, looks = "Waiting for GitHub's answer.", 0
    async with concurrently(reminding(lambda: told, say, sleep)):
        while True:
            try:
                if install_url is not None and not await github.installed_for():
                    state = f"Waiting until the App is installed: {install_url}"
                else:
                    log = await logged(github, hook)
                    new = [one for one in log if one.id not in before]
                    if taken := next((one for one in new if is_polled or 200 <= one.status_code < 300), None):
                        return taken
                    state = _waiting(new)
                    if looks in SEND_AT_LOOKS or looks % SEND_EVERY_LOOKS == 0:
                        await github.deliver_something(hook, log[0].id if log else None)
                    looks += 1
            except GitHubError as problem:
                state = f"GitHub: {problem}. It is asked again."
            if state != told:
                say(state)
                told = state
            await sleep(LOOK_SECONDS)


def _waiting(new: list[LoggedDelivery]) -> str:
    if not new:
        return "Waiting for the first delivery: GitHub's log shows none yet."
    if new[0].status_code == 401:
        return "Waiting: the last delivery was signed with another secret than the one in .env (401)."
    how = f"{new[0].status} ({new[0].status_code or 'no answer'})"
    return f"Waiting: the last delivery failed: {how}. Does the address lead to HOST and PORT of this machine?"
