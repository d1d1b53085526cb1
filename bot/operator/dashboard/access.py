"""What people who signed in with GitHub may see: asked of GitHub with the bot's own credential, kept for minutes."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from bot.care import upkeep_rows as upkeep
from bot.github.errors import GitHubError, NotFound, Refused, Unauthenticated
from bot.github.people import SignIn, is_one_of
from bot.model import Repository
from bot.operator.api.calls import UNANSWERED, WITH_TOKEN, Calls
from bot.store.database import Connection, statement
from bot.store.scope import EVERYTHING, Scope, UnknownAccessError

FRESH: Final = timedelta(minutes=5)
"""So long an answer of GitHub's counts."""
OLDEST: Final = timedelta(minutes=15)
"""And so long where GitHub does not answer meanwhile."""
PATIENCE_SECONDS: Final = 4.0
ASKED_AT_ONCE: Final = 8
_AWAY: Final[tuple[type[BaseException], ...]] = (GitHubError, *UNANSWERED)
_log = structlog.get_logger()


@statement("delete from signed_in where login <> all ($1)")
async def forget_unnamed(connection: Connection, logins: Collection[str]) -> None:
    """Forget whose logins were that the settings do not name any more: they may name another account later."""


@statement("""
insert into signed_in (login, person_id) values ($1, $2)
on conflict (login) do update set login = excluded.login returning person_id = $2
""")
async def is_of(connection: Connection, login: str, person_id: int) -> bool:
    """Return whether the account is the first one that signed in with this login, and record the first one."""


class Access:
    """Who may enter: the operators, who see and do everything, and the viewers, who see what they can read on GitHub.

    Both are logins and teams, `org/team`, in lower case. A login is that of the account that signed in with it first:
    GitHub gives the login of a renamed account to whoever asks for it.
    """

    def __init__(self, sign_in: SignIn, calls: Calls, operators: Collection[str], viewers: Collection[str]) -> None:
        self.sign_in = sign_in
        self._calls = calls
        self._operators = operators
        self._viewers = viewers
        self._known: dict[str, tuple[datetime, Scope | None]] = {}
        """What somebody may see, None for a stranger, and when GitHub said so."""
        self._asking: dict[str, asyncio.Task[Scope | None]] = {}

    async def may_enter(self, login: str, person_id: int) -> bool:
        """Return whether the person is an operator or a viewer, asked of GitHub now. Raises GitHubError."""
        self._known.pop(login, None)
        everybody = (*self._operators, *self._viewers)
        if login.casefold() in everybody:
            async with self._calls.connection() as connection:
                if not await is_of(connection, login.casefold(), person_id):
                    _log.warning("login-of-another-account", login=login, person=person_id)
                    return False
        return await self._is_one_of(everybody, login)

    async def scope(self, login: str) -> Scope | None:
        """Return what the person may see, None if they may not enter (any more). Raises UnknownAccessError."""
        now = self._calls.ctx.clock()
        at, known = self._known.get(login, (datetime.min.replace(tzinfo=UTC), None))
        if timedelta() <= now - at < FRESH:
            return known
        if (asked := self._asking.get(login)) is None:
            asked = self._asking[login] = asyncio.create_task(self._ask(login, now), name="access")
            asked.add_done_callback(lambda task: task.cancelled() or task.exception())  # heard where all callers left
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await asyncio.shield(asked)
        except _AWAY as problem:
            if timedelta() <= now - at < OLDEST:
                return known
            _log.warning("access-unknown", login=login, problem=str(problem) or type(problem).__name__)
            raise UnknownAccessError from problem

    async def _ask(self, login: str, now: datetime) -> Scope | None:
        try:
            scope = None
            if await self._is_one_of(self._operators, login):
                scope = EVERYTHING
            elif await self._is_one_of(self._viewers, login):
                scope = await self._readable(login)
            self._known = {of: one for of, one in self._known.items() if now - one[0] < OLDEST}
            self._known[login] = now, scope
            return scope
        finally:
            del self._asking[login]

    async def _is_one_of(self, people: Collection[str], login: str) -> bool:
        if login == WITH_TOKEN:  # in the record of who did what, this is not a person
            return False
        return await is_one_of(self.sign_in.github, people, login)

    async def _readable(self, login: str) -> Scope:
        """Return the repositories of the bot that the person can read."""
        platform, at_once = self._calls.ctx.platform, asyncio.Semaphore(ASKED_AT_ONCE)
        async with self._calls.connection() as connection:
            ours = await upkeep.codebases(connection, platform)

        async def may_read(repository: Repository) -> bool:
            async with at_once:
                try:
                    return await self.sign_in.github.may_read(repository, login)
                except (NotFound, Refused, Unauthenticated):  # the bot itself may not look there any more
                    return False

        answers = await asyncio.gather(*map(may_read, ours))
        return Scope(platform, tuple(one.id for one, may in zip(ours, answers, strict=True) if may))
